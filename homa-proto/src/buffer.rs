//! Where the bytes of incoming messages go: buffer sources.

#[cfg(feature = "alloc")]
use alloc::vec::Vec;
use core::ops::{Deref, DerefMut};

/// Gives memory for incoming messages.
///
/// The core asks once per message, when its first packet tells the length, and hands the filled
/// buffer out by value with the event. A buffer whose message fails is given back.
pub trait BufferSource {
    /// Memory for one message.
    type Buffer: AsRef<[u8]> + AsMut<[u8]>;

    /// A buffer of exactly `len` bytes (as `as_ref` shows it), or `None` when none is free now:
    /// then the message waits, ungranted, and is served when a buffer comes back.
    fn take(&mut self, len: usize) -> Option<Self::Buffer>;

    /// Takes a buffer back for reuse.
    fn give_back(&mut self, buffer: Self::Buffer);

    /// The longest message that could ever get a buffer, in bytes. Longer ones are refused at
    /// once instead of waiting for ever.
    fn max_len(&self) -> usize;
}

/// Memory for one message from [`HeapBuffers`]. Dereferences to the message's bytes.
#[cfg(feature = "alloc")]
#[derive(Clone, Default)]
pub struct HeapBuffer {
    // All of `data` is initialised once and stays so; the message is its first `len` bytes.
    data: Vec<u8>,
    len: usize,
}

#[cfg(feature = "alloc")]
impl HeapBuffer {
    /// The bytes as a vector, without copying.
    #[must_use]
    pub fn into_vec(mut self) -> Vec<u8> {
        self.data.truncate(self.len);
        self.data
    }
}

#[cfg(feature = "alloc")]
impl From<Vec<u8>> for HeapBuffer {
    fn from(data: Vec<u8>) -> Self {
        let len = data.len();
        Self { data, len }
    }
}

#[cfg(feature = "alloc")]
impl Deref for HeapBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.data.get(..self.len).unwrap_or(&[])
    }
}

#[cfg(feature = "alloc")]
impl DerefMut for HeapBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.data.get_mut(..self.len).unwrap_or(&mut [])
    }
}

#[cfg(feature = "alloc")]
impl AsRef<[u8]> for HeapBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

#[cfg(feature = "alloc")]
impl AsMut<[u8]> for HeapBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

#[cfg(feature = "alloc")]
impl core::fmt::Debug for HeapBuffer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "HeapBuffer({} bytes)", self.len)
    }
}

/// Memory from the heap, kept for reuse.
///
/// At most `max_total` bytes are out at once; freed buffers up to `max_kept` bytes in all are
/// kept, by size class, so that a steady load allocates nothing.
#[cfg(feature = "alloc")]
#[derive(Debug)]
pub struct HeapBuffers {
    max_total: usize,
}

#[cfg(feature = "alloc")]
#[allow(clippy::todo)]
impl HeapBuffers {
    /// A source that has at most `max_total` bytes out at once.
    #[must_use]
    pub fn new(max_total: usize) -> Self {
        Self { max_total }
    }
}

#[cfg(feature = "alloc")]
#[allow(clippy::todo)]
impl BufferSource for HeapBuffers {
    type Buffer = HeapBuffer;
    fn take(&mut self, _len: usize) -> Option<HeapBuffer> {
        todo!()
    }
    fn give_back(&mut self, _buffer: HeapBuffer) {
        todo!()
    }
    fn max_len(&self) -> usize {
        self.max_total
    }
}
