//! QUIC at a host: quinn, one connection to each other host, a stream for each RPC.
//!
//! A stream holds up no other. quinn sends streams in turns, which suits short messages better than one
//! after the other.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use quinn::{Connection, Endpoint, EndpointConfig, RecvStream, SendStream, TokioRuntime};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use socket2::{Domain, Socket, Type};
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use super::node::{Counters, News, Node, Place};
use crate::quic::{Identity, LONGEST, NAME, call, transport};

const MTU: u16 = 1500;

/// Bytes of UDP payload in the largest packet.
fn payload(place: Place) -> u16 {
    MTU - if place.ipv6 { 48 } else { 28 }
}

/// What has happened, told by a task.
#[derive(Debug)]
enum Told {
    Ended(u64, Result<Bytes, String>),
    Asked(Bytes),
}

#[derive(Debug)]
pub(super) struct QuicNode {
    place: Place,
    identity: Identity,
    runtime: Runtime,
    endpoint: Endpoint,
    /// By host, once they are made: the other ends need their turns for it.
    connections: Vec<watch::Receiver<Option<Connection>>>,
    told: UnboundedReceiver<Told>,
    tell: UnboundedSender<Told>,
    /// Wakes a turn in time: the runtime's own timers count milliseconds.
    alarm: AsyncFd<OwnedFd>,
}

impl QuicNode {
    pub(super) fn bind(place: Place, identity: &Identity) -> Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (tell, told) = unbounded_channel();
        let socket = Socket::new(Domain::for_address(place.own()), Type::DGRAM, None)?;
        socket.bind(&place.own().into())?;
        let mut config = EndpointConfig::default();
        config.max_udp_payload_size(payload(place))?;
        let server = identity.server(Arc::new(transport(payload(place))))?;
        let inside = runtime.enter();
        let endpoint = Endpoint::new(config, Some(server), socket.into(), Arc::new(TokioRuntime))?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK)?;
        // SAFETY: an OwnedFd keeps its one descriptor, and that open, for as long as it lives.
        let alarm = unsafe { AsyncFd::register(timer)? };
        drop(inside);
        let (accepting, serving) = (endpoint.clone(), tell.clone());
        runtime.spawn(async move {
            while let Some(incoming) = accepting.accept().await {
                let serving = serving.clone();
                tokio::spawn(async move {
                    if let Ok(connection) = incoming.await {
                        serve(connection, serving).await;
                    }
                });
            }
        });
        Ok(Self {
            place,
            identity: identity.clone(),
            runtime,
            endpoint,
            connections: Vec::new(),
            told,
            tell,
            alarm,
        })
    }
}

async fn serve(connection: Connection, tell: UnboundedSender<Told>) {
    while let Ok((send, receive)) = connection.accept_bi().await {
        let tell = tell.clone();
        // A client that has given up is no error.
        tokio::spawn(async move { answer(send, receive, &tell).await.ok() });
    }
}

async fn answer(
    mut send: SendStream,
    mut receive: RecvStream,
    tell: &UnboundedSender<Told>,
) -> Result<()> {
    let message = Bytes::from(receive.read_to_end(LONGEST).await?);
    tell.send(Told::Asked(message.clone()))?;
    send.write_chunk(message).await?;
    send.finish()?;
    Ok(())
}

async fn ask(mut made: watch::Receiver<Option<Connection>>, chunks: [Bytes; 1]) -> Result<Bytes> {
    let connection = made.wait_for(Option::is_some).await;
    let connection = connection.ok().and_then(|made| made.clone());
    call(&connection.context("QUIC does not connect")?, chunks).await
}

impl Node for QuicNode {
    fn connect(&mut self) -> Result<()> {
        let transport = transport(payload(self.place));
        let config = self.identity.client(Arc::new(transport))?;
        let _inside = self.runtime.enter();
        for host in 0..self.place.hosts {
            let (made, connection) = watch::channel(None);
            self.connections.push(connection);
            if host == self.place.host {
                continue;
            }
            let to = self.place.of(host);
            let connecting = self.endpoint.connect_with(config.clone(), to, NAME)?;
            // Without it the requests on it fail, and say so.
            self.runtime.spawn(async move {
                if let Ok(connection) = connecting.await {
                    made.send_replace(Some(connection));
                }
            });
        }
        Ok(())
    }

    fn request(&mut self, to: usize, id: u64, message: &[u8]) -> Result<bool> {
        let connection = self.connections.get(to).context("not connected")?.clone();
        let chunks = [Bytes::copy_from_slice(message)];
        let tell = self.tell.clone();
        self.runtime.spawn(async move {
            let reply = ask(connection, chunks).await;
            // The node that would want to know may have gone.
            let _ = tell.send(Told::Ended(id, reply.map_err(|error| format!("{error:#}"))));
        });
        Ok(true)
    }

    fn turn(&mut self, timeout: Duration, news: &mut dyn FnMut(News<'_>)) -> Result<()> {
        // A timer set to zero never rings.
        let wait = timeout.max(Duration::from_nanos(1));
        let at = Itimerspec {
            it_interval: Timespec::default(),
            it_value: Timespec {
                tv_sec: wait.as_secs() as i64,
                tv_nsec: wait.subsec_nanos().into(),
            },
        };
        timerfd_settime(&self.alarm, TimerfdTimerFlags::empty(), &at)?;
        let mut next = self.runtime.block_on(async {
            tokio::select! {
                told = self.told.recv() => told,
                rung = self.alarm.readable() => {
                    if let Ok(mut rung) = rung {
                        rung.clear_ready();
                    }
                    None
                }
            }
        });
        while let Some(told) = next {
            match told {
                Told::Ended(id, Ok(reply)) => news(News::Ended(id, Ok(&reply))),
                Told::Ended(id, Err(why)) => news(News::Ended(id, Err(why))),
                Told::Asked(bytes) => news(News::Asked(&bytes)),
            }
            next = self.told.try_recv().ok();
        }
        Ok(())
    }

    fn counters(&self) -> Result<Counters> {
        let mut counters = Counters::default();
        for connection in &self.connections {
            if let Some(connection) = &*connection.borrow() {
                counters.retransmits += connection.stats().path.lost_packets;
            }
        }
        Ok(counters)
    }

    fn settings(&self) -> String {
        "quinn, one connection a pair, a stream for each RPC, CUBIC, TLS 1.3 with AES-128-GCM, packets for \
         the MTU from the start, GSO and GRO, a tokio runtime of one thread"
            .into()
    }
}
