//! Flipped bits all over small images of every kind: a repair keeps as much as e2fsck, or more.
//!
//! Each case flips one to three bits, repairs one copy of the image by each program, and compares
//! names and contents with those before.

use crate::exceptions::{THEIRS, reason};
use crate::oracle::complaints;
use crate::repairs::{Repaired, contents, objection, repair};
use extant_blocks::MemDevice;
use extant_check::repair::RepairLevel;
use extant_engine::Fs;
use extant_hostile::atlas::Kind;
use extant_hostile::seeds::{Seed, options};
use extant_testkit::rng::Rng;
use extant_testkit::tree::{Manifest, Node};
use extant_testkit::{FEATURE_SETS, FeatureSet, Image, e2fsck};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::panic::catch_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Further kinds of images: those without checksums of metadata, with several groups, whose
/// superblock only copies can correct.
const KINDS: &[(&str, &[&str])] = &[
    ("ext2 of 4 KiB", &["-t", "ext2", "-b", "4096", "-g", "1024"]),
    ("ext2 of revision 0", &["-t", "ext2", "-b", "1024", "-r", "0"]),
    (
        "ext2 with many copies",
        &["-t", "ext2", "-b", "1024", "-g", "2048", "-O", "^sparse_super,^resize_inode"],
    ),
    ("ext3 of 4 KiB", &["-t", "ext3", "-b", "4096", "-g", "1024"]),
    ("ext3 with flex_bg", &["-t", "ext3", "-b", "1024", "-O", "flex_bg"]),
    ("uninit_bg", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,uninit_bg"]),
    ("no_csum", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]),
    ("no_csum of 4 KiB", &["-t", "ext4", "-b", "4096", "-g", "1024", "-O", "^metadata_csum"]),
    ("no_csum, no flex_bg", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^flex_bg"]),
    ("no_csum, no_64bit", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^64bit"]),
    (
        "no_csum, bigalloc",
        &["-t", "ext4", "-b", "1024", "-C", "4096", "-g", "4096", "-O", "^metadata_csum,bigalloc"],
    ),
    ("no_csum, inline_data", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,inline_data"]),
    ("no_csum, ea_inode", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,ea_inode"]),
    ("no_csum, quota", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,quota,project"]),
    ("no_csum, casefold", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,casefold,encrypt"]),
    (
        "no_csum, meta_bg",
        &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "^metadata_csum,meta_bg,^resize_inode"],
    ),
    (
        "no_csum, sparse_super2",
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,sparse_super2,^resize_inode"],
    ),
    ("4 KiB, several groups", &["-t", "ext4", "-b", "4096", "-g", "1024"]),
];

/// One image in so many is judged by the kernel, too.
const JUDGED: u64 = 16;

/// A valid image, and its tree.
struct Case {
    seed: Seed,
    before: Manifest,
}

fn cases(crashed: bool) -> Vec<Case> {
    let of_tests = FEATURE_SETS.iter().filter(|set| set.name != "mmp" && set.name != "64k");
    let own = KINDS.iter().map(|(name, args)| FeatureSet { name, args, ..FEATURE_SETS[0] });
    of_tests
        .copied()
        .chain(own)
        .map(|set| {
            let seed = Seed::make(&set, crashed);
            let before = contents(&seed.bytes).without_root().without("lost+found");
            Case { before, seed }
        })
        .collect()
}

/// Flips bits, mostly of the superblock, of descriptors and of inodes. Returns their places.
fn flip(bytes: &mut [u8], seed: &Seed, rng: &mut Rng) -> String {
    let count = *rng.pick(&[1, 1, 1, 2, 3]);
    let words: Vec<String> = (0..count)
        .map(|_| {
            let kind = match rng.below(10) {
                0..=3 => Kind::Superblock,
                4 | 5 => Kind::Descriptor,
                6 | 7 => Kind::Inode,
                8 => Kind::Directory,
                _ => rng.pick(&seed.atlas.pieces).kind,
            };
            let pieces: Vec<_> = seed.atlas.of_kind(kind).collect();
            let piece = *rng.pick(&pieces);
            // Fields fill the first part of a structure.
            let len = piece.bytes.len();
            let reach = if rng.one_in(4) { len } else { len.min(256) };
            let (at, bit) = (rng.below(reach as u64) as usize, rng.below(8));
            bytes[piece.bytes.start + at] ^= 1 << bit;
            format!("{kind:?} at {}, byte {at}, bit {bit}", piece.bytes.start)
        })
        .collect();
    words.join("; ")
}

/// Reads the tree of a repaired image; `None` if Extant cannot.
fn read(bytes: &[u8]) -> Option<Manifest> {
    let device = Arc::new(MemDevice::from_bytes(bytes));
    let fs = Fs::open_device(device, &options().read_only(true)).ok()?;
    Manifest::read(&fs).ok()
}

/// Counts the remains of a tree: contents under any name, names with their content, attributes.
fn kept(before: &Manifest, after: &Manifest) -> usize {
    let content = |node: &Node| (node.kind, node.size, node.hash, node.target.clone());
    let mut left: BTreeMap<_, usize> = BTreeMap::new();
    after.nodes.values().for_each(|node| *left.entry(content(node)).or_default() += 1);
    let mut count = 0;
    for (path, node) in &before.nodes {
        if let Some(more @ 1..) = left.get_mut(&content(node)) {
            *more -= 1;
            count += 1;
        }
        let same = after.nodes.get(path).filter(|found| content(found) == content(node));
        count += usize::from(same.is_some());
        count += usize::from(same.is_some_and(|found| found.xattrs == node.xattrs));
    }
    count
}

/// Repairs by e2fsck, and counts the remains. Returns also whether the result is clean.
fn theirs(before: &Manifest, bytes: &[u8]) -> (usize, bool) {
    let image = Image::holding(bytes);
    image.leave_unjudged("it was damaged");
    e2fsck::repair(image.path());
    let is_clean = complaints(image.path()).is_empty();
    // It may write far behind the end of the image.
    let mut left = Vec::new();
    let file = File::open(image.path()).expect("an image");
    file.take(bytes.len() as u64).read_to_end(&mut left).expect("an image");
    (read(&left).map_or(0, |after| kept(before, &after)), is_clean)
}

/// Numbers of results.
#[derive(Default)]
struct Tally {
    cases: u64,
    clean: u64,
    more: u64,
    same: u64,
    less: u64,
    refused: u64,
    unclean: u64,
    wrong: Vec<String>,
}

impl Tally {
    fn run(&mut self, cases: &[Case], number: u64) {
        let mut rng = Rng::new(number);
        let case = rng.pick(cases);
        let mut bytes = case.seed.bytes.clone();
        let what = flip(&mut bytes, &case.seed, &mut rng);
        let words = format!("{number}: {}, {what}", case.seed.name);
        self.cases += 1;
        let own = catch_unwind(|| repair(&bytes, RepairLevel::Lossy));
        let after = match own {
            Err(_) => {
                self.unclean += 1;
                return self.note(format!("{words}: panic"));
            }
            Ok(Repaired::Clean) => {
                self.clean += 1;
                bytes.clone()
            }
            Ok(Repaired::Refused(why)) => {
                let (theirs, is_clean) = theirs(&case.before, &bytes);
                self.refused += 1;
                if theirs > 0 && is_clean {
                    self.note(format!("{words}: refused, e2fsck keeps {theirs}: {why}"));
                }
                return;
            }
            Ok(Repaired::Done(after)) => after,
        };
        let objection = if number.is_multiple_of(JUDGED) {
            objection(&after)
        } else {
            let image = Image::holding(&after);
            image.leave_unjudged("this is its judgement");
            complaints(image.path()).into_iter().find(|line| reason(THEIRS, line).is_none())
        };
        if let Some(objection) = objection {
            self.unclean += 1;
            self.note(format!("{words}: {objection}"));
        }
        let Some(after) = read(&after) else {
            self.unclean += 1;
            return self.note(format!("{words}: unreadable"));
        };
        self.compare(case, &bytes, &after, &words);
    }

    fn compare(&mut self, case: &Case, damaged: &[u8], after: &Manifest, words: &str) {
        let all = kept(&case.before, &case.before);
        let own = kept(&case.before, after);
        if own == all {
            self.same += 1;
            return;
        }
        let (theirs, _) = theirs(&case.before, damaged);
        match own.cmp(&theirs) {
            std::cmp::Ordering::Less => {
                self.less += 1;
                self.note(format!("{words}: kept {own} of {all}, e2fsck {theirs}"));
            }
            std::cmp::Ordering::Equal => self.same += 1,
            std::cmp::Ordering::Greater => self.more += 1,
        }
    }

    fn note(&mut self, line: String) {
        println!("{line}");
        self.wrong.push(line);
    }

    fn print(&self) {
        println!(
            "{} cases: {} without damage; {} kept all or as much as e2fsck, {} more, {} less; {} \
             refused, {} unclean",
            self.cases, self.clean, self.same, self.more, self.less, self.refused, self.unclean
        );
    }
}

#[test]
fn a_repair_keeps_as_much_as_e2fsck() {
    let cases = cases(false);
    let mut tally = Tally::default();
    (0..150).for_each(|number| tally.run(&cases, number));
    tally.print();
    assert!(tally.wrong.is_empty());
    assert!(tally.same > 0);
}

/// The long form: from a number on, until the seconds are over.
#[test]
#[ignore = "minutes: make repair-flips"]
fn repairs_of_flipped_bits_keep_as_much_as_e2fsck() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seconds: u64 = number("EXTANT_FLIP_SECONDS").expect("EXTANT_FLIP_SECONDS is a number");
    let first: u64 = number("EXTANT_FLIP_SEED").expect("EXTANT_FLIP_SEED is a number");
    let mut all = cases(false);
    all.extend(cases(true));
    let (start, mut tally) = (Instant::now(), Tally::default());
    for number in first.. {
        if start.elapsed() > Duration::from_secs(seconds) {
            break;
        }
        tally.run(&all, number);
    }
    tally.print();
    assert!(tally.wrong.is_empty());
}
