//! Socket addresses and control messages as the kernel lays them out: for drivers.
//!
//! Written and read as plain bytes, so that nothing here needs `unsafe` and any bytes can be
//! thrown at the decoders.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use super::Outgoing;

/// Bytes of the longest socket address, `sockaddr_in6`.
pub const NAME_LEN: usize = 28;

/// A socket address in the kernel's form.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub struct Name {
    /// As the kernel has them.
    pub bytes: [u8; NAME_LEN],
    /// Bytes in use, as `msg_namelen` has it.
    pub len: u32,
}

impl Name {
    /// Room for the kernel to write an address of any length that is known here.
    pub const EMPTY: Self = Self {
        bytes: [0; NAME_LEN],
        len: NAME_LEN as u32,
    };

    /// An address for the kernel to read.
    pub fn encode(address: SocketAddr) -> Self {
        let mut name = Self::EMPTY;
        let b = &mut name.bytes;
        b[2..4].copy_from_slice(&address.port().to_be_bytes());
        let family = match address {
            SocketAddr::V4(a) => {
                b[4..8].copy_from_slice(&a.ip().octets());
                name.len = 16;
                libc::AF_INET
            }
            SocketAddr::V6(a) => {
                b[4..8].copy_from_slice(&a.flowinfo().to_be_bytes());
                b[8..24].copy_from_slice(&a.ip().octets());
                b[24..28].copy_from_slice(&a.scope_id().to_ne_bytes());
                libc::AF_INET6
            }
        };
        // BSDs put a length byte before a family of one byte.
        if cfg!(target_vendor = "apple") {
            b[0] = name.len as u8;
            b[1] = family as u8;
        } else {
            b[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        }
        name
    }

    /// The address in the first `len` bytes, which the kernel wrote.
    pub fn decode(&self, len: u32) -> Option<SocketAddr> {
        address(self.bytes.get(..len as usize).unwrap_or(&self.bytes))
    }
}

/// The address that the kernel wrote. `None` for a family that is not IP or a length that does
/// not fit its family.
#[must_use]
pub fn address(b: &[u8]) -> Option<SocketAddr> {
    let family = if cfg!(target_vendor = "apple") {
        c_int::from(*b.get(1)?)
    } else {
        c_int::from(u16::from_ne_bytes(array(b, 0)?))
    };
    let port = u16::from_be_bytes(array(b, 2)?);
    match (family, b.len()) {
        (libc::AF_INET, 16..) => {
            let ip = Ipv4Addr::from(array::<4>(b, 4)?);
            Some(SocketAddrV4::new(ip, port).into())
        }
        (libc::AF_INET6, 28..) => {
            let flow = u32::from_be_bytes(array(b, 4)?);
            let ip = Ipv6Addr::from(array::<16>(b, 8)?);
            let scope = u32::from_ne_bytes(array(b, 24)?);
            Some(SocketAddrV6::new(ip, port, flow, scope).into())
        }
        _ => None,
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

/// Bytes for control messages: what is received fits (TOS, GRO size and an IPv6 packet info
/// take 88), and what is sent too.
pub const CONTROL_LEN: usize = 128;

/// The length in a control message's header; messages are aligned to its size.
#[cfg(target_vendor = "apple")]
type Length = u32;
#[cfg(not(target_vendor = "apple"))]
type Length = usize;

const LENGTH: usize = size_of::<Length>();
/// Length, level and kind.
const HEADER: usize = LENGTH + 8;

const fn align(len: usize) -> usize {
    len.next_multiple_of(LENGTH)
}

/// Control messages of one `sendmsg` or `recvmsg`.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub struct Control {
    /// As the kernel has them.
    pub bytes: [u8; CONTROL_LEN],
    /// Bytes in use, as `msg_controllen` has it.
    pub len: usize,
}

/// What the control messages of a received datagram say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Info {
    /// The length of each datagram but the last.
    pub segment_size: Option<usize>,
    /// TOS or Traffic Class.
    pub tos: u8,
    /// Where it was sent to.
    pub local: Option<IpAddr>,
}

impl Control {
    /// Room for the kernel to write control messages.
    pub const ROOM: Self = Self {
        bytes: [0; CONTROL_LEN],
        len: CONTROL_LEN,
    };
    /// Nothing to send.
    pub const EMPTY: Self = Self {
        bytes: [0; CONTROL_LEN],
        len: 0,
    };

    /// What is to be said about a batch beside where it goes.
    pub fn write(&mut self, batch: &Outgoing) {
        // An IPv6 socket sends to an IPv4-mapped address by IPv4, and then only listens to the
        // control messages of IPv4.
        let ipv4 = match batch.to {
            SocketAddr::V4(_) => true,
            SocketAddr::V6(to) => to.ip().to_ipv4_mapped().is_some(),
        };
        if let Some(tos) = batch.tos {
            self.push_tos(ipv4, tos);
        }
        if let Some(local) = batch.local.map(|ip| ip.to_canonical())
            && matches!(local, IpAddr::V4(_)) == ipv4
        {
            self.push_source(local);
        }
        #[cfg(any(target_os = "linux", target_os = "android"))]
        if let Some(size) = batch.segment_size {
            self.push_segment_size(size);
        }
    }

    /// Appends a message. Panics when the room does not suffice, which the few short messages
    /// that are ever sent cannot reach.
    fn push(&mut self, level: c_int, kind: c_int, data: &[u8]) {
        let len = HEADER + data.len();
        let b = &mut self.bytes[self.len..][..align(len)];
        b[..LENGTH].copy_from_slice(&(len as Length).to_ne_bytes());
        b[LENGTH..][..4].copy_from_slice(&level.to_ne_bytes());
        b[LENGTH + 4..][..4].copy_from_slice(&kind.to_ne_bytes());
        b[HEADER..len].copy_from_slice(data);
        self.len += align(len);
    }

