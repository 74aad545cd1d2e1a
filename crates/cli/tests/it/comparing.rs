//! `extant diff`: the differences of two trees as the kernel's mounts have them, and trouble that
//! is no difference.

use crate::args;
use crate::cloning::reflinking_host;
use crate::program::{EXTANT, done, extant, json, refused};
use crate::recovery::crashed;
use extant_testkit::kernel::Mount;
use extant_testkit::rng::Rng;
use extant_testkit::tool::{Printed, run};
use extant_testkit::tree::{Kind, Manifest, Node, Plan, Shape};
use extant_testkit::{FeatureSet, Image, Scratch, debugfs};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// An image of a tree.
pub fn image_of(top: &Path, set: &str) -> Image {
    let image = FeatureSet::named(set).make();
    done(&args!["put", image.path(), top, "/"]);
    image
}

/// A copy of a tree with all attributes and links.
pub fn copy_of(top: &Path, to: PathBuf) -> PathBuf {
    run("cp", &args!["-a", top, &to]).must_succeed();
    to
}

/// Runs commands of the shell in a directory.
pub fn sh(dir: &Path, script: &str) -> Printed {
    run("sh", &["-euc", &format!("cd {}; {script}", dir.display())]).must_succeed()
}

fn diff(more: &[OsString]) -> Printed {
    let printed = extant(&[&args!["diff"][..], more].concat());
    assert!(!printed.errors().contains("panicked"), "{printed}");
    printed
}

/// Makes random changes of a tree, each at one of its paths.
pub fn mutate(top: &Path, seed: u64, changes: usize) {
    let mut rng = Rng::new(seed);
    for number in 0..changes {
        let tree = Manifest::walk(top);
        let paths: Vec<&Vec<u8>> = tree.nodes.keys().filter(|path| !path.is_empty()).collect();
        let path = paths[rng.below(paths.len() as u64) as usize];
        let other = paths[rng.below(paths.len() as u64) as usize];
        let (kind, other_kind) = (tree.nodes[path].kind, tree.nodes[other].kind);
        let [path, other] = [path, other].map(|path| top.join(OsStr::from_bytes(path)));
        let beside = path.with_file_name(format!("new{number}"));
        let script = match rng.below(9) {
            0 => "rm -rf \"$1\"",
            1 => "chown -h 7:8 \"$1\"",
            2 if kind != Kind::Symlink => "chmod 3750 \"$1\"",
            3 if kind == Kind::File => "touch -r \"$1\" \"$3\"; printf x >>\"$1\"; rm \"$3\"",
            4 if kind == Kind::File && other_kind == Kind::File => "ln -f \"$1\" \"$2\" || true",
            5 => "rm -rf \"$1\"; mkdir -p \"$1\"/sub; echo x >\"$1\"/sub/file",
            6 if kind != Kind::Symlink => "setfattr -n user.new -v 1 \"$1\" || true",
            7 => "mv \"$1\" \"$3\"",
            8 if kind == Kind::File => "ln \"$1\" \"$3\"",
            _ => "echo new >\"$3\"",
        };
        run("sh", &args!["-euc", script, "sh", &path, &other, &beside]).must_succeed();
    }
}

/// Returns the tree of an image as the kernel has it.
fn kernel_tree(image: &Path) -> Manifest {
    let mount = Mount::new(image, "ro");
    let tree = Manifest::walk(mount.path()).without("lost+found");
    mount.unmount();
    tree
}

/// The first path of each inode among the paths that are no directories in both trees.
fn groups(tree: &Manifest, common: &BTreeSet<&Vec<u8>>) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut paths: Vec<_> = tree.nodes.iter().filter(|(path, _)| common.contains(path)).collect();
    // The order of names, not that of paths as bytes.
    paths.sort_by_key(|(path, _)| path.split(|b| *b == b'/').collect::<Vec<_>>());
    let mut first: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let group = |(path, node): (&Vec<u8>, &Node)| {
        let inode = node.same_as.clone().unwrap_or(path.clone());
        (path.clone(), first.entry(inode).or_insert_with(|| path.clone()).clone())
    };
    paths.into_iter().map(group).collect()
}

