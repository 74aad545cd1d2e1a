//! `extant clone`: the same tree for the kernel, blocks on the host, refusals.

use crate::args;
use crate::program::{Server, done, extant, json, refused};
use crate::recovery::crashed;
use crate::trimming::{FILLER, free, journal, kernel_tree, stored, used, without};
use extant_testkit::host::SmallHost;
use extant_testkit::image::FEATURE_SETS;
use extant_testkit::kernel::{Loop, Mount};
use extant_testkit::tool::run;
use extant_testkit::{FeatureSet, Scratch, debugfs, dumpe2fs, e2fsck};
use std::ffi::{OsStr, OsString};
use std::fs;

#[test]
fn a_clone_has_all_blocks_in_use_and_holes_elsewhere() {
    for set in FEATURE_SETS {
        let (image, scratch, name) = (used(set), Scratch::new(), set.name);
        let (free, journal) = (free(image.path(), set), journal(image.path(), set));
        let (before, blocks) = (image.bytes(), stored(image.path()));
        let copy = scratch.join("copy");
        let document = json(&args!["clone", image.path(), &copy]);
        assert_eq!(document["shared"], false, "{name}: {document}");
        let copied = document["copied_bytes"].as_u64().expect("a number");
        assert!(copied > 0 && copied < blocks, "{name}: {document}");
        assert!(before == image.bytes(), "{name}: the source changed");
        let expected = without(without(before, &free), &journal);
        assert!(fs::read(&copy).expect("the copy") == expected, "{name}: a block differs");
        assert!(blocks - stored(&copy) >= FILLER as u64 / 2, "{name}");
        e2fsck::check(&copy).assert_clean();
        if set.kernel_mountable {
            kernel_tree(image.path()).assert_same(&kernel_tree(&copy));
        }
    }
}

/// The bytes do not depend on the number of threads.
#[test]
fn one_thread_makes_the_same_clone() {
    let (image, scratch) = (used(FeatureSet::named("1k")), Scratch::new());
    let (one, many) = (scratch.join("one"), scratch.join("many"));
    done(&args!["--threads", "1", "clone", image.path(), &one]);
    done(&args!["--threads", "7", "clone", image.path(), &many]);
    assert!(fs::read(one).expect("a copy") == fs::read(many).expect("a copy"));
}

/// The log, and everything that a repair may need, is in the clone.
#[test]
fn an_image_that_needs_recovery_or_repair_is_copied_as_it_is() {
    let torn = crashed(FeatureSet::named("default"));
    let broken = used(FeatureSet::named("default"));
    debugfs::write(broken.path(), "set_inode_field <2> links_count 9");
    broken.leave_unjudged("it is damaged");
    let scratch = Scratch::new();
    for (image, name) in [(&torn, "torn"), (&broken, "broken")] {
        let copy = scratch.join(name);
        let printed = done(&args!["clone", image.path(), &copy]);
        assert!(printed.errors().contains("free blocks are copied, too"), "{printed}");
        assert!(image.bytes() == fs::read(&copy).expect("the copy"), "{name}: bytes differ");
    }
    done(&args!["recover", scratch.join("torn")]);
    done(&args!["recover", torn.path()]);
    kernel_tree(torn.path()).assert_same(&kernel_tree(&scratch.join("torn")));
    assert_eq!(extant(&args!["repair", scratch.join("broken")]).code, 1);
}

/// A mounted file system of 512 MiB whose files share blocks: `xfs` or `btrfs`.
pub fn reflinking_host(scratch: &Scratch, kind: &str) -> Mount {
    let disk = scratch.file("disk", 512 << 20);
    scratch.leave_unjudged("disk", "it is no ext4");
    run(&format!("mkfs.{kind}"), &[OsStr::new("-q"), disk.as_os_str()]).must_succeed();
    Mount::of_kind(kind, &disk, "").expect("a mount")
}

