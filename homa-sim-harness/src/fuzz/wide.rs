//! What seeds draw beyond the first range: settings and habits that few users have, and that the core has to bear.
//!
//! It is drawn from random numbers of its own, so that the rest of a seed's scenario is what it would be without.

use super::scenario::{MILLI, Planned, Scenario, Then, log_between, sometimes};
use crate::rng::Rng;

/// Each kind of oddity comes with this chance, independently of the others.
const ODD: f64 = 0.15;
/// The shortest time after which an application loses its patience.
const LEAST_PATIENCE_NS: u64 = 10_000;

pub(super) fn draw(seed: u64, scenario: &mut Scenario) {
    let rng = &mut Rng::new(seed, 0x7769_6465);
    links(rng, scenario);
    addresses(rng, scenario);
    budgets(rng, scenario);
    granting(rng, scenario);
    priorities(rng, scenario);
    memory(rng, scenario);
    applications(rng, scenario);
    scenario.extra_ns = slowness(scenario);
}

/// Links of different speeds and lengths, packets of different sizes, and hosts that do not know.
fn links(rng: &mut Rng, scenario: &mut Scenario) {
    if rng.chance(ODD) {
        for host in &mut scenario.topology.hosts {
            host.bps /= *rng.pick(&[1, 1, 2, 10]);
            host.delay_ns += rng.below(10_000);
        }
    }
    let hosts = scenario.topology.hosts.len();
    let homa = &mut scenario.homa;
    if rng.chance(ODD) {
        let mtu = homa.config.mtu;
        homa.variety.mtus = (0..hosts)
            .map(|_| rng.between(u64::from(mtu / 2).max(256), u64::from(mtu)) as u16)
            .collect();
    }
    homa.variety.hide_link_speed = rng.chance(ODD);
    homa.config.max_batch = sometimes(rng, 0.5, |rng| rng.between(2, 64) as u16, 1);
}

fn addresses(rng: &mut Rng, scenario: &mut Scenario) {
    let hosts = scenario.topology.hosts.len() as u64;
    let variety = &mut scenario.homa.variety;
    variety.ipv6 = rng.chance(ODD);
    variety.per_address = sometimes(rng, ODD, |rng| rng.between(2, hosts) as u16, 1);
    variety.ports = sometimes(rng, ODD, |rng| rng.between(1, 64) as u16, 1);
    let closed = rng.chance(ODD / 3.0);
    variety.asked_ports = variety.ports + u16::from(closed);
}

/// What a peer, or all strangers, may have under way.
fn budgets(rng: &mut Rng, scenario: &mut Scenario) {
    let config = &mut scenario.homa.config;
    config.max_peer_requests = sometimes(rng, ODD, |rng| log_between(rng, 1, 16) as u32, 0);
    config.max_peer_bytes = sometimes(rng, ODD, |rng| log_between(rng, 1, 200_000), 0);
    config.max_stranger_bytes = sometimes(rng, ODD, |rng| log_between(rng, 1, 200_000), 0);
    config.max_unheard = sometimes(rng, ODD, |rng| log_between(rng, 1, 100_000), 0);
}

fn granting(rng: &mut Rng, scenario: &mut Scenario) {
    let config = &mut scenario.homa.config;
    let mtu = u64::from(config.mtu);
    config.min_grant = sometimes(rng, ODD, |rng| log_between(rng, 1, 60_000) as u32, 0);
    config.max_incoming = sometimes(
        rng,
        ODD,
        |rng| log_between(rng, mtu, 4 * mtu),
        config.max_incoming,
    );
    config.window = sometimes(
        rng,
        ODD,
        |rng| log_between(rng, 64, 4 * mtu) as u32,
        config.window,
    );
    config.receive_buffer = sometimes(rng, ODD, |rng| log_between(rng, mtu, 100 * mtu), 0);
    config.max_overcommit = sometimes(
        rng,
        ODD,
        |rng| rng.between(0, 32) as u8,
        config.max_overcommit,
    );
    config.fifo_grant_increment = sometimes(
        rng,
        ODD,
        |rng| log_between(rng, 1, 1 << 20) as u32,
        config.fifo_grant_increment,
    );
}

