//! Packets from anywhere.

use homa_proto::wire::{Malformed, Repr, View};

/// Longer packets are longer in their data only.
const LONGEST: usize = 256;
/// Room for any, and a margin.
const ROOM: usize = LONGEST + 64;
// Compared as a whole: loops over bytes would be most of a run's time.
const UNTOUCHED: [u8; ROOM] = [0xaa; ROOM];

/// Takes bytes for a packet. Whatever they are they are refused with a reason, or read as a value
/// that can be written again and then reads the same.
pub fn parse(data: &[u8]) {
    let data = &data[..data.len().min(LONGEST)];
    let anything = read(data, u32::MAX);
    if let Ok(repr) = anything {
        rewrite(repr);
    }
    // A lower limit only refuses more, for the length.
    let max_message = if data.len().is_multiple_of(2) {
        1
    } else {
        1_000_000
    };
    let limited = read(data, max_message);
    assert!(limited == anything || limited == Err(Malformed::BadLength));
    // All that is longer than the longest header can be short of is data.
    let start = &data[..data.len().min(27)];
    assert_eq!(
        View::parse(start, u32::MAX).err(),
        Some(Malformed::Truncated)
    );
}

/// Reads a packet in both ways, which must agree.
fn read(data: &[u8], max_message: u32) -> Result<Repr<'_>, Malformed> {
    let repr = Repr::parse(data, max_message);
    match View::parse(data, max_message) {
        Ok(view) => assert_eq!(Ok(Repr::from(&view)), repr),
        Err(why) => assert_eq!(Err(why), repr),
    }
    repr
}

fn rewrite(repr: Repr<'_>) {
    let len = repr.len();
    let (mut once, mut twice) = (UNTOUCHED, [0x55; ROOM]);
    assert_eq!(repr.emit(&mut once), Some(len));
    let read = Repr::parse(&once[..len], u32::MAX).expect("what was read can be sent");
    assert_eq!(read.common(), repr.common());
    assert_eq!(read.packet_type(), repr.packet_type());
    assert_eq!(read.emit(&mut twice), Some(len));
    // Bytes that are not written would show, and those beyond the packet.
    assert_eq!(once[..len], twice[..len]);
    assert_eq!(once[len..], UNTOUCHED[len..]);
    // Priorities and cutoffs may have been cut to what may be sent, but only once.
    assert_eq!(Repr::parse(&twice[..len], u32::MAX), Ok(read));

    once = UNTOUCHED;
    assert_eq!(repr.emit(&mut once[..len - 1]), None);
    assert!(once == UNTOUCHED, "a part of a packet was written");
}
