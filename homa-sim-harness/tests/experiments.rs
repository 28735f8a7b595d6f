//! Whole experiments: reproducible, and in agreement with what is known beforehand.

use homa_sim_harness::experiment::{Experiment, LoadCounts, Pattern, TRANSPORTS, Watch};
use homa_sim_harness::report::Report;
use homa_sim_harness::topology::Buffer;

fn run(experiment: &Experiment, transport: &str) -> Report {
    let mut watch = Watch {
        progress: &mut |_, _| {},
        capture: None,
    };
    experiment.run(transport, &mut watch).unwrap()
}

fn small() -> Experiment {
    Experiment {
        hosts: 8,
        gbps: 10.0,
        workload: "w3".into(),
        load: 0.6,
        millis: 2.0,
        ..Experiment::default()
    }
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_another() {
    for transport in TRANSPORTS {
        let first = run(&small(), transport);
        let again = run(&small(), transport);
        assert_eq!(first.trace_hash, again.trace_hash, "{transport}");
        assert_eq!(first.events, again.events);
        assert_eq!(first.by_length, again.by_length);
        let other = run(&Experiment { seed: 2, ..small() }, transport);
        assert_ne!(first.trace_hash, other.trace_hash, "{transport}");
    }
}

#[test]
fn every_message_arrives() {
    for transport in TRANSPORTS {
        for reply in ["none", "echo", "100"] {
            let experiment = Experiment {
                reply: reply.into(),
                load: 0.4,
                ..small()
            };
            let report = run(&experiment, transport);
            let messages = report.messages;
            assert!(messages.started > 1000, "{transport} {reply}");
            assert_eq!(messages.completed, messages.started, "{transport} {reply}");
            assert_eq!(report.unfinished, 0);
        }
    }
}

#[test]
fn software_that_costs_time_is_still_reproducible_and_complete() {
    let mut experiment = small();
    experiment.software.per_packet_ns = 200;
    experiment.software.wakeup_ns = 1500;
    experiment.software.wakeup_jitter_ns = 1000;
    experiment.software.stall_chance = 0.0005;
    experiment.software.stall_ns = 2_000_000;
    for transport in ["homa", "dctcp"] {
        let first = run(&experiment, transport);
        assert_eq!(first.messages.completed, first.messages.started);
        assert_eq!(first.trace_hash, run(&experiment, transport).trace_hash);
    }
}

/// The best possible time is a bound, and one that Homa reaches when nothing is in the way.
#[test]
fn ideal_times_are_reached_on_the_idle_network() {
    for topology in ["single-switch", "leaf-spine"] {
        for bytes in [1, 100, 1424, 1425, 10_000, 100_000, 1_000_000] {
            let experiment = Experiment {
                topology: topology.into(),
                workload: bytes.to_string(),
                load: 0.001,
                millis: f64::from(bytes) / 50.0 + 50.0,
                racks: 2,
                per_rack: 4,
                ..small()
            };
            let report = run(&experiment, "homa");
            assert!(report.measured >= 5, "{bytes}");
            let class = &report.by_length[0];
            // The pacer takes links for 1 % slower than they are.
            assert!(class.p50_slowdown < 1.03, "{topology} {bytes}: {class:?}");
            assert!(class.p50_slowdown > 0.9999, "{topology} {bytes}: {class:?}");
        }
    }
}

#[test]
fn load_is_what_was_asked_for() {
    for (counts, low, high) in [
        (LoadCounts::Payload, 0.97, 1.03),
        // Headers and framing of W3 are about a tenth.
        (LoadCounts::Wire, 0.85, 0.95),
    ] {
        let experiment = Experiment {
            load_counts: counts,
            workload: "w3".into(),
            hosts: 32,
            load: 0.5,
            millis: 60.0,
            warmup: 0.0,
            ..small()
        };
        let report = run(&experiment, "oracle");
        let asked = 0.5 * 10e9 / 8.0 * 0.066 * 32.0;
        let share = report.messages.bytes as f64 / asked;
        assert!((low..high).contains(&share), "{counts:?}: {share}");
    }
}

#[test]
fn homa_beats_tcp_where_it_says_so() {
    let experiment = Experiment {
        workload: "w4".into(),
        cap: 1_000_000,
        load: 0.7,
        millis: 10.0,
        ..small()
    };
    let homa = run(&experiment, "homa");
    let dctcp = run(&experiment, "dctcp");
    let p99 = |report: &Report| report.classes[1].p99_us;
    assert_eq!(homa.classes[1].max_bytes, 1400);
    assert!(
        p99(&homa) * 5.0 < p99(&dctcp),
        "{} {}",
        p99(&homa),
        p99(&dctcp)
    );
    assert_eq!(homa.drops, 0);
    // More than one level is used for data.
    assert!(
        homa.priorities
            .iter()
            .filter(|share| **share > 0.01)
            .count()
            >= 4
    );
}

#[test]
fn jobs_end_and_wait_no_less_than_the_bound() {
    for pattern in [
        Pattern::Incast,
        Pattern::Barrier,
        Pattern::AllToAll,
        Pattern::AllReduce,
    ] {
        let mut experiment = small();
        experiment.pattern = pattern;
        experiment.job.bytes = 20_000;
        experiment.job.steps = 5;
        let bound = run(&experiment, "oracle").job.unwrap();
        let job = run(&experiment, "homa").job.unwrap();
        let ranks = if pattern == Pattern::Incast { 1 } else { 8 };
        assert_eq!(job.steps, 5 * ranks);
        assert!(
            job.mean_us >= bound.mean_us * 0.999,
            "{pattern:?}: {job:?} {bound:?}"
        );
        assert!(
            job.mean_us < bound.mean_us * 1.5,
            "{pattern:?}: {job:?} {bound:?}"
        );
        assert!(job.idle_share > 0.0 && job.idle_share < 1.0);
    }
}

#[test]
fn incast_into_a_small_buffer_is_repaired() {
    for transport in ["homa", "newreno", "cubic", "dctcp"] {
        let mut experiment = small();
        experiment.pattern = Pattern::Incast;
        experiment.hosts = 41;
        experiment.buffer = Buffer::PerPort { bytes: 100_000 };
        experiment.job.bytes = 20_000;
        experiment.job.steps = 3;
        let report = run(&experiment, transport);
        assert!(report.drops > 0, "{transport}");
        assert_eq!(report.job.unwrap().steps, 3, "{transport}");
    }
}

#[test]
fn impossible_values_are_told_in_one_line() {
    let wrong = |change: fn(&mut Experiment)| {
        let mut experiment = small();
        change(&mut experiment);
        let error = experiment.check().unwrap_err();
        assert_eq!(error.lines().count(), 1, "{error}");
        error
    };
    assert!(wrong(|e| e.load = -1.0).contains("load"));
    assert!(wrong(|e| e.load = f64::NAN).contains("load"));
    assert!(wrong(|e| e.workload = "w9".into()).contains("w9"));
    assert!(wrong(|e| e.topology = "ring".into()).contains("ring"));
    assert!(wrong(|e| e.hosts = 1).contains("two hosts"));
    assert!(wrong(|e| e.gbps = 0.0).contains("link speed"));
    assert!(wrong(|e| e.reply = "maybe".into()).contains("maybe"));
    assert!(wrong(|e| e.levels = 9).contains("levels"));
    assert!(wrong(|e| e.faults.loss = 2.0).contains("loss"));
}

#[test]
fn an_experiment_survives_its_file() {
    let text = toml::to_string(&small()).unwrap();
    let read = Experiment::from_toml(&text).unwrap();
    assert_eq!(toml::to_string(&read).unwrap(), text);
    assert!(
        Experiment::from_toml("lode = 1")
            .unwrap_err()
            .contains("lode")
    );
}

#[test]
fn the_backlog_shows_what_load_is_sustained() {
    let at = |load, overcommit| {
        let mut experiment = Experiment {
            workload: "500000".into(),
            load,
            millis: 30.0,
            drain_millis: 0.0,
            ..small()
        };
        experiment.homa.overcommit = overcommit;
        run(&experiment, "homa").arrived_share
    };
    assert!(at(0.4, 1) > 0.95);
    assert!(at(1.3, 8) < 0.9);
    // With one message granted at a time the link idles while its sender is busy elsewhere.
    assert!(at(1.3, 1) < at(1.3, 8) - 0.05);
}

#[test]
fn hosts_pause_and_nothing_is_lost() {
    let experiment = Experiment {
        pause_every_ms: 0.5,
        pause_ms: 0.2,
        ..small()
    };
    let (with, without) = (run(&experiment, "homa"), run(&small(), "homa"));
    assert_eq!(with.messages.completed, with.messages.started);
    assert!(with.all.p99_us > 2.0 * without.all.p99_us);
}