#[test]
fn blocks_are_shared_where_the_host_can() {
    let image = used(FeatureSet::named("default"));
    let scratch = Scratch::on_disk();
    let host = reflinking_host(&scratch, "xfs");
    let (source, copy, plain) = (host.join("source"), host.join("copy"), host.join("plain"));
    run("cp", &["--sparse=always".as_ref(), image.path().as_os_str(), source.as_os_str()])
        .must_succeed();
    let shared = extant(&args!["--json", "clone", &source, &copy]);
    let other = extant(&args!["--json", "clone", "--no-reflink", &source, &plain]);
    let same = fs::read(&copy).ok() == Some(image.bytes());
    let verdict = e2fsck::check(&copy);
    let renamed = host.join("renamed");
    let named = extant(&args!["--json", "clone", "--new-uuid", &source, &renamed]);
    e2fsck::check(&renamed).assert_clean();
    let is_renamed = fs::read(&renamed).ok() != Some(image.bytes());
    let server = Server::start(&source, "rw");
    let used = extant(&args!["clone", &source, host.join("late")]);
    server.unmount();
    let names = fs::read_dir(host.path()).expect("a directory").count();
    host.unmount();
    assert!(used.code == 1 && used.errors().contains("in use"), "{used}");
    assert_eq!(names, 4, "no other file is left");
    assert!(is_renamed && named.text().contains("\"shared\": true"), "{named}");
    assert!(shared.text().contains("\"shared\": true"), "{shared}");
    assert!(other.text().contains("\"shared\": false"), "{other}");
    assert!(same, "the copy differs");
    verdict.assert_clean();
}

/// Large content of new images, and blocks that shrinking moves, too.
#[test]
fn built_and_shrunk_images_share_storage_where_the_host_can() {
    const LARGE: usize = 40 << 20;
    let scratch = Scratch::on_disk();
    let host = reflinking_host(&scratch, "xfs");
    let bytes: Vec<u8> = (0..LARGE as u64 / 8).flat_map(|n| (n * n).to_le_bytes()).collect();
    fs::create_dir(host.join("tree")).expect("a directory");
    for name in ["first", "second"] {
        fs::write(host.join("tree").join(name), &bytes[name.len()..]).expect("a file");
    }
    let mut free = Vec::new();
    let mut step = |args: &[OsString]| {
        done(args);
        let dir = fs::File::open(host.path()).expect("a directory");
        rustix::fs::syncfs(&dir).expect("a sync");
        let found = rustix::fs::fstatvfs(&dir).expect("a file system");
        free.push(found.f_bfree * found.f_frsize);
    };
    let (image, plain) = (host.join("image"), host.join("plain"));
    step(&args!["--version"]);
    step(&args!["build", &image, host.join("tree")]);
    step(&args!["clone", "--no-reflink", &image, &plain]);
    step(&args!["rm", &image, "/first"]);
    step(&args!["resize", "--minimum", &image]);
    let is_same = done(&args!["cat", &image, "/second"]).stdout == bytes["second".len()..];
    let verdict = e2fsck::check(&image);
    let len = fs::metadata(&image).expect("the image").len();
    host.unmount();
    let taken = |n: usize| free[n - 1].saturating_sub(free[n]);
    let (built, copied, shrunk) = (taken(1), taken(2), taken(4));
    assert!(built < LARGE as u64 / 4, "a build took {built} bytes");
    assert!(copied > 2 * LARGE as u64 - 4096, "a copy took {copied} bytes");
    assert!(shrunk < LARGE as u64 / 4, "shrinking took {shrunk} bytes");
    assert!(len < LARGE as u64 * 3 / 2, "{len}");
    assert!(is_same, "the content differs");
    verdict.assert_clean();
}

#[test]
fn existing_files_and_the_image_itself_are_kept() {
    let (image, scratch) = (used(FeatureSet::named("default")), Scratch::new());
    let copy = scratch.join("copy");
    fs::write(&copy, "mine").expect("a file");
    refused(&args!["clone", image.path(), &copy], 1, "--force");
    assert_eq!(fs::read(&copy).expect("the file"), b"mine");
    done(&args!["clone", "--force", image.path(), &copy]);
    e2fsck::check(&copy).assert_clean();
    refused(&args!["clone", "--force", image.path(), image.path()], 1, "the image itself");
    refused(&args!["clone", image.path(), scratch.path()], 1, "no regular file");
    refused(&args!["clone", image.path(), scratch.join("no/copy")], 1, "no/copy");
    assert_eq!(fs::read_dir(scratch.path()).expect("a directory").count(), 1);
}

#[test]
fn a_full_host_is_named_by_the_new_image() {
    let (image, scratch) = (used(FeatureSet::named("default")), Scratch::new());
    let host = SmallHost::new(scratch.dir("host"), "256K");
    refused(&args!["clone", image.path(), host.join("copy")], 1, "host/copy: No space left");
    assert_eq!(fs::read_dir(scratch.join("host")).expect("a directory").count(), 0);
    host.unmount();
}

