//! Commands that read, on images that mke2fs made.

use crate::args;
use crate::program::{EXTANT, done, json, refused};
use extant_testkit::tree::{Plan, Shape};
use extant_testkit::{FEATURE_SETS, FeatureSet, Image, Scratch};
use serde_json::Value;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// A tree with one of each kind, and an image that mke2fs filled with it.
fn filled() -> (Scratch, Image) {
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    std::fs::create_dir_all(top.join("a/b")).unwrap();
    std::fs::write(top.join("a/hello"), "hello, world\n").unwrap();
    std::fs::write(top.join("a/b/large"), vec![7u8; 100_000]).unwrap();
    std::fs::write(top.join(OsStr::from_bytes(b"odd\xff\x1bname")), "x").unwrap();
    std::os::unix::fs::symlink("a/hello", top.join("link")).unwrap();
    std::fs::hard_link(top.join("a/hello"), top.join("a/again")).unwrap();
    let image = Image::mke2fs_from(32 << 20, &["-t", "ext4", "-b", "4096", "-L", "label"], &top);
    (scratch, image)
}

#[test]
fn every_feature_set_is_read_and_left_as_it_was() {
    for set in FEATURE_SETS {
        let image = set.make();
        let before = image.bytes();
        let info = json(&args!["info", image.path()]);
        assert_eq!(info["block_size"], set.block_size, "{}", set.name);
        assert_eq!(info["journal"].is_object(), set.journal, "{}", set.name);
        assert_eq!(json(&args!["ls", image.path()])[0]["name"], "lost+found", "{}", set.name);
        done(&args!["info", image.path()]);
        done(&args!["tree", image.path()]);
        assert!(before == image.bytes(), "{}: reading wrote", set.name);
    }
}

#[test]
fn lists_and_trees_show_all_entries() {
    let (_scratch, image) = filled();
    let names = done(&args!["ls", image.path(), "/a"]).text();
    assert_eq!(names, "again\nb\nhello\n");
    let long = done(&args!["ls", "-l", image.path(), "/"]).text();
    assert!(
        long.lines().any(|l| l.starts_with("lrwxrwxrwx") && l.ends_with("link -> a/hello")),
        "{long}"
    );
    let list = json(&args!["ls", image.path(), "/a"]);
    assert_eq!(list[0]["links"], 2);
    assert_eq!(list[1]["type"], "directory");
    assert_eq!(list[2]["size"], 13);
    let tree = done(&args!["tree", image.path(), "/a"]).text();
    assert_eq!(tree, "/a\n├── again\n├── b\n│   └── large\n└── hello\n\n1 directory, 3 files\n");
    let found = done(&args!["find", image.path(), "/", "--name", "*l*", "--type", "f"]).text();
    assert_eq!(found, "/a/b/large\n/a/hello\n");
    let du = json(&args!["du", "-s", "--apparent", image.path(), "/a/b"]);
    assert_eq!(du[0]["bytes"], 100_000 + 4096);
}

#[test]
fn names_that_are_no_text_survive() {
    let (_scratch, image) = filled();
    let raw = done(&args!["ls", image.path(), "/"]).stdout;
    assert!(raw.split(|b| *b == b'\n').any(|name| name == b"odd\xff\x1bname"));
    let list = json(&args!["ls", image.path(), "/"]);
    let odd = list.as_array().unwrap().iter().find(|e| e["name_hex"].is_string()).unwrap();
    assert_eq!(odd["name_hex"], "6f6464ff1b6e616d65");
    assert_eq!(
        done(&args!["cat", image.path(), OsStr::from_bytes(b"/odd\xff\x1bname")]).stdout,
        b"x"
    );
    let odd = image.scratch().join(OsStr::from_bytes(b"image\xff"));
    std::fs::rename(image.path(), &odd).unwrap();
    assert_eq!(done(&args!["cat", &odd, "/a/hello"]).text(), "hello, world\n");
}

#[test]
fn content_and_attributes_are_shown() {
    let (_scratch, image) = filled();
    assert_eq!(
        done(&args!["cat", image.path(), "/link", "/a/b/../again"]).text(),
        "hello, world\nhello, world\n"
    );
    assert_eq!(done(&args!["cat", image.path(), "/a/b/large"]).stdout, vec![7u8; 100_000]);
    let stat = json(&args!["stat", "--extents", image.path(), "/a/b/large", "/link"]);
    assert_eq!(stat[0]["size"], 100_000);
    let bytes: u64 =
        stat[0]["extents"].as_array().unwrap().iter().map(|e| e["bytes"].as_u64().unwrap()).sum();
    assert_eq!(bytes, 102_400);
    assert_eq!(stat[1]["target"], "a/hello");
    assert!(done(&args!["stat", image.path(), "/link"]).text().contains("/link -> a/hello"));
    assert_eq!(json(&args!["info", image.path()])["label"], "label");
}

