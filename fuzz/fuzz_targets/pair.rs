//! See [`homa_fuzz::pair`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| homa_fuzz::pair(data));
