//! Trees that go into images and come out again.

use crate::args;
use crate::program::{done, extant, json, refused};
use extant_testkit::kernel::Mount;
use extant_testkit::tool::run;
use extant_testkit::tree::{Manifest, Plan, Shape, What};
use extant_testkit::{FeatureSet, Image, Scratch};
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;

fn tree(scratch: &Scratch, seed: u64, shape: &Shape) -> std::path::PathBuf {
    let top = scratch.dir("top");
    Plan::random(seed, shape).apply(&top);
    top
}

/// Returns the manifest of a tree without entries of the file system itself.
fn manifest(top: &std::path::Path) -> Manifest {
    Manifest::walk(top).without("lost+found").without_root()
}

#[track_caller]
fn round_trip(set: &FeatureSet, seed: u64, shape: &Shape, threads: &str) {
    round_trip_of(set, &Plan::random(seed, shape), threads);
}

#[track_caller]
fn round_trip_of(set: &FeatureSet, plan: &Plan, threads: &str) {
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    plan.apply(&top);
    let expected = manifest(&top);
    let image = set.make();
    done(&args!["put", "--threads", threads, image.path(), &top, "/"]);
    image.assert_clean();
    let mount = Mount::new(image.path(), "ro");
    expected.assert_same(&manifest(mount.path()));
    mount.unmount();
    let out = scratch.join("out");
    done(&args!["get", "--threads", threads, image.path(), "/", &out]);
    expected.assert_same(&manifest(&out));
}

#[test]
fn a_tree_comes_out_as_it_went_in() {
    round_trip(FeatureSet::named("default"), 1, &Shape { wide: 500, ..Shape::default() }, "4");
}

#[test]
fn a_tree_survives_small_blocks() {
    round_trip(FeatureSet::named("1k"), 2, &Shape::small(), "2");
}

#[test]
fn a_tree_survives_inline_data() {
    round_trip(FeatureSet::named("inline_data"), 3, &Shape::small(), "2");
}

#[test]
fn a_tree_survives_clusters() {
    round_trip(FeatureSet::named("bigalloc"), 4, &Shape::small(), "2");
}

#[test]
fn a_tree_survives_large_attributes() {
    let mut plan = Plan::random(5, &Shape { largest_xattr: 20_000, ..Shape::small() });
    // e2fsck takes a short symlink whose attribute lies in an inode of its own for one with blocks,
    // the kernel's too.
    let symlinks = plan.entries.iter_mut().filter(|e| matches!(e.what, What::Symlink(_)));
    symlinks.for_each(|e| e.xattrs.retain(|_, value| value.len() < 500));
    round_trip_of(FeatureSet::named("ea_inode"), &plan, "2");
}

#[test]
fn a_tree_survives_block_maps_and_no_journal() {
    round_trip(FeatureSet::named("ext3"), 6, &Shape::small(), "2");
    round_trip(FeatureSet::named("no_journal"), 7, &Shape::small(), "1");
}

#[test]
fn the_top_keeps_its_attributes() {
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    run("chmod", &["1770".as_ref(), top.as_os_str()]).must_succeed();
    run("chown", &["1234:5678".as_ref(), top.as_os_str()]).must_succeed();
    run("touch", &["-d".as_ref(), "2001-02-03 04:05:06.789".as_ref(), top.as_os_str()])
        .must_succeed();
    let image = FeatureSet::named("default").make_sized(16 << 20);
    done(&args!["put", image.path(), &top, "/new"]);
    let out = scratch.join("out");
    done(&args!["get", image.path(), "/new", &out]);
    let meta = std::fs::metadata(&out).unwrap();
    assert_eq!((meta.mode() & 0o7777, meta.uid(), meta.gid()), (0o1770, 1234, 5678));
    assert_eq!((meta.mtime(), meta.mtime_nsec()), (981_173_106, 789_000_000));
    image.assert_clean();
}

