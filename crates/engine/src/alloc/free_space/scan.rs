//! Scans bitmaps for summaries of all groups, long before their free space is needed. Adjacent
//! bitmaps are read at once, past the block cache.
//!
//! Summaries are hints, so the scan verifies nothing: a bitmap is compared with its checksum and
//! its descriptor when its group's free space is loaded.

use super::FreeSpace;
use super::search::TRACED;
use crate::alloc::Alloc;
use extant_format::types::GroupNr;
use extant_space::Summary;
use extant_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// The most trees of a file system that is not scanned in the background: requests read the bitmaps
/// that they need.
const FEW_TREES: u32 = 8;
/// Trees that a step of the background scans.
const STEP: u32 = 16;
/// Bytes of the largest read.
const MAX_READ: usize = 1 << 20;

/// Which trees have groups of which nothing is known.
#[derive(Debug)]
pub(in crate::alloc) struct Scan {
    /// A bit for each tree.
    unknown: Box<[AtomicU64]>,
    left: AtomicU64,
    trees: u32,
    /// Where the background goes on.
    next: AtomicU32,
    /// The scan is switched on, and a task runs it.
    wanted: AtomicBool,
    running: AtomicBool,
}

impl Scan {
    pub fn new(trees: u32, unknown: impl Fn(u32) -> bool) -> Scan {
        let word = |first: u32| {
            let bits = (0..64)
                .map(|bit| (first + bit, bit))
                .filter(|(tree, _)| *tree < trees && unknown(*tree));
            AtomicU64::new(bits.fold(0, |word, (_, bit)| word | 1 << bit))
        };
        let unknown: Box<[AtomicU64]> =
            (0..trees.div_ceil(64)).map(|index| word(index * 64)).collect();
        let left = unknown.iter().map(|word| u64::from(word.load(Relaxed).count_ones())).sum();
        Scan {
            unknown,
            left: AtomicU64::new(left),
            trees,
            next: AtomicU32::new(0),
            wanted: AtomicBool::new(true),
            running: AtomicBool::new(false),
        }
    }

    /// Trees of which not all is known.
    pub fn left(&self) -> u64 {
        self.left.load(Relaxed)
    }

    /// Whether bitmaps are scanned in the background.
    pub fn set(&self, on: bool) {
        self.wanted.store(on, Relaxed);
    }

    pub fn is_on(&self) -> bool {
        self.wanted.load(Relaxed)
    }

    /// Returns whether the background scan will complete the summaries.
    fn is_coming(&self) -> bool {
        self.running.load(Relaxed) && self.is_on() && self.left() > 0
    }

    fn is_unknown(&self, tree: u32) -> bool {
        self.unknown
            .get(tree as usize / 64)
            .is_some_and(|word| word.load(Relaxed) & 1 << (tree % 64) != 0)
    }

    /// Marks a tree as looked at. False if it was before.
    fn done(&self, tree: u32) -> bool {
        let bit = 1 << (tree % 64);
        let was =
            self.unknown.get(tree as usize / 64).map_or(0, |word| word.fetch_and(!bit, Relaxed));
        if was & bit != 0 {
            self.left.fetch_sub(1, Relaxed);
        }
        was & bit != 0
    }

    /// The next unknown tree from `from` on and then from the front.
    fn find(&self, from: u32) -> Option<u32> {
        if self.left() == 0 {
            return None;
        }
        let words = self.unknown.len() as u32;
        let start = from / 64;
        let steps = (0..=words).map(|step| (start + step) % words.max(1));
        for (step, index) in steps.enumerate() {
            let mask = if step == 0 { u64::MAX << (from % 64) } else { u64::MAX };
            let word = self.unknown.get(index as usize)?.load(Relaxed) & mask;
            if word != 0 {
                return Some(index * 64 + word.trailing_zeros());
            }
        }
        None
    }
}

/// Whether a request that consults the order for the n-th time at a criterion should look at an
/// unknown tree, by the level of aggression.
///
/// | level | looks of a request that finds no run of the whole length in known trees |
/// | --- | --- |
/// | 0 | none |
/// | 1 | before criterion 1 and before criterion 2; while the scan runs, at the goal's tree only |
/// | 2 | once at criterion 0, too |
/// | 3 | each time: up to 16 times at criterion 0 |
fn should_look(level: u8, criterion: usize, consultation: u32) -> bool {
    match level {
        0 => false,
        1 if criterion == 0 => false,
        1 | 2 => !consultation.is_multiple_of(2),
        _ => true,
    }
}

