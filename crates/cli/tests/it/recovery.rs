//! Images that a crash left.

use crate::args;
use crate::program::{EXTANT, await_that, done, extant, json, refused};
use extant_testkit::kernel::{Loop, Mount, Shutdown};
use extant_testkit::tool::run;
use extant_testkit::{FeatureSet, Image, Scratch, debugfs};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// An image with a journal to replay and an orphan: the kernel was stopped after a commit.
pub fn crashed(set: &FeatureSet) -> Image {
    let image = set.make();
    let mount = Mount::new(image.path(), "");
    for i in 0..100 {
        std::fs::write(mount.join(format!("f{i}")), vec![1; 5000]).unwrap();
    }
    mount.sync();
    let open = std::fs::File::open(mount.join("f0")).unwrap();
    std::fs::remove_file(mount.join("f0")).unwrap();
    std::fs::write(mount.join("last"), "x").unwrap();
    mount.shut_down(Shutdown::FlushLog);
    drop(open);
    mount.unmount();
    image
}

#[test]
fn crashed_images_are_recovered() {
    for name in ["default", "orphan_file", "1k", "ext3"] {
        let image = crashed(FeatureSet::named(name));
        let before = image.bytes();
        let trial = json(&args!["recover", "--dry-run", image.path()]);
        assert!(before == image.bytes(), "{name}: a trial wrote");
        assert!(trial["journal"]["transactions"].as_u64().unwrap() > 0, "{name}: {trial}");
        assert_eq!(trial["orphans"]["freed"], 1, "{name}: {trial}");
        // To read it, it is recovered in memory.
        assert!(done(&args!["ls", image.path()]).text().contains("f99"), "{name}");
        assert_eq!(json(&args!["info", image.path()])["needs_recovery"], true, "{name}");
        assert!(before == image.bytes(), "{name}: reading wrote");
        let recovered = json(&args!["recover", image.path()]);
        assert_eq!(recovered["journal"], trial["journal"], "{name}");
        assert_eq!(recovered["orphans"], trial["orphans"], "{name}");
        image.assert_clean();
        assert!(
            done(&args!["recover", image.path()]).errors().contains("nothing to recover"),
            "{name}"
        );
    }
}

#[test]
fn a_write_recovers_first() {
    let image = crashed(FeatureSet::named("default"));
    let printed = done(&args!["mkdir", image.path(), "/new"]);
    assert!(printed.errors().contains("replayed"), "{printed}");
    image.assert_clean();
}

#[test]
fn a_torn_tail_is_dropped() {
    let image = crashed(FeatureSet::named("default"));
    let mut bytes = image.bytes();
    let commit = last_commit_block(&bytes, 4096);
    bytes[commit..commit + 4096].fill(0);
    std::fs::write(image.path(), &bytes).unwrap();
    let recovered = json(&args!["recover", image.path()]);
    assert!(recovered["journal"]["dropped"].is_string(), "{recovered}");
    image.assert_clean();
}

#[test]
fn a_journal_on_a_device_of_its_own_is_named() {
    let journal = Image::mke2fs(8 << 20, &["-b", "4096", "-O", "journal_dev"]);
    let on = Loop::attach(journal.path(), false);
    let name = format!("{}", on.device().display());
    let image =
        Image::mke2fs(64 << 20, &["-t", "ext4", "-b", "4096", "-J", &format!("device={name}")]);
    image.leave_unjudged("its log is on another device");
    let mount = Mount::new(image.path(), &format!("journal_path={name}"));
    std::fs::write(mount.join("from the kernel"), "x").unwrap();
    mount.crash(Shutdown::FlushLog);
    drop(on);
    let before = (image.bytes(), journal.bytes());
    refused(&args!["ls", image.path()], 1, "external journal");
    assert!(
        done(&args!["ls", "--journal", journal.path(), image.path()])
            .text()
            .contains("from the kernel")
    );
    let trial = json(&args!["recover", "--dry-run", "--journal", journal.path(), image.path()]);
    assert!(before == (image.bytes(), journal.bytes()));
    let recovered = json(&args!["recover", "--journal", journal.path(), image.path()]);
    assert_eq!(recovered["journal"], trial["journal"]);
    done(&args!["mkdir", "--journal", journal.path(), image.path(), "/dir"]);
    assert!(done(&args!["ls", image.path()]).text().contains("dir"));
}