#[test]
fn holes_stay_holes() {
    let scratch = Scratch::new();
    let sparse = scratch.file("sparse", 1 << 30);
    run(
        "dd",
        &[
            "if=/dev/urandom",
            &format!("of={}", sparse.display()),
            "bs=64k",
            "count=1",
            "seek=1000",
            "conv=notrunc",
        ],
    )
    .must_succeed();
    let image = FeatureSet::named("default").make_sized(16 << 20);
    done(&args!["put", image.path(), &sparse, "/sparse"]);
    let stat = json(&args!["stat", image.path(), "/sparse"]);
    assert_eq!(stat[0]["size"], 1 << 30);
    assert!(stat[0]["blocks_512"].as_u64().unwrap() < 1000);
    let out = scratch.join("out");
    done(&args!["get", image.path(), "/sparse", &out]);
    run("cmp", &[&sparse, &out]).must_succeed();
    assert!(std::fs::metadata(&out).unwrap().blocks() < 1000);
    let tar = done(&args!["get", image.path(), "/sparse", "--tar", "-"]);
    assert!(tar.stdout.len() < 1 << 20, "{} bytes", tar.stdout.len());
    std::fs::write(scratch.join("t.tar"), &tar.stdout).unwrap();
    let to = scratch.dir("untar");
    run("tar", &["-C".as_ref(), to.as_os_str(), "-xf".as_ref(), scratch.join("t.tar").as_os_str()])
        .must_succeed();
    run("cmp", &[sparse, to.join("sparse")]).must_succeed();
    image.assert_clean();
}

#[test]
fn an_archive_has_everything() {
    let scratch = Scratch::new();
    // Sockets have no place in an archive.
    let mut plan = Plan::random(8, &Shape { longest_target: 300, ..Shape::small() });
    plan.entries.retain(|e| !matches!(e.what, What::Socket));
    assert!(
        plan.entries
            .iter()
            .any(|e| e.xattrs.keys().any(|name| name.starts_with(b"system.posix_acl"))),
        "ACLs"
    );
    let top = scratch.dir("top");
    plan.apply(&top);
    let image = FeatureSet::named("default").make();
    done(&args!["put", image.path(), &top, "/"]);
    done(&args!["rm", "-r", image.path(), "/lost+found"]);
    let archive = scratch.join("a.tar");
    done(&args!["get", image.path(), "/", "--tar", &archive]);
    let to = scratch.dir("untar");
    let tar = ["--acls", "--xattrs", "--xattrs-include=*", "--numeric-owner", "-p", "-C"];
    let mut all: Vec<std::ffi::OsString> = tar.iter().map(Into::into).collect();
    all.extend(args![&to, "-xf", &archive]);
    run("tar", &all).must_succeed();
    manifest(&top).assert_same(&manifest(&to));
}

#[test]
fn existing_files_are_replaced() {
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    std::fs::write(top.join("f"), "old").unwrap();
    std::fs::write(top.join("g"), "kept").unwrap();
    let image = FeatureSet::named("default").make_sized(16 << 20);
    done(&args!["put", image.path(), &top, "/d"]);
    std::fs::remove_file(top.join("g")).unwrap();
    std::fs::write(top.join("f"), "new content").unwrap();
    done(&args!["put", image.path(), &top, "/d"]);
    assert_eq!(done(&args!["cat", image.path(), "/d/f", "/d/g"]).text(), "new contentkept");
    assert_eq!(done(&args!["ls", "-a", image.path(), "/d"]).text(), "f\ng\n");
    // A directory does not become a file, nor a file a directory.
    std::fs::remove_file(top.join("f")).unwrap();
    std::fs::create_dir(top.join("f")).unwrap();
    refused(&args!["put", image.path(), &top, "/d"], 1, "not a directory");
    image.assert_clean();
}

#[test]
fn getting_does_not_follow_symlinks_out() {
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    std::fs::create_dir(top.join("d")).unwrap();
    std::fs::write(top.join("d/f"), "in").unwrap();
    std::fs::write(top.join("g"), "in").unwrap();
    let image = FeatureSet::named("default").make_sized(16 << 20);
    done(&args!["put", image.path(), &top, "/"]);
    let (outside, out) = (scratch.dir("outside"), scratch.dir("out"));
    std::fs::write(outside.join("g"), "out").unwrap();
    std::os::unix::fs::symlink(&outside, out.join("d")).unwrap();
    std::os::unix::fs::symlink(outside.join("g"), out.join("g")).unwrap();
    let printed = extant(&args!["get", image.path(), "/", &out]);
    assert_eq!(printed.code, 1, "{printed}");
    assert_eq!(std::fs::read(outside.join("g")).unwrap(), b"out");
    assert!(!outside.join("f").exists());
    assert_eq!(std::fs::read(out.join("g")).unwrap(), b"in", "a file in the way is replaced");
}

