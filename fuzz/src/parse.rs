//! Packets from anywhere.

use homa_proto::wire::{Malformed, Repr, View};

/// Longer packets are longer in their data only.
const LONGEST: usize = 256;

/// Takes bytes for a packet. Whatever they are they are refused with a reason, or read as a value
/// that can be written again and then reads the same.
pub fn parse(data: &[u8]) {
    let data = &data[..data.len().min(LONGEST)];
    let anything = read(data, u32::MAX);
    if let Ok(repr) = anything {
        rewrite(repr);
    }
    for max_message in [1, 1_000_000] {
        // A lower limit only refuses more, for the length.
        let limited = read(data, max_message);
        assert!(limited == anything || limited == Err(Malformed::BadLength));
    }
    // All that is longer than the longest header can be short of is data.
    if let Some(start) = data.get(..data.len().min(27)) {
        assert_eq!(read(start, u32::MAX), Err(Malformed::Truncated));
    }
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
    let (mut once, mut twice) = ([0xaa; LONGEST + 64], [0x55; LONGEST + 64]);
    assert_eq!(repr.emit(&mut once), Some(len));
    let read = Repr::parse(&once[..len], u32::MAX).expect("what was read can be sent");
    assert_eq!(read.common(), repr.common());
    assert_eq!(read.packet_type(), repr.packet_type());
    assert_eq!(read.emit(&mut twice), Some(len));
    // Bytes that are not written would show, and those beyond the packet.
    assert_eq!(once[..len], twice[..len]);
    assert!(once[len..].iter().all(|&byte| byte == 0xaa));
    // Priorities and cutoffs may have been cut to what may be sent, but only once.
    assert_eq!(Repr::parse(&twice[..len], u32::MAX), Ok(read));

    let mut short = [0xaa; LONGEST + 64];
    assert_eq!(repr.emit(&mut short[..len - 1]), None);
    assert!(
        short[..len - 1].iter().all(|&byte| byte == 0xaa),
        "a part of a packet was written"
    );
}
