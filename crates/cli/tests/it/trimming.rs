//! `extant trim`: blocks on the host before and after, the same tree for the kernel, refusals.
//! `dumpe2fs` and `debugfs` tell which blocks may change.

use crate::args;
use crate::program::{EXTANT, Server, done, extant, json, refused};
use crate::recovery::crashed;
use crate::unprivileged::{Fuse, as_user, home};
use extant_testkit::image::FEATURE_SETS;
use extant_testkit::kernel::{Loop, Mount, Shutdown};
use extant_testkit::tool::run;
use extant_testkit::tree::Manifest;
use extant_testkit::{FeatureSet, Image, Scratch, debugfs, dumpe2fs, e2fsck};
use std::fs;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// Bytes of a file that is removed again.
pub const FILLER: usize = 12 << 20;

/// An image with some files, whose free blocks hold the data of a removed one.
pub fn used(set: &FeatureSet) -> Image {
    let image = set.make();
    let scratch = Scratch::new();
    let tree = scratch.dir("tree");
    for i in 0..40u8 {
        fs::write(tree.join(format!("file{i}")), vec![i; 700 * usize::from(i)]).expect("a file");
    }
    fs::write(tree.join("filler"), vec![0xfe; FILLER]).expect("a file");
    done(&args!["put", image.path(), &tree, "/tree"]);
    let gone = ["filler", "file7", "file20", "file39"].map(|name| format!("/tree/{name}"));
    let mut remove = args!["rm", image.path()].to_vec();
    remove.extend(gone.map(Into::into));
    done(&remove);
    image
}

/// Bytes of the host's storage for a file.
pub fn stored(path: &Path) -> u64 {
    fs::metadata(path).expect("a file").blocks() * 512
}

/// The free blocks, as e2fsprogs has them, in bytes.
pub fn free(image: &Path, set: &FeatureSet) -> Vec<Range<usize>> {
    let dump = dumpe2fs::dump(image);
    // Of the last cluster of a run, the first block is printed.
    let cluster = dump.values.get("Cluster size").and_then(|size| size.parse::<u64>().ok());
    let more = cluster.map_or(0, |size| size / u64::from(set.block_size) - 1);
    let runs = dump.groups.iter().flat_map(|group| group.free.clone());
    runs.map(|(first, last)| bytes(set, first, last + more)).collect()
}

/// The blocks of the journal behind its superblock, as e2fsprogs has them, in bytes.
pub fn journal(image: &Path, set: &FeatureSet) -> Vec<Range<usize>> {
    if !set.journal {
        return Vec::new();
    }
    // Runs as `(0-11):786-797`, nodes of the map as `(IND):798`.
    let text = debugfs::read(image, "stat <8>");
    let words = text.split_whitespace().filter_map(|word| word.strip_prefix('(')?.split_once("):"));
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (logical, physical) in words {
        let Some((at, _)) = range(logical) else { continue };
        let (first, last) = range(physical.trim_end_matches(',')).expect("blocks");
        ranges.push(bytes(set, first + u64::from(at == 0), last));
    }
    ranges
}

fn range(text: &str) -> Option<(u64, u64)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some((first.parse().ok()?, last.parse().ok()?))
}

fn bytes(set: &FeatureSet, first: u64, last: u64) -> Range<usize> {
    let size = set.block_size as usize;
    first as usize * size..(last as usize + 1) * size
}

fn len(ranges: &[Range<usize>]) -> u64 {
    ranges.iter().map(|range| range.len() as u64).sum()
}

/// The bytes with zeroes in the ranges.
pub fn without(mut bytes: Vec<u8>, ranges: &[Range<usize>]) -> Vec<u8> {
    ranges.iter().for_each(|range| bytes[range.clone()].fill(0));
    bytes
}

/// The tree as the kernel shows it.
pub fn kernel_tree(image: &Path) -> Manifest {
    let mount = Mount::new(image, "ro");
    let tree = Manifest::walk(mount.path());
    mount.unmount();
    tree
}

/// The command fails, names the other command, and changes nothing.
#[track_caller]
fn untouched(image: &Image, words: &str) {
    let before = image.bytes();
    refused(&args!["trim", image.path()], 1, words);
    refused(&args!["trim", "--dry-run", image.path()], 1, words);
    assert!(before == image.bytes(), "a refusal wrote: {words}");
}

