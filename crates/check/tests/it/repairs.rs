//! Repairs: the result is clean for e2fsck and the kernel, and a refusal changes nothing.

use crate::exceptions::{OBJECTIONS, THEIRS, reason};
use crate::oracle::{complaints, damages};
use extant_blocks::{Event, MemDevice, RecordingDevice};
use extant_check::repair::{Repair, RepairError, RepairLevel, restore};
use extant_engine::Fs;
use extant_format::superblock::State;
use extant_format::{Geometry, GroupDesc, GroupNr, Incompat, Superblock};
use extant_hostile::atlas::{Atlas, change_superblock};
use extant_hostile::bombs::share;
use extant_hostile::mutate::mutate_once;
use extant_hostile::seeds::{Seed, options};
use extant_journal::{Log, LogExtent, LogPlace, recovery};
use extant_testkit::cuts::each_cut;
use extant_testkit::kernel::Mount;
use extant_testkit::rng::Rng;
use extant_testkit::tree::Manifest;
use extant_testkit::{FEATURE_SETS, FeatureSet, Image, judge};
use std::collections::HashSet;
use std::io::Cursor;
use std::ops::Range;
use std::sync::Arc;

/// The result of a repair.
#[derive(Debug, PartialEq)]
pub enum Repaired {
    /// Nothing was to be done.
    Clean,
    /// The new image, without findings.
    Done(Vec<u8>),
    /// The reason of a refusal.
    Refused(String),
}

/// Repairs an image in memory. A refusal must leave its bytes, and a second repair find nothing.
pub fn repair(bytes: &[u8], level: RepairLevel) -> Repaired {
    let device = Arc::new(RecordingDevice::new(MemDevice::from_bytes(bytes)));
    let plan = |level| Repair::new(device.clone()).level(level).plan(&mut |_| ());
    let planned = plan(level);
    assert!(!device.take_log().iter().any(Event::changes), "a plan wrote");
    let planned = match planned {
        Ok(planned) => planned,
        Err(error) => return Repaired::Refused(text(&error)),
    };
    if planned.changed_blocks().expect("a device in memory") == 0 {
        return Repaired::Clean;
    }
    if let Err(error) = planned.apply() {
        return Repaired::Refused(text(&error));
    }
    let again = plan(RepairLevel::Safe).unwrap_or_else(|error| panic!("again: {}", text(&error)));
    assert_eq!(again.changed_blocks().expect("a device in memory"), 0, "a second repair writes");
    Repaired::Done(device.inner().to_vec())
}

fn text(error: &RepairError) -> String {
    match error {
        RepairError::NeedsLossy(found) | RepairError::Remaining(found) => {
            let list: Vec<String> = found.iter().take(4).map(ToString::to_string).collect();
            format!("{error}: {}", list.join("; "))
        }
        _ => error.to_string(),
    }
}

/// Returns the first complaint of e2fsck or the kernel about a repaired image.
pub fn objection(bytes: &[u8]) -> Option<String> {
    let image = Image::holding(bytes);
    image.leave_unjudged("this is its judgement");
    let complaints = complaints(image.path());
    let complaint = complaints.into_iter().find(|line| reason(THEIRS, line).is_none());
    if complaint.is_some() || judge::beyond_the_kernel(image.path()).is_some() {
        return complaint;
    }
    match Mount::try_new(image.path(), "ro,noload") {
        Ok(mount) => {
            let walked = std::fs::read_dir(mount.path()).map(Iterator::count);
            mount.unmount();
            walked.err().map(|error| format!("the kernel: {error}"))
        }
        Err(error) => Some(format!("the kernel: {}", error.lines().collect::<Vec<_>>().join(" "))),
    }
}

