//! Workloads, targets, older designs, measurements.
#![forbid(unsafe_code)]
