//! What the hosts send each other, and when.

mod fluid;
pub mod jobs;
pub mod mixed;
pub mod poisson;
pub mod workload;

use crate::recorder::Recorder;

/// What a run of an application has to tell.
pub trait Report {
    /// Messages that count.
    fn recorder(&self) -> &Recorder;
    /// Messages begun, completed and failed, those that do not count included.
    fn totals(&self) -> Totals;
    /// The run is over; called before anything is reported.
    fn finish(&mut self) {}
    /// Until when new messages are begun, in nanoseconds; `None`: until the job is done.
    fn ends_at(&self) -> Option<u64>;
    /// Whether all that counts is over.
    fn finished(&self) -> bool;
    /// Bytes on the wire of the messages begun until `now`, and how many of them links could not have carried until then, whatever
    /// the transport. Zero where that is not kept.
    fn unavoidable(&self, _now: u64) -> (f64, f64) {
        (0.0, 0.0)
    }
    /// Times of a job's steps, if it has any.
    fn job(&self) -> Option<crate::report::Job> {
        None
    }
}

/// Messages begun, completed and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Totals {
    /// Begun.
    pub started: u64,
    /// Completed.
    pub completed: u64,
    /// Failed.
    pub failed: u64,
    /// Bytes in messages begun, answers included.
    pub begun_bytes: u64,
    /// Bytes in completed messages, answers included.
    pub bytes: u64,
}
