//! Loads: open loop (arrivals do not wait for replies) and closed loop (each reply starts the
//! next request). Every reply is checked byte for byte.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::alloc;
use crate::report::Latencies;
use crate::transport::{Client, Outcome, Reply};
use crate::workload::{Arrival, Pattern};

/// How often progress is told.
const PROGRESS: Duration = Duration::from_millis(50);

/// What a run gave.
#[derive(Debug, Default)]
pub struct Run {
    /// RPCs whose right reply came, with the time from their (scheduled) start.
    pub latencies: Latencies,
    /// RPCs that failed, were answered wrongly, twice or not at all.
    pub errors: u64,
    /// What the first error was.
    pub first_error: Option<String>,
    /// Request bytes of the RPCs that succeeded.
    pub request_bytes: u64,
    /// From the start to the last reply.
    pub elapsed: Duration,
    /// Allocations of the thread during the run: those of the transport, for the load has made its
    /// own beforehand.
    pub allocations: u64,
}

impl Run {
    /// Request bytes per second, in Gb/s.
    #[must_use]
    pub fn gbps(&self) -> f64 {
        self.request_bytes as f64 * 8.0 / self.elapsed.as_secs_f64() / 1e9
    }

    /// RPCs per second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.latencies.len() as f64 / self.elapsed.as_secs_f64()
    }

    fn error(&mut self, what: impl FnOnce() -> String) {
        self.errors += 1;
        self.first_error.get_or_insert_with(what);
    }
}

/// RPCs in flight and what is expected of them.
struct Book<'a> {
    pattern: &'a Pattern,
    reply: Reply,
    first_id: u64,
    /// By id − first_id; `None` once ended.
    rpcs: Vec<Option<Started>>,
    ended: usize,
    run: Run,
}

#[derive(Clone, Copy)]
struct Started {
    at: Duration,
    size: u32,
}

/// As many RPCs a second as the books have room for from the start, so that they do not grow, and
/// are not copied, while they measure. What is not used costs address space only.
const ROOM_PER_SECOND: f64 = 4e6;

impl<'a> Book<'a> {
    /// For `count` RPCs.
    fn new(pattern: &'a Pattern, reply: Reply, first_id: u64, count: usize) -> Self {
        Self {
            pattern,
            reply,
            first_id,
            rpcs: Vec::with_capacity(count),
            ended: 0,
            run: Run {
                latencies: Latencies::with_capacity(count),
                ..Run::default()
            },
        }
    }

    /// Books the end of RPC `id`, `now` after the start of the run.
    fn end(&mut self, id: u64, outcome: Outcome<'_>, now: Duration) {
        let index = id.checked_sub(self.first_id).map(|index| index as usize);
        let entry = index.and_then(|index| self.rpcs.get_mut(index));
        let Some(started) = entry.and_then(Option::take) else {
            return self
                .run
                .error(|| format!("RPC {id} ended twice or was never started"));
        };
        self.ended += 1;
        let Started { at, size } = started;
        let reply_len = match self.reply {
            Reply::Echo => size as usize,
            Reply::FirstByte => 1,
        };
        match outcome {
            Err(why) => self.run.error(|| why),
            Ok(bytes) if self.pattern.matches(id, reply_len, bytes) => {
                let nanos = now.saturating_sub(at).as_nanos() as u64;
                self.run.latencies.record(size, nanos);
                self.run.request_bytes += u64::from(size);
                self.run.elapsed = now;
            }
            Ok(_) => self
                .run
                .error(|| format!("the reply to RPC {id} ({size} bytes) is wrong")),
        }
    }
}

