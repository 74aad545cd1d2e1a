//! The free-space-tree allocator as it was posted in 2020, played on the large disk's bitmaps.
//!
//! It follows the description of its rules: the goal's tree is left out (files begin nowhere), requests are of 2048 blocks as writeback
//! makes them, trees hold flexible groups. Of what is known to be wrong with the posting, the copy keeps what is policy: trees are loaded
//! within requests and as a whole, a tree's scan is linear, nothing is preallocated, and a tree whose longest run lies in its first
//! group, where data do not go, is advised again and again (so later writes come in the pieces that other trees' runs have). It mends what only spoils the result: a loaded
//! tree is in the order of all trees at once, and trees are always on a list of those that may be evicted.

use super::disk::{Disk, Profile, waited};
use super::{Row, WRITES, Write};
use extant_format::types::GroupNr;
use extant_space::{FreeTree, Held, Lru, Run};
use extant_sync::atomic::Ordering::Relaxed;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

/// Bytes of a node in the posting.
const NODE: u64 = 56;
/// Runs that a request measures.
const MAX_TO_SCAN: u32 = 200;
/// Blocks of a request.
const REQUEST: u32 = 2048;

/// Rows of its levels.
pub fn rows(profile: &Profile, disk: &Disk) -> Vec<Row> {
    // Trees of the whole disk take gigabytes with the harsh profile, and tell nothing new.
    let levels: &[(u8, u64)] = match profile.name {
        "posted" => &[(0, 0), (1, 0), (2, 0), (3, 0), (3, 1 << 30)],
        _ => &[(0, 0), (1, 0)],
    };
    levels.iter().map(|(level, limit)| row(profile, disk, *level, *limit)).collect()
}

fn row(profile: &Profile, disk: &Disk, level: u8, limit: u64) -> Row {
    disk.restart(true);
    let mut trees = Posted::new(disk, level, limit);
    let writes = WRITES.map(|bytes| trees.write(bytes));
    let limited = if limit > 0 { format!(", {} MB", limit >> 20) } else { String::new() };
    let row = Row {
        profile: profile.name,
        name: format!("posted, level {level}{limited}"),
        mount: None,
        known: None,
        writes,
    };
    eprintln!("{} done", row.name);
    row
}

/// A run that was measured.
#[derive(Clone, Copy, Debug)]
struct Best {
    tree: u32,
    run: Run,
}

/// What a request has done so far.
#[derive(Debug)]
struct Request {
    goal: u32,
    criterion: u8,
    scanned: u32,
    found: u32,
    consultations: u8,
    best: Option<Best>,
    decided: bool,
    greedy: bool,
    unadvised: bool,
}

struct Posted<'a> {
    disk: &'a Disk,
    level: u8,
    /// Nodes; 0 for any number.
    limit: u64,
    count: u32,
    trees: HashMap<u32, FreeTree>,
    /// What was allocated: trees made again are without it.
    taken: HashMap<u32, Held>,
    nodes: u64,
    longest: Vec<Option<u32>>,
    order: BTreeSet<(Reverse<u32>, u32)>,
    /// The first one is last.
    uncached: Vec<u32>,
    cached: u64,
    lru: Lru,
}

/// Whether a length is better than the best so far (0: none), for a goal; and whether it is exactly right.
fn better(len: u32, goal: u32, best: u32, criterion: u8) -> (bool, bool) {
    match len {
        _ if len == goal => (true, true),
        _ if criterion == 0 && len < goal => (false, false),
        _ => (best < goal && len > best || len > goal && len < best, false),
    }
}

