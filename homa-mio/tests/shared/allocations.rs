//! In a steady state nothing is allocated: neither for a packet, nor for an RPC, nor for a call by
//! way of a handle.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::driver::{Driver, Request, Socket};
use crate::shared::{Echo, pattern};

/// Counts what the whole process allocates, all threads together.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc_zeroed(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// One test only: whatever else ran in this process would be counted too.
#[test]
fn a_steady_load_allocates_nothing() {
    let server = Echo::start("127.0.0.1:0");
    let mut socket = Socket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let sizes = [100, 1000, 30_000, 1_000_000];
    let messages = sizes.map(|len| pattern(len, 0));
    let mut run = |rounds| {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for _ in 0..rounds {
            for bytes in &messages {
                assert!(*socket.call(server.address, bytes).unwrap() == **bytes);
            }
        }
        ALLOCATIONS.load(Ordering::Relaxed) - before
    };
    let first = run(100);
    assert!(first > 0, "the counter works");
    assert_eq!(run(200), 0);
    drop((server, socket));
    handles_allocate_nothing(&messages);
}

/// Nor do handles: neither the caller's thread, nor the server's handler, nor the drivers.
fn handles_allocate_nothing(messages: &[Vec<u8>]) {
    let bind = || Socket::bind("127.0.0.1:0".parse().unwrap());
    let echo = |request: Request| {
        let (message, responder) = request.into_parts();
        responder.reply(message).unwrap();
    };
    let server = Driver::builder().serve(bind, echo).unwrap();
    let driver = Driver::builder().in_flight(8).spawn(bind).unwrap();
    let (client, to) = (driver.client(), server.local_addr());
    let run = |rounds| {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for _ in 0..rounds {
            // Several at once, of which one is dropped; none waits for room.
            let mut calls = [const { None }; 8];
            for (call, bytes) in calls.iter_mut().zip(messages.iter().chain(messages)) {
                *call = Some(client.call(to, bytes));
            }
            drop(calls[0].take());
            for (call, bytes) in calls.into_iter().zip(messages.iter().chain(messages)) {
                if let Some(call) = call {
                    assert!(*call.wait().unwrap() == **bytes);
                }
            }
            while client.in_flight() > 0 {
                std::thread::yield_now();
            }
        }
        ALLOCATIONS.load(Ordering::Relaxed) - before
    };
    assert!(run(40) > 0, "the counter works");
    // How much memory is out at once depends on how the threads get to run.
    assert!((0..40).any(|_| run(40) == 0), "there is no steady state");
}