/// Prints the table of repairs, on the images below `EXTANT_IMAGES`.
#[test]
#[ignore = "needs images from the network: make repair-images"]
fn images_of_e2fsprogs_are_repaired() {
    let images = extant_hostile::seeds::of_others();
    assert!(images.len() > 200, "EXTANT_IMAGES names no folder with the images");
    let (mut repaired, mut clean, mut refused) = (0, 0, 0);
    let (mut excepted, mut wrong) = (0, 0);
    for (name, bytes) in &images {
        let name = name.trim_end_matches("/image.gz").rsplit('/').next().unwrap_or(name);
        let both = || match repair(bytes, RepairLevel::Safe) {
            Repaired::Refused(_) => ("lossy", repair(bytes, RepairLevel::Lossy)),
            other => ("safe", other),
        };
        let Ok((level, result)) = std::panic::catch_unwind(both) else {
            wrong += 1;
            println!("{name:<30} PANIC");
            continue;
        };
        let verdict = match result {
            Repaired::Clean => {
                clean += 1;
                "nothing to repair".to_owned()
            }
            Repaired::Refused(why) => {
                refused += 1;
                format!("refused: {why}")
            }
            Repaired::Done(bytes) => match objection(&bytes) {
                None => {
                    repaired += 1;
                    format!("repaired, {level}")
                }
                Some(why) if let Some(reason) = reason(OBJECTIONS, name) => {
                    excepted += 1;
                    format!("exception, {reason}: {why}")
                }
                Some(why) => {
                    wrong += 1;
                    format!("WRONG, {level}: {why}")
                }
            },
        };
        println!("{name:<30} {verdict}");
    }
    println!(
        "{repaired} repaired, {clean} without damage, {refused} refused, {excepted} excepted, \
         {wrong} wrong"
    );
    assert_eq!(wrong, 0);
}

/// Damage that is repaired without loss: wrong counts, bitmaps, checksums and copies everywhere.
#[test]
fn what_follows_from_undamaged_structures_is_repaired_safely() {
    for set in FEATURE_SETS.iter().filter(|set| set.name != "mmp") {
        let seed = Seed::make(set, false);
        let mut bytes = seed.bytes.clone();
        damage_counts(&mut bytes);
        assert!(!damages(&bytes, true).is_empty(), "{}", set.name);
        let Repaired::Done(repaired) = repair(&bytes, RepairLevel::Safe) else {
            panic!("{}: {:?}", set.name, repair(&bytes, RepairLevel::Safe))
        };
        assert_eq!(objection(&repaired), None, "{}", set.name);
        assert_eq!(damages(&repaired, true), [""; 0], "{}", set.name);
        assert!(contents(&repaired) == contents(&seed.bytes), "{}: content changed", set.name);
    }
}

/// Sets counts of the superblock and of the first descriptor to zero, inverts the first bitmaps,
/// and breaks the copy of the superblock.
fn damage_counts(bytes: &mut [u8]) {
    let mut sb = Superblock::parse(&bytes[1024..2048]).expect("a superblock");
    let geometry = Geometry::new(&sb).expect("a geometry");
    sb.set_free_blocks_count(0);
    sb.set_free_inodes_count(0);
    bytes[1024..2048].copy_from_slice(&sb.seal());
    let (size, group) = (geometry.block_size as usize, GroupNr(0));
    let at = geometry.gdt_block(0).index() * size;
    let mut desc = GroupDesc::decode_unverified(&bytes[at..], &geometry);
    for nr in [desc.block_bitmap, desc.inode_bitmap] {
        bytes[nr as usize * size..][..size].iter_mut().for_each(|byte| *byte ^= 0x55);
    }
    (desc.free_clusters, desc.free_inodes, desc.used_dirs) = (0, 0, 1 << 10);
    desc.encode(&mut bytes[at..], &geometry, group);
    if let Some(copy) = geometry.super_groups().nth(1) {
        let nr = geometry.super_block_of(copy).expect("a copy").index();
        bytes[nr * size..][..64].fill(0);
    }
}

/// Returns the tree of an image, as Extant reads it.
pub fn contents(bytes: &[u8]) -> Manifest {
    let device = Arc::new(MemDevice::from_bytes(bytes));
    let fs = Fs::open_device(device, &options().read_only(true)).expect("a clean image opens");
    Manifest::read(&fs).expect("a clean image is read")
}

/// A root directory without content, on a new file system: each inode after `lost+found` is in the
/// unused part of its table.
#[test]
fn a_lost_root_gets_a_new_lost_and_found() {
    for set in FEATURE_SETS.iter().filter(|set| !["mmp", "inline_data"].contains(&set.name)) {
        let image = set.make();
        image.leave_unjudged("it is damaged");
        extant_testkit::debugfs::write(image.path(), "mkdir /dir");
        extant_testkit::debugfs::write(image.path(), "zap_block -f / 0");
        let bytes = image.bytes();
        let Repaired::Done(repaired) = repair(&bytes, RepairLevel::Lossy) else {
            panic!("{}: {:?}", set.name, repair(&bytes, RepairLevel::Lossy))
        };
        assert_eq!(objection(&repaired), None, "{}", set.name);
        let found = contents(&repaired);
        let lost = found.nodes.keys().filter(|path| path.starts_with(b"lost+found/#"));
        assert_eq!(lost.count(), 2, "{}: {found:?}", set.name);
    }
}

