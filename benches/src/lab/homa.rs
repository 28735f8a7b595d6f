//! Homa at a host.

use std::time::Duration;

use anyhow::Result;
use homa_mio::{Event, Message, RequestOptions, SendErrorKind, Socket, Wait};

use super::node::{Counters, News, Node, Place};

/// How Homa is set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    /// Told to the pacer.
    pub(super) link_bps: u64,
    /// The idle round trip as measured; 0: not yet.
    pub(super) rtt_ns: u64,
    /// Whether packets are marked with their priorities.
    pub(super) priorities: bool,
}

#[derive(Debug)]
pub(super) struct HomaNode {
    socket: Socket,
    place: Place,
}

impl HomaNode {
    pub(super) fn bind(place: Place, settings: Settings) -> Result<Self> {
        let mut options = Socket::builder()
            .wait(Wait::Sleep)
            .link_bps(settings.link_bps)
            .priorities(settings.priorities)
            .gso(std::env::var("GSO").is_ok());
        let config = options.config();
        config.rtt_ns = settings.rtt_ns;
        // Derived from link and round trip: the driver's own are for links of 100 Gb/s.
        (config.max_incoming, config.min_grant) = (0, 0);
        let env = |name: &str, default: u64| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default);
        config.min_grant = env("MIN_GRANT", 0) as u32;
        config.nic_backlog_ns = env("BACKLOG_US", 0) * 1000;
        config.resend_floor_ns = env("FLOOR_MS", 5) * 1_000_000;
        config.max_incoming = env("MAX_INCOMING", 0);
        config.unscheduled_bytes = env("UNSCHED", 0) as u32;
        config.window = env("WINDOW", 0) as u32;
        config.reorder_ns = env("REORDER_US", 0)*1000;
        config.fifo_permille = env("FIFO", 50) as u16;
        let socket = options.bind(place.own())?;
        Ok(Self { socket, place })
    }
}

impl Node for HomaNode {
    fn request(&mut self, to: usize, id: u64, message: &[u8]) -> Result<bool> {
        let message = self.socket.message(message);
        let options = RequestOptions {
            cookie: id,
            ..RequestOptions::default()
        };
        match self.socket.request(self.place.of(to), message, options) {
            Ok(_) => Ok(true),
            Err(error) if error.kind == SendErrorKind::RpcsFull => Ok(false),
            Err(error) => Err(error.kind.into()),
        }
    }

    fn turn(&mut self, timeout: Duration, news: &mut dyn FnMut(News<'_>)) -> Result<()> {
        let mut timeout = Some(timeout);
        while let Some(event) = self.socket.wait(timeout)? {
            timeout = Some(Duration::ZERO);
            match event {
                Event::Response {
                    cookie, message, ..
                } => news(News::Ended(cookie, Ok(&message))),
                Event::Failed { cookie, error, .. } => {
                    news(News::Ended(cookie, Err(error.to_string())));
                }
                Event::Request { rpc, message, .. } => {
                    news(News::Asked(&message));
                    let message: Message = message;
                    // A client that has given up wants no answer.
                    let _ = self.socket.reply(rpc, message);
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn counters(&self) -> Result<Counters> {
        let stats = self.socket.stats();
        let (core, io) = (stats.core, stats.io);
        Ok(Counters {
            retransmits: core.retransmits_sent,
            resends: core.resends_sent,
            resends_spurious: core.resends_spurious,
            grants: core.grants_sent,
            dropped: core.dropped(),
            packets_sent: core.packets_sent,
            packets_received: core.packets_received,
            calls: [io.send_calls, io.receive_calls, io.wait_calls],
        })
    }

    fn settings(&self) -> String {
        let (config, stats) = (self.socket.config(), self.socket.stats());
        format!(
            "link {} Mb/s told, {} unscheduled bytes, window {}, at most {} bytes granted, priorities {}, \
             GSO and GRO off, woken {} µs late",
            config.link_bps / 1_000_000,
            config.unscheduled_bytes,
            config.window,
            config.incoming_limit(),
            stats.priorities,
            stats.wake_latency.as_micros()
        )
    }
}
