//! Packets under way: what the network needs to know of them, and what only the transport does.

/// A host's number, from 0.
pub type HostId = u16;

/// Bytes that Ethernet adds to each IP packet: preamble 8, header 14, check 4, gap 12, and a VLAN tag 4
/// (which carries the priority).
pub const ETHERNET_OVERHEAD: u32 = 42;

/// The shortest Ethernet frame on the wire, in bytes, all overhead included.
pub const ETHERNET_MINIMUM: u32 = 84;

/// Bytes that an IP packet of `ip_bytes` takes on the wire.
#[must_use]
pub const fn wire_bytes(ip_bytes: u32) -> u32 {
    let bytes = ip_bytes + ETHERNET_OVERHEAD;
    if bytes < ETHERNET_MINIMUM {
        ETHERNET_MINIMUM
    } else {
        bytes
    }
}

/// The two ECN bits of the IP header.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ecn {
    /// The transport does not take part.
    #[default]
    NotCapable,
    /// Switches may mark instead of drop.
    Capable,
    /// Marked: congestion experienced.
    Marked,
}

/// Where a packet waited behind others, in nanoseconds. Modulo 2^32, as no packet waits for seconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Waited {
    /// For the card of its host.
    pub card_ns: u32,
    /// In the queues of switches.
    pub ports_ns: u32,
}

impl std::ops::AddAssign for Waited {
    fn add_assign(&mut self, other: Self) {
        self.card_ns = self.card_ns.wrapping_add(other.card_ns);
        self.ports_ns = self.ports_ns.wrapping_add(other.ports_ns);
    }
}

/// What switches and links see of a packet.
#[derive(Clone, Copy, Debug, Default)]
pub struct Packet {
    /// Sender.
    pub from: HostId,
    /// Receiver.
    pub to: HostId,
    /// Bytes on the wire, framing included.
    pub wire_bytes: u32,
    /// Bytes of message data inside.
    pub data_bytes: u32,
    /// 0 to 7, 7 the most urgent.
    pub priority: u8,
    /// ECN bits.
    pub ecn: Ecn,
    /// The kind of packet, as the transport numbers them (0 = data).
    pub kind: u8,
    /// Packets of one flow take one path where paths are chosen by flow.
    pub flow: u32,
    /// What it has waited for so far.
    pub waited: Waited,
    /// Node that it reaches next.
    pub(crate) at: u32,
    /// Next packet in the same queue.
    pub(crate) next: u32,
}

pub(crate) const NO_PACKET: u32 = u32::MAX;

/// All packets under way. Slots are reused, so that a steady load allocates nothing.
pub struct Packets<B> {
    packets: Vec<Packet>,
    bodies: Vec<B>,
    free: Vec<u32>,
}

impl<B: Default> Default for Packets<B> {
    fn default() -> Self {
        Self {
            packets: Vec::new(),
            bodies: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<B: Default> Packets<B> {
    /// A free slot, with whatever its last user left in it.
    pub fn reserve(&mut self) -> u32 {
        if let Some(slot) = self.free.pop() {
            return slot;
        }
        self.packets.push(Packet::default());
        self.bodies.push(B::default());
        self.packets.len() as u32 - 1
    }

    /// Gives a slot back.
    pub fn release(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// The packet in a slot.
    #[inline]
    pub fn get(&mut self, slot: u32) -> &mut Packet {
        &mut self.packets[slot as usize]
    }

    /// The transport's part of the packet in a slot.
    #[inline]
    pub fn body(&mut self, slot: u32) -> &mut B {
        &mut self.bodies[slot as usize]
    }

    /// Slots in use.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.packets.len() - self.free.len()
    }
}