/// Log and orphans, with damage besides: the log is replayed first.
#[test]
fn crashed_images_are_recovered_and_repaired() {
    for name in ["default", "1k", "ext3", "orphan_file", "inline_data"] {
        let seed = Seed::make(FeatureSet::named(name), true);
        let recovered = match repair(&seed.bytes, RepairLevel::Safe) {
            Repaired::Done(bytes) => bytes,
            other => panic!("{name}: {other:?}"),
        };
        assert_eq!(objection(&recovered), None, "{name}");
        assert!(contents(&recovered) == contents(&seed.bytes), "{name}: content changed");
    }
}

/// The log is found by a descriptor from a copy, and its changes are newer than all copies.
#[test]
fn a_log_is_replayed_although_descriptors_are_lost() {
    let seed = Seed::make(FeatureSet::named("1k"), true);
    let geometry = seed.atlas.geo;
    assert!(geometry.groups_count > 1, "there are no copies");
    let size = geometry.block_size as usize;
    let descriptors = geometry.base_meta(GroupNr(0)).descriptors;
    let (start, end) = (descriptors.start as usize * size, descriptors.end as usize * size);
    for lost in [0..end, start..end] {
        let mut bytes = seed.bytes.clone();
        bytes[lost].fill(0xa5);
        let repaired = match repair(&bytes, RepairLevel::Safe) {
            Repaired::Done(bytes) => bytes,
            other => panic!("{other:?}"),
        };
        assert_eq!(objection(&repaired), None);
        let expected = contents(&seed.bytes);
        assert!(contents(&repaired) == expected, "content changed");
        // Copies are written in place: another repair goes on after a power cut.
        let recorder = Arc::new(RecordingDevice::new(MemDevice::from_bytes(&bytes)));
        let plan = Repair::new(recorder.clone()).plan(&mut |_| ()).expect("a plan");
        plan.apply().expect("a device in memory");
        each_cut(&bytes, &recorder.log(), &mut |cut, state| {
            let whole = match repair(&state, RepairLevel::Safe) {
                Repaired::Done(bytes) => bytes,
                Repaired::Clean => state,
                Repaired::Refused(why) => panic!("cut {cut}: {why}"),
            };
            assert!(contents(&whole) == expected, "cut {cut}: content changed");
        });
    }
}

/// Copies are old, or made by an enemy: a bitmap goes only to a block that no file has.
#[test]
fn a_copy_that_places_a_bitmap_into_a_file_is_not_followed() {
    let image = FeatureSet::named("1k").make_sized(40 << 20);
    let mount = Mount::new(image.path(), "");
    std::fs::write(mount.join("file"), vec![7; 9 << 20]).expect("space");
    mount.unmount();
    let mut bytes = image.bytes();
    let sb = Superblock::parse(&bytes[1024..2048]).expect("a superblock");
    let geometry = Geometry::new(&sb).expect("a geometry");
    let size = geometry.block_size as usize;
    let expected = contents(&bytes);
    let content = (0..bytes.len() / size).rfind(|nr| bytes[nr * size..][..size] == [7; 1024]);
    let content = content.expect("a block of the file") as u64;
    let group = GroupNr(2);
    let mut place = |block: u64, bitmap: u64| {
        let (_, at) = geometry.desc_location(group);
        let slot = &mut bytes[block as usize * size + at..][..usize::from(geometry.desc_size)];
        let mut desc = GroupDesc::decode(slot, &geometry, group).expect("a descriptor");
        desc.block_bitmap = bitmap;
        desc.encode(slot, &geometry, group);
    };
    place(geometry.gdt_block(0).0, 1 << 40);
    geometry.gdt_backups(0).for_each(|copy| place(copy.0, content));
    let Repaired::Done(repaired) = repair(&bytes, RepairLevel::Safe) else { panic!("no repair") };
    assert_eq!(objection(&repaired), None);
    assert!(contents(&repaired) == expected, "the file changed");
}

