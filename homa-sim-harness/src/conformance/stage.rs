//! The books that all behaviours are checked by: each request runs at most once, has exactly one outcome, and no byte
//! is wrong.

use std::collections::VecDeque;
use std::time::Duration;

use homa_proto::{Event, RpcError, RpcId, SendErrorKind};

use super::{Settings, TestEvent, Testbed};
use crate::fault::PacketFaults;

/// Nothing takes as long as this unless it hangs, however slow or stopped the machine is.
const HANG: Duration = Duration::from_secs(150);

/// What has become of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Pending,
    Answered,
    Failed(RpcError),
    Cancelled,
}

/// A request, from its start to its end.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) client: usize,
    pub(super) server: usize,
    pub(super) rpc: RpcId,
    pub(super) len: usize,
    pub(super) reply_len: usize,
    pub(super) started: Duration,
    /// Where the server's application has it.
    pub(super) at_server: Option<RpcId>,
    /// How often it ran there.
    pub(super) runs: usize,
    pub(super) replied: bool,
    pub(super) released: Option<Result<(), RpcError>>,
    pub(super) outcome: Outcome,
}

/// A testbed, and the books of what happens on it.
pub(super) struct Stage<'a, T: Testbed> {
    pub(super) bed: &'a mut T,
    pub(super) calls: Vec<Call>,
    /// Requests that no one has answered yet, oldest first.
    pub(super) waiting: VecDeque<usize>,
    /// Whether requests are answered as they come.
    pub(super) answers: bool,
    /// Received messages that the application has not dropped, if it keeps them.
    pub(super) kept: Option<Vec<T::Message>>,
    /// In the order of their ends.
    pub(super) ended: Vec<usize>,
    nodes: Vec<bool>,
}

/// The byte at `at` of message `id`: its first eight tell its number.
fn byte(id: usize, is_reply: bool, at: usize) -> u8 {
    if at < 8 {
        return (id >> (8 * at)) as u8;
    }
    let mixed = (id * 131 + usize::from(is_reply) * 7919 + at).wrapping_mul(0x9e37_79b9);
    (mixed >> 13) as u8
}

fn contents(id: usize, is_reply: bool, len: usize) -> Vec<u8> {
    (0..len).map(|at| byte(id, is_reply, at)).collect()
}

fn check(id: usize, is_reply: bool, len: usize, message: &[u8]) {
    assert_eq!(message.len(), len, "message {id} has another length");
    let wrong = (0..len).find(|&at| message[at] != byte(id, is_reply, at));
    assert_eq!(wrong, None, "message {id} of {len} bytes: a byte is wrong");
}

impl<'a, T: Testbed> Stage<'a, T> {
    pub(super) fn new(bed: &'a mut T, nodes: usize) -> Self {
        Self::with(bed, nodes, &Settings::default())
    }

    /// In a network that can be impaired.
    pub(super) fn impaired(bed: &'a mut T, nodes: usize, faults: PacketFaults) -> Self {
        bed.impair(faults);
        Self::new(bed, nodes)
    }

    /// Where silence is to be told.
    pub(super) fn impatient(bed: &'a mut T, nodes: usize) -> Self {
        Self::with(bed, nodes, &Settings::impatient())
    }

    pub(super) fn with(bed: &'a mut T, nodes: usize, settings: &Settings) -> Self {
        let mut stage = Self {
            bed,
            calls: Vec::new(),
            waiting: VecDeque::new(),
            answers: true,
            kept: None,
            ended: Vec::new(),
            nodes: Vec::new(),
        };
        for _ in 0..nodes {
            stage.open(settings);
        }
        stage
    }

    pub(super) fn open(&mut self, settings: &Settings) -> usize {
        self.nodes.push(true);
        self.bed.open(settings)
    }

    pub(super) fn kill(&mut self, node: usize) {
        self.nodes[node] = false;
        self.bed.kill(node);
        let calls = &mut self.calls;
        self.waiting.retain(|&id| calls[id].server != node);
        for call in calls.iter_mut() {
            if call.client == node && call.outcome == Outcome::Pending {
                call.outcome = Outcome::Cancelled;
            }
            if call.server == node {
                // A request may run once in each life of its server.
                call.runs = 0;
                call.at_server = None;
            }
        }
    }

    pub(super) fn restart(&mut self, node: usize) {
        self.nodes[node] = true;
        self.bed.restart(node, &Settings::impatient());
    }

    /// Starts a call that the server is to answer with `reply_len` bytes.
    pub(super) fn try_call(
        &mut self,
        (client, server): (usize, usize),
        (len, reply_len): (usize, usize),
        timeout: Option<Duration>,
    ) -> Result<usize, SendErrorKind> {
        let id = self.calls.len();
        let to = self.bed.address(server, client);
        let started = self.bed.now();
        let message = contents(id, false, len);
        let rpc = self.bed.request(client, to, message, id as u64, timeout)?;
        self.calls.push(Call {
            client,
            server,
            rpc,
            len,
            reply_len,
            started,
            at_server: None,
            runs: 0,
            replied: false,
            released: None,
            outcome: Outcome::Pending,
        });
        Ok(id)
    }

    pub(super) fn call(&mut self, nodes: (usize, usize), lens: (usize, usize)) -> usize {
        self.try_call(nodes, lens, None)
            .expect("there is room for the request")
    }

    /// The server's application answers, if it has the request.
    pub(super) fn answer(&mut self, id: usize) -> Result<(), SendErrorKind> {
        let call = &mut self.calls[id];
        let rpc = call.at_server.expect("the request is there");
        let message = contents(id, true, call.reply_len);
        let result = self.bed.reply(call.server, rpc, message);
        call.replied |= result.is_ok();
        result
    }

