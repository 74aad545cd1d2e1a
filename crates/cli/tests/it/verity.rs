//! Hash trees of dm-verity, judged by veritysetup(8).

use crate::args;
use crate::program::{done, extant, json, refused};
use crate::recovery::crashed;
use extant_testkit::kernel::{Loop, Mount};
use extant_testkit::tool::{Printed, run};
use extant_testkit::{FeatureSet, Scratch, debugfs, e2fsck};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A directory to build from.
fn tree(scratch: &Scratch) -> PathBuf {
    let top = scratch.dir("top");
    fs::write(top.join("large"), vec![7; 3 << 20]).unwrap();
    fs::write(top.join("small"), "text").unwrap();
    top
}

/// A printed parameter.
#[track_caller]
fn parameter(printed: &Printed, name: &str) -> String {
    let text = printed.text();
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    found.unwrap_or_else(|| panic!("no {name}: {printed}")).to_owned()
}

fn verify(data: &Path, tree: &Path, root: &str, offset: &str) -> Printed {
    run("veritysetup", &args!["verify", data, tree, root, format!("--hash-offset={offset}")])
}

#[test]
fn builds_append_a_tree() {
    let scratch = Scratch::new();
    let top = tree(&scratch);
    for options in [&args!["--free", "1M"][..], &args!["-b", "1024", "--free", "77k"]] {
        let [one, many] = ["1", "4"].map(|threads| {
            let image = scratch.join(format!("{threads}.img"));
            let call = args!["--threads", threads, "build", "--verity", &image, &top];
            let printed = done(&[&call[..], options].concat());
            let [root, offset] = ["root-hash", "hash-offset"].map(|key| parameter(&printed, key));
            verify(&image, &image, &root, &offset).must_succeed();
            (image, root)
        });
        assert_eq!(one.1, many.1);
        assert!(fs::read(&one.0).unwrap() == fs::read(&many.0).unwrap());
        e2fsck::check(&one.0).assert_clean();
        let mount = Mount::new(&one.0, "ro");
        assert_eq!(fs::read(mount.join("small")).unwrap(), b"text");
        mount.unmount();
        let call = args!["build", "--verity", "--estimate", &one.0, &top];
        let estimate = done(&[&call[..], options].concat()).text();
        assert_eq!(estimate.trim(), fs::metadata(&one.0).unwrap().len().to_string());
        let document = json(&[&args!["build", "--verity", &one.0, &top][..], options].concat());
        assert_eq!(document["verity"]["root_hash"], one.1.as_str(), "{document}");
        // The tree of the finished image is the same.
        let whole = fs::read(&one.0).unwrap();
        let again = done(&args!["verity", &one.0]);
        assert_eq!(parameter(&again, "root-hash"), one.1);
        assert!(fs::read(&one.0).unwrap() == whole);
    }
}

#[test]
fn a_later_change_needs_a_new_tree() {
    let scratch = Scratch::new();
    let image = scratch.join("image");
    done(&args!["build", "--free", "2M", &image, tree(&scratch)]);
    let len = fs::metadata(&image).unwrap().len();
    let first = done(&args!["verity", &image]);
    let [root, offset] = ["root-hash", "hash-offset"].map(|key| parameter(&first, key));
    assert_eq!(offset, len.to_string());
    done(&args!["mkdir", &image, "/new"]);
    assert_ne!(verify(&image, &image, &root, &offset).code, 0, "a change was not noticed");
    let second = parameter(&done(&args!["verity", &image]), "root-hash");
    assert_ne!(root, second);
    verify(&image, &image, &second, &offset).must_succeed();
    e2fsck::check(&image).assert_clean();
    // Elsewhere, which may be full, and of a disk.
    let small = scratch.dir("small");
    run("mount", &args!["-t", "tmpfs", "-o", "size=16k", "none", &small]).must_succeed();
    let printed = extant(&args!["verity", "--tree", small.join("tree"), &image]);
    let left = fs::read_dir(&small).unwrap().count();
    run("umount", &[&small]).must_succeed();
    assert!(printed.code == 1 && left == 0, "{printed}");
    assert!(printed.errors().contains("small/tree: No space left"), "{printed}");
    let beside = scratch.join("beside");
    let before = fs::read(&image).unwrap();
    let disk = Loop::attach(&image, true);
    let printed = done(&args!["verity", "--tree", &beside, disk.device()]);
    assert_eq!(parameter(&printed, "hash-offset"), "0");
    assert_eq!(parameter(&printed, "root-hash"), second);
    verify(&image, &beside, &second, "0").must_succeed();
    assert!(fs::read(&image).unwrap() == before);
}

#[test]
fn images_that_may_change_are_refused() {
    let scratch = Scratch::new();
    let torn = crashed(FeatureSet::named("default"));
    let before = torn.bytes();
    refused(&args!["verity", torn.path()], 1, "recover");
    assert!(torn.bytes() == before, "it was changed");
    let image = scratch.join("image");
    done(&args!["build", "--free", "1M", &image, tree(&scratch)]);
    let len = fs::metadata(&image).unwrap().len();
    let unchanged = |why: &str| {
        let before = fs::read(&image).unwrap();
        refused(&args!["verity", &image], 1, why);
        assert!(fs::read(&image).unwrap() == before);
    };
    fs::OpenOptions::new().append(true).open(&image).unwrap().write_all(&[9; 5000]).unwrap();
    unchanged(&format!("truncate -s {len}"));
    done(&args!["verity", "--tree", scratch.join("tree"), &image]);
    fs::File::options().write(true).open(&image).unwrap().set_len(len).unwrap();
    // No length of the file reaches the tree.
    let limited = format!("ulimit -f {}; exec \"$0\" verity {}", len / 512, image.display());
    let before = fs::read(&image).unwrap();
    let printed = run("sh", &args!["-c", limited, crate::program::EXTANT]);
    assert_ne!(printed.code, 0, "{printed}");
    assert!(fs::read(&image).unwrap() == before, "a failure changed the image");
    refused(&args!["verity", "--tree", "/dev/null", &image], 1, "/dev/null");
    debugfs::write(&image, "clri /small");
    unchanged("repair");
    scratch.leave_unjudged("image", "an inode is cleared");
    refused(&args!["verity", scratch.join("none")], 1, "none");
    refused(&args!["verity", format!("{}@1M", image.display())], 1, "--tree");
    let disk = Loop::attach(&image, false);
    assert!(extant(&args!["verity", disk.device()]).errors().contains("--tree"));
}
