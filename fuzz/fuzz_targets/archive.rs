//! Sources of new images.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| extant_hostile::archives::run(input));
