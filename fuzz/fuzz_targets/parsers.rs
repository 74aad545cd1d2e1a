//! All parsers of on-disk structures.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| extant_hostile::parsers::run(input));