impl<'a> Posted<'a> {
    fn new(disk: &'a Disk, level: u8, limit: u64) -> Posted<'a> {
        let count = disk.geo.groups_count >> disk.geo.flex_bits;
        Posted {
            disk,
            level,
            limit: limit / NODE,
            count,
            trees: HashMap::new(),
            taken: HashMap::new(),
            nodes: 0,
            longest: vec![None; count as usize],
            order: BTreeSet::new(),
            uncached: (0..count).collect(),
            cached: 0,
            lru: Lru::default(),
        }
    }

    fn write(&mut self, bytes: u64) -> Write {
        let (start, before) = (Instant::now(), waited());
        let mut left = (bytes >> self.disk.geo.block_bits) as u32;
        let (mut pieces, mut end) = (0, None);
        while left > 0 {
            let Some(Best { tree, run }) = self.allocate(left.min(REQUEST)) else { break };
            pieces += u64::from(end != Some((tree, run.start)));
            end = Some((tree, run.end()));
            left -= run.len;
        }
        let waited = waited() - before;
        Write {
            seconds: start.elapsed().as_secs_f64() + waited,
            waited,
            pieces,
            tree_bytes: self.nodes * NODE,
            index_bytes: 0,
            trees: self.cached,
            bitmaps: self.disk.bitmaps_read.load(Relaxed),
            claims: [0; 6],
        }
    }

    fn allocate(&mut self, goal: u32) -> Option<Best> {
        let mut request = Request {
            goal,
            criterion: 0,
            scanned: 0,
            found: 0,
            consultations: 0,
            best: None,
            decided: false,
            greedy: false,
            unadvised: false,
        };
        let mut at = self.consult(&mut request).unwrap_or(0);
        loop {
            while request.scanned < self.count && !request.decided {
                self.load(at);
                self.scan(at, &mut request);
                request.scanned += 1;
                let next = (at + 1) % self.count;
                at = self.consult(&mut request).unwrap_or(next);
            }
            if request.decided || request.criterion == 2 {
                break;
            }
            (request.criterion, request.scanned, request.unadvised) = (request.criterion + 1, 0, false);
        }
        let best = request.best?;
        self.take(best, goal)
    }

    fn take(&mut self, best: Best, goal: u32) -> Option<Best> {
        self.load(best.tree);
        let run = Run { start: best.run.start, len: best.run.len.min(goal) };
        let tree = self.trees.get_mut(&best.tree)?;
        let before = tree.runs() as u64;
        tree.take(run).then_some(())?;
        self.nodes = self.nodes + tree.runs() as u64 - before;
        self.taken.entry(best.tree).or_default().add(run);
        self.renew(best.tree);
        Some(Best { run, ..best })
    }

    fn load(&mut self, t: u32) {
        if self.trees.contains_key(&t) {
            return;
        }
        let bits = self.disk.geo.flex_bits;
        let group = self.disk.geo.clusters_per_group;
        let mut tree = FreeTree::new(group);
        let mut runs = Vec::new();
        for (index, g) in (t << bits..(t + 1) << bits).enumerate() {
            let first = index as u32 * group;
            self.disk.runs_of(GroupNr(g), |run| runs.push(Run { start: first + run.start, len: run.len }));
        }
        if let Some(taken) = self.taken.get(&t) {
            runs = taken.subtract(runs);
        }
        tree.load(&runs);
        self.nodes += tree.runs() as u64;
        self.trees.insert(t, tree);
        if self.longest[t as usize].is_none() {
            self.cached += 1;
            match self.uncached.last() == Some(&t) {
                true => self.uncached.truncate(self.uncached.len() - 1),
                false => self.uncached.retain(|other| *other != t),
            }
        }
        self.renew(t);
        self.lru.loaded(t);
        while self.limit > 0
            && self.nodes > self.limit
            && let Some(old) = self.lru.victim().filter(|old| *old != t)
        {
            self.lru.remove(old);
            self.nodes -= self.trees.remove(&old).map_or(0, |tree| tree.runs() as u64);
        }
    }

    /// Puts a tree where it belongs in the order.
    fn renew(&mut self, t: u32) {
        let longest = self.trees.get(&t).and_then(FreeTree::longest).map_or(0, |run| run.len);
        if let Some(old) = self.longest[t as usize].replace(longest) {
            self.order.remove(&(Reverse(old), t));
        }
        self.order.insert((Reverse(longest), t));
    }

    fn scan(&self, t: u32, request: &mut Request) {
        let Some(tree) = self.trees.get(&t) else { return };
        for run in tree.by_length() {
            if request.criterion == 0 && run.len < request.goal {
                break;
            }
            request.found += 1;
            let best = request.best.map_or(0, |best| best.run.len);
            let first_group = run.start < self.disk.geo.clusters_per_group;
            if first_group && request.criterion < 2 && !request.greedy {
                continue;
            }
            let (better, exact) = better(run.len, request.goal, best, request.criterion);
            if request.greedy || better || best == 0 {
                request.best = Some(Best { tree: t, run });
            }
            request.decided |= request.greedy || exact;
            if request.decided || !(better || best == 0) {
                break;
            }
            if request.found > MAX_TO_SCAN {
                break;
            }
        }
        request.decided |= request.found > MAX_TO_SCAN && request.best.is_some();
    }

    /// The optimiser: which tree to look at next.
    fn consult(&mut self, request: &mut Request) -> Option<u32> {
        if request.greedy || request.unadvised || request.decided {
            return None;
        }
        request.consultations = request.consultations.wrapping_add(1);
        let best = request.best.map_or(0, |best| best.run.len);
        let sufficient = self.order.range(..=(Reverse(request.goal), u32::MAX)).next_back();
        let largest = if request.criterion > 0 { self.order.first() } else { None };
        let seen = sufficient.or(largest).copied();
        let judged = seen.map(|(len, tree)| (better(len.0, request.goal, best, request.criterion), tree));
        let remembered = judged.filter(|((better, _), _)| *better);
        let exact = remembered.is_some_and(|((_, exact), _)| exact);
        let measured = request.best.is_some();
        let cache = self.should_cache(request);
        match remembered {
            None if !measured && cache => self.uncached.last().copied(),
            None if !measured && request.criterion < 2 => {
                (request.criterion, request.scanned) = (request.criterion + 1, 0);
                Some(0)
            }
            None if !measured => {
                request.greedy = true;
                None
            }
            _ if !exact && cache => self.uncached.last().copied(),
            Some((_, tree)) => Some(tree),
            None => {
                request.unadvised = true;
                None
            }
        }
    }

    fn should_cache(&self, request: &Request) -> bool {
        match self.level {
            _ if self.uncached.is_empty() => false,
            3.. => true,
            0 => false,
            1 if request.criterion == 0 => false,
            _ => !request.consultations.is_multiple_of(2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_is_as_described() {
        assert_eq!(better(8, 8, 0, 0), (true, true));
        assert_eq!(better(7, 8, 0, 0), (false, false));
        assert_eq!(better(7, 8, 3, 1), (true, false));
        assert_eq!(better(9, 8, 12, 1), (true, false));
        assert_eq!(better(12, 8, 9, 1), (false, false));
        assert_eq!(better(5, 8, 6, 2), (false, false));
    }
}
