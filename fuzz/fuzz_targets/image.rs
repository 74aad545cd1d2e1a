//! Whole images.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| extant_hostile::image::run(input));
