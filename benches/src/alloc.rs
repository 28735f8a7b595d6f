//! A counting allocator, to show that a steady load allocates nothing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator with a count of allocations per thread. Install it with
/// `#[global_allocator]`.
#[derive(Debug)]
pub struct Counting;

/// Allocations and reallocations of the calling thread so far.
#[must_use]
pub fn allocations() -> u64 {
    COUNT.get()
}

/// Whether the program runs on [`Counting`]: otherwise a count of 0 says nothing.
#[must_use]
pub fn is_installed() -> bool {
    let before = allocations();
    drop(std::hint::black_box(Box::new(0u8)));
    allocations() > before
}

fn count() {
    // Not `with`: a thread that ends may allocate after its locals have gone.
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract of `GlobalAlloc::realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}
