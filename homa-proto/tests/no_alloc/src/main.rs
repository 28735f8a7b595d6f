//! Calls everything that homa-proto offers, without `std` and without a heap. See README.md.
//!
//! It is linked and never run. Whatever goes in is read from memory that the compiler knows
//! nothing about, and whatever comes out is written there, so that nothing can be left out.
#![no_std]
#![no_main]

#[cfg(feature = "counterexample")]
extern crate alloc;

use core::cell::UnsafeCell;
use core::fmt::{self, Write};
use core::hint::black_box;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicBool, Ordering};

use homa_proto::wire::{Acks, Repr, View};
use homa_proto::{
    Config, Endpoint, Event, FixedBuffer, FixedBuffers, FixedStorage, Instant, PeerAddr,
    RequestOptions, Stats,
};

/// A `static` that is lent out once. Crates such as `static_cell` and the `#[entry]` attributes
/// of embedded runtimes offer the same; then no `unsafe` is left in the program.
struct Once<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through `take` alone, and by one caller only.
unsafe impl<T: Send> Sync for Once<T> {}

impl<T> Once<T> {
    const fn new(value: T) -> Self {
        Self {
            taken: AtomicBool::new(false),
            value: UnsafeCell::new(value),
        }
    }

    /// Memory for the rest of the program. Nothing is moved: tables may be larger than the stack.
    fn take(&'static self) -> &'static mut T {
        // A load and a store, as not every target can swap; there is one thread.
        if self.taken.load(Ordering::Relaxed) {
            halt();
        }
        self.taken.store(true, Ordering::Relaxed);
        // SAFETY: the flag lets one caller pass.
        unsafe { &mut *self.value.get() }
    }
}

/// Outgoing messages: constants of the program, or received ones that are sent on.
enum Message {
    Constant(&'static [u8]),
    Received(FixedBuffer<'static>),
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Constant(bytes) => bytes,
            Self::Received(buffer) => buffer,
        }
    }
}

const SMALL: usize = 1500;
const LARGE: usize = 16_384;

static TABLES: Once<FixedStorage<Message, FixedBuffer<'static>, 16, 4, 64>> =
    Once::new(FixedStorage::new());
static SMALL_CHUNKS: Once<[u8; 8 * SMALL]> = Once::new([0; 8 * SMALL]);
static LARGE_CHUNKS: Once<[u8; 2 * LARGE]> = Once::new([0; 2 * LARGE]);
static CHUNK_SLOTS: Once<[Option<&'static mut [u8]>; 8 + 2]> = Once::new([const { None }; 8 + 2]);

/// The network card, timer and terminal of a machine that does not exist.
mod device {
    const REGISTERS: usize = 0x4000_0000;

    pub fn read(register: usize) -> u32 {
        let address = (REGISTERS + 4 * register) as *const u32;
        // SAFETY: never run; on a machine with these registers any value may be read.
        unsafe { address.read_volatile() }
    }

    pub fn write(register: usize, value: u32) {
        let address = (REGISTERS + 4 * register) as *mut u32;
        // SAFETY: never run; on a machine with these registers any value may be written.
        unsafe { address.write_volatile(value) }
    }

    pub fn receive(packet: &mut [u8]) -> usize {
        packet.iter_mut().for_each(|byte| *byte = read(1) as u8);
        read(2) as usize % (packet.len() + 1)
    }

    pub fn send(bytes: &[u8]) {
        bytes.iter().for_each(|&byte| write(3, byte.into()));
    }
}

struct Terminal;

impl Write for Terminal {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(|byte| device::write(4, byte.into()));
        Ok(())
    }
}

fn now() -> Instant {
    Instant::from_nanos(u64::from(device::read(5)) << 16)
}

fn address() -> SocketAddr {
    SocketAddr::from((device::read(6).to_be_bytes(), device::read(7) as u16))
}

type Node = Endpoint<'static, Message, FixedBuffers<'static, 2>>;

fn make() -> Option<Node> {
    let pools = [
        (&mut SMALL_CHUNKS.take()[..], SMALL),
        (&mut LARGE_CHUNKS.take()[..], LARGE),
    ];
    let source = FixedBuffers::new(pools, CHUNK_SLOTS.take())?;
    let config = Config {
        link_bps: device::read(8).into(),
        ..Config::default()
    };
    match Endpoint::new(config, black_box(1), TABLES.take().storage(), source) {
        Ok(node) => Some(node),
        Err(error) => {
            let _ = write!(Terminal, "{error}: {error:?}");
            None
        }
    }
}

fn input(node: &mut Node, packet: &mut [u8]) {
    let len = device::receive(packet);
    let local = IpAddr::V4(Ipv4Addr::from(device::read(9)));
    if let Err(why) = node.handle_packet(now(), address(), Some(local), &packet[..len]) {
        let _ = write!(Terminal, "{why}");
    }
    node.handle_packets(now(), address(), None, &packet[..len], 1472);
}

fn ask(node: &mut Node) {
    let options = RequestOptions {
        cookie: 1,
        deadline: Some(now().after(1_000_000)),
        local_port: 0,
    };
    let to = PeerAddr::new(address(), 4000);
    match node.send_request(now(), to, Message::Constant(b"question"), options) {
        Ok(rpc) if device::read(10) == 0 => drop(black_box(node.cancel(now(), rpc))),
        Ok(rpc) => {
            let _ = write!(Terminal, "{rpc:?}");
        }
        Err(error) => {
            let _ = write!(Terminal, "{error}: {error:?}");
        }
    }
}

fn recycle(node: &mut Node, message: Message) {
    if let Message::Received(buffer) = message {
        node.recycle(now(), buffer);
    }
}

fn react(node: &mut Node, event: Event<Message, FixedBuffer<'static>>) {
    match event {
        Event::Request { rpc, message, .. } => {
            if let Err(error) = node.send_response(now(), rpc, Message::Received(message)) {
                let _ = write!(Terminal, "{}", error.kind);
                recycle(node, error.message);
            }
        }
        Event::Response { message, .. } => {
            device::send(&message);
            node.recycle(now(), message);
        }
        Event::Failed { error, request, .. } => {
            let _ = write!(Terminal, "{error}");
            recycle(node, request);
        }
        Event::Released { response, .. } => recycle(node, response),
        _ => {}
    }
}

fn output(node: &mut Node, buffer: &mut [u8]) {
    while let Some(sent) = node.poll_transmit(now(), buffer) {
        let _ = write!(Terminal, "{} {:?} {}", sent.to, sent.local, sent.priority);
        for packet in buffer[..sent.len].chunks(sent.segment_size.unwrap_or(sent.len)) {
            device::send(packet);
        }
    }
    while let Some(gather) = node.poll_transmit_gather(now(), buffer) {
        for (header, payload) in gather.packets(buffer) {
            device::send(header);
            device::send(payload);
        }
    }
    while let Some(event) = node.poll_event() {
        react(node, event);
    }
    if let Some((at, reason)) = node.poll_timeout() {
        device::write(11, at.duration_since(now()).as_millis() as u32);
        let _ = write!(Terminal, "{reason:?}");
    }
}

fn tell(stats: &Stats) {
    for (name, value) in stats.iter() {
        let _ = write!(Terminal, "{name} {value} of {}", stats.dropped());
    }
}

/// A packet goes from bytes to a value and back.
fn translate(packet: &mut [u8]) {
    let mut copy = [0; 128];
    let len = device::receive(packet);
    match View::parse(&packet[..len], 1_000_000) {
        Ok(view) => {
            let repr = Repr::from(&view);
            let _ = write!(Terminal, "{repr:?}");
            if let Some(len) = repr.emit(&mut copy) {
                device::send(&copy[..len]);
            }
            if let Repr::Data { header, .. } = repr {
                device::write(12, header.emit(&mut copy).is_some().into());
            }
            let mut acks = Acks::new();
            if let View::Ack(view) = view {
                view.entries()
                    .for_each(|ack| device::write(13, acks.push(ack).into()));
            }
            let _ = write!(Terminal, "{acks:?}");
        }
        Err(why) => {
            let _ = write!(Terminal, "{why}");
        }
    }
}

/// The entry point of both targets.
#[unsafe(no_mangle)]
pub extern "C" fn _start() -> ! {
    let mut packet = [0; 1500];
    if let Some(mut node) = make() {
        if let Err(error) = node.open_port(device::read(14) as u16) {
            let _ = write!(Terminal, "{error}");
        }
        while device::read(15) == 0 {
            translate(&mut packet);
            input(&mut node, &mut packet);
            ask(&mut node);
            node.handle_timeout(now());
            output(&mut node, &mut packet);
            tell(node.stats());
            node.set_receive_buffer(device::read(16).into());
            node.set_nic_backlog_ns(device::read(17).into());
            let _ = write!(
                Terminal,
                "{:?} {:?} {:?} {} {} {}",
                node.config(),
                node.buffers(),
                node.cutoffs(),
                node.live_rpcs(),
                node.known_peers(),
                node.total_incoming(),
            );
        }
    }
    #[cfg(feature = "counterexample")]
    device::send(&alloc::vec![device::read(18) as u8; 4]);
    halt()
}

fn halt() -> ! {
    loop {
        core::hint::spin_loop();
    }
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    halt()
}
