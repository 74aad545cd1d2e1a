//! Workloads, targets, measurements.
//!
//! A *workload* ([`workload`]) is written once over the trait [`target::Target`]. A *side*
//! ([`side`]) makes a fresh file system, gives a target for it, and can empty its caches. The bench
//! ([`mod@bench`]) runs every workload on every side, turn about, and prints medians, ratios and
//! which of the project's bars are reached ([`bars`]).
#![forbid(unsafe_code)]

pub mod age;
pub mod allocators;
pub mod awake;
pub mod bars;
pub mod bench;
pub mod claims;
pub mod cli;
pub mod contention;
mod grid;
pub mod huge;
mod instructions;
mod interval;
pub mod jobs;
pub mod machine;
pub mod measure;
pub mod null;
pub mod pages;
pub mod pairs;
pub mod prealloc;
pub mod report;
mod reproduce;
pub mod scratch;
pub mod serve;
mod sheet;
pub mod side;
pub mod space60t;
mod stored;
pub mod tables;
pub mod target;
pub mod tool;
pub mod workload;
