//! See [`homa_fuzz::differential`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| homa_fuzz::differential(data));