/// Damages every descriptor block of the journal that is replayed.
fn damage_log(image: &Image) {
    let mut bytes = image.bytes();
    let word = |bytes: &[u8], at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let is_descriptor =
        |bytes: &[u8], at: &usize| word(bytes, *at) == 0xC03B_3998 && word(bytes, at + 4) == 1;
    let found: Vec<usize> =
        (0..bytes.len()).step_by(4096).filter(|at| is_descriptor(&bytes, at)).collect();
    assert!(!found.is_empty(), "the log has transactions");
    for at in found {
        // The first tag leads beyond the device; where the block has a checksum, that is wrong,
        // too.
        bytes[at + 12..at + 16].copy_from_slice(&0xFFFF_FFF0u32.to_be_bytes());
    }
    std::fs::write(image.path(), &bytes).unwrap();
}

/// Zeroes the superblock of the journal.
fn zero_journal_superblock(image: &Image) {
    let mut bytes = image.bytes();
    let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let at = (0..bytes.len())
        .step_by(4096)
        .find(|at| word(*at) == 0xC03B_3998 && word(at + 4) == 4)
        .expect("a superblock");
    bytes[at..at + 1024].fill(0);
    std::fs::write(image.path(), &bytes).unwrap();
}

#[test]
fn readers_go_on_without_a_damaged_journal_and_say_so() {
    for (set, damage) in [
        ("ext3", damage_log as fn(&Image)),
        ("default", damage_log),
        ("ext3", zero_journal_superblock),
        ("default", zero_journal_superblock),
    ] {
        let image = crashed(FeatureSet::named(set));
        damage(&image);
        image.leave_unjudged("its journal is damaged");
        let before = image.bytes();
        for reader in ["info", "ls", "find", "tree"] {
            let printed = done(&args![reader, image.path()]);
            assert!(printed.errors().contains("cannot be replayed"), "{reader}: {printed}");
            let told = done(&args![reader, "--noload", image.path()]);
            assert!(told.errors().is_empty(), "{reader}: {told}");
        }
        assert!(json(&args!["info", image.path()])["uuid"].is_string());
        for writer in [
            &args!["mkdir", image.path(), "/d"][..],
            &args!["recover", image.path()],
            &args!["recover", "-n", image.path()],
        ] {
            refused(writer, 1, "e2fsck -fy");
        }
        assert!(before == image.bytes());
    }
}

#[test]
fn info_survives_a_zeroed_journal_superblock() {
    let image = FeatureSet::named("default").make_sized(16 << 20);
    zero_journal_superblock(&image);
    image.leave_unjudged("its journal is damaged");
    let text = done(&args!["info", image.path()]).text();
    assert!(text.contains("Journal    cannot be read: corrupt"), "{text}");
    assert!(json(&args!["info", image.path()])["journal_error"].is_string());
}

/// The journal holds nothing, but the file system was not unmounted.
#[test]
fn recover_marks_clean_an_image_that_info_calls_unclean() {
    let image = FeatureSet::named("default").make_sized(16 << 20);
    debugfs::write(image.path(), "feature needs_recovery");
    assert!(done(&args!["info", image.path()]).text().contains("needs recovery"));
    let printed = done(&args!["recover", image.path()]);
    assert!(
        printed.errors().contains("marked clean") && !printed.errors().contains("nothing"),
        "{printed}"
    );
    assert!(!done(&args!["info", image.path()]).text().contains("needs recovery"));
    let printed = done(&args!["recover", image.path()]);
    assert!(printed.errors().contains("nothing to recover"), "{printed}");
    image.assert_clean();
}

#[test]
fn a_recovery_is_no_mount() {
    let image = crashed(FeatureSet::named("default"));
    let before = json(&args!["info", image.path()]);
    done(&args!["recover", image.path()]);
    let after = json(&args!["info", image.path()]);
    for field in ["mount_count", "last_mount", "last_mounted_on"] {
        assert_eq!(before[field], after[field], "{field}");
    }
    image.assert_clean();
}

