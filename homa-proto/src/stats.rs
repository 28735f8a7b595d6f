//! Counters: every drop, fallback, resend and grant.

use crate::error::DropReason;
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
    /// Bytes in them.
    bytes_received,
    /// Packets written by `poll_transmit`.
    packets_sent,
    /// Bytes in them.
    bytes_sent,
    /// Message bytes that arrived for the first time.
    message_bytes_received,
    /// Message bytes sent for the first time.
    message_bytes_sent,

    /// Requests taken from the application.
    requests_sent,
    /// Responses taken from the application.
    responses_sent,
    /// Requests that arrived whole.
    requests_received,
    /// Responses that arrived whole.
    responses_received,
    /// Requests of this endpoint that failed.
    requests_failed,
    /// RPCs cancelled by the application.
    cancelled,
    /// Requests given up at the server because the client fell silent in the middle of them.
    requests_abandoned,
    /// RPCs that a server gave up because its client no longer knew them.
    clients_gone,
    /// Responses that were never acknowledged and were given up after a long silence.
    responses_unacknowledged,

    /// DATA packets sent, those sent again included.
    data_sent,
    /// DATA packets sent again in answer to a RESEND.
    retransmits_sent,
    /// Those among them of messages that had been sent again before: what went first did not
    /// arrive either, or the receiver was slow to look at it.
    retransmits_repeated,
    /// Ranges asked for again that could not be noted: the receiver asks once more.
    retransmits_refused,
    /// DATA packets without data that announce a message.
    announces_sent,
    /// GRANT packets sent.
    grants_sent,
    /// RESEND packets sent.
    resends_sent,
    /// RESENDs among these that were sent because later data had arrived.
    resends_early,
    /// Holes asked for early that were filled by a packet that had only been late.
    resends_spurious,
    /// RESENDs among these that were sent because a buffer was found at last.
    resends_for_buffer,
    /// RESENDs and NEED_ACKs put off because their peer had its share of them.
    resends_deferred,
    /// RESENDs not sent because the peer owed an answer to one about another RPC and nothing at all was heard of it.
    resends_spared,
    /// RESENDs of no bytes, not among these, that ask a client whether it still waits.
    probes_sent,
    /// RPC_UNKNOWN packets sent.
    unknowns_sent,
    /// BUSY packets sent.
    busys_sent,
    /// CUTOFFS packets sent.
    cutoffs_sent,
    /// NEED_ACK packets sent.
    need_acks_sent,
    /// ACK packets sent.
    acks_sent,
    /// Acknowledgements that rode in DATA packets.
    acks_piggybacked,
    /// Answers to packets of unknown RPCs dropped for want of room or by the rate limit.
    replies_limited,
    /// Control packets not sent to peers that may be forged, for more than that came from there.
    withheld_from_strangers,
    /// RPCs whose peer has said too often that it is busy, and done nothing.
    busy_too_long,

    /// GRANT packets received.
    grants_received,
    /// RESEND packets received.
    resends_received,
    /// RPC_UNKNOWN packets received.
    unknowns_received,
    /// BUSY packets received.
    busys_received,
    /// CUTOFFS packets received.
    cutoffs_received,
    /// NEED_ACK packets received.
    need_acks_received,
    /// ACK packets received.
    acks_received,
    /// RPCs that ended at this server because their client acknowledged the response.
    acknowledged,
    /// Acknowledgements of RPCs that were not being answered.
    acks_stale,

    /// Bytes granted.
    bytes_granted,
    /// Grants of the share for the oldest message.
    fifo_grants,
    /// An active message was granted less than its window because `max_incoming` was used up.
    grants_short_of_headroom,
    /// Peers that sat on their grants and got no more until they sent again.
    peers_silenced,
    /// Times that an incoming message had to wait for a buffer.
    buffer_waits,
    /// Nanoseconds during which this endpoint had messages to send, but none that was granted.
    sender_idle_ns,
    /// Requests that waited because too much was on its way to their server unheard.
    requests_parked,
    /// Changes of the cutoffs of unscheduled priorities.
    cutoff_changes,
    /// Late calls of `handle_timeout`: silence was not held against anybody.
    late_timeouts,

    /// Peers that left the table to make room.
    peers_evicted,
    /// Ended requests that had to be forgotten before their time: the window of at-most-once had
    /// to shrink.
    ended_window_shrunk,

    /// Dropped: shorter than the type's fixed length.
    dropped_truncated,
    /// Dropped: unknown type.
    dropped_unknown_type,
    /// Dropped: source or destination port 0.
    dropped_bad_port,
    /// Dropped: impossible id.
    dropped_bad_id,
    /// Dropped: message length 0 or above the limit.
    dropped_bad_length,
    /// Dropped: data that starts beyond its message.
    dropped_bad_offset,
    /// Dropped: data that ends beyond its message.
    dropped_overrun,
    /// Dropped: a source that cannot be answered.
    dropped_bad_source,
    /// Dropped: no such port here.
    dropped_port_not_open,
    /// Dropped: FREEZE.
    dropped_ignored,
    /// Dropped: for an unknown RPC, of a type that needs no answer.
    dropped_unknown_rpc,
    /// Dropped: a request that has run and ended.
    dropped_ended_rpc,
    /// Dropped: other ports than the RPC has, or impossible in its state.
    dropped_mismatch,
    /// Dropped: data that had arrived before.
    dropped_duplicate,
    /// Dropped: another message length than before.
    dropped_length_changed,
    /// Dropped: data of a message that waits for a buffer.
    dropped_no_buffer,
    /// Dropped: more holes than are kept.
    dropped_too_many_gaps,
    /// Dropped: a new request, and no RPC slot is free.
    dropped_rpcs_full,
    /// Dropped: a new request beyond what its peer, or all strangers together, may have under way.
    dropped_over_budget,
    /// Dropped: a new peer, and no peer slot is free.
    dropped_peers_full,
    /// Dropped: says nothing new.
    dropped_stale,
    /// Dropped: answering would exceed a rate limit.
    dropped_rate_limited,
    /// Dropped: a message that can never fit the buffer source.
    dropped_too_long_for_buffers,
}

