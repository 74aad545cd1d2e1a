//! `extant build` from streams into images of a given size: content goes to its place as it
//! arrives, with no temporary file and in bounded memory.

use crate::building::{kernel_tree, number, tree};
use crate::program::{EXTANT, done, json};
use crate::{args, program::await_that};
use extant_testkit::kernel::Mount;
use extant_testkit::tool::{Printed, need, run, run_with_env};
use extant_testkit::tree::Manifest;
use extant_testkit::{Image, Scratch, e2fsck};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Options of tar(1) for all attributes that an image has.
const TAR: &str = "tar --format=posix --xattrs --xattrs-include=* --acls -S --sort=name";

/// Nothing can be made here.
const NOWHERE: (&str, &str) = ("TMPDIR", "/nowhere");

/// Makes an archive of the entries of a directory.
fn archive(scratch: &Scratch, top: &Path) -> PathBuf {
    let tar = scratch.join("a.tar");
    let call = format!("{TAR} -C {} -cf {} .", top.display(), tar.display());
    run("sh", &["-euc", &call]).must_succeed();
    tar
}

/// Builds from a pipe, where no temporary file can be made.
fn piped(image: &Path, options: &str, from: &str) -> Printed {
    let call = format!("set -o pipefail; {from} | {EXTANT} build {options} {} -", image.display());
    run_with_env("bash", &["-euc", &call], &[NOWHERE])
}

#[test]
fn streams_fill_images_of_a_given_size_without_a_temporary_file() {
    let scratch = Scratch::new();
    let top = tree(&scratch, 61);
    // Sockets are not archived.
    let script = format!("find {} -type s -delete", top.display());
    run("sh", &["-euc", &script]).must_succeed();
    let tar = archive(&scratch, &top);
    let expected = Manifest::walk(&top);
    let from = format!("cat {}", tar.display());
    let gzip = format!("gzip -c {}", tar.display());
    for (n, (options, from)) in [
        ("--size 96M -N 4000", &from),
        ("--size 96M -N 4000", &gzip),
        ("--size 96M -N 4000 -b 1024 -O quota,^64bit", &from),
        ("--size 96M -N 4000 -t ext3 -O ^has_journal", &from),
        ("--size 128M -N 4000 -O bigalloc -C 16384", &from),
        ("--size 300M -N 40000 -g 1024", &from),
    ]
    .into_iter()
    .enumerate()
    {
        let image = scratch.join(format!("{n}.img"));
        piped(&image, options, from).must_succeed();
        expected.assert_same(&kernel_tree(&image));
        let again = scratch.join("again.img");
        piped(&again, &format!("{options} --threads 1"), from).must_succeed();
        assert!(fs::read(&image).unwrap() == fs::read(&again).unwrap(), "{options}");
    }
    // Where the size is not given, content waits for it.
    for options in [
        "",
        "--size 96M",
        "--size 96M -N 4000 -O inline_data",
        "--size 96M -N 4000 \
                     --sparse",
    ] {
        let printed = piped(&scratch.join("x.img"), options, &from);
        assert!(printed.code == 1 && printed.errors().contains("/nowhere"), "{printed}");
    }
}

/// Content that a later member replaces is no part of the image, and its space can be used.
#[test]
fn replaced_content_is_free_space_without_its_bytes() {
    let scratch = Scratch::new();
    let (top, tar) = (scratch.dir("top"), scratch.join("a.tar"));
    let script = "cd TOP; head -c 5000000 /dev/urandom > kept; yes secret | head -c 9000000 > f
        tar cf TAR f kept; echo public > f; mkdir d; echo x > d/x.o; tar rf TAR f d";
    let script = script.replace("TOP", top.to_str().unwrap()).replace("TAR", tar.to_str().unwrap());
    run("bash", &["-euc", &script]).must_succeed();
    let image = scratch.join("i.img");
    let from = format!("cat {}", tar.display());
    piped(&image, "--size 32M -N 64 --exclude *.o -O ^has_journal", &from).must_succeed();
    let bytes = fs::read(&image).unwrap();
    assert!(!bytes.windows(13).any(|part| part == b"secret\nsecret"), "old bytes are there");
    fs::remove_file(top.join("d/x.o")).unwrap();
    let found = kernel_tree(&image);
    assert!(found.nodes.keys().eq([&b""[..], b"d", b"f", b"kept"].iter().copied()), "{found:?}");
    assert_eq!(done(&args!["cat", &image, "/f"]).text(), "public\n");
    assert!(done(&args!["cat", &image, "/kept"]).stdout == fs::read(top.join("kept")).unwrap());
    let mount = Mount::new(&image, "");
    fs::write(mount.join("large"), vec![1; 20 << 20]).unwrap();
    mount.unmount();
    e2fsck::check(&image).assert_clean();
}

