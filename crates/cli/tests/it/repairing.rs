//! `extant repair`: levels, forms of output, exit codes, undo files.

use crate::args;
use crate::program::extant;
use extant_testkit::{FeatureSet, Image, debugfs, e2fsck};
use serde_json::Value;

fn image(commands: &[&str]) -> Image {
    let image = FeatureSet::named("default").make_sized(12 << 20);
    for command in commands {
        debugfs::write(image.path(), command);
    }
    image
}

/// A wrong count of links: safe to repair.
fn slight() -> Image {
    image(&["set_inode_field <2> links_count 9"])
}

/// A name without an inode.
fn heavy() -> Image {
    image(&["mkdir gone", "clri gone"])
}

#[test]
fn a_clean_image_ends_with_0_and_is_left_alone() {
    let image = image(&[]);
    let before = image.bytes();
    let printed = extant(&args!["repair", image.path()]).must_succeed();
    assert!(printed.errors().contains("nothing to repair"), "{printed}");
    assert!(image.bytes() == before, "a clean image was written");
}

#[test]
fn repaired_damage_ends_with_1_and_is_gone() {
    let image = slight();
    let printed = extant(&args!["repair", image.path()]);
    assert_eq!(printed.code, 1, "{printed}");
    assert_eq!(printed.text(), "link-count, inode 2: 9 (expected 3); repair: recount\n");
    assert!(printed.errors().contains("repaired 1 finding, 1 block changed"), "{printed}");
    e2fsck::check(image.path()).assert_clean();
    extant(&args!["repair", image.path()]).must_succeed();
    extant(&args!["check", image.path()]).must_succeed();
}

#[test]
fn a_dry_run_changes_nothing() {
    let image = slight();
    image.leave_unjudged("it stays damaged");
    let before = image.bytes();
    let printed = extant(&args!["repair", "--dry-run", image.path()]);
    assert_eq!(printed.code, 4, "{printed}");
    assert!(printed.text().contains("link-count"), "{printed}");
    assert!(printed.errors().contains("would have repaired 1 finding"), "{printed}");
    assert!(image.bytes() == before, "a dry run wrote");
}

#[test]
fn loss_needs_the_level_lossy() {
    let image = heavy();
    let before = image.bytes();
    let printed = extant(&args!["repair", image.path()]);
    assert_eq!(printed.code, 4, "{printed}");
    assert!(printed.text().contains("entry-inode"), "{printed}");
    assert!(printed.errors().contains("nothing was changed"), "{printed}");
    assert!(printed.errors().contains("--level lossy"), "{printed}");
    assert!(image.bytes() == before, "a refusal wrote");
    let printed = extant(&args!["repair", "--level", "lossy", image.path()]);
    assert_eq!(printed.code, 1, "{printed}");
    e2fsck::check(image.path()).assert_clean();
}

#[test]
fn a_repair_without_a_journal_goes_through_a_redo_file() {
    let image = FeatureSet::named("ext2").make_sized(12 << 20);
    debugfs::write(image.path(), "set_inode_field <2> links_count 9");
    let redo = image.scratch().join("redo");
    let printed = extant(&args!["repair", "--redo", &redo, image.path()]);
    let told = format!("`extant recover --redo {} ", redo.display());
    assert!(printed.code == 1 && printed.errors().contains(&told), "{printed}");
    assert!(!redo.exists(), "the file of a repair that is made stays");
    e2fsck::check(image.path()).assert_clean();
}

#[test]
fn an_undo_file_takes_the_repair_back() {
    let image = heavy();
    image.leave_unjudged("it is damaged again");
    let before = image.bytes();
    let undo = image.scratch().join("undo");
    let repair = args!["repair", "--level", "lossy", "--undo", undo.clone(), image.path()];
    assert_eq!(extant(&repair).code, 1);
    assert!(image.bytes() != before);
    // An existing file is never overwritten.
    debugfs::write(image.path(), "set_inode_field <2> links_count 9");
    let printed = extant(&args!["repair", "--undo", undo.clone(), image.path()]);
    assert!(printed.code != 0 && printed.code != 1, "{printed}");
    extant(&args!["repair", "--restore", undo.clone(), image.path()]).must_succeed();
    assert!(image.bytes() == before, "the old image is not back");
}

#[test]
fn repairs_are_a_json_document() {
    let image = slight();
    let printed = extant(&args!["--json", "repair", image.path()]);
    assert_eq!(printed.code, 1, "{printed}");
    let document: Value = serde_json::from_slice(&printed.stdout).expect("a document");
    assert_eq!(document[0]["code"], "link-count");
    assert_eq!(document[1]["summary"]["repaired"], true);
    assert_eq!(document[1]["summary"]["blocks"], 1);
    let image = heavy();
    image.leave_unjudged("it stays damaged");
    let printed = extant(&args!["--json", "repair", image.path()]);
    assert_eq!(printed.code, 4, "{printed}");
    let document: Value = serde_json::from_slice(&printed.stdout).expect("a document");
    assert_eq!(document[0]["code"], "entry-inode");
}

#[test]
fn an_image_that_cannot_be_opened_ends_with_8() {
    let printed = extant(&args!["repair", "/missing"]);
    assert_eq!(printed.code, 8, "{printed}");
    assert!(printed.errors().contains("/missing"), "{printed}");
}
