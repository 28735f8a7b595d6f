//! Memory that the kernel reads and writes while requests are under way.

use std::io;
use std::ptr::NonNull;

/// Zeroed memory of whole pages. It is given back by [`free`](Self::free) alone: whoever drops it
/// otherwise leaks it, because the kernel may still be writing there.
pub(crate) struct Region {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: it is memory like that of a `Box<[u8]>`; no thread has a claim on it.
unsafe impl Send for Region {}

impl Region {
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }

    /// The address of a `T` at this offset.
    ///
    /// # Panics
    /// It would not lie inside, or not be aligned.
    pub(crate) fn at<T>(&self, offset: usize) -> NonNull<T> {
        let end = offset.checked_add(size_of::<T>());
        assert!(end.is_some_and(|end| end <= self.len), "inside the region");
        // SAFETY: checked to be inside of the mapping.
        let place = unsafe { self.start.add(offset) }.cast::<T>();
        assert!(place.is_aligned(), "the mapping starts on a page");
        place
    }

    /// Gives the memory back.
    ///
    /// # Safety
    /// Nobody uses it any more, the kernel included.
    pub(crate) unsafe fn free(self) {
        // SAFETY: the mapping that `new` has made, which nobody uses, as the caller promises.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}