#[test]
fn unused_blocks_become_holes_and_no_others_change() {
    for set in FEATURE_SETS {
        let (image, name) = (used(set), set.name);
        let (free, journal) = (free(image.path(), set), journal(image.path(), set));
        let expected = without(without(image.bytes(), &free), &journal);
        let before = stored(image.path());
        let document = json(&args!["trim", image.path()]);
        assert_eq!(document["free_bytes"], len(&free), "{name}: {document}");
        assert_eq!(document["journal_bytes"], len(&journal), "{name}: {document}");
        assert!(image.bytes() == expected, "{name}: a block in use changed");
        let freed = document["freed_bytes"].as_u64().expect("a number");
        assert_eq!(freed, before - stored(image.path()), "{name}");
        assert!(freed >= FILLER as u64 / 2, "{name}: {document}");
        image.assert_clean();
        let again = json(&args!["trim", image.path()]);
        assert_eq!(again["freed_bytes"], 0, "{name}: {again}");
    }
}

#[test]
fn the_kernel_finds_the_same_tree_and_goes_on() {
    for name in ["default", "1k", "ext3", "no_journal", "bigalloc", "uninit_bg", "no_flex_bg"] {
        let set = FeatureSet::named(name);
        let image = used(set);
        let before = kernel_tree(image.path());
        done(&args!["trim", image.path()]);
        before.assert_same(&kernel_tree(image.path()));
        // The log works as before, also after a crash.
        let mount = Mount::new(image.path(), "");
        for i in 0..100 {
            fs::write(mount.join(format!("new{i}")), vec![1; 5000]).expect("a file");
        }
        mount.sync();
        if set.journal {
            mount.crash(Shutdown::FlushLog);
            done(&args!["recover", image.path()]);
        } else {
            mount.unmount();
        }
        image.assert_clean();
        assert!(done(&args!["ls", image.path()]).text().contains("new99"), "{name}");
    }
}

#[test]
fn a_dry_run_tells_the_result_and_changes_nothing() {
    let image = used(FeatureSet::named("default"));
    let (before, blocks) = (image.bytes(), stored(image.path()));
    let trial = json(&args!["trim", "--dry-run", image.path()]);
    let printed = done(&args!["trim", "-n", image.path()]);
    assert!(printed.errors().contains("would have freed"), "{printed}");
    assert!(before == image.bytes() && blocks == stored(image.path()), "a dry run wrote");
    let real = json(&args!["trim", image.path()]);
    assert_eq!((&trial["dry_run"], &real["dry_run"]), (&true.into(), &false.into()));
    for key in ["free_bytes", "journal_bytes", "freed_bytes"] {
        assert_eq!(trial[key], real[key], "{key}: {trial} {real}");
    }
    let printed = done(&args!["trim", image.path()]);
    assert!(printed.errors().contains("freed 0 B on the host"), "{printed}");
}

#[test]
fn a_log_to_replay_is_refused() {
    let image = crashed(FeatureSet::named("default"));
    untouched(&image, "extant recover ");
    done(&args!["recover", image.path()]);
    assert!(json(&args!["trim", image.path()])["journal_bytes"].as_u64() > Some(0));
    image.assert_clean();
}

#[test]
fn marked_errors_and_missing_unmounts_are_refused() {
    for (set, state) in [("default", 3), ("no_journal", 2), ("no_journal", 0)] {
        let image = used(FeatureSet::named(set));
        debugfs::write(image.path(), &format!("set_super_value state {state}"));
        untouched(&image, "extant repair ");
        extant(&args!["repair", image.path()]);
        done(&args!["trim", image.path()]);
        image.assert_clean();
    }
}

/// The bitmap says that blocks of a file are free. They keep their bytes.
#[test]
fn blocks_that_are_free_by_mistake_are_not_trimmed() {
    let image = used(FeatureSet::named("no_csum"));
    let block = debugfs::read(image.path(), "blocks /tree/file30");
    let block = block.split_whitespace().next().expect("a block").to_owned();
    debugfs::write(image.path(), &format!("freeb {block} 2"));
    untouched(&image, "extant repair ");
    assert_eq!(extant(&args!["repair", image.path()]).code, 1);
    done(&args!["trim", image.path()]);
    image.assert_clean();
    assert_eq!(done(&args!["cat", image.path(), "/tree/file30"]).stdout, vec![30; 21000]);
}