/// Repairs mutants, and counts the results.
fn repair_mutants(seeds: &[Seed], numbers: Range<u64>) {
    let (mut done, mut clean, mut refused, mut wrong) = (0, 0, 0, Vec::new());
    for number in numbers {
        let seed = &seeds[number as usize % seeds.len()];
        let mut bytes = seed.bytes.clone();
        let what = mutate_once(&mut bytes, &seed.atlas, &mut Rng::new(number));
        match repair(&bytes, RepairLevel::Lossy) {
            Repaired::Clean => clean += 1,
            Repaired::Done(bytes) => {
                done += 1;
                if let Some(objection) = objection(&bytes) {
                    wrong.push(format!("mutant {number} of {}, {what}: {objection}", seed.name));
                }
            }
            Repaired::Refused(why) => {
                println!("mutant {number} of {}, {what}: {why}", seed.name);
                refused += 1;
            }
        }
    }
    println!("{done} repaired, {clean} without damage, {refused} refused");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(done > 0 && refused * 10 < done, "{refused} refused, {done} repaired");
}

fn quick_seeds(crashed: bool) -> Vec<Seed> {
    let sets = FEATURE_SETS.iter().filter(|set| set.name != "mmp");
    sets.map(|set| Seed::make(set, crashed)).collect()
}

#[test]
fn mutants_are_repaired() {
    repair_mutants(&quick_seeds(false), 0..108);
}

/// Maps, leaves and values that share blocks: a repair ends, and its result is clean.
#[test]
fn bombs_are_repaired_or_refused() {
    let (mut done, mut refused) = (0, 0);
    for (number, seed) in (0..).zip(&quick_seeds(false)) {
        let mut bytes = seed.bytes.clone();
        share(&mut bytes, &seed.atlas, &mut Rng::new(number));
        match repair(&bytes, RepairLevel::Lossy) {
            Repaired::Clean => {}
            Repaired::Done(bytes) => {
                assert_eq!(objection(&bytes), None, "{}", seed.name);
                done += 1;
            }
            Repaired::Refused(why) => {
                println!("{}: {why}", seed.name);
                refused += 1;
            }
        }
    }
    assert!(done > refused, "{done} repaired, {refused} refused");
}

/// The long form: `EXTANT_MUTANTS` is the number of mutants, clean and crashed.
#[test]
#[ignore = "minutes: make repair-mutants"]
fn many_mutants_are_repaired() {
    let count = std::env::var("EXTANT_MUTANTS").ok().and_then(|text| text.parse().ok());
    let count: u64 = count.expect("EXTANT_MUTANTS is a number");
    repair_mutants(&quick_seeds(false), 1000..1000 + count);
    repair_mutants(&quick_seeds(true), 1000..1000 + count / 2);
}

/// Bytes that are compared at once: the smallest block.
const PIECE: usize = 1024;

/// A repair that is cut at any write leaves the old state or the new one, after a replay.
#[test]
fn a_cut_repair_is_whole_or_absent() {
    for (name, number) in [("default", 1), ("1k", 2), ("ext3", 3), ("no_csum", 4)] {
        let seed = Seed::make(FeatureSet::named(name), false);
        let mut bytes = seed.bytes.clone();
        damage_counts(&mut bytes);
        mutate_once(&mut bytes, &seed.atlas, &mut Rng::new(number));
        sweep(name, &bytes, &seed.atlas);
    }
}

/// A log whose mark is lost gets it back before it is replayed.
#[test]
fn a_cut_repair_of_a_log_without_its_mark_is_whole_or_absent() {
    let seed = Seed::make(FeatureSet::named("ext3_1k"), true);
    let mut bytes = seed.bytes.clone();
    mark_recovery(&mut bytes, false);
    sweep("ext3_1k", &bytes, &seed.atlas);
}

/// Marks the log as one to be replayed, or not.
fn mark_recovery(bytes: &mut [u8], needed: bool) {
    change_superblock(bytes, |sb| {
        let mut features = sb.features();
        features.incompat.set(Incompat::RECOVER, needed);
        sb.set_features(features);
    });
}

