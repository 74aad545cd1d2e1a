//! Counts of one image by the programs of e2fsprogs. `e2fsck` counts reachable inodes and blocks,
//! `dumpe2fs` prints the counts of superblock, descriptors and bitmaps, and `e2freefrag` searches
//! for runs of free blocks. For a valid image all agree.

use crate::dumpe2fs::{self, Dump};
use crate::tool::{arg, run};
use std::path::Path;

/// Counts of `e2fsck`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Inodes in use.
    pub used_inodes: u64,
    /// Inodes in all.
    pub inodes: u64,
    /// Blocks in use.
    pub used_blocks: u64,
    /// Blocks in all.
    pub blocks: u64,
}

/// Findings of `e2freefrag`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FreeRuns {
    /// Free blocks of the file system.
    pub blocks: u64,
    /// Runs of them.
    pub runs: u64,
    /// KiB of the longest.
    pub longest: u64,
    /// Runs and blocks of all lengths in the histogram.
    pub histogram: (u64, u64),
}

/// Runs `e2freefrag`.
#[track_caller]
pub fn free_runs(image: &Path) -> FreeRuns {
    parse_runs(&run("e2freefrag", &[arg(image)]).must_succeed().text())
}

fn parse_runs(text: &str) -> FreeRuns {
    let number = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    };
    let rows = text.lines().skip_while(|line| !line.starts_with("Extent Size Range")).skip(1);
    let row = |line: &str| -> Option<(u64, u64)> {
        let mut words = line.rsplit_once(':')?.1.split_whitespace();
        Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    };
    let histogram = rows.filter_map(row).fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
    FreeRuns {
        blocks: number("Free blocks:"),
        runs: number("Num. free extent:"),
        longest: number("Max. free extent:"),
        histogram,
    }
}

/// Returns contradictions between the programs about an image that `e2fsck` found clean with the
/// summary `said`; none for a valid image.
#[track_caller]
pub fn contradictions(image: &Path, said: Summary) -> Vec<String> {
    let dump = dumpe2fs::dump(image);
    let mut found = Vec::new();
    let mut compare = |what: &str, ours: u64, theirs: u64| {
        if ours != theirs {
            found.push(format!("{what}: {ours} and {theirs}"));
        }
    };
    let (free_blocks, free_inodes) = (dump.number("Free blocks"), dump.number("Free inodes"));
    compare("blocks, e2fsck and dumpe2fs", said.blocks, dump.number("Block count"));
    compare("inodes, e2fsck and dumpe2fs", said.inodes, dump.number("Inode count"));
    compare("free blocks, e2fsck and dumpe2fs", said.blocks - said.used_blocks, free_blocks);
    compare("free inodes, e2fsck and dumpe2fs", said.inodes - said.used_inodes, free_inodes);
    let of_groups = |count: fn(&dumpe2fs::Group) -> u64| dump.groups.iter().map(count).sum::<u64>();
    compare(
        "free blocks of groups and of the superblock",
        of_groups(|group| group.free_blocks) * ratio(&dump),
        free_blocks,
    );
    compare(
        "free inodes of groups and of the superblock",
        of_groups(|group| group.free_inodes),
        free_inodes,
    );
    // `e2freefrag` finds no runs of clusters.
    if ratio(&dump) == 1 {
        let runs = free_runs(image);
        let (count, longest) = runs_of(&dump);
        compare("free blocks, e2freefrag and dumpe2fs", runs.blocks, free_blocks);
        compare("free blocks in runs, e2freefrag and dumpe2fs", runs.histogram.1, free_blocks);
        compare("runs, e2freefrag's sum and its histogram", runs.runs, runs.histogram.0);
        compare("runs, e2freefrag and dumpe2fs", runs.runs, count);
        compare(
            "KiB of the longest run, e2freefrag and dumpe2fs",
            runs.longest,
            longest * dump.number("Block size") / 1024,
        );
    }
    found
}

/// Returns the number of blocks of a cluster.
fn ratio(dump: &Dump) -> u64 {
    let cluster = dump.values.contains_key("Cluster size").then(|| dump.number("Cluster size"));
    cluster.map_or(1, |bytes| bytes / dump.number("Block size"))
}

/// Returns the number of free runs in the bitmaps, joined across groups, and the length of the
/// longest in blocks.
fn runs_of(dump: &Dump) -> (u64, u64) {
    let (mut count, mut longest) = (0, 0);
    let mut last: Option<(u64, u64)> = None;
    for (start, end) in dump.groups.iter().flat_map(|group| group.free.iter().copied()) {
        let joined = last.filter(|(_, before)| before + 1 == start).map(|(first, _)| first);
        count += u64::from(joined.is_none());
        let run = (joined.unwrap_or(start), end);
        longest = longest.max(run.1 - run.0 + 1);
        last = Some(run);
    }
    (count, longest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dumpe2fs::Group;

    #[test]
    fn free_runs_are_parsed() {
        let text = "Device: a\nBlocksize: 1024 bytes\nTotal blocks: 65536\nFree blocks: 57307 \
        (87.4%)\n\n\
            Min. free extent: 4065 KB \nMax. free extent: 16383 KB\nAvg. free extent: 9551 \
            KB\nNum. free extent: 6\n\n\
            HISTOGRAM OF FREE EXTENT SIZES:\nExtent Size Range :  Free extents   Free Blocks  \
            Percent\n    \
            2M...    4M-  :             1          4065    7.09%\n    4M...    8M-  :             \
            3         20476   35.73%\n    \
            8M...   16M-  :             2         32766   57.18%\n";
        let runs = FreeRuns { blocks: 57307, runs: 6, longest: 16383, histogram: (6, 57307) };
        assert_eq!(parse_runs(text), runs);
    }

    #[test]
    fn runs_go_on_in_the_next_group() {
        let group = |free: &[(u64, u64)]| Group { free: free.to_vec(), ..Group::default() };
        let groups =
            vec![group(&[(3, 3), (7, 10)]), group(&[]), group(&[(11, 20)]), group(&[(22, 22)])];
        assert_eq!(runs_of(&Dump { groups, ..Dump::default() }), (3, 14));
    }
}