#[test]
fn sizes_that_are_too_small_name_one_that_is_enough() {
    let scratch = Scratch::new();
    let top = tree(&scratch, 62);
    let script = format!("find {} -type s -delete", top.display());
    run("sh", &["-euc", &script]).must_succeed();
    let from = format!("cat {}", archive(&scratch, &top).display());
    let image = scratch.join("i.img");
    fs::write(&image, "older").unwrap();
    let sized = |size: u64| piped(&image, &format!("--size {size} -N 2000"), &from);
    let printed = sized(2 << 20);
    let errors = printed.errors();
    assert!(printed.code == 1 && errors.contains(" are enough"), "{printed}");
    assert_eq!(fs::read(&image).unwrap(), b"older");
    let before = errors.split_once(" are enough").unwrap().0;
    let enough = before.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(enough > 2 << 20);
    sized(enough).must_succeed();
    Manifest::walk(&top).assert_same(&kernel_tree(&image));
    let least = json(&args!["build", "--estimate", scratch.join("x.img"), &top]);
    assert!(enough <= number(&least, "bytes") + (1 << 20), "{enough} for {least}");
    let printed = piped(&image, "--size 64M -N 20", &from);
    assert!(printed.code == 1 && printed.errors().contains("inodes are needed"), "{printed}");
}

/// Returns the most memory that a process had so far, in KiB.
fn peak(process: &Child) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", process.id())).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse().ok()
}

#[test]
fn a_large_file_streams_in_little_memory() {
    const BYTES: u64 = 1 << 30;
    const MAX_KIB: u64 = 64 << 10;
    let scratch = Scratch::new();
    let image = scratch.join("i.img");
    let mut process = Command::new(EXTANT)
        .args(args!["build", "--size", "1100M", "-N", "64", &image, "-"])
        .env(NOWHERE.0, NOWHERE.1)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    // The header of a file of this size, made by tar(1).
    let large = scratch.join("large");
    fs::File::create(&large).unwrap().set_len(BYTES).unwrap();
    let call = format!("tar -C {} -cf - large | head -c 512", scratch.path().display());
    let header = run("sh", &["-c", &call]).must_succeed().stdout;
    let mut to = process.stdin.take().unwrap();
    to.write_all(&header).unwrap();
    let piece: Vec<u8> = (0..1 << 20).map(|n: u32| (n % 251 + 1) as u8).collect();
    for _ in 0..BYTES >> 20 {
        to.write_all(&piece).unwrap();
    }
    let mut most = peak(&process).unwrap();
    to.write_all(&[0; 1024]).unwrap();
    drop(to);
    await_that("the image", || {
        most = most.max(peak(&process).unwrap_or(0));
        process.try_wait().unwrap().is_some()
    });
    assert!(process.wait().unwrap().success());
    assert!(most < MAX_KIB, "{most} KiB");
    let mount = Mount::new(&image, "ro");
    let found = fs::File::open(mount.join("large")).unwrap();
    assert_eq!(found.metadata().unwrap().len(), BYTES);
    let mut bytes = vec![0; 1 << 20];
    for at in [0, BYTES / 2, BYTES - (1 << 20)] {
        std::os::unix::fs::FileExt::read_exact_at(&found, &mut bytes, at).unwrap();
        assert!(bytes == piece, "at {at}");
    }
    drop(found);
    mount.unmount();
    e2fsck::check(&image).assert_clean();
}

/// A file system without files without names: the image under way has a name beside its own.
#[test]
fn the_image_under_way_is_no_part_of_a_directory_that_has_it() {
    need("fuse2fs");
    let scratch = Scratch::new();
    let (host, dir) = (Image::mke2fs(64 << 20, &["-t", "ext4"]), scratch.dir("mnt"));
    run("fuse2fs", &args![host.path(), &dir]).must_succeed();
    let top = dir.join("top");
    fs::create_dir(&top).unwrap();
    fs::write(top.join("file"), "content").unwrap();
    let other = scratch.dir("other");
    fs::write(other.join("more"), "content").unwrap();
    let image = top.join("i.img");
    let call = format!(
        "tar -C {} -cf - . | {EXTANT} build --size 16M -N 64 {} {} -",
        other.display(),
        image.display(),
        top.display()
    );
    let printed = run("sh", &["-c", &call]);
    let copy = scratch.join("copy.img");
    let copied = fs::copy(&image, &copy);
    run("umount", &args![&dir]).must_succeed();
    printed.must_succeed();
    copied.unwrap();
    assert_eq!(done(&args!["ls", &copy, "/"]).text(), "file\nlost+found\nmore\n");
}