#[test]
fn changes_report_the_replayed_transactions() {
    let image = crashed(FeatureSet::named("default"));
    let made = json(&args!["mkdir", image.path(), "/new", "/newer"]);
    assert!(made["recovery"]["journal"]["transactions"].as_u64().unwrap() > 0, "{made}");
    assert_eq!(made["recovery"]["orphans"]["freed"], 1, "{made}");
    assert_eq!(
        made["changed"],
        serde_json::json!([{ "path": "/new" }, { "path": "/newer" }]),
        "{made}"
    );
    image.assert_clean();
    let image = crashed(FeatureSet::named("default"));
    let put = json(&args!["put", image.path(), "/etc/hostname", "/put"]);
    assert!(put["recovery"]["journal"]["transactions"].as_u64().unwrap() > 0, "{put}");
    image.assert_clean();
}

/// Minutes of waiting are announced, and end at the first signal with the image as it was.
#[test]
fn waits_of_multiple_mount_protection_are_told_and_can_be_ended() {
    let image = Image::mke2fs(
        16 << 20,
        &["-t", "ext4", "-b", "4096", "-O", "mmp", "-E", "mmp_update_interval=300"],
    );
    let scratch = Scratch::new();
    let dir = scratch.dir("mnt");
    for (arguments, signal) in [
        (&args!["mkdir", image.path(), "/d"][..], "INT"),
        (&args!["mount", image.path(), &dir], "INT"),
        (&args!["recover", image.path()], "TERM"),
    ] {
        // A shell starts its background jobs with SIGINT ignored, and the program keeps that.
        let mut child = Command::new("env")
            .args(["--default-signal=INT", EXTANT])
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut told = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = told.next().expect("a line").unwrap();
        assert!(line.contains("waiting 360 seconds"), "{line}");
        run("kill", &[format!("-{signal}"), child.id().to_string()]).must_succeed();
        let mut ended = None;
        await_that("the program's end", || {
            ended = child.try_wait().unwrap();
            ended.is_some()
        });
        assert!(!ended.unwrap().success());
        // A server that was started lets go of the image, too.
        await_that("the image's release", || extant(&args!["info", image.path()]).code == 0);
        let sequence =
            run("dumpe2fs", &["-h".as_ref(), image.path().as_os_str()]).must_succeed().text();
        assert!(sequence.contains("0xff4d4d50"), "{sequence}");
    }
    image.leave_unjudged("a check waits for minutes, as its interval demands");
}

/// Names in the MMP block come from the image.
#[test]
fn a_node_name_cannot_forge_messages() {
    let image = Image::mke2fs(16 << 20, &["-t", "ext4", "-b", "4096", "-O", "mmp,^metadata_csum"]);
    let at = dumped(&image, "MMP block number:") as usize * 4096;
    let mut bytes = image.bytes();
    // In use by a checker, whose name has a line of its own.
    bytes[at + 4..at + 8].copy_from_slice(&0xE24D_4D50u32.to_le_bytes());
    bytes[at + 16..at + 47].copy_from_slice(b"host\nextant: all is well\x1b[2J\0\0\0");
    std::fs::write(image.path(), &bytes).unwrap();
    image.leave_unjudged("its MMP block says that it is being checked");
    let printed = extant(&args!["mkdir", image.path(), "/d"]);
    assert_eq!(printed.code, 1, "{printed}");
    assert!(printed.errors().contains("host\\nextant: all is well"), "{printed}");
    assert!(
        !printed.errors().lines().any(|line| line.starts_with("extant: all is well")),
        "{printed}"
    );
    assert!(!printed.errors().contains('\x1b'), "{printed}");
}

fn dumped(image: &Image, field: &str) -> u64 {
    let text = run("dumpe2fs", &["-h".as_ref(), image.path().as_os_str()]).must_succeed().text();
    let line = text.lines().find_map(|line| line.strip_prefix(field)).expect(field);
    line.trim().parse().expect("a number")
}

/// Where the commit block with the highest sequence lies.
fn last_commit_block(bytes: &[u8], block: usize) -> usize {
    let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let commits =
        (0..bytes.len()).step_by(block).filter(|at| word(*at) == 0xC03B_3998 && word(at + 4) == 2);
    commits.max_by_key(|at| word(at + 8)).expect("a commit block")
}

#[test]
fn a_clean_image_has_nothing_to_recover() {
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let document = json(&args!["recover", image.path()]);
    assert!(document["journal"].is_null(), "{document}");
    image.assert_clean();
}
