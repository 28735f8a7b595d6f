//! Memory of messages: taken from a pool, and back there when dropped.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use homa_proto::BufferSource;

use crate::wake::Waker;

/// The bytes of a message.
///
/// Dereferences to the bytes. Memory that came from a [`Socket`](crate::Socket) returns to it
/// when the message is dropped, on whatever thread, and is used again: a steady load allocates
/// nothing. A received message can be the reply as it is.
///
/// ```
/// let message = homa_mio::Message::from(b"hello".as_slice());
/// assert_eq!(*message, *b"hello");
/// ```
#[derive(Default)]
pub struct Message {
    // All of `memory` is initialised; the message is its first `len` bytes.
    memory: Vec<u8>,
    len: usize,
    home: Option<Arc<Home>>,
}

impl Message {
    /// The bytes as a vector, without copying. The memory does not return to the pool.
    #[must_use]
    pub fn into_vec(mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.memory);
        if let Some(home) = self.home.take() {
            home.put(Vec::new(), bytes.len());
        }
        bytes.truncate(self.len);
        self.len = 0;
        bytes
    }

    /// Shortens the message to `len` bytes; no effect if it is not longer.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            let memory = std::mem::take(&mut self.memory);
            let size = memory.len();
            home.put(memory, size);
        }
    }
}

impl Deref for Message {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.memory[..self.len]
    }
}

impl DerefMut for Message {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[..self.len]
    }
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Message {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl From<Vec<u8>> for Message {
    fn from(memory: Vec<u8>) -> Self {
        let len = memory.len();
        Self {
            memory,
            len,
            home: None,
        }
    }
}

impl From<&[u8]> for Message {
    fn from(bytes: &[u8]) -> Self {
        bytes.to_vec().into()
    }
}

impl<const N: usize> From<&[u8; N]> for Message {
    fn from(bytes: &[u8; N]) -> Self {
        bytes.to_vec().into()
    }
}

impl From<&str> for Message {
    fn from(text: &str) -> Self {
        text.as_bytes().into()
    }
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Message({} bytes)", self.len)
    }
}

/// Where dropped messages go until their pool takes them up.
#[derive(Default)]
struct Home {
    /// `returned` is not empty.
    some: AtomicBool,
    /// Something has returned that the driver waits for and has not noticed.
    news: AtomicBool,
    returned: Mutex<Returned>,
    /// Wakes the driver.
    waker: Option<Waker>,
}

#[derive(Default)]
struct Returned {
    memory: Vec<Vec<u8>>,
    /// What the pool counts for `memory` and for what the application has kept for itself.
    bytes: usize,
    /// The pool has had to refuse memory since anything returned.
    missed: bool,
}

impl Home {
    fn put(&self, memory: Vec<u8>, bytes: usize) {
        let mut returned = self.lock();
        returned.bytes += bytes;
        if !memory.is_empty() {
            returned.memory.push(memory);
        }
        // Under the lock, which orders them after what they tell of.
        self.some.store(true, Ordering::Relaxed);
        if !std::mem::take(&mut returned.missed) {
            return;
        }
        self.news.store(true, Ordering::Relaxed);
        drop(returned);
        if let Some(waker) = &self.waker {
            waker.wake();
        }
    }

    // Nothing that runs under the lock stops half-way, so a poisoned lock is as good.
    fn lock(&self) -> MutexGuard<'_, Returned> {
        self.returned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The smallest memory handed out; sizes double from here.
const SMALLEST: usize = 256;
const CLASSES: usize = (usize::BITS - SMALLEST.trailing_zeros()) as usize;

/// Memory by size class, bounded in what is out and in what is kept.
pub(crate) struct Pool {
    free: Box<[Vec<Vec<u8>>; CLASSES]>,
    home: Arc<Home>,
    /// Changes places with the list of what has returned, so that neither allocates for long.
    spare: Vec<Vec<u8>>,
    out: usize,
    kept: usize,
    max_out: usize,
    max_kept: usize,
}

impl Pool {
    /// At most `max_out` bytes are out at once; up to `max_kept` bytes are kept for reuse. When
    /// memory returns that had been missed the waker is called.
    pub(crate) fn new(max_out: usize, max_kept: usize, waker: Option<Waker>) -> Self {
        Self {
            free: Box::new([const { Vec::new() }; CLASSES]),
            home: Arc::new(Home {
                waker,
                ..Home::default()
            }),
            spare: Vec::new(),
            out: 0,
            kept: 0,
            max_out,
            max_kept,
        }
    }

    /// What shows, without access to the pool, whether missed memory has returned.
    pub(crate) fn returns(&self) -> Returns {
        Returns(Arc::clone(&self.home))
    }

    /// Takes up what has been dropped since the last call.
    fn collect(&mut self) {
        if self.home.some.load(Ordering::Relaxed) {
            self.take_up(false);
        }
    }

