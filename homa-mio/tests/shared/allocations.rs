//! In a steady state the driver allocates nothing: neither for a packet nor for an RPC.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::driver::Socket;
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
}