impl FreeSpace {
    /// Looks at a tree of which not all is known, if this request should do so. True if more is
    /// known then.
    pub(in crate::alloc) fn explore(&self, criterion: usize, consultation: u32, near: u32) -> bool {
        let level = self.level.load(Relaxed);
        if !should_look(level, criterion, consultation) {
            return false;
        }
        // The scan comes to all other trees soon. The goal's tree is worth a read of its own.
        let only_near = level == 1 && self.scan.is_coming();
        let unknown = if only_near {
            Some(near).filter(|t| self.scan.is_unknown(*t))
        } else {
            self.scan.find(near)
        };
        let Some(t) = unknown else { return false };
        self.counts.explored.add(1);
        tracing::trace!(
            target: TRACED,
            tree = t,
            criterion,
            attempt = consultation,
            level,
            "cache override",
        );
        self.summarise(t, &mut Vec::new());
        true
    }

    /// Scans the bitmaps of a tree's groups of which nothing is known.
    fn summarise(&self, t: u32, scratch: &mut Vec<u8>) {
        if !self.scan.is_unknown(t) {
            return;
        }
        let unknown = self.shape.groups_of(t).filter(|g| self.summaries.longest(*g).is_none());
        let places: Vec<(GroupNr, u64)> = unknown
            .map(GroupNr)
            .map(|g| (g, self.groups.with(g, |desc| desc.block_bitmap)))
            .collect();
        let most = (MAX_READ / self.vol.block_size()).max(1);
        let mut found: Vec<(GroupNr, Summary)> = Vec::with_capacity(places.len());
        for run in places.chunk_by(|a, b| a.1 + 1 == b.1) {
            run.chunks(most).for_each(|run| self.scan_run(run, scratch, &mut found));
        }
        self.counts.bitmaps_scanned.add(found.len() as i64);
        let Some(mut tree) = self.tree(t) else { return };
        for (g, summary) in found.into_iter().filter(|(g, _)| tree.is_absent(self.shape.mask(*g))) {
            self.summaries.set(g.0, &summary);
        }
        self.change(t, &mut tree, |tree| self.renew_outside(t, tree));
        self.scan.done(t);
    }

    /// Scans adjacent bitmaps. Unreadable ones stay unknown.
    fn scan_run(
        &self,
        run: &[(GroupNr, u64)],
        scratch: &mut Vec<u8>,
        found: &mut Vec<(GroupNr, Summary)>,
    ) {
        let size = self.vol.block_size();
        let Some((_, first)) = run.first() else { return };
        scratch.resize(run.len() * size, 0);
        let offset = first.checked_mul(size as u64);
        if offset.is_none_or(|offset| self.vol.dev.read_exact_at(scratch, offset).is_err()) {
            return;
        }
        for ((g, nr), bits) in run.iter().zip(scratch.chunks_exact(size)) {
            let clusters = self.vol.geo.clusters_in_group(*g);
            // A cached bitmap may be newer than the device's.
            let summary = match self.vol.cache.peek(*nr) {
                Some(buffer) => Summary::of_bitmap(&buffer.read(), clusters),
                None => Summary::of_bitmap(bits, clusters),
            };
            found.push((*g, summary));
        }
    }
}

/// The most scans at once; more than the device has channels for do not help.
const MAX_SCANNERS: usize = 8;

impl Alloc {
    /// Threads that should call [`Alloc::scan_some`] until it says that all is known; 0 if nothing
    /// is worth scanning.
    pub fn scanners(&self) -> usize {
        let scan = &self.space.scan;
        let useful = scan.trees > FEW_TREES && scan.left() > 0;
        scan.running.store(useful, Relaxed);
        if useful { self.vol.shards.min(MAX_SCANNERS) } else { 0 }
    }

    /// Scans the unknown groups of a file system that is not scanned in the background.
    pub(in crate::alloc) fn scan_few(&self) {
        if self.space.scan.trees <= FEW_TREES {
            let mut scratch = Vec::new();
            (0..self.space.scan.trees).for_each(|t| self.space.summarise(t, &mut scratch));
        }
    }

    /// Scans a part of the bitmaps of which nothing is known.
    pub fn scan_some(&self) -> Scanned {
        let (blocks, scan) = (&self.space, &self.space.scan);
        if scan.left() == 0 {
            return Scanned::All;
        }
        if !scan.is_on() {
            return Scanned::Off;
        }
        let from = scan.next.fetch_add(STEP, Relaxed).min(scan.trees);
        let mut scratch = Vec::new();
        if from == scan.trees {
            // Trees that were skipped while another thread switched scanning off and on.
            scan.find(0).into_iter().for_each(|t| blocks.summarise(t, &mut scratch));
        }
        for t in from..from.saturating_add(STEP).min(scan.trees) {
            blocks.summarise(t, &mut scratch);
        }
        Scanned::Some
    }
}

/// The result of a step of the background scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scanned {
    /// Some trees were scanned; perhaps there are more.
    Some,
    /// Scanning is switched off.
    Off,
    /// Nothing is unknown any more.
    All,
}
