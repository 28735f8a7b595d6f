//! See [`homa_fuzz::parse`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| homa_fuzz::parse(data));
