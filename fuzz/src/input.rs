//! Choices made by the bytes of an input, and what all targets send.

use std::sync::LazyLock;

use arbitrary::Unstructured;

/// Reads choices off the front of an input. Where it ends they are all 0.
pub(crate) struct Input<'a>(Unstructured<'a>);

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(Unstructured::new(bytes))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn bool(&mut self) -> bool {
        self.u8() & 1 == 1
    }

    pub(crate) fn u8(&mut self) -> u8 {
        self.0.arbitrary().unwrap_or(0)
    }

    pub(crate) fn u16(&mut self) -> u16 {
        self.0.arbitrary().unwrap_or(0)
    }

    /// A time: mostly short, in powers of two, up to 4 s.
    pub(crate) fn nanos(&mut self) -> u64 {
        let byte = self.u8();
        let fraction = 16 + u64::from(byte & 15);
        (fraction << (byte >> 4) << (byte >> 4)) * 125 / 16
    }

    /// So many bytes, or what there is.
    pub(crate) fn bytes(&mut self, count: usize) -> &'a [u8] {
        self.0.bytes(count.min(self.0.len())).unwrap_or(&[])
    }
}

/// Which of `from` a byte means.
pub(crate) fn pick<T>(from: &[T], which: u8) -> Option<&T> {
    from.get(usize::from(which).checked_rem(from.len())?)
}

/// Bytes without a period, that messages are cut from: no two messages from different places look
/// alike, and none has to be allocated.
pub(crate) static BYTES: LazyLock<Box<[u8]>> = LazyLock::new(|| {
    let mut state = 1_u64;
    std::iter::repeat_with(|| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 56) as u8
    })
    .take(1 << 18)
    .collect()
});

/// `len` bytes from a place that `at` chooses.
pub(crate) fn message(at: usize, len: usize) -> &'static [u8] {
    let at = at * 64 % (BYTES.len() - len.min(BYTES.len()) + 1);
    BYTES.get(at..at + len).unwrap_or(&BYTES)
}
