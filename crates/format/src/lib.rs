//! On-disk structures of ext4 and jbd2: types, checksums, hashes, total parsing.
#![forbid(unsafe_code)]
