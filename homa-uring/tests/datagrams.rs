//! Datagrams through a ring, next to what system calls make of the same.

#![allow(missing_docs)]
#![cfg(target_os = "linux")]

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use homa_mio::sys::{Ask, BATCH, Incoming, Os, Outgoing, Sys};
use homa_uring::kernel::{Completion, Faulty, Kernel, Plan};
use homa_uring::{Rung, Uring};
use io_uring::squeue::Flags;

/// A socket with its way of sending and receiving.
struct End<S> {
    socket: UdpSocket,
    sys: S,
    memory: Vec<u8>,
}

impl<S: Sys> End<S> {
    fn new(address: &str, mut sys: S) -> Self {
        let socket = UdpSocket::bind(address).unwrap();
        socket.set_nonblocking(true).unwrap();
        let fd = socket.as_fd();
        for ask in [Ask::Gro, Ask::ReceiveTos, Ask::ReceiveLocal] {
            sys.ask(fd, ask).unwrap();
        }
        sys.set_receive_buffer(fd, 8 << 20).unwrap();
        sys.start(fd).unwrap();
        let memory = vec![0; sys.receive_memory()];
        Self {
            socket,
            sys,
            memory,
        }
    }

    fn address(&self) -> SocketAddr {
        self.socket.local_addr().unwrap()
    }

    /// Receives once, within a time that only a hang takes.
    fn receive(&mut self, into: &mut [Incoming]) -> usize {
        let start = Instant::now();
        loop {
            match self
                .sys
                .receive(self.socket.as_fd(), &mut self.memory, into)
            {
                Ok(count) => return count,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            assert!(start.elapsed() < Duration::from_secs(20), "nothing comes");
        }
    }

    /// All bytes that have come, one datagram after the other, until there are so many.
    fn receive_bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut into = [Incoming::NONE; BATCH];
        while bytes.len() < len {
            let count = self.receive(&mut into);
            for (at, incoming) in into[..count].iter().enumerate() {
                bytes.extend_from_slice(&self.sys.bytes(&self.memory, at)[..incoming.len]);
            }
        }
        bytes
    }
}

fn rings() -> impl Iterator<Item = Uring> {
    let rungs = [Rung::Deferred, Rung::Cooperative, Rung::Plain];
    rungs
        .into_iter()
        .flat_map(|rung| [true, false].map(|on| Uring::default().rung(rung).multishot(on)))
}

/// The priorities of one end arrive at the other, along with all else there is to know.
fn assert_delivers<A: Sys, B: Sys>(mut from: End<A>, mut to: End<B>, address: SocketAddr) {
    let mut memory = vec![0; 8000];
    for (at, byte) in memory.iter_mut().enumerate() {
        *byte = at as u8;
    }
    for priority in 0..8_u8 {
        let batch = Outgoing {
            to: address,
            local: None,
            tos: Some(priority << 5 | 0b10),
            start: usize::from(priority) * 100,
            len: 5000,
            segment_size: Some(1200),
        };
        assert_eq!(
            from.sys
                .send(from.socket.as_fd(), &memory, &[batch])
                .unwrap(),
            1
        );
        let mut into = [Incoming::NONE; 1];
        assert_eq!(to.receive(&mut into), 1);
        let [incoming] = into;
        assert_eq!(incoming.from.unwrap().port(), from.address().port());
        assert_eq!(incoming.from.unwrap().ip().to_canonical().is_ipv4(), {
            address.ip().to_canonical().is_ipv4()
        });
        assert_eq!(incoming.tos, priority << 5 | 0b10);
        assert_eq!(incoming.segment_size, Some(1200));
        assert_eq!(incoming.len, 5000);
        let local = incoming.local.unwrap().to_canonical();
        assert_eq!(local, address.ip().to_canonical());
        assert!(!incoming.truncated && !incoming.control_truncated);
        let bytes = to.sys.bytes(&to.memory, 0);
        assert!(bytes[..5000] == memory[batch.start..][..5000]);
    }
}