/// The paths that differ between two trees, with `added`, `removed` or `changed`.
fn expected(a: &Manifest, b: &Manifest) -> BTreeMap<Vec<u8>, &'static str> {
    let is_entry = |node: &Node| node.kind != Kind::Directory;
    let is_common =
        |path: &&Vec<u8>| is_entry(&a.nodes[*path]) && b.nodes.get(*path).is_some_and(is_entry);
    let common: BTreeSet<_> = a.nodes.keys().filter(is_common).collect();
    let links = [a, b].map(|tree| groups(tree, &common));
    let bare = |node: &Node| Node { same_as: None, nlink: 0, ..node.clone() };
    let mut found = BTreeMap::new();
    for path in a.nodes.keys().chain(b.nodes.keys()) {
        let kind = match (a.nodes.get(path), b.nodes.get(path)) {
            (_, None) => "removed",
            (None, _) => "added",
            (Some(a), Some(b)) if bare(a) != bare(b) => "changed",
            _ if links[0].get(path) != links[1].get(path) => "changed",
            _ => continue,
        };
        found.insert([b"/", &path[..]].concat(), kind);
    }
    found
}

/// The paths that the program names, from its JSON and from its lines, which must agree.
fn found(a: &Path, b: &Path) -> (i32, BTreeMap<Vec<u8>, &'static str>) {
    let text = diff(&args![a, b, "--threads", "3"]);
    let document = diff(&args!["--json", a, b, "--threads", "1"]);
    assert_eq!(text.code, document.code, "{text} {document}");
    let parsed: Vec<Value> = serde_json::from_slice(&document.stdout).unwrap();
    let (summary, changes) = parsed.split_last().unwrap();
    let kinds = ["added", "removed", "changed"];
    let mut all = BTreeMap::new();
    for change in changes {
        let kind = kinds.iter().find(|kind| change["change"] == **kind).unwrap();
        let path = match change["path_hex"].as_str() {
            Some(hex) => (0..hex.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
                .collect(),
            None => change["path"].as_str().unwrap().as_bytes().to_vec(),
        };
        assert!(all.insert(path, *kind).is_none(), "{change}");
    }
    for kind in kinds {
        let lines = text.text().lines().filter(|line| line.starts_with(kind)).count();
        assert_eq!(summary["summary"][kind], lines, "{text} {document}");
        assert_eq!(all.values().filter(|found| **found == kind).count(), lines, "{text}");
    }
    assert_eq!(summary["summary"]["errors"], 0, "{document}");
    (text.code, all)
}

#[test]
fn differences_are_those_of_the_kernels_mounts() {
    for seed in 0..6 {
        let scratch = Scratch::new();
        let top = scratch.dir("top");
        Plan::random(seed, &Shape { longest_target: 300, ..Shape::small() }).apply(&top);
        let other = copy_of(&top, scratch.join("other"));
        let sets = [["default", "1k"], ["inline_data", "bigalloc"]][seed as usize % 2];
        let a = image_of(&top, sets[0]);
        let same = image_of(&other, sets[1]);
        assert_eq!(found(a.path(), same.path()), (0, BTreeMap::new()), "seed {seed}");
        mutate(&other, seed, 12);
        let b = image_of(&other, sets[1]);
        let trees = [&a, &b].map(|image| kernel_tree(image.path()));
        let expected = expected(&trees[0], &trees[1]);
        assert!(expected.len() > 5, "seed {seed}: {expected:?}");
        assert_eq!(found(a.path(), b.path()), (1, expected), "seed {seed}");
        // The digests agree.
        let digests = [&a, &same, &b].map(|image| done(&args!["hash", image.path()]).text());
        assert!(digests[0] == digests[1] && digests[0] != digests[2], "seed {seed}");
    }
}

#[test]
fn each_difference_is_a_line() {
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    sh(
        &top,
        "mkdir d gone; echo a >gone/f; echo text >f; echo old >content; echo x >mode
        ln -s one link; mknod dev c 1 3; echo 1 >type; echo x >xattr; ln f linked; mkdir to-file
        setfattr -n user.a -v 1 xattr; setfattr -n user.b -v 1 xattr; printf '' >'new\nline'
        touch -h -d @1000 * d gone .",
    );
    let other = copy_of(&top, scratch.join("other"));
    sh(
        &other,
        "rm -r gone type to-file linked; mkdir type; echo y >type/in; echo x >to-file
        echo text >linked; echo new >content; chown 7:8 mode; chmod 4640 mode; ln -sfn two link
        rm dev; mknod dev c 1 5; setfattr -x user.a xattr; setfattr -n user.b -v 2 xattr
        setfattr -n user.c -v 3 xattr; rm new*; printf x >'new\nline'; echo more >d/more
        touch -h -d @1000 * type/in d/more .; touch -d @2000.5 f",
    );
    let [a, b] = [image_of(&top, "default"), image_of(&other, "1k")];
    let expected = "\
changed /content: content
added /d/more
changed /dev: device 1:3 -> 1:5
changed /f: mtime 1970-01-01 00:16:40.000000000 UTC -> 1970-01-01 00:33:20.500000000 UTC
removed /gone
removed /gone/f
changed /link: target one -> two
changed /linked: link /f -> /linked
changed /mode: uid 0 -> 7; gid 0 -> 8; mode 0644 -> 4640
changed /new\\nline: size 0 -> 1
changed /to-file: type directory -> file
changed /type: type file -> directory
added /type/in
changed /xattr: xattrs -user.a,user.b,+user.c
";
    let printed = diff(&args![a.path(), b.path()]);
    assert_eq!((printed.code, &*printed.text()), (1, expected), "{printed}");
    assert_eq!(printed.errors(), "", "{printed}");
    let without = diff(&args!["--ignore", "times,owners,modes,xattrs", a.path(), b.path()]).text();
    for line in ["/f", "/mode", "/xattr"] {
        assert!(!without.contains(&format!("changed {line}:")), "{without}");
    }
    assert!(without.contains("changed /content: content"), "{without}");
    // A part of the trees, and one file.
    let part = diff(&args![a.path(), b.path(), "/type/"]);
    assert_eq!((part.code, part.text()), (2, String::new()), "{part}");
    let part = diff(&args![a.path(), b.path(), "/d/"]);
    assert_eq!((part.code, &*part.text()), (1, "added /d/more\n"), "{part}");
    assert_eq!(diff(&args![a.path(), b.path(), "/content"]).text(), "changed /content: content\n");
    assert_eq!(diff(&args![a.path(), a.path()]).code, 0);
    let document = diff(&args!["--json", a.path(), b.path(), "/mode"]);
    let parsed: Value = serde_json::from_slice(&document.stdout).unwrap();
    let mode = &parsed[0]["differences"]["mode"];
    assert_eq!((&mode["a"], &mode["b"]), (&0o644.into(), &0o4640.into()), "{document}");
}

/// A change of one inode is a change of all its names. A name that leads to another inode than
/// before is a change of this name alone.
#[test]
fn links_are_compared_by_their_common_names() {
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    sh(&top, "echo 1 >b; ln b c; echo 1 >x; ln x y; echo 1 >z; touch -h -d @1000 * .");
    let [first, second, third] =
        ["first", "second", "third"].map(|name| copy_of(&top, scratch.join(name)));
    sh(&first, "ln b a; touch -d @1000 .");
    sh(&second, "echo 2 >b; touch -d @1000 b .");
    sh(&third, "ln -f z y; touch -d @1000 .");
    let a = image_of(&top, "default");
    for (tree, expected) in [
        (&first, "added /a\n"),
        (&second, "changed /b: content\nchanged /c: as /b\n"),
        (&third, "changed /y: link /x -> /y\nchanged /z: link /z -> /y\n"),
    ] {
        let printed = diff(&args![a.path(), image_of(tree, "1k").path()]);
        assert_eq!((printed.code, &*printed.text()), (1, expected), "{printed}");
    }
}

/// Files of several pieces, whose data is in other places, and differs at the end only.
#[test]
fn large_files_are_compared_by_their_bytes() {
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    let mut data: Vec<u8> = (0..5_000_001u32).map(|n| (n.wrapping_mul(n) >> 7) as u8).collect();
    data[1 << 20..3 << 20].fill(0);
    fs::write(top.join("stored"), &data).unwrap();
    sh(&top, "cp --sparse=always stored sparse; ln stored again; touch -d @1000 * .");
    let other = copy_of(&top, scratch.join("other"));
    sh(
        &other,
        "cp --sparse=always stored new; mv new stored; cp --sparse=never sparse new
        mv new sparse; cp stored again; touch -d @1000 * .",
    );
    let [a, b] = [image_of(&top, "default"), image_of(&other, "1k")];
    let expected = "changed /stored: link /again -> /stored\n";
    assert_eq!(diff(&args![a.path(), b.path()]).text(), expected);
    sh(
        &other,
        "printf X | dd of=stored conv=notrunc oflag=append; truncate -s 5000001 stored
        printf X | dd of=stored bs=1 seek=5000000 conv=notrunc
        printf X | dd of=sparse bs=1 seek=2000000 conv=notrunc; touch -d @1000 * .",
    );
    let b = image_of(&other, "1k");
    let expected = "changed /sparse: content\nchanged /stored: content; link /again -> /stored\n";
    let printed = diff(&args![a.path(), b.path()]);
    assert_eq!(printed.text(), expected, "{printed}");
}

#[test]
fn partitions_and_dirty_images_are_compared() {
    let torn = crashed(FeatureSet::named("default"));
    let recovered = torn.copy();
    done(&args!["recover", recovered.path()]);
    let printed = diff(&args![torn.path(), recovered.path()]);
    assert_eq!((printed.code, printed.text()), (0, String::new()), "{printed}");
    assert_eq!(diff(&args!["--noload", torn.path(), torn.path()]).code, 0);
    let scratch = Scratch::new();
    let disk = scratch.join("disk");
    fs::write(&disk, [vec![0; 1 << 20], recovered.bytes()].concat()).unwrap();
    scratch.leave_unjudged("disk", "the file system begins later");
    let part = [disk.as_os_str(), OsStr::new("@1M")].join(OsStr::new(""));
    assert_eq!(diff(&args![part, recovered.path()]).code, 0);
}

/// Compares, and returns exit code, text, and the bytes that the process has read.
fn diff_with_reads(more: &[OsString]) -> (i32, String, u64) {
    let mut command = Command::new(EXTANT);
    let mut child = command.arg("diff").args(more).stdout(Stdio::piped()).spawn().unwrap();
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(Pid::from_child(&child)), ended).unwrap();
    let io = fs::read_to_string(format!("/proc/{}/io", child.id())).unwrap();
    let read = io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap();
    (child.wait().unwrap().code().unwrap(), text, read)
}

