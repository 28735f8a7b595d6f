#[test] fn zz() { homa_fuzz::pair(&std::fs::read("/tmp/hf/crash-pair-crash-59263dbf953f185356ea7c65c1f2e061dc41e143").unwrap()); }
