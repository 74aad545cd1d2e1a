//! Recovery of logs.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| extant_hostile::log::run(input));