#[test]
fn a_loop_of_directories_ends() {
    let image = FeatureSet::named("default").make_sized(16 << 20);
    done(&args!["mkdir", "-p", image.path(), "/a/b"]);
    let b = json(&args!["stat", image.path(), "/a"])[0]["inode"].as_u64().unwrap();
    image.leave_unjudged("a directory has two names");
    extant_testkit::debugfs::write(image.path(), &format!("link <{b}> /a/b/loop"));
    let scratch = Scratch::new();
    let out = scratch.join("out");
    refused(&args!["get", image.path(), "/", &out], 1, "met before");
    refused(&args!["tree", image.path()], 1, "met before");
    refused(&args!["du", image.path()], 1, "met before");
    refused(&args!["get", image.path(), "/", "--tar", scratch.join("t")], 1, "could not be copied");
    assert!(out.join("a/b").is_dir());
}

#[test]
fn standard_input_becomes_a_file() {
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let script = format!(
        "seq 100000 | {} put {} - /numbers",
        crate::program::EXTANT,
        image.path().display()
    );
    run("sh", &["-c", &script]).must_succeed();
    let numbers = run("seq", &["100000"]).must_succeed().stdout;
    assert_eq!(done(&args!["cat", image.path(), "/numbers"]).stdout, numbers);
    image.assert_clean();
}

#[test]
fn a_full_image_is_an_error_and_stays_whole() {
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    for i in 0..8 {
        std::fs::write(top.join(format!("f{i}")), vec![i; 1 << 20]).unwrap();
    }
    let image = Image::mke2fs(8 << 20, &["-t", "ext4", "-J", "size=1", "-b", "1024"]);
    refused(&args!["put", image.path(), &top, "/"], 1, "no space left");
    image.assert_clean();
    // Each existing file is complete.
    let found = json(&args!["find", image.path(), "/", "--type", "f"]);
    let found = found.as_array().unwrap();
    assert!(!found.is_empty() && found.len() < 8);
    assert!(found.iter().all(|file| file["size"] == 1 << 20), "{found:?}");
}

#[test]
fn owners_can_be_given() {
    let scratch = Scratch::new();
    let top = tree(&scratch, 9, &Shape { files: 3, ..Shape::small() });
    let image = FeatureSet::named("default").make();
    done(&args!["put", "--owner", "7:8", image.path(), &top, "/t"]);
    for entry in json(&args!["find", image.path(), "/t"]).as_array().unwrap() {
        assert_eq!((&entry["uid"], &entry["gid"]), (&7.into(), &8.into()), "{entry}");
    }
}

/// A copy to a FIFO, or to a device, must not take its place.
#[test]
fn special_files_are_not_replaced() {
    use std::os::unix::fs::FileTypeExt;
    let (scratch, image) = (Scratch::new(), FeatureSet::named("default").make());
    std::fs::write(scratch.join("f"), "data").unwrap();
    done(&args!["put", image.path(), scratch.join("f"), "/f"]);
    let fifo = scratch.join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .unwrap();
    std::os::unix::fs::symlink("fifo", scratch.join("link")).unwrap();
    for name in ["fifo", "link"] {
        refused(&args!["get", image.path(), "/f", scratch.join(name)], 2, "FIFO");
    }
    assert!(std::fs::symlink_metadata(&fifo).unwrap().file_type().is_fifo());
    assert!(std::fs::symlink_metadata(scratch.join("link")).unwrap().is_symlink());
}