/// As many priorities as one likes, whatever the network has of them, and strange cutoffs.
fn priorities(rng: &mut Rng, scenario: &mut Scenario) {
    let config = &mut scenario.homa.config;
    config.levels = sometimes(rng, ODD, |rng| rng.between(1, 8) as u8, config.levels);
    scenario.switches.levels = sometimes(
        rng,
        ODD,
        |rng| rng.between(1, 8) as u8,
        scenario.switches.levels,
    );
    if rng.chance(ODD) {
        let mut cutoffs = [0; 8];
        for cutoff in &mut cutoffs[..usize::from(config.levels)] {
            *cutoff = sometimes(rng, 0.7, |rng| log_between(rng, 1, 1 << 20) as u32, 0);
        }
        cutoffs[rng.below(u64::from(config.levels)) as usize] = i32::MAX as u32;
        config.fixed_cutoffs = Some(cutoffs);
    }
}

/// Tables and buffers that are too small, and a short memory.
fn memory(rng: &mut Rng, scenario: &mut Scenario) {
    let hosts = scenario.topology.hosts.len() as u64;
    let homa = &mut scenario.homa;
    // With a single slot an endpoint that asks cannot answer.
    homa.limits.rpcs = sometimes(rng, ODD, |rng| rng.between(2, 4) as usize, homa.limits.rpcs);
    homa.limits.peers = sometimes(
        rng,
        ODD,
        |rng| rng.between(1, hosts) as usize,
        homa.limits.peers,
    );
    homa.limits.ended = sometimes(
        rng,
        ODD,
        |rng| log_between(rng, 1, 64) as usize,
        homa.limits.ended,
    );
    homa.config.ended_window_ns = sometimes(
        rng,
        ODD,
        |rng| log_between(rng, 1, 4000 * MILLI),
        homa.config.ended_window_ns,
    );
    homa.buffer_bytes = sometimes(
        rng,
        ODD,
        |rng| log_between(rng, 1 << 10, 1 << 20) as usize,
        homa.buffer_bytes,
    );
}

/// Deadlines, requests that are given up, and handlers that never answer in time.
fn applications(rng: &mut Rng, scenario: &mut Scenario) {
    let chaos = scenario.heal_at;
    let patience = |rng: &mut Rng| Some(log_between(rng, LEAST_PATIENCE_NS, chaos));
    let mut share = || sometimes(rng, ODD, Rng::unit, 0.0);
    let (deadlines, cancelled, unanswered, late) = (share(), share(), share(), share());
    for planned in &mut scenario.traffic {
        planned.deadline_ns = sometimes(rng, deadlines, patience, None);
        planned.cancel_ns = sometimes(rng, cancelled, patience, None);
        if rng.chance(unanswered) {
            planned.then = Then::Cancel;
        } else if rng.chance(late) {
            planned.then = Then::AnswerTooLate;
            // Else it would wait for ever: a server that says that it is busy is believed.
            planned.deadline_ns = planned.deadline_ns.or_else(|| patience(rng));
        }
    }
}

/// What strange settings cost in time: packets that go one by one, and answers that come when all faults are over.
fn slowness(scenario: &Scenario) -> u64 {
    let config = &scenario.homa.config;
    let chunk = match config.window {
        0 => 500,
        window => u64::from(window).min(500),
    };
    let bytes: u64 = scenario
        .traffic
        .iter()
        .map(|planned| u64::from(planned.bytes) + u64::from(planned.reply_bytes))
        .sum();
    let software = &scenario.software;
    let turn = 50_000
        + 4 * (software.wakeup_ns
            + software.wakeup_jitter_ns
            + software.tx_ns
            + software.rx_ns
            + software.per_packet_ns)
        + (software.stall_chance * software.stall_ns as f64) as u64 * 4;
    let count = |which: fn(&Planned) -> bool| {
        let traffic = scenario.traffic.iter();
        traffic.filter(|&planned| which(planned)).count() as u64
    };
    // Whoever is told BUSY asks again; a request that is never answered keeps its slot until it times out.
    let all = count(|_| true);
    let unanswered = count(|planned| planned.then == Then::Cancel);
    let waits = all * 2 * config.resend_ceiling_ns + unanswered * config.timeout_ns;
    bytes / chunk * turn + waits + scenario.heal_at
}
