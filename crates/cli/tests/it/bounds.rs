//! Copies of unusual sources: deep trees and long files within little memory, files that claim no
//! length, sources that another user changes, and copies that are killed.

use crate::args;
use crate::program::{EXTANT, done, extant, json};
use crate::rival::beside_a_rival;
use extant_engine::{Fs, NodeKind, OpenOptions};
use extant_testkit::tool::{Printed, run};
use extant_testkit::{Image, Scratch, e2fsck};
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

/// Runs the program with at most `kib` of private writable memory, on two threads.
fn within(kib: u64, args: &[OsString]) -> Printed {
    let mut all =
        args!["-c", format!("ulimit -d {kib}; exec \"$@\""), "sh", EXTANT, "--threads", "2"]
            .to_vec();
    all.extend_from_slice(args);
    run("sh", &all)
}

fn image(bytes: u64) -> Image {
    Image::mke2fs(bytes, &["-t", "ext4"])
}

#[test]
fn deep_trees_need_memory_for_one_path() {
    const LEVELS: usize = 2040;
    let image = image(64 << 20);
    let fs = Fs::open(image.path(), &OpenOptions::new().memory(64 << 20)).unwrap();
    let mut dir = fs.create(&fs.root().unwrap(), b"deep", 0o755, NodeKind::Dir).unwrap();
    for _ in 0..LEVELS {
        dir = fs.create(&dir, &[b'n'; 200], 0o755, NodeKind::Dir).unwrap();
    }
    fs.create(&dir, b"bottom", 0o644, NodeKind::File).unwrap();
    drop(dir);
    fs.unmount().unwrap();
    let (path, most) = (image.path(), 160 << 10);
    let found = within(most, &args!["find", path, "/deep", "--name", "bottom", "--memory", "64M"])
        .must_succeed();
    assert_eq!(found.text().len(), "/deep".len() + LEVELS * 201 + "/bottom\n".len());
    within(most, &args!["du", path, "/deep", "-s", "--memory", "64M"]).must_succeed();
    within(most, &args!["tree", path, "/deep", "--memory", "64M"]).must_succeed();
    let archive = Scratch::new();
    let tar = args!["export", path, "/deep", "--memory", "64M", "--tar", archive.join("deep.tar")];
    within(most, &tar).must_succeed();
    within(most, &args!["hash", path, "/deep", "--memory", "64M"]).must_succeed();
    within(most, &args!["diff", path, path, "/deep", "--memory", "64M"]).must_succeed();
    let scratch = Scratch::new();
    let out = scratch.join("out");
    within(most, &args!["get", path, "/deep", &out, "--memory", "64M"]).must_succeed();
    let again = Image::mke2fs(64 << 20, &["-t", "ext4"]);
    within(most, &args!["put", again.path(), &out, "/deep", "--memory", "64M"]).must_succeed();
    run("rm", &["-rf".as_ref(), out.as_os_str()]).must_succeed();
    for image in [&image, &again] {
        within(most, &args!["rm", "-r", image.path(), "/deep", "--memory", "64M"]).must_succeed();
        image.assert_clean();
    }
}

#[test]
fn long_files_go_through_little_memory() {
    const BYTES: u64 = 400 << 20;
    let (scratch, image) = (Scratch::new(), image(1 << 30));
    let source = scratch.join("long");
    let mut file = fs::File::create(&source).unwrap();
    for number in 0..BYTES >> 20 {
        file.write_all(&[number as u8 | 1; 1 << 20]).unwrap();
    }
    drop(file);
    within(200 << 10, &args!["put", image.path(), &source, "/long"]).must_succeed();
    let script = format!(
        "ulimit -d 200000; exec {EXTANT} put {} - /piped < {}",
        image.path().display(),
        source.display()
    );
    run("sh", &["-c", &script]).must_succeed();
    image.assert_clean();
    within(200 << 10, &args!["hash", image.path()]).must_succeed();
    within(250 << 10, &args!["diff", image.path(), image.path(), "--memory", "64M"]).must_succeed();
    for name in ["/long", "/piped"] {
        let copy = scratch.join("copy");
        within(200 << 10, &args!["get", image.path(), name, &copy]).must_succeed();
        run("cmp", &[&source, &copy]).must_succeed();
    }
}

#[test]
fn files_that_claim_no_length_are_copied_whole() {
    let image = image(16 << 20);
    for name in ["/proc/version", "/proc/filesystems", "/proc/kallsyms"] {
        done(&args!["put", image.path(), name, "/copy"]);
        let expected = fs::read(name).unwrap();
        assert!(
            !expected.is_empty() && done(&args!["cat", image.path(), "/copy"]).stdout == expected,
            "{name}"
        );
    }
    image.assert_clean();
}

