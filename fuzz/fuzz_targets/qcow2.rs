//! Disk images in the format qcow2.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| extant_hostile::disks::run(input));