/// Starts each RPC at its arrival time, whatever has become of the ones before. Latency counts
/// from the arrival time, so that a transport that stalls does not get out of being measured.
///
/// Ids count from `first_id`. What has not ended `patience` after the last arrival is an error.
/// `progress` hears now and then how many RPCs have ended.
pub fn open_loop(
    client: &mut dyn Client,
    arrivals: &[Arrival],
    reply: Reply,
    first_id: u64,
    pattern: &Pattern,
    patience: Duration,
    progress: &mut dyn FnMut(u64),
) -> Result<Run> {
    let mut book = Book::new(pattern, reply, first_id, arrivals.len());
    let last = arrivals.last().map_or(0, |arrival| arrival.at_ns);
    let give_up = Duration::from_nanos(last) + patience;
    let mut told = Duration::ZERO;
    let allocations = alloc::allocations();
    let start = Instant::now();
    while book.ended < arrivals.len() {
        let now = start.elapsed();
        while let Some(arrival) = arrivals.get(book.rpcs.len()) {
            let at = Duration::from_nanos(arrival.at_ns);
            if at > now {
                break;
            }
            let id = first_id + book.rpcs.len() as u64;
            if !client.request(id, pattern.message(id, arrival.size as usize))? {
                break;
            }
            let size = arrival.size;
            book.rpcs.push(Some(Started { at, size }));
        }
        client.turn(&mut |id, outcome| book.end(id, outcome, start.elapsed()))?;
        if now > told + PROGRESS {
            told = now;
            progress(book.ended as u64);
        }
        if now > give_up {
            for _ in book.ended..arrivals.len() {
                book.run
                    .error(|| format!("no answer within {} s", patience.as_secs_f64()));
            }
            break;
        }
    }
    book.run.allocations = alloc::allocations() - allocations;
    progress(book.ended as u64);
    Ok(book.run)
}

/// A closed loop's shape.
#[derive(Clone, Copy, Debug)]
pub struct ClosedLoop {
    /// RPCs in flight.
    pub outstanding: usize,
    /// What the server replies with.
    pub reply: Reply,
    /// The first id; the rest count up from it.
    pub first_id: u64,
    /// How long new RPCs are started.
    pub duration: Duration,
    /// How many are started at most.
    pub count: usize,
    /// When no RPC ends for this long, those in flight are errors.
    pub patience: Duration,
}