#[test]
fn priorities_addresses_and_sizes_arrive_whichever_way_they_go() {
    for (from, at, to) in [
        ("127.0.0.1:0", "127.0.0.1:0", "127.0.0.1"),
        ("[::1]:0", "[::1]:0", "::1"),
        ("[::]:0", "127.0.0.1:0", "::ffff:127.0.0.1"),
        ("127.0.0.1:0", "[::]:0", "127.0.0.1"),
    ] {
        let address = |port| SocketAddr::new(to.parse().unwrap(), port);
        for ring in rings() {
            let (a, b) = (End::new(from, ring), End::new(at, Os));
            let to = address(b.address().port());
            assert_delivers(a, b, to);
        }
        for ring in rings() {
            let (a, b) = (End::new(from, Os), End::new(at, ring));
            let to = address(b.address().port());
            assert_delivers(a, b, to);
        }
    }
}

#[test]
fn what_comes_between_two_calls_is_all_there_and_in_order() {
    // More than there are buffers.
    for multishot in [true, false] {
        let ring = Uring::default().buffers(4).multishot(multishot);
        let mut end = End::new("127.0.0.1:0", ring);
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut all = Vec::new();
        for round in 0..50_u32 {
            for i in 0..round % 12 {
                let datagram = [(round * 12 + i).to_be_bytes(), [7; 4]].concat();
                sender.send_to(&datagram, end.address()).unwrap();
                all.extend(datagram);
            }
            let mut got = end.receive_bytes(8 * (round % 12) as usize);
            if !multishot {
                // Several requests wait for one datagram each, and end in any order.
                let mut parts: Vec<_> = got.chunks(8).map(<[u8]>::to_vec).collect();
                parts.sort();
                got = parts.concat();
            }
            assert_eq!(got, all, "round {round}");
            all.clear();
        }
    }
}

/// A small random generator.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// Whatever can go wrong when requests are handed over, often.
struct Anything(Dice);

// SAFETY: tags and buffers of completions stay as they are.
unsafe impl Plan for Anything {
    fn spoil(&mut self, tag: u64) -> Option<Flags> {
        let is_send = tag >> 56 == 1;
        // It does not matter whether the last of a call is linked.
        (is_send && self.0.roll(9) == 0).then_some(Flags::IO_LINK)
    }

    fn enter(&mut self, submit: &mut u32) -> Option<i32> {
        if *submit > 0 && self.0.roll(4) == 0 {
            *submit = self.0.roll(u64::from(*submit)) as u32;
        }
        match self.0.roll(12) {
            0 => Some(libc::EAGAIN),
            1 => Some(libc::EBUSY),
            2 => Some(libc::EINTR),
            _ => None,
        }
    }

    fn completion(&mut self, completion: &mut Completion) {
        if completion.result == -libc::EBADF {
            completion.result = -libc::EAGAIN;
        }
    }
}

#[test]
fn whatever_fails_everything_arrives_once_and_in_order() {
    for rung in [Rung::Deferred, Rung::Cooperative, Rung::Plain] {
        let kernel = Faulty::new(Anything(Dice(0x9e37_79b9)));
        let mut from = End::new("127.0.0.1:0", Uring::over(kernel).rung(rung));
        let mut to = End::new("127.0.0.1:0", Os);
        let mut dice = Dice(77);
        let mut number = 0_u32;
        for _ in 0..400 {
            // A queue of batches, handed over again and again until all have gone.
            let mut memory = Vec::new();
            let mut batches = Vec::new();
            for _ in 0..=dice.roll(20) {
                let count = dice.roll(6) as usize + 1;
                let start = memory.len();
                for _ in 0..count {
                    number += 1;
                    memory.extend(number.to_be_bytes());
                }
                batches.push(Outgoing {
                    to: to.address(),
                    local: None,
                    tos: Some(0),
                    start,
                    len: memory.len() - start,
                    segment_size: (count > 1).then_some(4),
                });
            }
            let mut gone = 0;
            while gone < batches.len() {
                match from
                    .sys
                    .send(from.socket.as_fd(), &memory, &batches[gone..])
                {
                    Ok(sent) => {
                        assert!(sent > 0 && sent <= batches.len() - gone);
                        gone += sent;
                    }
                    Err(error) => {
                        let code = error.raw_os_error().unwrap_or_else(|| panic!("{error}"));
                        let passing = [libc::EAGAIN, libc::ENOBUFS, libc::EINTR];
                        assert!(passing.contains(&code), "{error}");
                    }
                }
            }
            assert!(to.receive_bytes(memory.len()) == memory);
            memory.fill(0);
        }
    }
}

