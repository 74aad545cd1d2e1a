//! Workloads, targets, measurements.
//!
//! A *workload* (`workload`) is written once over the trait `target::Target`. A *side*
//! (`side`) makes a fresh file system, gives a target for it, and can empty its caches. The bench
//! (`bench`) runs every workload on every side, turn about, and prints medians, ratios and
//! which of the project's bars are reached (`bars`).
#![forbid(unsafe_code)]

mod age;
mod allocators;
mod bars;
mod bench;
mod claims;
pub mod cli;
mod contention;
mod fsmark;
mod huge;
mod instructions;
mod jobs;
mod null;
mod pages;
mod pairs;
mod prealloc;
mod published;
mod reproduce;
mod scale;
mod serve;
mod side;
mod space60t;
mod tables;
mod target;
mod work;
mod workload;