/// Forks of one base are compared without their common content.
#[test]
fn content_in_common_storage_is_not_read() {
    const BIG: usize = 48 << 20;
    let scratch = Scratch::new();
    let (top, base) = (scratch.dir("top"), scratch.join("base.img"));
    let bytes: Vec<u8> = (0..BIG as u32).map(|n| (n.wrapping_mul(n) >> 7) as u8).collect();
    fs::write(top.join("big"), bytes).unwrap();
    done(&args!["build", &base, &top, "--free", "32M", "-N", "256"]);
    let fork = |name: &str| {
        let fork = scratch.join(name);
        done(&args!["overlay", "create", &fork, "--backing", &base]);
        fork
    };
    let (a, b) = (fork("a.qcow2"), fork("b.qcow2"));
    let of_b = args!["--format-b", "qcow2", "--backing-b", &base];
    let both = [&args!["--format-a", "qcow2", "--backing-a", &base][..], &of_b].concat();
    let compare = |options: &[OsString], a: &Path, b: &Path, expected: (i32, &str)| {
        let words = [options, &args!["--ignore", "times", a, b]].concat();
        let (code, text, read) = diff_with_reads(&words);
        assert_eq!((code, &text[..]), expected);
        assert!(read < BIG as u64 / 4, "{read} bytes were read");
    };
    compare(&both, &a, &b, (0, ""));
    // Other blocks of metadata, and one cluster of the content, first with the same bytes.
    fs::write(scratch.join("new"), "x").unwrap();
    let change =
        args!["put", "--format", "qcow2", "--backing", &base, &b, scratch.join("new"), "/"];
    done(&change);
    let cluster = place_of(&base, "/big") + (BIG as u64 / 2);
    let io = |command: String| {
        run("qemu-io", &args!["-f", "qcow2", "-c", command, &b]).must_succeed();
    };
    let mut old = vec![0; 65536];
    File::open(&base).unwrap().read_exact_at(&mut old, cluster).unwrap();
    let same = scratch.join("same");
    fs::write(&same, &old).unwrap();
    io(format!("write -s {} {cluster} 65536", same.display()));
    compare(&both, &a, &b, (1, "added /new\n"));
    compare(&of_b, &base, &b, (1, "added /new\n"));
    io(format!("write -P {} {} 1", old[4711] ^ 1, cluster + 4711));
    compare(&both, &a, &b, (1, "changed /big: content\nadded /new\n"));
    compare(&of_b, &base, &b, (1, "changed /big: content\nadded /new\n"));
}

