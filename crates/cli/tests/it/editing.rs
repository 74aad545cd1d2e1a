//! Commands that make file systems and change them, judged by e2fsck.

use crate::args;
use crate::program::{done, extant, json, refused};
use extant_testkit::tool::{Printed, run};
use extant_testkit::{FEATURE_SETS, FeatureSet, Scratch, debugfs, e2fsck};
use std::ffi::OsString;
use std::os::unix::fs::symlink;
use std::path::Path;

#[test]
fn new_file_systems_are_clean() {
    let scratch = Scratch::new();
    for (number, options) in [
        &args![][..],
        &args!["-b", "1024", "-L", "name", "-m", "1"],
        &args!["-t", "ext2"],
        &args!["-t", "ext3", "-I", "128"],
        &args!["-O", "^has_journal,bigalloc", "-C", "16384"],
        &args![
            "-O",
            "inline_data,ea_inode",
            "-N",
            "1000",
            "-U",
            "6f7ae4d6-9c2f-4f0e-8b1c-2d3a5b7c9e10"
        ],
        &args!["-J", "size=4", "-E", "root_owner=5:6", "-G", "4", "-i", "65536"],
    ]
    .into_iter()
    .enumerate()
    {
        let image = scratch.join(format!("image{number}"));
        let mut all = args!["mkfs", &image, "64M"].to_vec();
        all.extend_from_slice(options);
        done(&all);
        e2fsck::check(&image).assert_clean();
        assert_eq!(std::fs::metadata(&image).unwrap().len(), 64 << 20);
        done(&args!["mkdir", &image, "/d"]);
        e2fsck::check(&image).assert_clean();
    }
}

#[test]
fn a_seed_gives_the_same_image() {
    let scratch = Scratch::new();
    let images = [scratch.join("a"), scratch.join("b")];
    for image in &images {
        done(&args!["mkfs", image, "--size", "32M", "--seed", "5", "-L", "x"]);
        e2fsck::check(image).assert_clean();
    }
    assert!(std::fs::read(&images[0]).unwrap() == std::fs::read(&images[1]).unwrap());
    let made = json(&args!["mkfs", scratch.join("c"), "32M", "--seed", "6"]);
    assert_eq!(made["block_size"], 1024);
    assert_ne!(made["uuid"], json(&args!["info", &images[0]])["uuid"]);
}

#[test]
fn wrong_options_make_nothing() {
    let scratch = Scratch::new();
    let image = scratch.join("image");
    refused(&args!["mkfs", &image], 2, "how large");
    refused(&args!["mkfs", &image, "64M", "-O", "nonsense"], 2, "nonsense");
    refused(&args!["mkfs", &image, "64M", "-b", "1000"], 2, "block size");
    refused(&args!["mkfs", &image, "10x"], 2, "10x");
    refused(&args!["mkfs", &image, "10k"], 1, "too small");
    // A new file has no partitions.
    refused(&args!["mkfs", scratch.join("image@p1"), "64M"], 1, "partition");
    assert!(!image.exists());
    // One that is there keeps its length.
    std::fs::write(&image, "short").unwrap();
    refused(&args!["mkfs", scratch.join("image@p1"), "64M"], 1, "partition");
    refused(&args!["mkfs", &image, "64M", "-b", "1000"], 2, "block size");
    refused(&args!["mkfs", &image, "64M", "-J", "size=1G"], 1, "journal");
    assert_eq!(std::fs::read(&image).unwrap(), b"short");
}

#[test]
fn a_failed_mkfs_removes_no_symlink() {
    let scratch = Scratch::new();
    let (link, target) = (scratch.join("link"), scratch.join("target"));
    std::os::unix::fs::symlink(&target, &link).unwrap();
    refused(&args!["mkfs", &link, "10k"], 1, "stays");
    assert_eq!(std::fs::read_link(&link).unwrap(), target);
    assert_eq!(std::fs::metadata(&target).unwrap().len(), 0);
}