#[test]
fn an_image_in_use_is_not_cloned() {
    let (image, scratch) = (used(FeatureSet::named("default")), Scratch::new());
    let copy = scratch.join("copy");
    let mount = Mount::new(image.path(), "");
    refused(&args!["clone", image.path(), &copy], 1, "in use");
    mount.unmount();
    let server = Server::start(image.path(), "rw");
    refused(&args!["clone", image.path(), &copy], 1, "in use");
    server.unmount();
    assert!(!copy.exists());
}

/// A part of a file, and a disk, become images of their own.
#[test]
fn a_disk_and_a_part_of_a_file_are_cloned() {
    let (image, scratch) = (used(FeatureSet::named("bigalloc_1k")), Scratch::new());
    let disk = Loop::attach(image.path(), false);
    done(&args!["clone", disk.device(), scratch.join("of-disk")]);
    drop(disk);
    let whole = scratch.join("whole");
    fs::write(&whole, [vec![0x55; 1 << 20], image.bytes()].concat()).expect("a file");
    scratch.leave_unjudged("whole", "a part of it is the image");
    let mut part = whole.into_os_string();
    part.push("@1M");
    done(&args!["clone", part, scratch.join("of-part")]);
    for name in ["of-disk", "of-part"] {
        kernel_tree(image.path()).assert_same(&kernel_tree(&scratch.join(name)));
    }
}

/// e2fsck compares the copies of the superblock, too.
#[test]
fn a_clone_may_have_another_uuid() {
    for set in FEATURE_SETS {
        let (image, scratch, name) = (used(set), Scratch::new(), set.name);
        let (copy, before) = (scratch.join("copy"), image.bytes());
        done(&args!["clone", "--new-uuid", image.path(), &copy]);
        assert!(before == image.bytes(), "{name}: the source changed");
        let uuid = |path| dumpe2fs::header(path).value("Filesystem UUID").to_owned();
        assert_ne!(uuid(image.path()), uuid(&copy), "{name}");
        e2fsck::check(&copy).assert_clean();
        done(&args!["check", &copy]);
        // Changes get checksums by the old seed, in all structures.
        done(&args!["put", &copy, env!("CARGO_MANIFEST_DIR"), "/new"]);
        done(&args!["rm", "-r", &copy, "/new"]);
        e2fsck::check(&copy).assert_clean();
        if set.kernel_mountable {
            let times = |path| kernel_tree(path).without_directory_times();
            times(image.path()).assert_same(&times(&copy));
        }
    }
}

#[test]
fn copies_of_the_superblock_have_the_new_uuid() {
    for name in ["default", "1k", "uninit_bg", "sparse_super2", "ext3_1k"] {
        let (image, scratch) = (used(FeatureSet::named(name)), Scratch::new());
        let copy = scratch.join("copy");
        let old = dumpe2fs::header(image.path()).value("Filesystem UUID").replace('-', "");
        done(&args!["clone", "--new-uuid", image.path(), &copy]);
        let old: Vec<u8> = (0..32)
            .step_by(2)
            .map(|at| u8::from_str_radix(&old[at..at + 2], 16).expect("digits"))
            .collect();
        let (bytes, mut copies) = (fs::read(&copy).expect("the copy"), 0);
        for group in dumpe2fs::dump(&copy).groups.iter().skip(1) {
            let Some(block) = group.superblock else { continue };
            let at = block as usize * FeatureSet::named(name).block_size as usize;
            assert!(bytes[at + 104..at + 120] != old[..], "{name}: block {block}");
            copies += 1;
        }
        assert!(copies > 0 || name == "default" || name == "uninit_bg", "{name}");
    }
}

#[test]
fn a_uuid_in_the_log_or_on_another_device_cannot_change() {
    let (torn, scratch) = (crashed(FeatureSet::named("default")), Scratch::new());
    let copy = scratch.join("copy");
    refused(&args!["clone", "--new-uuid", torn.path(), &copy], 1, "extant recover ");
    assert!(!copy.exists());
    let stable = used(FeatureSet::named("default"));
    debugfs::write(stable.path(), "feature stable_inodes");
    refused(&args!["clone", "--new-uuid", stable.path(), &copy], 1, "stable_inodes");
    let hashed = used(FeatureSet::named("default"));
    debugfs::write(hashed.path(), "feature -metadata_csum ea_inode");
    hashed.leave_unjudged("its metadata have checksums that the features do not name");
    refused(&args!["clone", "--no-reflink", "--new-uuid", hashed.path(), &copy], 1, "ea_inode");
    assert_eq!(fs::read_dir(scratch.path()).expect("a directory").count(), 0);
}
