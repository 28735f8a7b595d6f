//! Homa as a transport under test: where the driver plugs in.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Result;
use homa_mio::{Event, Feature, Message, Options, RequestOptions, SendErrorKind, Socket, Wait};

use crate::transport::{Client, Outcome, Pair, Reply, Server};

/// A client and a server, both spinning.
pub fn pair(reply: Reply) -> Result<Pair> {
    let bind = || -> Result<Socket> { Ok(options().bind((Ipv4Addr::LOCALHOST, 0).into())?) };
    let (client, server) = (bind()?, bind()?);
    let to = server.local_addr();
    Ok((
        Box::new(HomaClient {
            socket: client,
            to,
            reply,
            spare: Vec::with_capacity(MAX_SPARE),
        }),
        Box::new(HomaServer {
            socket: server,
            reply,
        }),
    ))
}

fn options() -> Options {
    Socket::builder().wait(Wait::Spin)
}

#[derive(Debug)]
struct HomaClient {
    socket: Socket,
    to: SocketAddr,
    reply: Reply,
    /// Requests that have come back.
    spare: Vec<Message>,
}

/// Requests kept to be sent again.
const MAX_SPARE: usize = 16;
/// Bytes of a request that are made anew where only the first byte is answered.
const FRESH: usize = 64;

impl HomaClient {
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

impl Client for HomaClient {
    fn settings(&self) -> String {
        let config = self.socket.config();
        let stats = self.socket.stats();
        let speed = match config.link_bps {
            0 => "unknown, so not paced".into(),
            bps => format!("{:.1} Gb/s", bps as f64 / 1e9),
        };
        let feature = |name: &str, feature: Feature| format!("{name} {feature}");
        [
            "homa-mio, spinning".into(),
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
        match self.socket.request(self.to, message, options) {
            Ok(_) => Ok(true),
            Err(error) if error.kind == SendErrorKind::RpcsFull => Ok(false),
            Err(error) => Err(error.kind.into()),
        }
    }

    fn turn(&mut self, ended: &mut dyn FnMut(u64, Outcome<'_>)) -> Result<()> {
        while let Some(event) = self.socket.poll()? {
            match event {
                Event::Response {
                    cookie,
                    message,
                    request,
                    ..
                } => {
                    ended(cookie, Ok(&message));
                    if self.reply == Reply::FirstByte && self.spare.len() < MAX_SPARE {
                        self.spare.push(request);
                    }
                }
                Event::Failed { cookie, error, .. } => ended(cookie, Err(error.to_string())),
                // Nobody knows this socket's address, and whoever finds it gets no answer.
                Event::Request { rpc, .. } => drop(self.socket.cancel(rpc)),
                _ => {}
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
struct HomaServer {
    socket: Socket,
    reply: Reply,
}

impl Server for HomaServer {
    fn turn(&mut self) -> Result<()> {
        while let Some(event) = self.socket.poll()? {
            if let Event::Request { rpc, message, .. } = event {
                answer(&mut self.socket, rpc, message, self.reply);
            }
        }
        Ok(())
    }
}

/// Answers a request. A client that has given up in the meantime is no error.
pub fn answer(socket: &mut Socket, rpc: homa_mio::RpcId, mut message: Message, reply: Reply) {
    if reply == Reply::FirstByte {
        message.truncate(1);
    }
    let _ = socket.reply(rpc, message);
}
