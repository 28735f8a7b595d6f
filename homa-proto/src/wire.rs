//! Packets, byte for byte.

/// What is wrong with a packet's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Malformed {
    /// Shorter than its type's fixed length.
    Truncated,
    /// A type that is not known.
    UnknownType,
    /// An id of 0 or 1, odd where it must be even or even where it must be odd.
    BadId,
    /// A source or destination port of 0.
    BadPort,
    /// A message length of 0 or above the limit.
    BadLength,
    /// Data that starts or ends beyond its message.
    BadOffset,
}