#[test]
fn changes_are_clean_on_every_feature_set() {
    let scratch = Scratch::new();
    let source = scratch.join("source");
    std::fs::write(&source, vec![3; 70_000]).unwrap();
    for set in FEATURE_SETS.iter().filter(|set| !matches!(set.name, "mmp" | "fast_commit")) {
        let image = set.make();
        done(&args!["mkdir", "-p", "-m", "700", "--owner", "1:2", image.path(), "/a/b/c"]);
        done(&args!["put", image.path(), &source, "/a/exe"]);
        done(&args!["ln", image.path(), "/a/exe", "/a/b/exe"]);
        done(&args!["ln", "-s", image.path(), "../exe", "/a/b/link"]);
        done(&args!["mv", image.path(), "/a/b/link", "/a/b/c"]);
        done(&args!["chmod", image.path(), "4711", "/a/exe"]);
        done(&args!["chown", image.path(), "3:4", "/a/b"]);
        done(&args!["truncate", "-s", "10000", image.path(), "/a/exe"]);
        done(&args!["setfattr", "-n", "user.note", "-V", "0x00ff", image.path(), "/a/exe"]);
        image.assert_clean();
        let stat = json(&args!["stat", image.path(), "/a/b/exe", "/a/b", "/a/b/c/link"]);
        let [exe, b, link] = [0, 1, 2].map(|i| &stat[i]);
        assert_eq!(
            (&exe["links"], &exe["size"], &exe["mode"]),
            (&2.into(), &10000.into(), &0o4711.into()),
            "{}",
            set.name
        );
        assert_eq!(exe["xattrs"][0]["value_hex"], "00ff", "{}", set.name);
        assert_eq!(
            (&b["uid"], &b["gid"], &b["mode"]),
            (&3.into(), &4.into(), &0o755.into()),
            "{}",
            set.name
        );
        assert_eq!(link["target"], "../exe", "{}", set.name);
        done(&args!["setfattr", "-x", "user.note", image.path(), "/a/exe"]);
        done(&args!["rm", "-r", image.path(), "/a"]);
        assert_eq!(done(&args!["ls", image.path()]).text(), "lost+found\n", "{}", set.name);
        image.assert_clean();
    }
}

#[test]
fn removing_is_careful() {
    let image = FeatureSet::named("default").make_sized(16 << 20);
    assert_eq!(json(&args!["mkdir", image.path(), "/d"])["image"], image.path().to_str().unwrap());
    refused(&args!["mkdir", image.path(), "/d"], 1, "file exists");
    refused(&args!["rm", image.path(), "/d"], 1, "is a directory");
    refused(&args!["rm", image.path(), "/missing"], 1, "/missing");
    done(&args!["rm", "-f", image.path(), "/missing"]);
    done(&args!["rm", "-r", image.path(), "/d"]);
    image.assert_clean();
}

#[test]
fn no_directory_is_emptied_by_a_name_for_itself_or_its_parent() {
    let image = FeatureSet::named("default").make_sized(16 << 20);
    done(&args!["mkdir", "-p", image.path(), "/a/b"]);
    for path in ["/a/..", "a/b/..", "/..", "/.", "./", "/a/.", "/a/./", "/a/b/../", "/"] {
        refused(
            &args!["rm", "-r", image.path(), path],
            1,
            if path == "/" { "stays" } else { "not removed" },
        );
        assert_eq!(done(&args!["find", image.path(), "/a"]).text(), "/a\n/a/b\n", "{path}");
    }
    image.assert_clean();
}

/// Types and names of everything below a directory.
fn tree_of(dir: &Path) -> Vec<String> {
    let find =
        args!["-c", "cd \"$1\" && find . -name lost+found -o -printf '%y %p %l\\n'", "sh", dir];
    let mut lines: Vec<String> =
        run("sh", &find).must_succeed().text().lines().map(String::from).collect();
    lines.sort();
    lines
}

/// Commands for [`trailing_slashes_act_as_in_coreutils`].
const WITH_SLASHES: &str = "
rm file/; rm -f file/; rm alias/; rm -f alias/; rm link/; rm -f link/; rm -r link/;
rm -rf link/; rm dangling/; rm -f dangling/; rm dir/; rm -r dir/; rm new/; rm -f new/;
rm -f new/new; rm -f file/new; mv file new/; mv file dir/; mv file link/; mv file/ new;
mv dir/ new; mv dir new/; mv link/ new; mv link new; mv alias/ new; mv dangling/ new;
mv alias file/; mv alias dangling/; mv dir file/; mv dir dangling/; mkdir new/; mkdir file/;
mkdir dangling/; mkdir link/; mkdir -p link/new/; mkdir -p file/; ln file new/; ln file alias/;
ln file/ new; ln link/ new; ln -s file new/; ln -s file alias/;
ln file dir; ln file dir/; ln file link; ln -T file dir; ln -T file link; ln -T file new;
ln -s file dir; ln -s a/b/ link; ln -s / dir; ln -s .. dir; ln -s -T file dir; ln -s none dangling;
ln file alias dir; ln -s file alias dir/; ln file none alias dir; ln file alias new;
ln file alias file; ln -T file alias dir; chmod 600 file/; chmod 700 dir/;
stat file/; stat link/; ls file/; ls dir/; ls link/; cat file/; put data new/; put data file/;
put data alias/; put data dir/; put data link/; put data dangling/; put tree new/;
put tree file/; put tree dangling/; put - new/; put - dir/; put - file/";

