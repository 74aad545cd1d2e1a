//! `extant check`: findings, forms of output, exit codes.

use crate::args;
use crate::program::extant;
use extant_testkit::kernel::{Mount, Shutdown};
use extant_testkit::{FeatureSet, Image, debugfs};
use serde_json::Value;

fn damaged() -> Image {
    let image = FeatureSet::named("default").make_sized(12 << 20);
    debugfs::write(image.path(), "set_inode_field <2> links_count 9");
    image.leave_unjudged("it is damaged");
    image
}

#[test]
fn a_clean_image_ends_with_0() {
    let image = FeatureSet::named("default").make_sized(12 << 20);
    let printed = extant(&args!["check", image.path()]).must_succeed();
    assert_eq!(printed.text(), "");
    assert!(printed.errors().contains("clean, 0 notes"), "{printed}");
}

#[test]
fn damage_ends_with_4_and_changes_nothing() {
    let image = damaged();
    let before = image.bytes();
    let printed = extant(&args!["check", image.path()]);
    assert_eq!(printed.code, 4, "{printed}");
    assert_eq!(printed.text(), "link-count, inode 2: 9 (expected 3); repair: recount\n");
    assert!(image.bytes() == before, "a check wrote");
}

#[test]
fn findings_are_a_json_document() {
    for threads in ["1", "2"] {
        let image = damaged();
        let printed = extant(&args!["--json", "--threads", threads, "check", image.path()]);
        assert_eq!(printed.code, 4, "{printed}");
        let document: Value = serde_json::from_slice(&printed.stdout).expect("a document");
        let finding = &document[0];
        assert_eq!(finding["code"], "link-count");
        assert_eq!(finding["severity"], "damage");
        assert_eq!(finding["place"]["inode"], 2);
        assert_eq!((&finding["found"], &finding["expected"]), (&9.into(), &3.into()));
        assert_eq!(finding["repair"], "recount");
        assert_eq!(document[1]["summary"]["damages"], 1);
        assert_eq!(document[1]["summary"]["clean"], false);
    }
}

#[test]
fn an_image_that_cannot_be_opened_ends_with_8() {
    let printed = extant(&args!["check", "/missing"]);
    assert_eq!(printed.code, 8, "{printed}");
    assert!(printed.errors().contains("/missing"), "{printed}");
}

/// The kernel's log is replayed in memory; without it the image has orphans and old counts.
#[test]
fn a_crashed_image_is_checked_as_it_will_be() {
    let image = FeatureSet::named("orphan_file").make_sized(16 << 20);
    let mount = Mount::new(image.path(), "");
    let open = std::fs::File::create(mount.join("orphan")).expect("a file");
    std::fs::remove_file(mount.join("orphan")).expect("a removal");
    std::fs::write(mount.join("kept"), "kept").expect("a file");
    mount.sync();
    mount.shut_down(Shutdown::FlushLog);
    drop(open);
    mount.unmount();
    let before = image.bytes();
    let printed = extant(&args!["check", image.path()]).must_succeed();
    assert!(printed.text().contains("journal-replayed"), "{printed}");
    let printed = extant(&args!["check", "--as-is", image.path()]);
    assert_eq!(printed.code, 4, "{printed}");
    assert!(printed.text().contains("journal-not-replayed"), "{printed}");
    assert!(image.bytes() == before, "a check wrote");
}
