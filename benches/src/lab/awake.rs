//! Keeps the CPUs from going to sleep while the lab measures.
//!
//! In a virtual machine a CPU that has gone to sleep is away for as long as it takes the host to
//! bring it back, 50 to 100 µs: more than a packet takes here, and nothing that a network does. A
//! thread on each CPU that runs only when nobody else wants to keeps them awake, for all transports
//! alike.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// CPUs stay awake as long as it lives.
#[derive(Debug)]
pub(super) struct Awake {
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Awake {
    pub(super) fn start() -> io::Result<Self> {
        let mut awake = Self {
            ended: Arc::default(),
            threads: Vec::new(),
        };
        let cpus = std::thread::available_parallelism()?.get();
        for cpu in 0..cpus {
            let ended = Arc::clone(&awake.ended);
            let spin = move || {
                // Where it may not give way to everybody it must not run at all.
                if super::sys::give_way(cpu).is_ok() {
                    while !ended.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                }
            };
            awake.threads.push(std::thread::Builder::new().spawn(spin)?);
        }
        Ok(awake)
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