    pub(super) fn cancel(&mut self, id: usize) -> bool {
        let call = &mut self.calls[id];
        let was = self.bed.cancel(call.client, call.rpc);
        if was {
            assert_eq!(call.outcome, Outcome::Pending, "call {id} had ended");
            call.outcome = Outcome::Cancelled;
        }
        was
    }

    pub(super) fn outcome(&self, id: usize) -> Outcome {
        self.calls[id].outcome
    }

    pub(super) fn pending(&self) -> usize {
        let is_pending = |call: &&Call| call.outcome == Outcome::Pending;
        self.calls.iter().filter(is_pending).count()
    }

    /// The call whose request this is. Of a message under eight bytes only a part of its number can be read.
    fn find(&self, node: usize, message: &[u8]) -> usize {
        let len = message.len();
        let read = message.iter().take(8).rev();
        let number = read.fold(0, |number, &byte| number << 8 | usize::from(byte));
        let mask = usize::MAX >> (usize::BITS as usize - 8 * len.min(8));
        let found = (0..self.calls.len()).rev().find(|&id| {
            let call = &self.calls[id];
            id & mask == number && call.server == node && call.len == len
        });
        found.expect("a request that nobody has sent")
    }

    fn handle(&mut self, node: usize, event: TestEvent<T>) {
        match event {
            Event::Request { rpc, message, .. } => {
                let id = self.find(node, message.as_ref());
                check(id, false, self.calls[id].len, message.as_ref());
                let call = &mut self.calls[id];
                call.runs += 1;
                assert_eq!(call.runs, 1, "request {id} ran twice");
                call.at_server = Some(rpc);
                self.keep(message);
                self.waiting.push_back(id);
            }
            Event::Response {
                rpc,
                cookie,
                message,
                request,
                ..
            } => {
                let id = cookie as usize;
                self.end(node, id, rpc, Outcome::Answered);
                let call = &self.calls[id];
                assert!(call.replied, "call {id} was answered by nobody");
                check(id, true, call.reply_len, message.as_ref());
                check(id, false, call.len, request.as_ref());
                self.keep(message);
            }
            Event::Failed {
                rpc,
                cookie,
                error,
                request,
                ..
            } => {
                let id = cookie as usize;
                self.end(node, id, rpc, Outcome::Failed(error));
                check(id, false, self.calls[id].len, request.as_ref());
            }
            Event::Released {
                rpc,
                outcome,
                response,
                ..
            } => {
                let found = self
                    .calls
                    .iter()
                    .position(|call| call.server == node && call.at_server == Some(rpc));
                let id = found.expect("the release of a response that nobody has sent");
                check(id, true, self.calls[id].reply_len, response.as_ref());
                let call = &mut self.calls[id];
                assert!(call.replied && call.released.is_none());
                call.released = Some(outcome);
            }
            _ => panic!("an event of an unknown kind"),
        }
    }

    fn end(&mut self, node: usize, id: usize, rpc: RpcId, outcome: Outcome) {
        let call = &mut self.calls[id];
        assert_eq!((call.client, call.rpc), (node, rpc), "somebody else's call");
        assert_eq!(call.outcome, Outcome::Pending, "call {id} has ended before");
        call.outcome = outcome;
        self.ended.push(id);
    }

    fn keep(&mut self, message: T::Message) {
        if let Some(kept) = &mut self.kept {
            kept.push(message);
        }
    }

    /// Waits for one event until `end`. Returns whether there was one.
    pub(super) fn step(&mut self, end: Duration) -> bool {
        let Some((node, event)) = self.bed.next(end) else {
            return false;
        };
        self.take(node, event);
        true
    }

    /// Takes in an event, and answers what there is to answer.
    pub(super) fn take(&mut self, node: usize, event: TestEvent<T>) {
        self.handle(node, event);
        if self.answers {
            while let Some(id) = self.waiting.pop_front() {
                // It fails where the client has gone.
                let _ = self.answer(id);
            }
        }
    }

    /// Lets everything run for a while.
    pub(super) fn run(&mut self, time: Duration) {
        let end = self.bed.now() + time;
        while self.step(end) {}
    }

    /// Lets everything run until something is so.
    pub(super) fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let end = self.bed.now() + HANG;
        while !is_so(self) {
            let slice = self.bed.now() + Duration::from_millis(20);
            self.step(slice);
            assert!(
                self.bed.now() < end,
                "{what}: not so after {HANG:?}; {} calls are pending",
                self.pending()
            );
        }
    }

    /// Everything comes to its end, and nothing is left of it anywhere.
    pub(super) fn finish(&mut self) {
        self.until("every call ends", |stage| stage.pending() == 0);
        self.drain();
    }

    /// Nothing is left of any call at any endpoint that lives.
    pub(super) fn drain(&mut self) {
        self.until("all RPCs go", |stage| {
            let live = |node: &usize| stage.nodes[*node];
            (0..stage.nodes.len())
                .filter(live)
                .all(|node| stage.bed.live_rpcs(node) == 0)
        });
        // What has been told already, but not taken in yet.
        self.run(Duration::ZERO);
        for (id, call) in self.calls.iter().enumerate() {
            if call.replied && self.nodes[call.server] && call.outcome == Outcome::Answered {
                assert!(call.released.is_some(), "response {id} was not handed back");
            }
        }
    }

    pub(super) fn all_answered(&self) {
        for (id, call) in self.calls.iter().enumerate() {
            assert_eq!(
                call.outcome,
                Outcome::Answered,
                "call {id} of {} and {} bytes",
                call.len,
                call.reply_len
            );
            assert_eq!(call.runs, 1);
        }
    }
}
