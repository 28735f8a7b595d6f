//! See [`homa_fuzz::driver`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| homa_fuzz::driver(data));