/// A page of memory from the system.
struct Page(*mut [u8; 4096]);

impl Page {
    fn new() -> Self {
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a new mapping touches no other memory.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0) };
        assert_ne!(page, libc::MAP_FAILED);
        let page = page.cast::<[u8; 4096]>();
        // SAFETY: it has just been mapped, writable.
        unsafe { page.write([0x11; 4096]) };
        Self(page)
    }

    fn is_untouched(&self) -> bool {
        // SAFETY: mapped by `new`; volatile, because the kernel may have written there.
        let bytes = unsafe { self.0.read_volatile() };
        bytes == [0x11; 4096]
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and used no more.
        unsafe { libc::munmap(self.0.cast(), 4096) };
    }
}

/// Rings are dropped with all that is under way in them, and the kernel does not write to memory
/// that they have given back.
fn assert_left_alone<K: Kernel + Send + 'static>(
    count: usize,
    elsewhere: bool,
    make: impl Fn() -> Uring<K>,
) {
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    for round in [0, 20] {
        let mut ends: Vec<_> = (0..count)
            .map(|_| End::new("127.0.0.1:0", make()))
            .collect();
        for end in &mut ends {
            let _ = end
                .sys
                .receive(end.socket.as_fd(), &mut [], &mut [Incoming::NONE]);
            for _ in 0..round {
                sender.send_to(&[0xee; 1400], end.address()).unwrap();
            }
        }
        let kept: Vec<_> = ends
            .iter()
            .map(|end| end.socket.try_clone().unwrap())
            .collect();
        if elsewhere {
            std::thread::spawn(move || drop(ends)).join().unwrap();
        } else {
            drop(ends);
        }
        // Pages that come to lie where the memory of the rings was.
        let pages: Vec<_> = (0..count * 1100).map(|_| Page::new()).collect();
        for socket in kept {
            for _ in 0..50 {
                sender
                    .send_to(&[0xee; 1400], socket.local_addr().unwrap())
                    .unwrap();
            }
        }
        assert!(
            pages.iter().all(Page::is_untouched),
            "the kernel wrote to it"
        );
    }
}

#[test]
fn a_hundred_requests_under_way_can_be_dropped() {
    for multishot in [true, false] {
        for rung in [Rung::Deferred, Rung::Cooperative, Rung::Plain] {
            for elsewhere in [false, true] {
                let make = || Uring::default().rung(rung).multishot(multishot);
                // Single requests: 16 for each end, some of which are being fulfilled.
                assert_left_alone(8, elsewhere, make);
            }
        }
    }
}

/// The kernel knows no way to cancel.
struct NoCancel;

// SAFETY: tags and buffers of completions stay as they are.
unsafe impl Plan for NoCancel {
    fn spoil(&mut self, tag: u64) -> Option<Flags> {
        (tag >> 56 == 6).then_some(Flags::empty())
    }

    fn completion(&mut self, completion: &mut Completion) {
        if completion.result == -libc::EBADF {
            completion.result = -libc::EINVAL;
        }
    }
}

#[test]
fn a_kernel_that_cannot_cancel_is_waited_for() {
    assert_left_alone(2, false, || Uring::over(Faulty::new(NoCancel)));
}

/// A ring that cannot be cancelled, and is there for ever.
struct Undead;

// SAFETY: tags and buffers of completions stay as they are.
unsafe impl Plan for Undead {
    fn spoil(&mut self, tag: u64) -> Option<Flags> {
        NoCancel.spoil(tag)
    }

