//! The targets over pseudo-random bytes, on any compiler.

/// SplitMix64: every run is the same.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn bytes(seed: u64, most: u64) -> Vec<u8> {
    let mut state = seed;
    let len = random(&mut state) % most;
    (0..len).map(|_| random(&mut state) as u8).collect()
}

#[test]
fn parse() {
    for seed in 0..100_000 {
        let mut packet = bytes(seed, 120);
        if let Some(kind) = packet.get_mut(11) {
            *kind = 0x10 + *kind % 9;
        }
        homa_fuzz::parse(&packet);
    }
}

/// Runs a target over many inputs. What fails is told by its seed.
fn run(target: fn(&[u8]), seeds: u64, most: u64) {
    for seed in 0..seeds {
        let run = std::panic::catch_unwind(|| target(&bytes(seed, most)));
        assert!(run.is_ok(), "seed {seed}");
    }
}

#[test]
fn endpoint() {
    run(homa_fuzz::endpoint, 20_000, 600);
}

#[test]
fn pair() {
    run(homa_fuzz::pair, 20_000, 300);
}

#[test]
fn differential() {
    run(homa_fuzz::differential, 50_000, 300);
}

#[test]
fn driver() {
    run(homa_fuzz::driver, 100_000, 200);
}
