//! Checks of an ext4 file system that never write: each defect is a [`Finding`].
//!
//! The crate reads the device itself, below the engine, since the engine stops at the first
//! corruption. A pass reports a defect and goes on with the structures that do not depend on it.
//!
//! [`check_groups`] covers superblock copies, group descriptors and bitmaps. Inodes and all that
//! they lead to have no pass yet: a run without findings is no proof of an undamaged file system.
//!
//! # Invariants
//! Any bytes give findings, never a panic. Work and memory are bounded by the blocks of the device,
//! not by numbers in the image: groups that begin past the device's end are not visited.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod finding;
mod passes;
mod reader;

pub use finding::{CheckSummary, Finding, FindingCode, FindingPlace, PlannedRepair, Severity};

use extant_blocks::BlockDevice;
use finding::Findings;
use reader::Reader;

/// Checks superblock copies, group descriptors and bitmaps, and hands each finding to `sink`.
///
/// The device must hold the recovered blocks: with an unreplayed journal, descriptors and bitmaps
/// may be older than the log, and a note tells so.
pub fn check_groups(device: &dyn BlockDevice, sink: &mut dyn FnMut(Finding)) -> CheckSummary {
    let mut findings = Findings::new(sink);
    if let Some(primary) = passes::superblocks::read_primary(device, &mut findings) {
        let reader = Reader::new(device, primary.geometry);
        passes::superblocks::check_copies(&reader, &primary.superblock, &mut findings);
        passes::groups::check(&reader, &mut findings);
    }
    findings.summary()
}

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