    /// The same, and what is dropped from now on is missed.
    fn take_up(&mut self, missed: bool) {
        let mut memory = std::mem::take(&mut self.spare);
        let mut returned = self.home.lock();
        returned.missed |= missed;
        self.home.some.store(false, Ordering::Relaxed);
        std::mem::swap(&mut returned.memory, &mut memory);
        self.out -= std::mem::take(&mut returned.bytes);
        drop(returned);
        for memory in memory.drain(..) {
            self.keep(memory);
        }
        self.spare = memory;
    }

    fn keep(&mut self, memory: Vec<u8>) {
        let size = memory.len();
        if self.kept + size <= self.max_kept {
            self.kept += size;
            self.free[class(size)].push(memory);
        }
    }
}

/// The class of memory that holds `len` bytes.
fn class(len: usize) -> usize {
    let size = len.max(SMALLEST).next_power_of_two();
    (size.trailing_zeros() - SMALLEST.trailing_zeros()) as usize
}

impl BufferSource for Pool {
    type Buffer = Message;

    fn take(&mut self, len: usize) -> Option<Message> {
        self.collect();
        if len > self.max_len() {
            return None;
        }
        let class = class(len);
        let size = SMALLEST << class;
        if size > self.max_out - self.out {
            self.take_up(true);
            if size > self.max_out - self.out {
                return None;
            }
        }
        let memory = match self.free[class].pop() {
            Some(memory) => {
                self.kept -= size;
                memory
            }
            None => vec![0; size],
        };
        self.out += size;
        Some(Message {
            memory,
            len,
            home: Some(Arc::clone(&self.home)),
        })
    }

    fn give_back(&mut self, mut message: Message) {
        // Other memory goes its own way when it is dropped.
        if message
            .home
            .take_if(|home| Arc::ptr_eq(home, &self.home))
            .is_some()
        {
            let memory = std::mem::take(&mut message.memory);
            self.out -= memory.len();
            self.keep(memory);
        }
    }

    fn max_len(&self) -> usize {
        // Sizes are powers of two.
        match self.max_out.checked_ilog2() {
            Some(log2) if self.max_out >= SMALLEST => 1 << log2,
            _ => 0,
        }
    }

    fn capacity(&self) -> Option<usize> {
        Some(self.max_out)
    }
}

/// Tells whether messages have been dropped whose memory was missed.
pub(crate) struct Returns(Arc<Home>);

impl Returns {
    /// Whether there was any since [`take`](Self::take).
    pub(crate) fn any(&self) -> bool {
        self.0.news.load(Ordering::Relaxed)
    }

    /// Whether there was any since the last call.
    pub(crate) fn take(&self) -> bool {
        let any = self.any();
        if any {
            self.0.news.store(false, Ordering::Relaxed);
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_returns_when_dropped_and_is_used_again() {
        let mut pool = Pool::new(4096, 4096, None);
        let returns = pool.returns();
        let message = pool.take(1000).unwrap();
        assert_eq!((message.len(), pool.out), (1000, 1024));
        let address = message.as_ptr();
        drop(pool.take(100));
        assert!(!returns.any(), "nobody misses it");
        assert!(pool.take(3500).is_none());
        std::thread::spawn(move || drop(message)).join().unwrap();
        assert!(returns.any());
        assert!(returns.take() && !returns.take());
        let again = pool.take(600).unwrap();
        assert!(!returns.any());
        assert_eq!(
            (again.as_ptr(), again.len(), pool.out),
            (address, 600, 1024)
        );
    }

    #[test]
    fn no_more_is_out_than_allowed_and_every_way_back_counts() {
        let mut pool = Pool::new(4096, 1024, None);
        assert_eq!(pool.max_len(), 4096);
        assert!(pool.take(4097).is_none());
        let ways: [fn(&mut Pool, Message); 3] = [
            |_, message| drop(message),
            |_, message| assert_eq!(message.into_vec().len(), 1500),
            Pool::give_back,
        ];
        for back in ways {
            let (a, b) = (pool.take(1500).unwrap(), pool.take(1500).unwrap());
            assert!(pool.take(1).is_none());
            back(&mut pool, a);
            assert!(pool.take(4096).is_none());
            back(&mut pool, b);
            pool.collect();
            assert_eq!(pool.out, 0);
            assert!(pool.kept <= pool.max_kept);
        }
    }

    #[test]
    fn memory_from_elsewhere_does_not_count() {
        let mut pool = Pool::new(4096, 4096, None);
        let mut other = Pool::new(4096, 4096, None);
        let message = other.take(10).unwrap();
        pool.give_back(message);
        pool.give_back(Message::from("hello"));
        assert_eq!((pool.out, pool.kept), (0, 0));
        other.collect();
        assert_eq!((other.out, other.kept), (0, SMALLEST));
    }
}