/// Without a journal a cut may leave a part of a repair, which another one completes.
#[test]
fn a_cut_repair_without_a_journal_is_completed_by_the_next() {
    for (name, number) in [("ext2_1k", 5), ("no_journal", 6)] {
        let seed = Seed::make(FeatureSet::named(name), false);
        let mut before = seed.bytes.clone();
        damage_counts(&mut before);
        mutate_once(&mut before, &seed.atlas, &mut Rng::new(number));
        let recorder = Arc::new(RecordingDevice::new(MemDevice::from_bytes(&before)));
        let repair_once = Repair::new(recorder.clone()).level(RepairLevel::Lossy);
        repair_once.plan(&mut |_| ()).expect("a plan").apply().expect("a device in memory");
        let after = recorder.inner().to_vec();
        each_cut(&before, &recorder.log(), &mut |cut, state| {
            let sb = Superblock::parse_unverified(&state[1024..2048]).expect("a superblock");
            let is_part = state != before && state != after;
            let valid = sb.state().contains(State::VALID);
            assert!(!is_part || !valid, "{name}, cut {cut}: a part is marked as clean");
            match repair(&state, RepairLevel::Lossy) {
                Repaired::Done(bytes) => assert_eq!(objection(&bytes), None, "{name}, cut {cut}"),
                Repaired::Clean => assert_eq!(objection(&state), None, "{name}, cut {cut}"),
                Repaired::Refused(why) => panic!("{name}, cut {cut}: {why}"),
            }
        });
    }
}

fn sweep(name: &str, before: &[u8], atlas: &Atlas) {
    // Superblock and log change with every recovery.
    let log: HashSet<usize> = atlas.journal_blocks().flat_map(|at| at.step_by(PIECE)).collect();
    let is_counted = |range: &Range<usize>| range.start != PIECE && !log.contains(&range.start);
    let recorder = Arc::new(RecordingDevice::new(MemDevice::from_bytes(before)));
    let repair = Repair::new(recorder.clone()).level(RepairLevel::Lossy);
    repair.plan(&mut |_| ()).expect("a plan").apply().expect("a device in memory");
    let after = recorder.inner().to_vec();
    assert_eq!(objection(&after), None, "{name}");
    // Between both, the log may be replayed without a further change.
    let mut marked = before.to_vec();
    mark_recovery(&mut marked, true);
    let recovered = replayed(&marked, atlas);
    let (mut old, mut new) = (0, 0);
    each_cut(before, &recorder.log(), &mut |cut, state| {
        let state = replayed(&state, atlas);
        let (mut sides, mut is_recovered) = ((true, true), true);
        let pieces = (0..before.len()).step_by(PIECE).map(|start| start..start + PIECE);
        for range in pieces.filter(is_counted) {
            sides.0 &= state[range.clone()] == before[range.clone()];
            is_recovered &= state[range.clone()] == recovered[range.clone()];
            sides.1 &= state[range.clone()] == after[range];
        }
        assert!(sides.0 || is_recovered || sides.1, "{name}, cut {cut}: old and new are mixed");
        *(if sides.1 { &mut new } else { &mut old }) += 1;
    });
    assert!(old > 0 && new > 0, "{name}: {old} old, {new} new");
}

/// Replays the log of an image whose other structures may be damaged.
fn replayed(bytes: &[u8], atlas: &Atlas) -> Vec<u8> {
    let device = Arc::new(MemDevice::from_bytes(bytes));
    let sb = Superblock::parse_unverified(&bytes[1024..2048]).expect("a superblock");
    if !sb.incompat().contains(Incompat::RECOVER) {
        return bytes.to_vec();
    }
    let size = sb.block_size();
    let blocks = (0u32..).zip(atlas.journal_blocks());
    let extent = |(logical, at): (u32, Range<usize>)| LogExtent {
        logical,
        physical: at.start as u64 / u64::from(size),
        len: 1,
    };
    let extents: Vec<LogExtent> = blocks.map(extent).collect();
    let log = Log::open(device.clone(), &extents, size, LogPlace::Inside).expect("a log");
    recovery::recover(log, &*device, bytes.len() as u64 / u64::from(size)).expect("a replay");
    device.to_vec()
}

/// The undo file gives the old image back, to the byte.
#[test]
fn an_undo_file_takes_a_repair_back() {
    for name in ["default", "ext2_1k"] {
        let seed = Seed::make(FeatureSet::named(name), false);
        let mut before = seed.bytes.clone();
        damage_counts(&mut before);
        let device = Arc::new(MemDevice::from_bytes(&before));
        let plan = Repair::new(device.clone()).plan(&mut |_| ()).expect("a plan");
        let mut undo = Vec::new();
        plan.save_undo(&mut undo).expect("a device in memory");
        plan.apply().expect("a device in memory");
        assert!(device.to_vec() != before);
        let mut broken = undo.clone();
        broken[100] ^= 1;
        assert!(restore(&*device, &mut Cursor::new(&broken)).is_err());
        assert!(restore(&*device, &mut Cursor::new(&undo)).expect("an undo file") > 0);
        assert!(device.to_vec() == before, "{name}: not as before");
    }
}
