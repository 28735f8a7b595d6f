//! See [`homa_fuzz::endpoint`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| homa_fuzz::endpoint(data));
