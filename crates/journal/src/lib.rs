//! jbd2: handles, group commit, checkpoint, recovery.
#![forbid(unsafe_code)]