/// Runs a command of coreutils in `dir`; `put` is cp(1), or tee(1) for standard input.
fn by_coreutils(command: &str, source: &Path, dir: &Path) -> Printed {
    let source = source.display();
    let words: Vec<&str> = command.split(' ').collect();
    let script = match words[..] {
        ["put", "-", to] => format!("echo | tee {to}"),
        ["put", "tree", to] => format!("cp -rT {source}/tree {to}"),
        ["put", from, to] => format!("cp {source}/{from} {to}"),
        _ => command.into(),
    };
    run("sh", &args!["-c", format!("cd {} && {script}", dir.display())])
}

/// Runs the same command on an image.
fn on_image(command: &str, source: &Path, image: &Path) -> Printed {
    let words: Vec<&str> = command.split(' ').collect();
    let mut all = args![words[0]].to_vec();
    let (options, paths): (Vec<&str>, Vec<&str>) =
        words[1..].iter().partition(|word| word.len() > 1 && word.starts_with('-'));
    all.extend(options.into_iter().map(OsString::from));
    all.push(image.into());
    all.extend(paths.iter().enumerate().map(|(at, path)| match (words[0], *path) {
        ("put", path) if at == 0 && path != "-" => source.join(path).into(),
        (_, "-") | ("chmod", "600" | "700") => (*path).into(),
        ("ln", _) if at + 1 < paths.len() && words[1] == "-s" => (*path).into(),
        _ => format!("/{path}").into(),
    }));
    extant(&all)
}

/// The same commands in a directory of the machine, by coreutils, and in an image.
#[test]
fn trailing_slashes_act_as_in_coreutils() {
    let scratch = Scratch::new();
    let (source, template) = (scratch.dir("source"), scratch.dir("template"));
    std::fs::create_dir(source.join("tree")).unwrap();
    for file in [source.join("data"), source.join("tree/leaf"), template.join("file")] {
        std::fs::write(file, "data").unwrap();
    }
    std::fs::create_dir(template.join("dir")).unwrap();
    for (target, name) in [("dir", "link"), ("none", "dangling"), ("file", "alias")] {
        symlink(target, template.join(name)).unwrap();
    }
    let image = FeatureSet::named("default").make_sized(16 << 20);
    done(&args!["put", image.path(), &template, "/"]);
    for command in WITH_SLASHES.split(';').map(|command| command.trim().replace('\n', " ")) {
        let machine = scratch.dir("machine");
        run("cp", &args!["-aT", &template, &machine]).must_succeed();
        let there = by_coreutils(&command, &source, &machine);
        let copy = image.copy();
        let here = on_image(&command, &source, copy.path());
        assert_eq!(here.code == 0, there.code == 0, "{command}: {here}\n{there}");
        copy.assert_clean();
        let out = scratch.join("out");
        done(&args!["get", copy.path(), "/", &out]);
        assert_eq!(tree_of(&out), tree_of(&machine), "{command}");
        run("rm", &args!["-r", &out, &machine]).must_succeed();
    }
    refused(&args!["get", image.path(), "/file", scratch.join("new/")], 1, "not a directory");
}

/// Blocks of 1 KiB have no room for the value: the file comes without it.
#[test]
fn an_attribute_without_room_is_left_out() {
    let (scratch, image) = (Scratch::new(), FeatureSet::named("1k").make_sized(16 << 20));
    let source = scratch.dir("source");
    std::fs::write(source.join("f"), "data").unwrap();
    for path in [&source, &source.join("f")] {
        rustix::fs::setxattr(path, "user.large", &[7; 3000], rustix::fs::XattrFlags::empty())
            .unwrap();
        rustix::fs::setxattr(path, "user.small", b"x", rustix::fs::XattrFlags::empty()).unwrap();
    }
    let copied = json(&args!["put", image.path(), &source, "/t"]);
    assert_eq!(copied["left_out"]["attributes"], 2, "{copied}");
    assert_eq!(done(&args!["cat", image.path(), "/t/f"]).text(), "data");
    assert!(debugfs::read(image.path(), "ea_list /t/f").contains("user.small"));
    image.assert_clean();
}

#[test]
fn read_only_images_are_not_changed() {
    let image = FeatureSet::named("default").make_sized(16 << 20);
    debugfs::write(image.path(), "feature read-only");
    let before = image.bytes();
    refused(&args!["mkdir", image.path(), "/d"], 1, "cannot be changed");
    assert!(before == image.bytes());
}