/// Keeps a number of RPCs in flight; sizes come from `size`.
pub fn closed_loop(
    client: &mut dyn Client,
    shape: ClosedLoop,
    pattern: &Pattern,
    size: &mut dyn FnMut() -> u32,
) -> Result<Run> {
    // A limit of the count caps what a duration without end would ask for.
    let room = (shape.duration.as_secs_f64() * ROOM_PER_SECOND) as usize;
    let room = room.min(shape.count);
    let mut book = Book::new(pattern, shape.reply, shape.first_id, room);
    let allocations = alloc::allocations();
    let start = Instant::now();
    let mut next_size = size();
    let mut progress = (0, Duration::ZERO);
    loop {
        let now = start.elapsed();
        let starting = now < shape.duration && book.rpcs.len() < shape.count;
        while starting
            && book.rpcs.len() < shape.count
            && book.rpcs.len() - book.ended < shape.outstanding
        {
            let id = shape.first_id + book.rpcs.len() as u64;
            if !client.request(id, pattern.message(id, next_size as usize))? {
                break;
            }
            let at = start.elapsed();
            let size = std::mem::replace(&mut next_size, size());
            book.rpcs.push(Some(Started { at, size }));
        }
        client.turn(&mut |id, outcome| book.end(id, outcome, start.elapsed()))?;
        let in_flight = book.rpcs.len() - book.ended;
        if !starting && in_flight == 0 {
            book.run.allocations = alloc::allocations() - allocations;
            return Ok(book.run);
        }
        if progress.0 != book.ended {
            progress = (book.ended, now);
        }
        if now - progress.1 > shape.patience {
            for _ in 0..in_flight {
                book.run.error(|| "no answer".into());
            }
            return Ok(book.run);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers each request at the next turn, unless told to misbehave.
    #[derive(Default)]
    struct Fake {
        waiting: Vec<(u64, Vec<u8>)>,
        corrupt: Option<u64>,
        lose: Option<u64>,
        twice: Option<u64>,
        fail: Option<u64>,
        room: usize,
    }

    impl Client for Fake {
        fn system_calls(&self) -> Option<u64> {
            None
        }

        fn settings(&self) -> String {
            String::new()
        }

        fn request(&mut self, id: u64, message: &[u8]) -> Result<bool> {
            let room = self.waiting.len() < self.room;
            if room {
                self.waiting.push((id, message.to_vec()));
            }
            Ok(room)
        }

        fn turn(&mut self, ended: &mut dyn FnMut(u64, Outcome<'_>)) -> Result<()> {
            for (id, mut message) in self.waiting.drain(..) {
                if self.lose == Some(id) {
                    continue;
                }
                if self.fail == Some(id) {
                    ended(id, Err("refused".into()));
                    continue;
                }
                if self.corrupt == Some(id) {
                    *message.last_mut().unwrap() ^= 1;
                }
                ended(id, Ok(&message));
                if self.twice == Some(id) {
                    ended(id, Ok(&message));
                }
            }
            Ok(())
        }
    }

    fn run(fake: &mut Fake) -> Run {
        let arrivals: Vec<Arrival> = (0..100)
            .map(|i| Arrival {
                at_ns: i * 1000,
                size: 50 + i as u32,
            })
            .collect();
        let pattern = Pattern::new(1, 1000);
        let patience = Duration::from_millis(5);
        open_loop(
            fake,
            &arrivals,
            Reply::Echo,
            1000,
            &pattern,
            patience,
            &mut |_| (),
        )
        .unwrap()
    }

    #[test]
    fn every_kind_of_wrong_answer_is_an_error() {
        let fake = || Fake {
            room: 2,
            ..Fake::default()
        };
        let good = run(&mut fake());
        assert_eq!((good.errors, good.latencies.len()), (0, 100), "{good:?}");
        assert_eq!(good.request_bytes, 100 * 50 + 99 * 100 / 2);
        let id = Some(1042);
        for (mut fake, right) in [
            (
                Fake {
                    corrupt: id,
                    ..fake()
                },
                99,
            ),
            (Fake { lose: id, ..fake() }, 99),
            (
                Fake {
                    twice: id,
                    ..fake()
                },
                100,
            ),
            (Fake { fail: id, ..fake() }, 99),
        ] {
            let bad = run(&mut fake);
            assert_eq!((bad.errors, bad.latencies.len()), (1, right), "{bad:?}");
            assert!(bad.first_error.is_some());
        }
    }

    #[test]
    fn closed_loop_keeps_its_number_in_flight_and_counts_losses() {
        let pattern = Pattern::new(1, 1000);
        let shape = ClosedLoop {
            outstanding: 4,
            reply: Reply::Echo,
            first_id: 0,
            duration: Duration::from_millis(5),
            count: usize::MAX,
            patience: Duration::from_millis(5),
        };
        let mut fake = Fake {
            room: 3,
            ..Fake::default()
        };
        let good = closed_loop(&mut fake, shape, &pattern, &mut || 100).unwrap();
        assert_eq!(good.errors, 0);
        assert!(good.latencies.len() > 10 && good.rate() > 0.0 && good.gbps() > 0.0);
        let mut fake = Fake {
            room: 9,
            lose: Some(7),
            ..Fake::default()
        };
        let bad = closed_loop(&mut fake, shape, &pattern, &mut || 100).unwrap();
        assert_eq!(bad.errors, 1);
        let shape = ClosedLoop {
            count: 9,
            duration: Duration::MAX,
            ..shape
        };
        let mut fake = Fake {
            room: 3,
            ..Fake::default()
        };
        let nine = closed_loop(&mut fake, shape, &pattern, &mut || 100).unwrap();
        assert_eq!((nine.errors, nine.latencies.len()), (0, 9));
    }
}