    /// The priority and ECN bits, for a destination in IPv4 or IPv6.
    fn push_tos(&mut self, ipv4: bool, tos: u8) {
        let value = c_int::from(tos).to_ne_bytes();
        if ipv4 {
            self.push(libc::IPPROTO_IP, libc::IP_TOS, &value);
        } else {
            self.push(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &value);
        }
    }

    /// The local address to send from.
    fn push_source(&mut self, local: IpAddr) {
        match local {
            // struct in_pktinfo: interface index, address to send from, destination (unused).
            IpAddr::V4(ip) => {
                let mut info = [0; 12];
                info[4..8].copy_from_slice(&ip.octets());
                self.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            // struct in6_pktinfo: address, interface index.
            IpAddr::V6(ip) => {
                let mut info = [0; 20];
                info[..16].copy_from_slice(&ip.octets());
                self.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
        }
    }

    /// The size of each segment but the last.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn push_segment_size(&mut self, size: u16) {
        self.push(libc::SOL_UDP, libc::UDP_SEGMENT, &size.to_ne_bytes());
    }

    /// What the first `len` bytes say, which the kernel wrote.
    pub fn decode(&self, len: usize) -> Info {
        Info::decode(self.bytes.get(..len).unwrap_or(&self.bytes))
    }
}

impl Info {
    /// Reads what is known in control messages and skips the rest. Stops at a message whose
    /// length makes no sense.
    #[must_use]
    pub fn decode(mut rest: &[u8]) -> Self {
        let mut info = Self::default();
        while let Some((level, kind, data, next)) = split_message(rest) {
            match (level, kind) {
                (libc::IPPROTO_IP, libc::IP_TOS) => info.tos = int(data) as u8,
                #[cfg(target_vendor = "apple")]
                (libc::IPPROTO_IP, libc::IP_RECVTOS) => info.tos = int(data) as u8,
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => info.tos = int(data) as u8,
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    // The destination in the packet's header, after index and local address.
                    info.local = array::<4>(data, 8).map(|ip| Ipv4Addr::from(ip).into());
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    info.local = array::<16>(data, 0).map(|ip| IpAddr::from(ip).to_canonical());
                }
                #[cfg(any(target_os = "linux", target_os = "android"))]
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    info.segment_size = usize::try_from(int(data)).ok().filter(|&size| size > 0);
                }
                _ => {}
            }
            rest = next;
        }
        info
    }
}

/// Level, kind and data of the first message, and what follows it.
fn split_message(bytes: &[u8]) -> Option<(c_int, c_int, &[u8], &[u8])> {
    #[allow(clippy::unnecessary_cast)] // 32 bits on some systems
    let len = Length::from_ne_bytes(array(bytes, 0)?) as usize;
    let level = c_int::from_ne_bytes(array(bytes, LENGTH)?);
    let kind = c_int::from_ne_bytes(array(bytes, LENGTH + 4)?);
    let data = bytes.get(HEADER..len)?;
    // The last message need not be padded.
    let next = bytes.get(align(len)..).unwrap_or(&[]);
    Some((level, kind, data, next))
}

/// An integer of four bytes or one: kernels differ in which they use for the TOS.
fn int(data: &[u8]) -> c_int {
    match array(data, 0) {
        Some(four) => c_int::from_ne_bytes(four),
        None => data.first().copied().map_or(0, c_int::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_round_trip() {
        for text in [
            "192.0.2.7:9000",
            "[2001:db8::1]:65535",
            "[::ffff:192.0.2.7]:1",
        ] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(Name::encode(address).decode(28), Some(address));
        }
        let scoped = SocketAddrV6::new("fe80::1".parse().unwrap(), 7, 5, 3).into();
        assert_eq!(Name::encode(scoped).decode(28), Some(scoped));
    }

    #[test]
    fn an_address_of_another_family_or_cut_short_is_none() {
        assert_eq!(Name::EMPTY.decode(28), None);
        for (text, whole) in [("192.0.2.1:1", 16), ("[::1]:1", 28)] {
            let name = Name::encode(text.parse().unwrap());
            for len in 0..32 {
                assert_eq!(
                    name.decode(len).is_some(),
                    len >= whole,
                    "{text}, {len} bytes"
                );
            }
        }
    }

    #[test]
    fn control_messages_survive_the_round_trip() {
        for tos in 0..=255 {
            for ipv4 in [true, false] {
                let mut control = Control::EMPTY;
                control.push_tos(ipv4, tos);
                assert_eq!(control.decode(control.len).tos, tos);
            }
        }
        let mut control = Control::EMPTY;
        control.push_source("2001:db8::1".parse().unwrap());
        control.push_tos(false, 0xe3);
        let info = control.decode(control.len);
        assert_eq!(info.local, Some("2001:db8::1".parse().unwrap()));
        assert_eq!(info.tos, 0xe3);
    }

    #[test]
    fn any_bytes_decode_without_panic_and_bytes_beyond_the_length_do_not_count() {
        let mut state = 1_u64;
        let mut byte = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        };
        let mut control = Control::EMPTY;
        control.push_tos(true, 0xe0);
        let whole = control;
        for _ in 0..if cfg!(miri) { 300 } else { 100_000 } {
            // Mostly small values, which are plausible lengths, levels and kinds.
            control.bytes =
                std::array::from_fn(|_| if byte() < 160 { byte() & 63 } else { byte() });
            let _ = control.decode(usize::from(byte()));
        }
        for len in 0..whole.len {
            let complete = len >= HEADER + 4;
            assert_eq!(whole.decode(len).tos != 0, complete, "cut to {len} bytes");
        }
    }
}