/// Adds 1 to a counter.
#[inline]
pub(crate) fn count(counter: &mut u64) {
    *counter = counter.wrapping_add(1);
}

impl Stats {
    /// Packets dropped for any reason.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.iter()
            .filter(|(name, _)| name.starts_with("dropped_"))
            .fold(0, |sum, (_, n)| sum.wrapping_add(n))
    }

    pub(crate) fn count_drop(&mut self, why: DropReason) {
        count(match why {
            DropReason::Malformed(Malformed::Truncated) => &mut self.dropped_truncated,
            DropReason::Malformed(Malformed::UnknownType) => &mut self.dropped_unknown_type,
            DropReason::Malformed(Malformed::BadPort) => &mut self.dropped_bad_port,
            DropReason::Malformed(Malformed::BadId) => &mut self.dropped_bad_id,
            DropReason::Malformed(Malformed::BadLength) => &mut self.dropped_bad_length,
            DropReason::Malformed(Malformed::BadOffset) => &mut self.dropped_bad_offset,
            DropReason::Malformed(Malformed::Overrun) => &mut self.dropped_overrun,
            DropReason::BadSource => &mut self.dropped_bad_source,
            DropReason::PortNotOpen => &mut self.dropped_port_not_open,
            DropReason::Ignored => &mut self.dropped_ignored,
            DropReason::UnknownRpc => &mut self.dropped_unknown_rpc,
            DropReason::EndedRpc => &mut self.dropped_ended_rpc,
            DropReason::Mismatch => &mut self.dropped_mismatch,
            DropReason::Duplicate => &mut self.dropped_duplicate,
            DropReason::LengthChanged => &mut self.dropped_length_changed,
            DropReason::NoBuffer => &mut self.dropped_no_buffer,
            DropReason::TooManyGaps => &mut self.dropped_too_many_gaps,
            DropReason::RpcsFull => &mut self.dropped_rpcs_full,
            DropReason::OverBudget => &mut self.dropped_over_budget,
            DropReason::PeersFull => &mut self.dropped_peers_full,
            DropReason::Stale => &mut self.dropped_stale,
            DropReason::RateLimited => &mut self.dropped_rate_limited,
            DropReason::TooLongForBuffers => &mut self.dropped_too_long_for_buffers,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_drop_is_counted_once() {
        let mut stats = Stats::default();
        stats.count_drop(DropReason::Duplicate);
        stats.count_drop(DropReason::Malformed(Malformed::Overrun));
        assert_eq!(stats.dropped(), 2);
        assert_eq!(stats.dropped_duplicate, 1);
        assert_eq!(stats.iter().map(|(_, n)| n).sum::<u64>(), 2);
    }
}