#[test]
fn an_image_in_use_is_refused() {
    let image = used(FeatureSet::named("default"));
    let mount = Mount::new(image.path(), "ro");
    untouched(&image, "in use");
    mount.unmount();
    let server = Server::start(image.path(), "rw");
    refused(&args!["trim", image.path()], 1, "in use");
    server.unmount();
    let other = used(FeatureSet::named("mmp"));
    other.leave_unjudged("it counts as in use");
    let mut server = Server::start(other.path(), "rw");
    server.signal("KILL");
    server.end();
    drop(server);
    // Its host gives no sign any more.
    refused(&args!["trim", other.path()], 1, "recover");
}

#[test]
fn an_image_that_may_not_be_written_is_refused() {
    let image = used(FeatureSet::named("default"));
    let disk = Loop::attach(image.path(), true);
    refused(&args!["trim", disk.device()], 1, "write-protected");
    assert!(json(&args!["trim", "-n", disk.device()])["free_bytes"].as_u64() > Some(0));
    drop(disk);
    let home = home();
    fs::copy(image.path(), home.join("disk.img")).expect("a copy");
    fs::set_permissions(home.join("disk.img"), std::os::unix::fs::PermissionsExt::from_mode(0o444))
        .expect("a read-only file");
    let printed = as_user(&home, Fuse::Root, "extant trim -n disk.img; extant trim disk.img");
    assert_eq!(printed.code, 1, "{printed}");
    assert!(printed.errors().contains("Permission denied"), "{printed}");
}

#[test]
fn a_disk_discards() {
    let image = used(FeatureSet::named("default"));
    let before = stored(image.path());
    let disk = Loop::attach(image.path(), false);
    let document = json(&args!["trim", disk.device()]);
    assert!(document["freed_bytes"].is_null(), "{document}");
    drop(disk);
    assert!(before - stored(image.path()) >= FILLER as u64 / 2);
    image.assert_clean();
}

#[test]
fn a_host_without_holes_is_told() {
    let image = used(FeatureSet::named("default"));
    let scratch = Scratch::new();
    let script = format!(
        "mount -t ramfs none {dir}; cp {image} {dir}/disk.img
        {EXTANT} trim {dir}/disk.img && exit 9
        cmp {image} {dir}/disk.img",
        dir = scratch.dir("ram").display(),
        image = image.path().display()
    );
    let printed = run("unshare", &["--mount", "sh", "-euc", &script]).must_succeed();
    assert!(printed.errors().contains("the host cannot release"), "{printed}");
}

#[test]
fn an_external_journal_is_named_and_kept() {
    let journal = Image::mke2fs(8 << 20, &["-b", "4096", "-O", "journal_dev"]);
    let on = Loop::attach(journal.path(), false);
    let name = format!("device={}", on.device().display());
    let image = Image::mke2fs(64 << 20, &["-t", "ext4", "-b", "4096", "-J", &name]);
    image.leave_unjudged("its log is on another device");
    refused(&args!["trim", image.path()], 1, "--journal");
    let before = journal.bytes();
    let document = json(&args!["trim", "--journal", on.device(), image.path()]);
    assert_eq!(document["journal_bytes"], 0, "{document}");
    assert!(before == journal.bytes(), "the journal changed");
}

#[test]
fn a_part_of_a_file_is_trimmed() {
    const AT: usize = 3 << 20;
    let set = FeatureSet::named("1k");
    let (image, scratch) = (used(set), Scratch::new());
    let (free, journal) = (free(image.path(), set), journal(image.path(), set));
    let disk = scratch.join("disk");
    let before = [vec![0x55; AT], image.bytes()].concat();
    fs::write(&disk, &before).expect("a disk");
    let mut part = disk.clone().into_os_string();
    part.push(format!("@{AT}"));
    done(&args!["trim", part]);
    let inside = without(without(image.bytes(), &free), &journal);
    let after = fs::read(&disk).expect("the disk");
    assert!(after[..AT] == before[..AT] && after[AT..] == inside, "other bytes changed");
    assert!(stored(&disk) < before.len() as u64 - FILLER as u64 / 2);
    scratch.leave_unjudged("disk", "a part of it is the image");
}

#[test]
fn content_behind_the_file_system_is_kept() {
    let image = used(FeatureSet::named("default"));
    let end = fs::metadata(image.path()).expect("the image").len();
    let file = fs::File::options().write(true).open(image.path()).expect("the image");
    file.write_all_at(&[7; 10_000], end).expect("content");
    done(&args!["trim", image.path()]);
    assert_eq!(image.bytes()[end as usize..], [7; 10_000]);
    e2fsck::check(image.path()).assert_clean();
}
