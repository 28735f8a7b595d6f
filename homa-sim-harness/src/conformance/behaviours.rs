//! The behaviours, each a test of its own.

use std::time::Duration;

use homa_proto::{Config, Limits, PeerAddr, RpcError, SendErrorKind};

use super::stage::{Outcome, Stage};
use super::{Settings, Testbed};
use crate::fault::PacketFaults;

/// Makes the list of behaviours, and the macro that makes tests of them.
macro_rules! behaviours {
    ($d:tt $($(#[doc = $doc:literal])+ fn $name:ident($bed:ident) $body:block)+) => {
        /// The names of all behaviours.
        pub const BEHAVIOURS: &[&str] = &[$(stringify!($name)),+];

        $($(#[doc = $doc])+
        pub(super) fn $name<T: Testbed>($bed: &mut T) $body)+

        /// Makes a test of each behaviour in [`BEHAVIOURS`](crate::conformance::BEHAVIOURS), over the
        /// [`Testbed`](crate::conformance::Testbed) that the expression makes.
        #[macro_export]
        macro_rules! conformance {
            ($d bed:expr) => {
                $(#[test]
                fn $name() {
                    $crate::conformance::run(stringify!($name), &mut $d bed);
                })+
            };
        }

        /// A behaviour by its name.
        pub(super) fn find<T: Testbed>(name: &str) -> Option<fn(&mut T)> {
            match name {
                $(stringify!($name) => Some($name::<T>),)+
                _ => None,
            }
        }
    };
}

const CLIENT: usize = 0;
const SERVER: usize = 1;
const PAIR: (usize, usize) = (CLIENT, SERVER);

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Lengths at which something changes: of packets, of what goes unasked, of size classes.
fn edges() -> Vec<usize> {
    let packet = Config::default().max_payload(false);
    let mut lens: Vec<usize> = (1..=10).collect();
    for edge in [
        packet,
        2 * packet,
        3 * packet,
        28 * packet,
        40_000,
        65_536,
        500_000,
    ] {
        lens.extend([edge - 1, edge, edge + 1]);
    }
    lens.push(Settings::default().max_message as usize);
    lens
}

/// Lengths as they come: mostly short, some long.
fn mixed(at: usize) -> (usize, usize) {
    let long = [1_000, 3_000, 10_000, 60_000];
    match at % 5 {
        0 => (100, long[at / 5 % 4]),
        1 => (long[at / 5 % 4], 100),
        _ => (8 + at % 700, 1 + at % 300),
    }
}

behaviours! {
    $

    /// A message of any length arrives as it was, request or response.
    fn messages_of_all_lengths_arrive_intact(bed) {
        let mut stage = Stage::new(bed, 2);
        for len in edges() {
            for lens in [(len, 1), (1, len)] {
                let id = stage.call(PAIR, lens);
                stage.until("the call ends", |stage| stage.outcome(id) != Outcome::Pending);
            }
        }
        stage.drain();
        stage.all_answered();
    }

    /// Hundreds of calls at once to one server.
    fn many_calls_at_once(bed) {
        let mut stage = Stage::new(bed, 2);
        for at in 0..400 {
            stage.call(PAIR, mixed(at));
        }
        stage.finish();
        stage.all_answered();
        assert!(stage.calls.iter().all(|call| call.released == Some(Ok(()))));
    }

    /// Several clients with several servers.
    fn several_clients_and_servers(bed) {
        let mut stage = Stage::new(bed, 6);
        for at in 0..300 {
            stage.call((at % 3, 3 + at / 3 % 3), mixed(at));
        }
        stage.finish();
        stage.all_answered();
    }

    /// Many servers answer one client at once.
    fn many_answer_one(bed) {
        let mut stage = Stage::new(bed, 9);
        for at in 0..160 {
            stage.call((0, 1 + at % 8), (100, 40_000));
        }
        stage.finish();
        stage.all_answered();
    }

    /// Each of two endpoints is the other's client and server at once.
    fn both_roles_on_one_endpoint(bed) {
        let mut stage = Stage::new(bed, 2);
        for at in 0..200 {
            stage.call(if at % 2 == 0 { (0, 1) } else { (1, 0) }, mixed(at));
        }
        stage.finish();
        stage.all_answered();
    }

    /// A server asks its client something before it answers.
    fn a_server_asks_back_before_it_answers(bed) {
        let mut stage = Stage::new(bed, 2);
        stage.answers = false;
        let outer: Vec<usize> = (0..20).map(|at| stage.call(PAIR, mixed(at))).collect();
        stage.until("all requests are there", |stage| stage.waiting.len() == 20);
        stage.waiting.clear();
        stage.answers = true;
        let inner: Vec<usize> = (0..20).map(|at| stage.call((SERVER, CLIENT), mixed(at))).collect();
        for (&outer, &inner) in outer.iter().zip(&inner) {
            stage.until("the server has its answer", |stage| {
                stage.outcome(inner) != Outcome::Pending
            });
            stage.answer(outer).unwrap();
        }
        stage.finish();
        stage.all_answered();
    }

    /// Replies go in any order, whatever that of the requests was.
    fn replies_in_any_order(bed) {
        let mut stage = Stage::new(bed, 2);
        stage.answers = false;
        for at in 0..50 {
            stage.call(PAIR, mixed(at));
        }
        stage.until("all requests are there", |stage| stage.waiting.len() == 50);
        while let Some(id) = stage.waiting.pop_back() {
            stage.answer(id).unwrap();
            stage.run(Duration::from_micros(100));
        }
        stage.finish();
        stage.all_answered();
    }

    /// A server that is at work may take longer than the time-out.
    fn a_reply_may_take_longer_than_the_time_out(bed) {
        let mut stage = Stage::impatient(bed, 2);
        stage.answers = false;
        let long = (100_000, 100_000);
        let ids = [stage.call(PAIR, (100, 100)), stage.call(PAIR, long)];
        stage.until("both requests are there", |stage| stage.waiting.len() == 2);
        stage.run(3 * Settings::impatient().timeout);
        for id in ids {
            stage.answer(id).unwrap();
        }
        stage.finish();
        stage.all_answered();
    }

    /// A server answers once. A second reply is refused, and so is one to a client that has gone.
    fn a_reply_is_taken_once(bed) {
        let mut stage = Stage::new(bed, 2);
        stage.answers = false;
        let (first, second) = (stage.call(PAIR, (100, 100)), stage.call(PAIR, (100, 100)));
        stage.until("both requests are there", |stage| stage.waiting.len() == 2);
        stage.answer(first).unwrap();
        assert_eq!(stage.answer(first), Err(SendErrorKind::NoSuchRpc));
        stage.until("the first ends", |stage| stage.outcome(first) != Outcome::Pending);
        assert_eq!(stage.answer(first), Err(SendErrorKind::NoSuchRpc));
        assert!(stage.cancel(second));
        // The server does not know yet, and may find out only by sending its reply.
        let _ = stage.answer(second);
        stage.drain();
        assert_eq!(stage.answer(second), Err(SendErrorKind::NoSuchRpc));
        assert_eq!(stage.outcome(first), Outcome::Answered);
    }

    /// Packets are lost, doubled and overtaken: what is asked for arrives all the same, and runs once.
    fn at_most_once_in_a_bad_network(bed) {
        let mut stage = Stage::impaired(bed, 3, PacketFaults {
            loss: 0.03,
            duplicate: 0.2,
            delay: 0.2,
            late_ns: 4_000_000,
            ..PacketFaults::default()
        });
        for at in 0..240 {
            stage.call((at % 2, 2), mixed(at));
            stage.run(Duration::from_micros(50));
        }
        stage.finish();
        stage.all_answered();
    }

    /// Every packet comes twice, and late.
    fn every_packet_twice_and_late(bed) {
        let mut stage = Stage::impaired(bed, 2, PacketFaults {
            duplicate: 1.0,
            delay: 1.0,
            late_ns: 3_000_000,
            ..PacketFaults::default()
        });
        for at in 0..60 {
            stage.call(PAIR, mixed(at));
        }
        stage.finish();
        stage.all_answered();
    }

    /// Long messages come through losses.
    fn long_messages_in_a_lossy_network(bed) {
        let mut stage = Stage::impaired(bed, 2, PacketFaults { loss: 0.01, ..PacketFaults::default() });
        for _ in 0..3 {
            stage.call(PAIR, (400_000, 400_000));
        }
        stage.finish();
        stage.all_answered();
    }

    /// A network that is cut for less than the time-out fails nothing.
    fn a_short_cut_fails_nothing(bed) {
        let mut stage = Stage::impaired(bed, 2, PacketFaults::default());
        stage.call(PAIR, (100, 100));
        stage.finish();
        let long = (300_000, 300_000);
        for at in 0..40 {
            stage.call(PAIR, if at == 0 { long } else { mixed(at) });
        }
        stage.run(Duration::from_micros(300));
        stage.bed.impair(PacketFaults { loss: 1.0, ..PacketFaults::default() });
        stage.run(millis(100));
        stage.bed.impair(PacketFaults::default());
        stage.finish();
        stage.all_answered();
    }

    /// A network that is cut for good fails every call, as of a peer that fell silent; nothing is left of them, and all is
    /// well when it is mended.
    fn a_long_cut_fails_every_call_once(bed) {
        let mut stage = {
            bed.impair(PacketFaults::default());
            Stage::impatient(bed, 2)
        };
        stage.call(PAIR, (100, 100));
        stage.finish();
        stage.bed.impair(PacketFaults { loss: 1.0, ..PacketFaults::default() });
        for at in 0..100 {
            stage.call(PAIR, mixed(at));
        }
        stage.finish();
        for id in 1..101 {
            assert_eq!(stage.outcome(id), Outcome::Failed(RpcError::WentSilent));
        }
        stage.bed.impair(PacketFaults::default());
        let id = stage.call(PAIR, mixed(3));
        stage.finish();
        assert_eq!(stage.outcome(id), Outcome::Answered);
    }

    /// What can never be sent is refused at once, and in the open.
    fn what_cannot_be_sent_is_refused(bed) {
        let mut stage = Stage::new(bed, 2);
        let longest = Settings::default().max_message as usize;
        let refused = |stage: &mut Stage<'_, T>, len| stage.try_call(PAIR, (len, 1), None).err();
        assert_eq!(refused(&mut stage, 0), Some(SendErrorKind::Empty));
        assert_eq!(refused(&mut stage, longest + 1), Some(SendErrorKind::TooLong));
        let to = PeerAddr { port: 0, ..stage.bed.address(SERVER, CLIENT) };
        let result = stage.bed.request(CLIENT, to, vec![1], 0, None);
        assert_eq!(result.err(), Some(SendErrorKind::BadAddress));
        let at_once = stage.try_call(PAIR, (1, 1), Some(Duration::ZERO));
        assert_eq!(at_once.err(), Some(SendErrorKind::DeadlineExceeded));
        stage.answers = false;
        let id = stage.call(PAIR, (10, longest + 1));
        stage.until("the request is there", |stage| stage.waiting.len() == 1);
        assert_eq!(stage.answer(id), Err(SendErrorKind::TooLong));
        // It can be answered still.
        stage.calls[id].reply_len = longest;
        stage.answer(id).unwrap();
        stage.finish();
        stage.all_answered();
        assert_eq!(stage.bed.live_rpcs(CLIENT), 0);
    }

    /// A request that is too long for its server fails; those beside it do not.
    fn too_long_for_the_server(bed) {
        let mut stage = Stage::impatient(bed, 1);
        stage.open(&Settings { max_message: 10_000, ..Settings::impatient() });
        let long = stage.call(PAIR, (10_001, 1));
        for _ in 0..10 {
            stage.call(PAIR, (10_000, 1));
        }
        stage.finish();
        assert!(matches!(stage.outcome(long), Outcome::Failed(_)));
        assert_eq!(stage.calls[long].runs, 0);
        assert!((1..=10).all(|id| stage.outcome(id) == Outcome::Answered));
    }

    /// A cancelled call brings no event, and leaves nothing behind at either end.
    fn a_cancelled_call_brings_no_event(bed) {
        let mut stage = Stage::new(bed, 2);
        stage.answers = false;
        let ids: Vec<usize> = (0..30).map(|at| stage.call(PAIR, mixed(at))).collect();
        // Some before they are sent, some when they have arrived.
        for (at, &id) in ids.iter().enumerate() {
            if at == 10 {
                stage.run(millis(5));
            }
            if at % 3 != 2 {
                assert!(stage.cancel(id));
                assert!(!stage.cancel(id), "it was there twice");
            }
        }
        stage.answers = true;
        stage.run(millis(1));
        while let Some(id) = stage.waiting.pop_front() {
            let _ = stage.answer(id);
        }
        stage.finish();
        for (at, &id) in ids.iter().enumerate() {
            let wanted = if at % 3 == 2 { Outcome::Answered } else { Outcome::Cancelled };
            assert_eq!(stage.outcome(id), wanted);
        }
    }

    /// A request that the server's application turns down fails at the client, once.
    fn a_request_turned_down_fails(bed) {
        let mut stage = Stage::impatient(bed, 2);
        stage.answers = false;
        let (down, up) = (stage.call(PAIR, (100, 100)), stage.call(PAIR, (100, 100)));
        stage.until("both requests are there", |stage| stage.waiting.len() == 2);
        let rpc = stage.calls[down].at_server.unwrap();
        assert!(stage.bed.cancel(SERVER, rpc));
        stage.answer(up).unwrap();
        stage.finish();
        assert!(matches!(stage.outcome(down), Outcome::Failed(_)));
        assert_eq!(stage.outcome(up), Outcome::Answered);
    }

    /// A deadline fails a call when it has passed, and not before; others go on.
    fn deadlines_are_kept(bed) {
        let mut stage = Stage::new(bed, 2);
        stage.answers = false;
        let late: Vec<usize> = (1..=20)
            .map(|at| stage.try_call(PAIR, (100, 100), Some(millis(3 * at))).unwrap())
            .collect();
        let (early, without) = (
            stage.try_call(PAIR, (100, 100), Some(Duration::from_secs(3600))).unwrap(),
            stage.call(PAIR, (100, 100)),
        );
        stage.until("all that must fail has failed", |stage| {
            for (&id, at) in late.iter().zip(1..) {
                let call = &stage.calls[id];
                let passed = stage.bed.now() - call.started;
                assert!(call.outcome == Outcome::Pending || passed >= millis(3 * at));
            }
            stage.pending() == 2
        });
        for &id in &late {
            assert_eq!(stage.outcome(id), Outcome::Failed(RpcError::DeadlineExceeded));
        }
        stage.until("the requests are there", |stage| {
            [early, without].iter().all(|&id| stage.calls[id].at_server.is_some())
        });
        stage.answers = true;
        while let Some(id) = stage.waiting.pop_front() {
            let _ = stage.answer(id);
        }
        stage.finish();
        assert_eq!(stage.outcome(early), Outcome::Answered);
        assert_eq!(stage.outcome(without), Outcome::Answered);
    }

    /// Where nobody is, calls fail as never heard, after the time-out; a server that is there is as good as ever.
    fn nobody_there_was_never_heard(bed) {
        let mut stage = Stage::impatient(bed, 2);
        let to = stage.bed.nobody();
        let started = stage.bed.now();
        let id = stage.call(PAIR, (100, 100));
        stage.bed.request(CLIENT, to, vec![7; 5000], 77, None).unwrap();
        let mut failed = None;
        while failed.is_none() {
            let end = started + Duration::from_secs(150);
            let (node, event) = stage.bed.next(end).expect("the call to nobody fails");
            match event {
                homa_proto::Event::Failed { cookie: 77, error, .. } => {
                    assert_eq!(node, CLIENT);
                    failed = Some((error, stage.bed.now()));
                }
                other => stage.take(node, other),
            }
        }
        let (error, at) = failed.unwrap();
        assert_eq!(error, RpcError::NeverHeard);
        assert!(at - started >= Settings::impatient().timeout * 9 / 10);
        stage.finish();
        assert_eq!(stage.outcome(id), Outcome::Answered);
    }

    /// A server that dies fails its calls as fallen silent; another server's calls are unharmed.
    fn a_dead_server_went_silent(bed) {
        let mut stage = Stage::impatient(bed, 3);
        for server in [1, 2] {
            stage.call((CLIENT, server), (100, 100));
        }
        stage.finish();
        stage.answers = false;
        for at in 0..20 {
            stage.call((CLIENT, 1), mixed(at));
            stage.call((CLIENT, 2), mixed(at));
        }
        stage.run(millis(2));
        stage.kill(1);
        stage.answers = true;
        while let Some(id) = stage.waiting.pop_front() {
            stage.answer(id).unwrap();
        }
        for at in 0..20 {
            stage.call((CLIENT, 2), mixed(at));
        }
        stage.finish();
        for call in &stage.calls[2..] {
            let wanted = match call.server {
                1 => Outcome::Failed(RpcError::WentSilent),
                _ => Outcome::Answered,
            };
            assert_eq!(call.outcome, wanted);
        }
    }

    /// When a client dies its server gets the responses back, and forgets.
    fn a_dead_client_is_forgotten(bed) {
        let mut stage = Stage::impatient(bed, 2);
        stage.answers = false;
        for at in 0..20 {
            stage.call(PAIR, (100, 100 + at * 10_000));
        }
        stage.until("all requests are there", |stage| stage.waiting.len() == 20);
        stage.kill(CLIENT);
        while let Some(id) = stage.waiting.pop_front() {
            stage.answer(id).unwrap();
        }
        stage.drain();
        for call in &stage.calls {
            assert!(matches!(call.released, Some(Err(_))), "{:?}", call.released);
        }
    }

    /// A server that restarts serves on. What it had begun before ends once, well or not.
    fn a_restarted_server_serves_on(bed) {
        let mut stage = Stage::impatient(bed, 2);
        stage.call(PAIR, (100, 100));
        stage.finish();
        stage.answers = false;
        for at in 0..20 {
            stage.call(PAIR, mixed(at));
        }
        stage.run(millis(1));
        stage.kill(SERVER);
        stage.answers = true;
        stage.restart(SERVER);
        let after = stage.calls.len();
        for at in 0..20 {
            stage.call(PAIR, mixed(at));
        }
        stage.finish();
        for id in after..stage.calls.len() {
            assert_eq!(stage.outcome(id), Outcome::Answered);
        }
    }

    /// A client that restarts is not taken for its former self.
    fn a_restarted_client_is_another(bed) {
        let mut stage = Stage::impatient(bed, 2);
        stage.answers = false;
        for at in 0..20 {
            stage.call(PAIR, mixed(at));
        }
        stage.until("all requests are there", |stage| stage.waiting.len() == 20);
        stage.kill(CLIENT);
        let before = std::mem::take(&mut stage.waiting);
        stage.restart(CLIENT);
        stage.answers = true;
        for id in before {
            stage.calls[id].outcome = Outcome::Cancelled;
            let _ = stage.answer(id);
        }
        for at in 0..20 {
            stage.call(PAIR, mixed(at));
        }
        stage.finish();
        assert!(stage.calls[20..].iter().all(|call| call.outcome == Outcome::Answered));
    }

    /// When all places are taken, requests are refused until one comes free.
    fn a_full_table_refuses_until_there_is_room(bed) {
        let limits = Limits { rpcs: 8, peers: 4, ended: 1024 };
        let settings = Settings { limits, ..Settings::default() };
        let mut stage = Stage::with(bed, 2, &settings);
        stage.answers = false;
        for _ in 0..8 {
            stage.call(PAIR, (100, 100));
        }
        let refused = stage.try_call(PAIR, (100, 100), None);
        assert_eq!(refused, Err(SendErrorKind::RpcsFull));
        // One peer gets three quarters of a server's places.
        stage.until("six requests are there", |stage| stage.waiting.len() == 6);
        stage.answers = true;
        while let Some(id) = stage.waiting.pop_front() {
            stage.answer(id).unwrap();
        }
        for at in 0..60 {
            while stage.try_call(PAIR, mixed(at), None).is_err() {
                stage.run(millis(1));
            }
        }
        stage.finish();
        stage.all_answered();
    }

    /// A server with less room than its clients ask for serves them all in the end.
    fn a_small_server_serves_all_in_the_end(bed) {
        // Requests that find no room are sent again, less and less often.
        let settings = Settings { timeout: Duration::from_secs(60), ..Settings::default() };
        let mut stage = Stage::with(bed, 3, &settings);
        let limits = Limits { rpcs: 8, peers: 4, ended: 1024 };
        let server = stage.open(&Settings { limits, ..settings });
        for at in 0..120 {
            stage.call((at % 3, server), mixed(at));
        }
        stage.finish();
        stage.all_answered();
    }

    /// A server whose application keeps what it got takes no more than it has memory for, and goes on when memory
    /// comes back.
    fn memory_runs_out_and_comes_back(bed) {
        let mut stage = Stage::impatient(bed, 1);
        stage.open(&Settings { buffer_bytes: 256 << 10, ..Settings::impatient() });
        stage.answers = false;
        stage.kept = Some(Vec::new());
        for _ in 0..12 {
            stage.call(PAIR, (60_000, 100));
        }
        stage.until("four have arrived", |stage| stage.waiting.len() == 4);
        stage.run(2 * Settings::impatient().timeout);
        assert_eq!(stage.waiting.len(), 4, "there is no memory for more");
        // Those that wait are not failed, and get what comes free.
        assert_eq!(stage.pending(), 12);
        stage.kept = None;
        stage.answers = true;
        while let Some(id) = stage.waiting.pop_front() {
            stage.answer(id).unwrap();
        }
        stage.finish();
        stage.all_answered();
    }

    /// A message that no memory can ever hold fails; others do not.
    fn what_memory_can_never_hold_fails(bed) {
        let mut stage = Stage::impatient(bed, 1);
        stage.open(&Settings { buffer_bytes: 64 << 10, ..Settings::impatient() });
        let long = stage.call(PAIR, (100_000, 100));
        for _ in 0..10 {
            stage.call(PAIR, (30_000, 100));
        }
        stage.finish();
        assert!(matches!(stage.outcome(long), Outcome::Failed(_)));
        assert!((1..=10).all(|id| stage.outcome(id) == Outcome::Answered));
    }

    /// Short messages do not wait for long ones, either way.
    fn short_beside_long(bed) {
        let mut stage = Stage::new(bed, 2);
        let longest = Settings::default().max_message as usize;
        for lens in [(longest, 1), (1, longest)] {
            for _ in 0..3 {
                stage.call(PAIR, lens);
            }
        }
        let is_long = |id: usize| id < 6;
        for _ in 0..100 {
            let id = stage.call(PAIR, (100, 100));
            stage.until("a short call ends", |stage| stage.outcome(id) != Outcome::Pending);
            if stage.pending() == 0 {
                break;
            }
        }
        stage.finish();
        stage.all_answered();
        let first_long = stage.ended.iter().position(|&id| is_long(id)).unwrap();
        assert!(first_long > 0, "a short call waited for a long one");
    }

    /// Thousands of calls, one after the other and a few at a time, leave nothing behind.
    fn nothing_piles_up(bed) {
        let mut stage = Stage::new(bed, 2);
        for at in 0..3000 {
            stage.call(PAIR, (8 + at % 50, 1 + at % 50));
            let most = at % 8;
            stage.until("few are pending", |stage| stage.pending() <= most);
        }
        stage.finish();
        stage.all_answered();
    }
}