/// Devices, FIFOs and sockets of an image are left out, and replace no file of the host.
#[test]
fn special_files_are_left_out_where_asked() {
    let (scratch, image) = (Scratch::new(), FeatureSet::named("default").make());
    let mknod = |path: &str, kind: &[&str]| {
        let mut all = args!["mknod", image.path(), path].to_vec();
        all.extend(kind.iter().map(OsString::from));
        done(&all);
    };
    done(&args!["mkdir", image.path(), "/d"]);
    mknod("/d/pipe", &["p"]);
    mknod("/d/socket", &["s"]);
    mknod("/d/block", &["b", "7", "0"]);
    mknod("/d/char", &["c", "1", "3"]);
    done(&args!["ln", image.path(), "/d/pipe", "/d/again"]);
    done(&args!["ln", "-s", image.path(), "pipe", "/d/link"]);
    std::fs::write(scratch.join("f"), "data").unwrap();
    done(&args!["put", image.path(), scratch.join("f"), "/d/f"]);
    let out = scratch.dir("out");
    std::fs::write(out.join("pipe"), "of the host").unwrap();
    let printed = done(&args!["get", "--no-special", image.path(), "/d", &out]);
    assert!(printed.errors().contains("special files left out, as asked"), "{printed}");
    let mut names: Vec<_> =
        std::fs::read_dir(&out).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["f", "link", "pipe"]);
    assert_eq!(std::fs::read(out.join("pipe")).unwrap(), b"of the host");
    let single = scratch.join("single");
    let document = json(&args!["get", "--no-special", image.path(), "/d/char", &single]);
    assert_eq!(document["left_out"]["special"], 1, "{document}");
    assert!(!single.exists());
    refused(&args!["get", "--no-special", "--tar", "-", image.path(), "/d"], 2, "--tar");
}

/// Hard links replace existing files, and all names lead to one file afterwards.
#[test]
fn hard_links_replace_files() {
    let (scratch, image) = (Scratch::new(), FeatureSet::named("default").make());
    let top = scratch.dir("top");
    std::fs::write(top.join("a"), "new").unwrap();
    std::fs::hard_link(top.join("a"), top.join("b")).unwrap();
    std::fs::write(scratch.join("old"), "old").unwrap();
    done(&args!["mkdir", image.path(), "/t"]);
    done(&args!["put", image.path(), scratch.join("old"), "/t/b"]);
    done(&args!["put", image.path(), &top, "/t"]);
    assert_eq!(done(&args!["cat", image.path(), "/t/b"]).text(), "new");
    let found = json(&args!["find", image.path(), "/t", "--type", "f"]);
    let found: Vec<_> = found
        .as_array()
        .unwrap()
        .iter()
        .map(|file| (file["path"].clone(), file["nlink"].clone()))
        .collect();
    assert_eq!(found.len(), 2, "{found:?}");
    image.assert_clean();
}

/// New files inherit the default ACL of the directory that they are made in.
#[test]
fn copies_inherit_no_acl_of_their_destination() {
    let scratch = Scratch::new();
    let plan = Plan::random(9, &Shape::small());
    let top = scratch.dir("top");
    plan.apply(&top);
    let expected = Manifest::walk(&top).without("lost+found");
    let image = FeatureSet::named("default").make();
    done(&args!["put", image.path(), &top, "/new"]);
    let parent = scratch.dir("parent");
    let acl = "u:7:rwx,g:8:rwx,m:rwx";
    run("setfacl", &args!["-d", "-m", acl, &parent]).must_succeed();
    let out = parent.join("out");
    done(&args!["get", image.path(), "/new", &out]);
    expected.assert_same(&Manifest::walk(&out));
    std::fs::write(top.join("single"), "content").unwrap();
    done(&args!["put", image.path(), top.join("single"), "/single"]);
    done(&args!["get", image.path(), "/single", &parent]);
    let acl = run("getfacl", &args!["-cE", parent.join("single")]).must_succeed();
    assert_eq!(acl.text().lines().filter(|line| !line.is_empty()).count(), 3, "{acl}");
}

/// In the namespace the user of the ACL has no number, so that the ACL cannot be set.
#[test]
fn an_acl_that_cannot_be_set_grants_no_user_more() {
    let scratch = Scratch::new();
    let file = scratch.join("file");
    std::fs::write(&file, "content").unwrap();
    run("setfacl", &args!["-m", "u::rw,g::-,o::r,u:7:-,m:rw", &file]).must_succeed();
    let image = FeatureSet::named("default").make_sized(16 << 20);
    done(&args!["put", image.path(), &file, "/file"]);
    let out = scratch.join("out");
    let program = crate::program::EXTANT;
    let call = args!["--user", "--map-root-user", program, "--json", "get", image.path(), "/file"];
    let printed = run("unshare", &[&call[..], &args![&out]].concat()).must_succeed();
    assert!(printed.text().contains("\"attributes\": 1"), "{printed}");
    assert_eq!(std::fs::metadata(&out).unwrap().mode() & 0o7777, 0o600);
}
