//! Images that a crash left.

use crate::args;
use crate::program::{done, json, refused};
use extant_testkit::kernel::{Loop, Mount, Shutdown};
use extant_testkit::{FeatureSet, Image};

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
        assert!(done(&args!["recover", image.path()]).errors().contains("nothing to recover"), "{name}");
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
    let image = Image::mke2fs(64 << 20, &["-t", "ext4", "-b", "4096", "-J", &format!("device={name}")]);
    image.leave_unjudged("its log is on another device");
    let mount = Mount::new(image.path(), &format!("journal_path={name}"));
    std::fs::write(mount.join("from the kernel"), "x").unwrap();
    mount.crash(Shutdown::FlushLog);
    drop(on);
    let before = (image.bytes(), journal.bytes());
    refused(&args!["ls", image.path()], 1, "external journal");
    assert!(done(&args!["ls", "--journal", journal.path(), image.path()]).text().contains("from the kernel"));
    let trial = json(&args!["recover", "--dry-run", "--journal", journal.path(), image.path()]);
    assert!(before == (image.bytes(), journal.bytes()));
    let recovered = json(&args!["recover", "--journal", journal.path(), image.path()]);
    assert_eq!(recovered["journal"], trial["journal"]);
    done(&args!["mkdir", "--journal", journal.path(), image.path(), "/dir"]);
    assert!(done(&args!["ls", image.path()]).text().contains("dir"));
}

/// Where the commit block with the highest sequence lies.
fn last_commit_block(bytes: &[u8], block: usize) -> usize {
    let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    let commits = (0..bytes.len()).step_by(block).filter(|at| word(*at) == 0xC03B_3998 && word(at + 4) == 2);
    commits.max_by_key(|at| word(at + 8)).expect("a commit block")
}

#[test]
fn a_clean_image_has_nothing_to_recover() {
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let document = json(&args!["recover", image.path()]);
    assert!(document["journal"].is_null(), "{document}");
    image.assert_clean();
}
