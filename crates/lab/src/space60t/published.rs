//! Published results.

use serde::Serialize;

/// A write as others measured it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Published {
    /// Seconds.
    pub seconds: f64,
    /// Bytes of memory for free space.
    pub bytes: Option<f64>,
    /// Trees in memory, or bitmaps.
    pub cached: Option<u64>,
    /// Pieces of the file.
    pub pieces: Option<u64>,
}

const fn published(seconds: f64, megabytes: f64, trees: u64) -> Published {
    Published { seconds, bytes: Some(megabytes * 1e6), cached: Some(trees), pieces: None }
}

const fn time(seconds: f64) -> Published {
    Published { seconds, bytes: None, cached: None, pieces: None }
}

/// A design and its writes of 10 MB and 100 MB.
pub type Line = (&'static str, [Published; 2]);

/// The postings of free-space-extent trees, August 2020: a disk of 60 TB, 30,720 flexible groups,
/// Linux 5.7.
pub const POSTINGS: [Line; 7] = [
    ("buddy", [time(1551.0), time(210.0)]),
    ("buddy, read ahead", [time(374.0), time(566.0)]),
    ("frsp, level 0", [published(8.0, 43.5, 201), published(6.0, 48.7, 226)]),
    ("frsp, level 1", [published(47.0, 193.0, 874), published(8.0, 221.0, 1007)]),
    ("frsp, level 2", [published(494.0, 3600.0, 16_476), published(594.0, 6800.0, 30_720)]),
    ("frsp, level 3", [published(1162.0, 6800.0, 30_720), published(5.0, 6800.0, 30_720)]),
    ("frsp, level 3, 1 GB", [published(1133.0, 1023.0, 30_720), published(7.0, 1023.0, 30_720)]),
];

const fn kernel(seconds: f64, pieces: Option<u64>, megabytes: f64, bitmaps: u64) -> Published {
    Published { seconds, bytes: Some(megabytes * 1e6), cached: Some(bitmaps), pieces }
}

/// Linux 6.18 with its ext4 on an image in memory with free space as in the profile `harsh`, on a
/// machine with two processors. Quoted, not measured in the same run: the image takes minutes to
/// make. Memory and bitmaps are those after both writes.
pub const KERNEL: [Line; 3] = [
    ("Linux 6.18, at once", [kernel(0.024, None, 145.0, 32), kernel(0.14, Some(2402), 145.0, 32)]),
    (
        "Linux 6.18, after 55 s",
        [kernel(0.020, None, 5496.0, 491_512), kernel(0.085, Some(90), 5496.0, 491_512)],
    ),
    (
        "Linux 6.18, linear scan",
        [kernel(17.7, None, 2787.0, 218_786), kernel(25.4, Some(226), 2787.0, 218_786)],
    ),
];

/// Returns the published results of a design on a profile.
pub fn of(profile: &str, name: &str) -> Option<[Published; 2]> {
    let lines: &[Line] = if profile == "posted" { &POSTINGS } else { &KERNEL };
    lines.iter().find(|(line, _)| *line == name).map(|(_, writes)| *writes)
}
