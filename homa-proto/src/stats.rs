//! Counters: every drop, fallback, resend and grant.

use crate::error::Drop;
use crate::wire::Malformed;

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counters of an endpoint since it was made. Each only grows (and wraps at 2^64).
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Stats {
            /// Every counter with its name, in the order of their definition.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

stats! {
    /// Packets handed to `handle_packet`.
    packets_received,
    /// Packets written by `poll_transmit`.
    packets_sent,
}

impl Stats {
    pub(crate) fn count_drop(&mut self, _why: Drop) {
        let _ = Malformed::Truncated;
    }
}