    fn completion(&mut self, completion: &mut Completion) {
        NoCancel.completion(completion);
    }

    fn closes(&mut self) -> bool {
        false
    }
}

#[test]
fn memory_is_leaked_rather_than_taken_from_the_kernel() {
    // What is deferred would not happen: nobody enters that ring any more.
    for multishot in [true, false] {
        assert_left_alone(1, false, || {
            Uring::over(Faulty::new(Undead))
                .rung(Rung::Plain)
                .multishot(multishot)
        });
    }
}

/// The kernel is of no use from some call on.
struct Dead {
    after: u32,
    code: i32,
}

// SAFETY: tags and buffers of completions stay as they are.
unsafe impl Plan for Dead {
    fn enter(&mut self, _: &mut u32) -> Option<i32> {
        self.after = self.after.saturating_sub(1);
        (self.after == 0).then_some(self.code)
    }
}

#[test]
fn a_ring_that_fails_is_an_error_and_not_a_hang() {
    for code in [libc::EBADR, libc::EINVAL, libc::EFAULT] {
        for after in 1..6 {
            let kernel = Faulty::new(Dead { after, code });
            let mut from = End::new("127.0.0.1:0", Uring::over(kernel));
            let to = UdpSocket::bind("127.0.0.1:0").unwrap();
            let batch = Outgoing {
                to: to.local_addr().unwrap(),
                local: None,
                tos: None,
                start: 0,
                len: 10,
                segment_size: None,
            };
            let error = (0..10)
                .find_map(|_| {
                    from.sys
                        .send(from.socket.as_fd(), &[1; 10], &[batch; 3])
                        .err()
                })
                .expect("an error");
            // Not one that is taken for something that passes.
            assert_eq!(error.raw_os_error(), None, "{error}");
            let socket = from.socket.as_fd();
            assert!(from.sys.send(socket, &[1; 10], &[batch]).is_err());
            assert!(
                from.sys
                    .receive(socket, &mut [], &mut [Incoming::NONE])
                    .is_err()
            );
        }
    }
}

/// Counts how often the kernel is entered.
#[derive(Default)]
struct Count(Arc<AtomicUsize>);

// SAFETY: tags and buffers of completions stay as they are.
unsafe impl Plan for Count {
    fn enter(&mut self, _: &mut u32) -> Option<i32> {
        self.0.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[test]
fn what_is_sent_at_once_enters_once_and_leaves_nothing_to_do() {
    for rung in [Rung::Deferred, Rung::Cooperative, Rung::Plain] {
        let count = Count::default();
        let calls = Arc::clone(&count.0);
        let ring = Uring::over(Faulty::new(count)).rung(rung);
        let mut from = End::new("127.0.0.1:0", ring);
        let mut to = End::new("127.0.0.1:0", Os);
        let look = |end: &mut End<Uring<Faulty<Count>>>| {
            let into = &mut [Incoming::NONE];
            assert!(end.sys.receive(end.socket.as_fd(), &mut [], into).is_err());
        };
        look(&mut from);
        for batches in [2, 3, 8, BATCH] {
            let memory = vec![batches as u8; 100 * batches];
            let batches: Vec<_> = (0..batches)
                .map(|at| Outgoing {
                    to: to.address(),
                    local: None,
                    tos: None,
                    start: 100 * at,
                    len: 100,
                    segment_size: None,
                })
                .collect();
            let before = calls.load(Ordering::Relaxed);
            let sent = from.sys.send(from.socket.as_fd(), &memory, &batches);
            assert_eq!(sent.unwrap(), batches.len());
            assert_eq!(calls.load(Ordering::Relaxed), before + 1);
            assert_eq!(to.receive_bytes(memory.len()), memory);
            for _ in 0..1000 {
                look(&mut from);
            }
            let looks = calls.load(Ordering::Relaxed) - before - 1;
            assert!(looks <= 4, "{rung:?}: entered {looks} times for nothing");
        }
    }
}
