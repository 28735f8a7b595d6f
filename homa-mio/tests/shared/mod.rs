//! What the tests of the drivers share.

#![allow(missing_docs, dead_code, unreachable_pub)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use homa_mio::generic::Options;
use homa_mio::sys::Sys;
use mio::{Events, Poll};

use crate::driver::{Event, Socket, Stats};

/// A server on a thread of its own that answers each request with itself.
pub struct Echo {
    pub address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Stats>>,
}

impl Echo {
    pub fn start(address: &str) -> Self {
        Self::start_with(address, Socket::builder())
    }

    pub fn start_with<S: Sys + Send + 'static>(address: &str, options: Options<S>) -> Self {
        let mut socket = options.bind(address.parse().unwrap()).unwrap();
        let address = socket.local_addr();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if let Some(Event::Request { rpc, message, .. }) =
                    socket.wait(Some(Duration::from_millis(20))).unwrap()
                {
                    let _ = socket.reply(rpc, message);
                }
            }
            socket.stats()
        });
        Self {
            address,
            stop,
            thread: Some(thread),
        }
    }

    /// Ends the server, as if it were killed, once it has read what was sent to it.
    pub fn stop(mut self) -> Stats {
        std::thread::sleep(Duration::from_millis(100));
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// One round of an event loop. The kernel may interrupt it with news of a ring.
pub fn poll_once(poll: &mut Poll, events: &mut Events, timeout: Option<Duration>) {
    while let Err(error) = poll.poll(events, timeout) {
        assert_eq!(error.kind(), std::io::ErrorKind::Interrupted);
    }
}

/// Bytes that differ from place to place and from message to message.
pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ seed.wrapping_mul(97)) as u8)
        .collect()
}
