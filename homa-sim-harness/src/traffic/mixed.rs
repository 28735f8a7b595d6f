//! Two applications at once.

use super::{Report, Totals};
use crate::recorder::Recorder;
use crate::report::Job;
use crate::sim::{Application, Outbox};
use crate::transport::{Delivery, Message};

/// Set in the tokens and tags of the second application, which must leave it free.
const SECOND: u32 = 1 << 31;

/// Two applications that do not know of each other. What the first has to tell is reported; the second is
/// reported too if it measures anything.
pub struct Mixed<A, B> {
    first: A,
    second: B,
    merged: Recorder,
    scratch: Outbox,
}

impl<A: Application + Report, B: Application + Report> Mixed<A, B> {
    /// Both.
    pub fn new(first: A, second: B) -> Self {
        Self {
            first,
            second,
            merged: Recorder::default(),
            scratch: Outbox::default(),
        }
    }
}

impl<A: Application + Report, B: Application + Report> Application for Mixed<A, B> {
    fn start(&mut self, out: &mut Outbox) {
        self.first.start(out);
        self.second.start(&mut self.scratch);
        self.scratch.move_to(out, SECOND);
    }

    fn wake(&mut self, now: u64, token: u32, out: &mut Outbox) {
        if token & SECOND == 0 {
            return self.first.wake(now, token, out);
        }
        self.second.wake(now, token & !SECOND, &mut self.scratch);
        self.scratch.move_to(out, SECOND);
    }

    fn delivered(&mut self, now: u64, delivery: Delivery, message: &Message, out: &mut Outbox) {
        if message.tag & SECOND == 0 {
            return self.first.delivered(now, delivery, message, out);
        }
        let mut message = *message;
        message.tag &= !SECOND;
        self.second
            .delivered(now, delivery, &message, &mut self.scratch);
        self.scratch.move_to(out, SECOND);
    }
}

impl<A: Report, B: Report> Report for Mixed<A, B> {
    fn recorder(&self) -> &Recorder {
        &self.merged
    }

    fn finish(&mut self) {
        self.merged = Recorder::default();
        self.merged.merge(self.first.recorder());
        self.merged.merge(self.second.recorder());
    }

    fn totals(&self) -> Totals {
        let (a, b) = (self.first.totals(), self.second.totals());
        Totals {
            started: a.started + b.started,
            completed: a.completed + b.completed,
            failed: a.failed + b.failed,
            begun_bytes: a.begun_bytes + b.begun_bytes,
            bytes: a.bytes + b.bytes,
        }
    }

    fn ends_at(&self) -> Option<u64> {
        self.first.ends_at()
    }

    fn finished(&self) -> bool {
        self.first.finished() && (self.first.ends_at().is_none() || self.second.finished())
    }

    fn job(&self) -> Option<Job> {
        self.first.job()
    }
}
