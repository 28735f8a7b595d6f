//! Homa at a host.

use std::time::Duration;

use anyhow::Result;
use homa_mio::generic::{Options, Socket};
use homa_mio::sys::Sys;
use homa_mio::{Event, Message, RequestOptions, Wait};

use super::node::{Counters, News, Node, Place};

/// How Homa is set.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    /// Told to the pacer.
    pub(super) link_bps: u64,
    /// The round trip of a packet under load; 0: not known yet.
    pub(super) rtt_ns: u64,
    /// Whether packets are marked with their priorities.
    pub(super) priorities: bool,
}

/// The pacer counts a full frame with preamble, checksum and gap, the emulated ports without: told
/// the rate of an Ethernet that carries as many frames, it keeps to theirs.
const WIRE_FRAME: u64 = 1_542;
const PORT_FRAME: u64 = 1_514;
/// What is handed to the link ahead, at least: so that a host that sleeps is woken for several
/// packets at once. Shorter messages overtake it, for the link has priorities too.
const BACKLOG_NS: u64 = 300_000;
/// Bytes that may pass a packet of low priority before it is thought lost, beside the driver's own
/// patience: on a link this slow the queues take far longer than threads.
const PATIENCE_BYTES: u64 = 500_000;

/// How long a peer may be silent. TCP waits for minutes; nobody here is gone.
const TIMEOUT_NS: u64 = 10_000_000_000;

#[derive(Debug)]
pub(super) struct HomaNode<S: Sys> {
    socket: Socket<S>,
    place: Place,
}

impl<S: Sys> HomaNode<S> {
    pub(super) fn bind(place: Place, settings: Settings, sys: S) -> Result<Self> {
        let Settings {
            link_bps,
            rtt_ns,
            priorities,
        } = settings;
        let mut options = Options::<homa_mio::sys::Os>::default()
            .sys(sys)
            .wait(Wait::Sleep)
            .link_bps(link_bps / PORT_FRAME * WIRE_FRAME)
            .priorities(priorities);
        let config = options.config();
        config.rtt_ns = rtt_ns;
        config.nic_backlog_ns = BACKLOG_NS;
        config.timeout_ns = TIMEOUT_NS;
        let patience_ns = PATIENCE_BYTES * 8_000_000_000 / link_bps;
        config.resend_floor_ns += patience_ns;
        // Nor is a hole a loss where later packets went at a higher priority.
        config.reorder_ns = patience_ns;
        if rtt_ns > 0 {
            // The driver's own limits are for links of 100 Gb/s.
            config.max_incoming = 0;
            let window = u128::from(link_bps) * u128::from(rtt_ns) / 8_000_000_000;
            config.min_grant = (window / 2) as u32;
        }
        let socket = options.bind(place.own())?;
        Ok(Self { socket, place })
    }
}

impl<S: Sys> Node for HomaNode<S> {
    fn request(&mut self, to: usize, id: u64, message: &[u8]) -> Result<bool> {
        let message = self.socket.message(message);
        let options = RequestOptions {
            cookie: id,
            ..RequestOptions::default()
        };
        match self.socket.request(self.place.of(to), message, options) {
            Ok(_) => Ok(true),
            Err(error) if error.kind.is_full() => Ok(false),
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
            "told a link of {:.1} Mb/s and a round trip of {} µs; {} unscheduled bytes, window {}, at \
             most {} bytes granted, RESEND after {} ms, {} µs ahead; priorities {}, GSO {}, GRO {}; \
             io_uring {}; woken {} µs late",
            config.link_bps as f64 / 1e6,
            config.rtt_ns / 1_000,
            config.unscheduled_bytes,
            config.window,
            config.incoming_limit(),
            config.resend_floor_ns / 1_000_000,
            config.nic_backlog_ns / 1_000,
            stats.priorities,
            stats.gso,
            stats.gro,
            stats.io_uring,
            stats.wake_latency.as_micros()
        )
    }
}