#[test]
fn an_image_in_a_partition_and_at_an_offset() {
    let (scratch, image) = filled();
    let disk = scratch.join("disk");
    let mut bytes = vec![0; 1 << 20];
    bytes.extend(image.bytes());
    bytes.extend(vec![0; 1 << 20]);
    // The first entry of a partition table: its type, where it begins and how long it is, in
    // sectors.
    let sectors = (image.bytes().len() / 512) as u32;
    bytes[446 + 4] = 0x83;
    bytes[446 + 8..446 + 12].copy_from_slice(&2048u32.to_le_bytes());
    bytes[446 + 12..446 + 16].copy_from_slice(&sectors.to_le_bytes());
    bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
    std::fs::write(&disk, bytes).unwrap();
    for place in ["@1048576", "@1M", "@p1"] {
        let spec = format!("{}{place}", disk.display());
        assert_eq!(done(&args!["cat", &spec, "/a/hello"]).text(), "hello, world\n", "{place}");
    }
}

#[test]
fn trees_of_the_kernel_are_found_whole() {
    let image = FeatureSet::named("default").make();
    let plan = Plan::random(11, &Shape::small());
    let mount = extant_testkit::kernel::Mount::new(image.path(), "");
    plan.apply(mount.path());
    mount.unmount();
    let found = json(&args!["find", image.path(), "/"]);
    // The root and lost+found are there besides.
    assert_eq!(found.as_array().map(Vec::len), Some(plan.entries.len() + 2));
    let of = |kind: &str| found.as_array().unwrap().iter().filter(|e| e["type"] == kind).count();
    assert_eq!(of("fifo"), 2);
    assert!(of("symlink") > 0 && of("block device") > 0);
    assert!(matches!(found[0]["mtime"]["nsec"], Value::Number(_)));
}

#[test]
fn symlinks_are_shown_themselves_where_ls_and_find_do() {
    let (_scratch, image) = filled();
    done(&args!["ln", "-s", image.path(), "nowhere", "/dangling"]);
    done(&args!["ln", "-s", image.path(), "a", "/to_dir"]);
    let said = |words: &[&str]| {
        let words = words.iter().map(std::ffi::OsString::from);
        let mut words: Vec<_> = words.collect();
        words.insert(1, image.path().into());
        done(&words).text()
    };
    assert!(said(&["ls", "/dangling", "-l"]).ends_with("/dangling -> nowhere\n"));
    assert!(said(&["ls", "/dangling"]).ends_with("/dangling\n"));
    assert!(said(&["ls", "/to_dir", "-l"]).starts_with("lrwxrwxrwx"));
    assert!(said(&["ls", "/to_dir", "-d"]).ends_with("/to_dir\n"));
    assert!(said(&["ls", "/to_dir/", "-l"]).contains("hello"));
    assert_eq!(said(&["ls", "/to_dir"]), "again\nb\nhello\n");
    assert_eq!(json(&args!["ls", "-d", image.path(), "/to_dir"])[0]["type"], "symlink");
    assert_eq!(said(&["find", "/dangling"]), "/dangling\n");
    assert_eq!(said(&["find", "/to_dir"]), "/to_dir\n");
    assert!(said(&["find", "/to_dir/"]).contains("/to_dir/hello"));
    assert!(said(&["du", "/dangling"]).contains("/dangling"));
}

#[test]
fn get_writes_content_to_standard_output() {
    let (scratch, image) = filled();
    let script = format!(
        "cd {}; {EXTANT} get {} /a/hello -",
        scratch.path().display(),
        image.path().display()
    );
    let printed = extant_testkit::tool::run("sh", &["-c", &script]).must_succeed();
    assert_eq!(printed.text(), "hello, world\n");
    assert!(!scratch.join("-").exists());
    refused(&args!["get", image.path(), "/a", "-"], 2, "--tar -");
    refused(&args!["get", image.path(), "/link", "-"], 2, "only a file's content");
}

#[test]
fn a_label_cannot_forge_lines() {
    let (_scratch, image) = filled();
    let mut bytes = image.bytes();
    bytes[1024 + 0x78..][..16].copy_from_slice(b"a\nState clean\x1b[\0");
    image.leave_unjudged("the superblock's checksum is of the old label");
    std::fs::write(image.path(), &bytes).unwrap();
    extant_testkit::debugfs::write(image.path(), "set_super_value mnt_count 1");
    let text = done(&args!["info", image.path()]).text();
    assert_eq!(text.lines().filter(|line| line.starts_with("State")).count(), 1, "{text}");
    assert!(text.contains("a\\nState clean\\u{1b}["), "{text}");
}
