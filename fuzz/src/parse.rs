//! Packets from anywhere.

use homa_proto::wire::{Malformed, Repr, View};

/// Takes bytes for a packet. Whatever they are they are refused with a reason, or read as a value
/// that can be written again and then reads the same.
pub fn parse(data: &[u8]) {
    for max_message in [1, 1_000_000, u32::MAX] {
        let view = View::parse(data, max_message);
        let repr = Repr::parse(data, max_message);
        match (view, repr) {
            (Ok(view), Ok(repr)) => {
                assert_eq!(Repr::from(&view), repr);
                rewrite(repr, max_message);
            }
            (Err(view), Err(repr)) => assert_eq!(view, repr),
            (view, repr) => panic!("{view:?} but {repr:?}"),
        }
    }
    // All that is longer than the longest header can be short of is data.
    if let Some(start) = data.get(..data.len().min(27)) {
        assert_eq!(
            View::parse(start, 1_000_000).err(),
            Some(Malformed::Truncated)
        );
    }
}

fn rewrite(repr: Repr<'_>, max_message: u32) {
    // Bytes that are not written would show.
    let (mut once, mut twice) = (vec![0xaa; repr.len()], vec![0x55; repr.len()]);
    assert_eq!(repr.emit(&mut once), Some(repr.len()));
    let read = Repr::parse(&once, max_message).expect("what was read can be sent");
    assert_eq!(read.common(), repr.common());
    assert_eq!(read.packet_type(), repr.packet_type());
    assert_eq!(read.emit(&mut twice), Some(repr.len()));
    assert_eq!(once, twice);
    // Priorities and cutoffs may have been cut to what may be sent, but only once.
    assert_eq!(Repr::parse(&twice, max_message), Ok(read));

    let mut short = vec![0xaa; repr.len() - 1];
    assert_eq!(repr.emit(&mut short), None);
    assert!(
        short.iter().all(|&byte| byte == 0xaa),
        "a part of a packet was written"
    );
}
