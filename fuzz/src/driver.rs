//! What a kernel may hand to a driver: addresses, control messages, joined datagrams.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use homa_mio::IoStats;
use homa_mio::sys::layout::{CONTROL_LEN, Control, Info, NAME_LEN, Name, address};
use homa_mio::sys::{Incoming, Outgoing};

use crate::input::{BYTES, Input};

/// Takes bytes for what a kernel has written. Whatever they are nothing panics, bytes beyond those
/// that are valid do not matter, what the drivers write themselves reads the same, and datagrams
/// are parts of what was received, in order, the last alone of another length.
pub fn driver(data: &[u8]) {
    let mut input = Input::new(data);
    // The first four as they were before there was a fifth: kept inputs stay what they are.
    match input.u8() {
        200.. => read_completion(&mut input),
        kind if kind % 4 == 0 => read_address(&mut input),
        kind if kind % 4 == 1 => read_control(&mut input),
        kind if kind % 4 == 2 => write_control(&mut input),
        _ => split(&mut input),
    }
}

fn read_address(input: &mut Input<'_>) {
    let len = u32::from(input.u8()) % 40;
    let bytes = input.bytes(NAME_LEN);
    let mut name = Name::EMPTY;
    name.bytes[..bytes.len()].copy_from_slice(bytes);
    let read = name.decode(len);
    let valid = &name.bytes[..NAME_LEN.min(len as usize)];
    assert_eq!(read, address(valid));
    if let Some(read) = read {
        let again = Name::encode(read);
        assert_eq!(again.decode(again.len), Some(read));
    }
}

fn read_control(input: &mut Input<'_>) {
    let len = usize::from(input.u8());
    let mut control = Control::ROOM;
    let bytes = input.bytes(CONTROL_LEN);
    control.bytes[..bytes.len()].copy_from_slice(bytes);
    let info = control.decode(len);
    assert!(info.segment_size.is_none_or(|size| size > 0));
    assert_eq!(info, Info::decode(&control.bytes[..len.min(CONTROL_LEN)]));
    control.bytes[len.min(CONTROL_LEN)..].fill(0xa5);
    assert_eq!(control.decode(len), info);
    // All of an input, longer than drivers have room for.
    let _ = Info::decode(input.bytes(usize::MAX));
}

/// A buffer that a ring's multishot request is said to have filled.
fn read_completion(input: &mut Input<'_>) {
    let result = usize::from(input.u16()) << (input.u8() % 4);
    let bytes = input.bytes(usize::MAX);
    let found = homa_uring::kernel::received(bytes, result);
    assert!(found.len <= result && found.len < 1 << 16);
    assert!(found.segment_size.is_none_or(|size| size > 0));
    // As driver and fuzzer see the same bytes, they see the same datagrams.
    assert_eq!(homa_uring::kernel::received(bytes, result), found);
    let mut io = IoStats::default();
    if let Some((from, datagrams, size)) = found.datagrams(&BYTES, true, &mut io) {
        assert_eq!(Some(from), found.from);
        assert!(size > 0 && datagrams.len() <= found.len);
    }
}

fn any_ip(input: &mut Input<'_>) -> IpAddr {
    let mut octets = [0; 16];
    let bytes = input.bytes(16);
    octets[..bytes.len()].copy_from_slice(bytes);
    match octets {
        [_, .., last] if last & 1 == 0 => IpAddr::from([octets[0], octets[1], octets[2], last]),
        _ if octets[0] & 3 == 0 => Ipv6Addr::from([0, 0, 0, 0, 0, 0xffff, 7, 9]).into(),
        _ => Ipv6Addr::from(octets).into(),
    }
}

/// A batch's control messages, as a driver on the other end of a loop would see them.
fn write_control(input: &mut Input<'_>) {
    let port = input.u16();
    let to = match any_ip(input) {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), port),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, input.u8().into()).into(),
    };
    let some = input.u8();
    let batch = Outgoing {
        to,
        local: (some & 1 != 0).then(|| any_ip(input)),
        tos: (some & 2 != 0).then(|| input.u8()),
        start: 0,
        len: 3000,
        segment_size: (some & 4 != 0).then(|| input.u16().max(1)),
    };
    let name = Name::encode(to);
    assert_eq!(name.decode(name.len), Some(to));
    let mut control = Control::EMPTY;
    control.write(&batch);
    assert!(control.len <= CONTROL_LEN);
    let info = control.decode(control.len);
    assert_eq!(info.tos, batch.tos.unwrap_or(0));
    // What is sent tells other things in the same places as what is received, but for the TOS.
    assert!(batch.local.is_some() || info.local.is_none());
}

fn split(input: &mut Input<'_>) {
    let flags = input.u8();
    let memory = &BYTES[..usize::from(input.u16())];
    let incoming = Incoming {
        from: (flags & 1 == 0).then(|| SocketAddr::new(any_ip(input), 7)),
        local: None,
        tos: input.u8(),
        len: usize::from(input.u16()) << (flags >> 6),
        segment_size: (flags & 2 != 0).then(|| usize::from(input.u16()) << (flags >> 6)),
        truncated: flags & 4 != 0,
        control_truncated: flags & 8 != 0,
    };
    let gro = flags & 16 != 0;
    let mut io = IoStats::default();
    let Some((from, bytes, size)) = incoming.datagrams(memory, gro, &mut io) else {
        assert_eq!(io.without_address + io.control_truncated, 1);
        return;
    };
    assert_eq!(Some(from), incoming.from);
    let received = &memory[..incoming.len.min(memory.len())];
    let (mut at, mut count, mut short) = (0, 0u64, false);
    for datagram in bytes.chunks(size) {
        assert!(!short, "a datagram behind a shorter one");
        assert_eq!(received.get(at..at + datagram.len()), Some(datagram));
        assert!(!datagram.is_empty());
        short = incoming
            .segment_size
            .is_some_and(|size| datagram.len() < size);
        at += datagram.len();
        count += 1;
    }
    if incoming.truncated {
        // At least one byte was lost, so the last datagram is not whole.
        assert!(at < received.len() || received.is_empty());
        assert_eq!(io.truncated, 1);
    } else {
        assert_eq!(at, received.len());
    }
    assert_eq!(io.joined_received, u64::from(count > 1));
    let marked = if incoming.tos & 3 == 3 { count } else { 0 };
    assert_eq!(io.congestion_marked, marked);
}
