//! Homa as a transport under test: where the driver plugs in.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use homa_mio::generic::{Options, Socket};
use homa_mio::sys::{Os, Sys};
use homa_mio::{Event, Feature, Message, Reason, RequestOptions, Wait};
#[cfg(target_os = "linux")]
use homa_uring::Uring;

use crate::transport::{Client, FRESH, NAP, Outcome, Pair, Reply, Server, Setup};

/// Where packets meet the system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Driver {
    /// UDP sockets.
    Mio,
    /// io_uring, and nothing without it.
    #[cfg(target_os = "linux")]
    Uring,
    /// io_uring, or UDP sockets where it cannot be used: the settings say why.
    #[cfg(target_os = "linux")]
    UringOrMio,
}

impl Driver {
    /// A client and its servers.
    pub fn pair(self, setup: Setup) -> Result<Pair> {
        match self {
            Self::Mio => pair("homa-mio", || Os, setup),
            #[cfg(target_os = "linux")]
            Self::Uring => pair("homa-uring", Uring::default, setup),
            #[cfg(target_os = "linux")]
            Self::UringOrMio => pair("homa-uring", Uring::or_mio, setup),
        }
    }
}

fn pair<S: Sys + Default + Send + 'static>(
    name: &'static str,
    sys: impl Fn() -> S,
    setup: Setup,
) -> Result<Pair> {
    let bind = || -> Result<Socket<S>> {
        let socket = options(setup)
            .sys(sys())
            .bind((Ipv4Addr::LOCALHOST, 0).into());
        socket.with_context(|| format!("no socket for {name}"))
    };
    let servers: Vec<_> = (0..setup.peers).map(|_| bind()).collect::<Result<_>>()?;
    Ok((
        Box::new(HomaClient {
            name,
            socket: bind()?,
            to: servers.iter().map(Socket::local_addr).collect(),
            setup,
            spare: Vec::with_capacity(MAX_SPARE),
        }),
        Box::new(HomaServers {
            sockets: servers,
            setup,
        }),
    ))
}

fn options(setup: Setup) -> Options<Os> {
    let wait = if setup.sleep { Wait::Sleep } else { Wait::Spin };
    Socket::builder().wait(wait).mtu(setup.mtu)
}

#[derive(Debug)]
struct HomaClient<S: Sys> {
    name: &'static str,
    socket: Socket<S>,
    to: Vec<SocketAddr>,
    setup: Setup,
    /// Requests that have come back.
    spare: Vec<Message>,
}

/// Requests kept to be sent again.
const MAX_SPARE: usize = 16;

impl<S: Sys> HomaClient<S> {
    /// The message of a request. In a bulk transfer its memory is sent again and again, as it is
    /// over TCP and raw UDP, and only its beginning is new.
    fn message(&mut self, bytes: &[u8]) -> Message {
        let same = |spare: &Message| spare.len() == bytes.len();
        match self.spare.pop_if(|spare| same(spare)) {
            Some(mut message) => {
                let fresh = FRESH.min(bytes.len());
                message[..fresh].copy_from_slice(&bytes[..fresh]);
                message
            }
            None => self.socket.message(bytes),
        }
    }
}

impl<S: Sys> Client for HomaClient<S> {
    fn settings(&self) -> String {
        let config = self.socket.config();
        let stats = self.socket.stats();
        let speed = match config.link_bps {
            0 => "unknown, so not paced".into(),
            bps => format!("{:.1} Gb/s", bps as f64 / 1e9),
        };
        let feature = |name: &str, feature: Feature| format!("{name} {feature}");
        let driver = match stats.io_uring {
            Feature::Off(Reason::OtherDriver) => self.name.into(),
            Feature::On => format!("{}, io_uring on", self.name),
            off => format!("homa-mio in place of {}, io_uring {off}", self.name),
        };
        [
            driver,
            format!("MTU {}", config.mtu),
            feature("GSO", stats.gso),
            feature("GRO", stats.gro),
            feature("DSCP priorities", stats.priorities),
            format!("link speed {speed}"),
            format!("{} unscheduled bytes", config.unscheduled_bytes),
            format!("at most {} bytes granted", config.incoming_limit()),
        ]
        .join(", ")
    }

    fn request(&mut self, id: u64, message: &[u8]) -> Result<bool> {
        let message = self.message(message);
        let options = RequestOptions {
            cookie: id,
            ..RequestOptions::default()
        };
        let to = self.to[id as usize % self.to.len()];
        match self.socket.request(to, message, options) {
            Ok(_) => Ok(true),
            Err(error) if error.kind.is_full() => Ok(false),
            Err(error) => Err(error.kind.into()),
        }
    }

    fn turn(&mut self, ended: &mut dyn FnMut(u64, Outcome<'_>)) -> Result<()> {
        let mut next = next(&mut self.socket, self.setup.sleep)?;
        while let Some(event) = next {
            match event {
                Event::Response {
                    cookie,
                    message,
                    request,
                    ..
                } => {
                    ended(cookie, Ok(&message));
                    if self.setup.reply == Reply::FirstByte && self.spare.len() < MAX_SPARE {
                        self.spare.push(request);
                    }
                }
                Event::Failed { cookie, error, .. } => ended(cookie, Err(error.to_string())),
                // Nobody knows this socket's address, and whoever finds it gets no answer.
                Event::Request { rpc, .. } => drop(self.socket.cancel(rpc)),
                _ => {}
            }
            next = self.socket.poll()?;
        }
        Ok(())
    }

    fn system_calls(&self) -> Option<u64> {
        Some(self.socket.stats().io.system_calls())
    }
}

/// The next event. Where there is none, sleeps for it if asked to.
fn next<S: Sys>(socket: &mut Socket<S>, sleep: bool) -> std::io::Result<Option<Event>> {
    if sleep {
        socket.wait(Some(NAP))
    } else {
        socket.poll()
    }
}

/// Servers that share a thread.
#[derive(Debug)]
struct HomaServers<S: Sys> {
    sockets: Vec<Socket<S>>,
    setup: Setup,
}

impl<S: Sys + Send> Server for HomaServers<S> {
    fn turn(&mut self) -> Result<()> {
        // Several take turns, and none of them may sleep.
        let sleep = self.setup.sleep && self.sockets.len() == 1;
        for socket in &mut self.sockets {
            let mut next = next(socket, sleep)?;
            while let Some(event) = next {
                if let Event::Request { rpc, message, .. } = event {
                    answer(socket, rpc, message, self.setup.reply);
                }
                next = socket.poll()?;
            }
        }
        Ok(())
    }

    fn system_calls(&self) -> Option<u64> {
        let each = self.sockets.iter().map(|socket| socket.stats().io);
        Some(each.map(|io| io.system_calls()).sum())
    }
}

/// Answers a request. A client that has given up in the meantime is no error.
pub fn answer<S: Sys>(
    socket: &mut Socket<S>,
    rpc: homa_mio::RpcId,
    mut message: Message,
    reply: Reply,
) {
    if reply == Reply::FirstByte {
        message.truncate(1);
    }
    let _ = socket.reply(rpc, message);
}