/// Copies by reflink are compared without the blocks that they share.
#[test]
fn content_in_shared_blocks_is_not_read() {
    const BIG: usize = 48 << 20;
    for kind in ["xfs", "btrfs"] {
        let scratch = Scratch::on_disk();
        let (top, host) = (Scratch::new(), reflinking_host(&scratch, kind));
        let (base, [a, b, plain]) =
            (host.join("base"), ["a", "b", "c"].map(|name| host.join(name)));
        let bytes: Vec<u8> = (0..BIG as u32).map(|n| (n.wrapping_mul(n) >> 7) as u8).collect();
        fs::write(top.join("big"), bytes).unwrap();
        done(&args!["build", &base, top.path(), "--free", "32M", "-N", "256"]);
        for fork in [&a, &b] {
            done(&args!["clone", &base, fork]);
        }
        done(&args!["clone", "--no-reflink", &base, &plain]);
        let compare = |a: &Path, b: &Path, text: &str, whole: usize| {
            let (code, printed, read) = diff_with_reads(&args!["--ignore", "times", a, b]);
            assert_eq!((code, &printed[..]), (i32::from(!text.is_empty()), text), "{kind}");
            let (least, most) = (whole * 2 * BIG, whole * 2 * BIG + BIG / 4);
            assert!((least..most).contains(&(read as usize)), "{kind}: {read} bytes were read");
        };
        compare(&a, &b, "", 0);
        compare(&a, &plain, "", 1);
        fs::write(top.join("new"), "x").unwrap();
        done(&args!["put", &b, top.join("new"), "/"]);
        compare(&a, &b, "added /new\n", 0);
        // A byte that the host has not written yet.
        let place = place_of(&base, "/big") + BIG as u64 / 2;
        let mut byte = [0];
        let file = File::options().read(true).write(true).open(&b).unwrap();
        file.read_exact_at(&mut byte, place).unwrap();
        file.write_all_at(&[byte[0] ^ 1], place).unwrap();
        compare(&a, &b, "changed /big: content\nadded /new\n", 0);
        file.write_all_at(&byte, place).unwrap();
        compare(&base, &b, "added /new\n", 0);
        drop(file);
        host.unmount();
    }
}

