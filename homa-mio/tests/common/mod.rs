//! What the tests share.

#![allow(missing_docs, dead_code, unreachable_pub)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use homa_mio::sys::{Os, Sys};
use homa_mio::{Event, Options, Socket, Stats};

/// A server on a thread of its own that answers each request with itself.
pub struct Echo {
    pub address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Stats>>,
}

impl Echo {
    pub fn start(address: &str) -> Self {
        Self::start_with(address, Socket::builder(), Os)
    }

    pub fn start_with<S: Sys + Send + 'static>(address: &str, options: Options, sys: S) -> Self {
        let mut socket = options.bind_with(address.parse().unwrap(), sys).unwrap();
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

/// Bytes that differ from place to place and from message to message.
pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i.wrapping_mul(31) ^ (i >> 8) ^ seed.wrapping_mul(97)) as u8)
        .collect()
}
