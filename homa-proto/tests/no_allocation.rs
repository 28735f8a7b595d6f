//! After warm-up the core allocates nothing: shown by an allocator that counts.
#![cfg(feature = "alloc")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::SocketAddr;

use homa_proto::{
    BufferSource, Config, Endpoint, Event, FixedBuffer, FixedBuffers, FixedStorage, HeapBuffers,
    Instant, Limits, RequestOptions, Storage,
};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that is going away counts no more.
    let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: everything is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps to the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above; `memory` came from `System`.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const PORT: u16 = 4000;
/// Lengths of requests, and by one step further of responses: one packet, some, scheduled.
const LENGTHS: [usize; 5] = [100, 1_416, 5_000, 70_000, 200_000];

fn addr(at: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1 + at as u8], PORT))
}

fn config() -> Config {
    Config {
        link_bps: 10_000_000_000,
        rtt_ns: 20_000,
        // Retries, and with them all of recovery, come quickly.
        resend_floor_ns: 100_000,
        ..Config::default()
    }
}

/// Two endpoints joined in memory, where every 50th packet is lost.
struct Pair<'a, S: BufferSource> {
    nodes: [Endpoint<'a, &'static [u8], S>; 2],
    now: Instant,
    packets: u64,
}

impl<S: BufferSource> Pair<'_, S> {
    /// Takes in and gives out everything until `count` RPCs have been answered.
    fn run(&mut self, count: u64) {
        static MESSAGE: [u8; 200_000] = [7; 200_000];
        let message = |n: u64| &MESSAGE[..LENGTHS[n as usize % LENGTHS.len()]];
        let mut buffer = [0; 1500];
        let (mut started, mut answered) = (0, 0);
        while answered < count {
            while started < count && started < answered + 6 {
                let options = RequestOptions {
                    cookie: started,
                    deadline: started
                        .is_multiple_of(2)
                        .then(|| self.now.after(900_000_000)),
                    ..RequestOptions::default()
                };
                self.nodes[0]
                    .send_request(self.now, addr(1).into(), message(started), options)
                    .unwrap();
                started += 1;
            }
            let mut quiet = true;
            for at in 0..2 {
                let [first, second] = &mut self.nodes;
                let (from, to) = if at == 0 {
                    (first, second)
                } else {
                    (second, first)
                };
                while let Some(gather) = from.poll_transmit_gather(self.now, &mut buffer) {
                    quiet = false;
                    let sent = gather.transmit;
                    let segment = sent.segment_size.unwrap_or(sent.len);
                    let whole = match gather.payload {
                        [] => &buffer[..sent.len],
                        _ => &[],
                    };
                    let whole = whole.chunks(segment).map(|packet| (packet, &[][..]));
                    for (header, data) in whole.chain(gather.packets(&buffer)) {
                        self.packets += 1;
                        if self.packets.is_multiple_of(50) {
                            continue;
                        }
                        let mut packet = [0; 1500];
                        let len = header.len() + data.len();
                        packet[..header.len()].copy_from_slice(header);
                        packet[header.len()..len].copy_from_slice(data);
                        let _ = to.handle_packet(self.now, addr(at), None, &packet[..len]);
                    }
                }
                while let Some(event) = self.nodes[at].poll_event() {
                    quiet = false;
                    match event {
                        Event::Request {
                            rpc,
                            message: request,
                            ..
                        } => {
                            let n = request.as_ref().len() as u64;
                            self.nodes[at].recycle(self.now, request);
                            self.nodes[at]
                                .send_response(self.now, rpc, message(n + 1))
                                .unwrap();
                        }
                        Event::Response { message, .. } => {
                            self.nodes[at].recycle(self.now, message);
                            answered += 1;
                        }
                        Event::Released {
                            outcome: Ok(()), ..
                        } => {}
                        _ => panic!("an RPC failed"),
                    }
                }
            }
            if quiet {
                let next = self
                    .nodes
                    .iter_mut()
                    .filter_map(Endpoint::poll_timeout)
                    .map(|(at, _)| at)
                    .min();
                self.now = self.now.max(next.expect("something is on its way"));
                for node in &mut self.nodes {
                    node.handle_timeout(self.now);
                }
            }
        }
    }

    fn steady(&mut self) {
        self.nodes
            .iter_mut()
            .for_each(|node| node.open_port(PORT).unwrap());
        self.run(2_000);
        let before = ALLOCATIONS.get();
        self.run(1_000);
        let after = ALLOCATIONS.get();
        // The allocator does count, and the losses did cause recovery.
        drop(vec![0u8; 10]);
        assert_eq!(ALLOCATIONS.get(), after + 1);
        assert!(self.nodes[0].stats().resends_sent > 10);
        assert_eq!(after - before, 0, "allocations in a steady state");
    }
}

#[test]
fn with_heap_buffers() {
    let limits = Limits {
        rpcs: 64,
        peers: 4,
        ended: 256,
    };
    let node = |seed| {
        let mut source = HeapBuffers::new(16 << 20);
        // The worst crowd of messages that losses can lead to has been met before.
        let crowd: Vec<_> = LENGTHS
            .iter()
            .flat_map(|&len| std::iter::repeat_n(len, 12))
            .filter_map(|len| source.take(len))
            .collect();
        crowd
            .into_iter()
            .for_each(|buffer| source.give_back(buffer));
        Endpoint::new(config(), seed, Storage::boxed(limits), source).unwrap()
    };
    Pair {
        nodes: [node(1), node(2)],
        now: Instant::from_nanos(1_000_000),
        packets: 0,
    }
    .steady();
}

type Tables = FixedStorage<&'static [u8], FixedBuffer<'static>, 64, 4, 256>;

/// Tables and buffers in memory that the caller lends: nothing at all is allocated, not even at
/// the start.
#[test]
fn with_fixed_pools() {
    let lend = || {
        let tables: &'static mut Tables = Box::leak(Box::default());
        let small = vec![0u8; 32 * 8_192].leak();
        let large = vec![0u8; 16 * 200_000].leak();
        let slots = std::iter::repeat_with(|| None)
            .take(48)
            .collect::<Vec<_>>()
            .leak();
        (tables, small, large, slots)
    };
    let lent = [lend(), lend()];
    let before = ALLOCATIONS.get();
    let mut seed = 0;
    let nodes = lent.map(|(tables, small, large, slots)| {
        seed += 1;
        let source = FixedBuffers::new([(small, 8_192), (large, 200_000)], slots).unwrap();
        Endpoint::new(config(), seed, tables.storage(), source).unwrap()
    });
    assert_eq!(ALLOCATIONS.get(), before, "allocations at the start");
    Pair {
        nodes,
        now: Instant::from_nanos(1_000_000),
        packets: 0,
    }
    .steady();
}