/// The place of the first byte of a file in an image.
fn place_of(image: &Path, path: &str) -> u64 {
    let extents = json(&args!["stat", "--extents", image, path]).to_string();
    let place = extents.split("\"physical\":").nth(1).unwrap();
    place.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
}

#[test]
fn trouble_is_no_difference() {
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    sh(&top, "mkdir d; echo x >d/up-up-name; echo x >d/other; echo x >f");
    let whole = Image::mke2fs(16 << 20, &["-t", "ext4", "-O", "^metadata_csum"]);
    done(&args!["put", whole.path(), &top, "/"]);
    let damaged = whole.copy();
    damaged.replace(b"up-up-name", b"../../name");
    // The name may be there under the damage: it is neither removed nor added.
    for [a, b] in [[&whole, &damaged], [&damaged, &whole]] {
        let printed = diff(&args![a.path(), b.path()]);
        assert_eq!((printed.code, printed.text()), (2, String::new()), "{printed}");
        assert!(printed.errors().contains("/d: "), "{printed}");
        assert!(printed.errors().contains(&*damaged.path().to_string_lossy()), "{printed}");
        let printed = diff(&args!["--json", a.path(), b.path()]);
        let parsed: Value = serde_json::from_slice(&printed.stdout).unwrap();
        assert_eq!((printed.code, &parsed[0]["summary"]["errors"]), (2, &1.into()), "{printed}");
    }
    // An inode that cannot be read.
    let cleared = whole.copy();
    debugfs::write(cleared.path(), "clri /f");
    cleared.leave_unjudged("an inode is cleared");
    let printed = diff(&args![whole.path(), cleared.path()]);
    assert_eq!((printed.code, printed.text()), (2, String::new()), "{printed}");
    refused(&args!["diff", whole.path(), scratch.join("none")], 2, "none");
    refused(&args!["diff", whole.path(), whole.path(), "/none"], 2, "/none");
    refused(&args!["diff", whole.path()], 2, "Usage");
    let printed = diff(&args!["--json", whole.path(), scratch.join("none")]);
    let parsed: Value = serde_json::from_slice(&printed.stdout).unwrap();
    assert_eq!(parsed["error"]["exit_code"], 2, "{printed}");
    // Standard output that is full.
    let full = format!("{EXTANT} diff {0} {0} >/dev/full", whole.path().display());
    assert_eq!(run("sh", &["-c", &full]).code, 0);
    let other = image_of(&scratch.dir("empty"), "default");
    let full =
        format!("{EXTANT} diff {} {} >/dev/full", whole.path().display(), other.path().display());
    assert_eq!(run("sh", &["-c", &full]).code, 2);
}