#[test]
fn a_rival_in_the_source_cannot_redirect_a_copy() {
    let scratch = Scratch::new();
    let (top, secret) = (scratch.dir("top"), scratch.dir("secret"));
    fs::write(secret.join("f"), "the secret of another").unwrap();
    for number in 0..40 {
        fs::create_dir(top.join(format!("d{number}"))).unwrap();
        fs::write(top.join(format!("d{number}/f")), "public").unwrap();
    }
    let image = image(64 << 20);
    let mut round = 0;
    beside_a_rival(
        |hits| {
            for number in 0..40 {
                let (path, aside) = (top.join(format!("d{number}")), top.join("aside"));
                fs::rename(&path, &aside).unwrap();
                symlink(&secret, &path).unwrap();
                fs::remove_file(&path).unwrap();
                fs::rename(&aside, &path).unwrap();
                hits.fetch_add(1, Ordering::Relaxed);
            }
        },
        || {
            round += 1;
            let to = format!("/r{}", round % 8);
            extant(&args!["put", "--threads", "2", image.path(), &top, &to]);
            let copied = extant(&args!["get", image.path(), &to, "--tar", "-"]).stdout;
            let secret = b"the secret of another";
            assert!(!copied.windows(secret.len()).any(|part| part == secret), "round {round}");
        },
    );
}

/// Every file of the directory `/d` is the old or the new one, whole.
fn assert_old_or_new(image: &Path, files: usize, old: &[u8], new: &[u8]) -> usize {
    let mut replaced = 0;
    for number in 0..files {
        let content = done(&args!["cat", image, format!("/d/f{number}")]).stdout;
        assert!(content == old || content == new, "f{number} is neither: {} bytes", content.len());
        replaced += usize::from(content == new);
    }
    replaced
}

#[test]
fn a_copy_that_is_killed_leaves_the_old_file_or_the_new_one() {
    const FILES: usize = 200;
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    let (old, new) = (vec![b'o'; 10_000], vec![b'n'; 30_000]);
    let fill = |content: &[u8]| {
        (0..FILES).for_each(|n| fs::write(top.join(format!("f{n}")), content).unwrap())
    };
    fill(&old);
    // With a log this small, transactions commit while the copy goes on.
    let image = Image::mke2fs(
        64 << 20,
        &["-t", "ext4", "-b", "1024", "-J", "size=1", "-O", "^metadata_csum"],
    );
    done(&args!["put", image.path(), &top, "/d"]);
    fill(&new);
    let mut copy = Command::new(EXTANT)
        .args(["put", "-v", "--threads", "1"])
        .args([image.path(), &top, Path::new("/d")])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let told = BufReader::new(copy.stderr.take().unwrap()).lines();
    assert_eq!(told.take(FILES - 20).count(), FILES - 20, "the copy ended early");
    copy.kill().unwrap();
    copy.wait().unwrap();
    assert!(assert_old_or_new(image.path(), FILES, &old, &new) > 0);
    done(&args!["recover", image.path()]);
    e2fsck::check(image.path()).assert_clean();
}

#[test]
fn standard_input_that_stops_short_leaves_the_old_file() {
    let image = image(64 << 20);
    let scratch = Scratch::new();
    fs::write(scratch.join("old"), "old").unwrap();
    done(&args!["put", "--owner", "7:8", image.path(), scratch.join("old"), "/f"]);
    let mut copy = Command::new(EXTANT)
        .arg("put")
        .args([image.path(), Path::new("-"), Path::new("/f")])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    // More than a pipe holds: when all of it is written, the program is at work.
    copy.stdin.as_mut().unwrap().write_all(&vec![b'x'; 16 << 20]).unwrap();
    copy.kill().unwrap();
    copy.wait().unwrap();
    assert_eq!(done(&args!["cat", image.path(), "/f"]).text(), "old");
    done(&args!["recover", image.path()]);
    run("sh", &["-c", &format!("echo new | {EXTANT} put {} - /f", image.path().display())])
        .must_succeed();
    assert_eq!(done(&args!["cat", image.path(), "/f"]).text(), "new\n");
    let stat = json(&args!["stat", image.path(), "/f"]);
    assert_eq!((&stat[0]["uid"], &stat[0]["gid"]), (&7.into(), &8.into()));
}
