//! The program under the names of e2fsck, beside e2fsck itself.

use crate::args;
use crate::program::{EXTANT, refused};
use crate::recovery::crashed;
use extant_testkit::tool::{Printed, run};
use extant_testkit::{FeatureSet, Image, Scratch, debugfs};
use std::ffi::OsString;
use std::path::Path;

/// The program under another name.
struct Named(Scratch);

impl Named {
    fn new() -> Named {
        let scratch = Scratch::new();
        for name in ["e2fsck", "fsck.ext4"] {
            std::os::unix::fs::symlink(EXTANT, scratch.join(name)).unwrap();
        }
        Named(scratch)
    }

    fn call(&self, name: &str, options: &[&str], image: &Path) -> Printed {
        let args: Vec<OsString> =
            options.iter().map(OsString::from).chain([image.into()]).collect();
        run(self.0.join(name).to_str().unwrap(), &args)
    }
}

fn after(commands: &[&str]) -> Image {
    let image = FeatureSet::named("default").make_sized(32 << 20);
    for command in commands {
        debugfs::write(image.path(), command);
    }
    image
}

/// Images in several states. But for two cases the codes are those of e2fsck for the same options
/// on a copy, and images that were to be repaired are clean.
#[test]
fn exit_codes_are_those_of_e2fsck() {
    let named = Named::new();
    let images: [(&str, &dyn Fn() -> Image); 6] = [
        ("clean", &|| after(&[])),
        ("to be recovered", &|| crashed(FeatureSet::named("default"))),
        ("marked as damaged", &|| after(&["ssv state 2"])),
        ("mounted often", &|| after(&["ssv max_mnt_count 3", "ssv mnt_count 7"])),
        ("a wrong bitmap", &|| after(&["setb 5000"])),
        ("a name that leads nowhere", &|| after(&["write /etc/hostname f", "clri f"])),
    ];
    let mut differences = Vec::new();
    for (label, make) in images {
        let image = make();
        image.leave_unjudged("damage is made, and judged below");
        for options in [&["-n"][..], &["-fn"], &["-p"], &["-fp"], &["-y"], &["-fy", "-C0", "-v"]] {
            let (own, theirs) = (image.copy(), image.copy());
            own.leave_unjudged("judged below");
            theirs.leave_unjudged("of e2fsck");
            let printed = named.call("fsck.ext4", options, own.path());
            let args = options.iter().map(OsString::from).chain(args![theirs.path()]);
            let expected = run("e2fsck", &args.collect::<Vec<_>>());
            let code = match (label, options[0]) {
                // e2fsck -n does not replay the journal, not even in memory, and finds its traces.
                ("to be recovered", "-fn") => 0,
                // e2fsck -p removes a name, for which this program wants -y.
                ("a name that leads nowhere", "-fp") => 4,
                _ => expected.code,
            };
            if printed.code != code {
                differences.push(format!("{label}, {options:?}, not {code}: {printed}{expected}"));
            }
            if printed.code < 4 && ["-fp", "-fy"].contains(&options[0]) {
                own.assert_clean();
            }
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[test]
fn lines_and_refusals_are_those_of_e2fsck() {
    let named = Named::new();
    let image = after(&[]);
    let theirs = run("e2fsck", &args!["-p", image.path()]).text();
    assert_eq!(named.call("e2fsck", &["-p"], image.path()).text(), theirs);
    assert!(theirs.contains(": clean, 11/"), "{theirs}");
    for (options, code, words) in [
        (&["-p", "-y"][..], 16, "only one of"),
        (&["-n", "-c"], 16, "-n excludes -c"),
        (&["-y", "-cc"], 16, "badblocks -n"),
        (&["-y", "-c", "-l", "f"], 16, "exclude each other"),
        (&["-Z"], 16, "unknown option -Z"),
        (&["-E", "unshare_blocks"], 16, "unshare_blocks"),
        (&["-p", "second.img"], 16, "one image"),
    ] {
        let printed = named.call("e2fsck", options, image.path());
        assert!(printed.code == code && printed.errors().contains(words), "{printed}");
    }
    let missing = named.call("e2fsck", &["-p"], Path::new("/nonexistent"));
    assert!(missing.code == 8 && missing.errors().contains("/nonexistent"), "{missing}");
    let damaged = after(&["setb 5000"]);
    damaged.leave_unjudged("it stays damaged");
    let bytes = damaged.bytes();
    let asked = named.call("e2fsck", &["-f"], damaged.path());
    assert!(asked.code == 4 && asked.errors().contains("-p repairs"), "{asked}");
    assert!(damaged.bytes() == bytes, "nothing was asked for");
    let dirty = crashed(FeatureSet::named("default"));
    dirty.leave_unjudged("it stays dirty");
    let bytes = dirty.bytes();
    let replayed = named.call("e2fsck", &["-n", "-E", "journal_only"], dirty.path());
    assert!(replayed.code == 0 && dirty.bytes() == bytes, "{replayed}");
    let asked = named.call("e2fsck", &[], dirty.path());
    assert!(asked.code == 0 && dirty.bytes() == bytes, "{asked}");
}

/// The options about bad blocks leave the lists, and files, that e2fsck leaves.
#[test]
fn lists_of_bad_blocks_are_those_of_e2fsck() {
    let named = Named::new();
    std::os::unix::fs::symlink(EXTANT, named.0.join("dumpe2fs")).unwrap();
    let image = Image::mke2fs(16 << 20, &["-t", "ext4", "-b", "1024"]);
    let content: Vec<u8> = (0..200_000u32).map(|n| (n / 1024) as u8).collect();
    std::fs::write(image.scratch().join("content"), &content).unwrap();
    let write = format!("write {} f", image.scratch().join("content").display());
    debugfs::write(image.path(), &write);
    let own = debugfs::read(image.path(), "bmap f 7");
    let (first, second) = (image.scratch().join("first"), image.scratch().join("second"));
    let many: Vec<String> = (0..40).map(|n| (16_200 + 3 * n).to_string()).collect();
    std::fs::write(&first, format!("{}\n{}\n0\n", own.trim(), many.join("\n"))).unwrap();
    std::fs::write(&second, "16383\n15000\n").unwrap();
    let (first, second) = (first.to_str().unwrap(), second.to_str().unwrap());
    let theirs = image.copy();
    for options in [&["-y", "-l", first][..], &["-y", "-l", second], &["-y", "-L", second]] {
        let printed = named.call("e2fsck", options, image.path());
        let args = options.iter().map(OsString::from).chain(args![theirs.path()]);
        let expected = run("e2fsck", &args.collect::<Vec<_>>());
        assert!(printed.code == 1 && expected.code < 4, "{options:?}: {printed}{expected}");
        image.assert_clean();
        let list = |image: &Image| run("dumpe2fs", &args!["-b", image.path()]).text();
        assert_eq!(list(&image), list(&theirs), "{options:?}");
        assert_eq!(named.call("dumpe2fs", &["-b"], image.path()).text(), list(&image));
        assert_eq!(debugfs::read_bytes(image.path(), "cat f"), content);
    }
    // A list that cannot be read, and one for which nothing may be written.
    let missing = named.call("e2fsck", &["-y", "-l", "/nonexistent"], image.path());
    assert!(missing.code == 8 && missing.errors().contains("/nonexistent"), "{missing}");
    let asked = named.call("e2fsck", &["-l", first], image.path());
    assert!(asked.code == 16 && asked.errors().contains("-p or -y"), "{asked}");
}

/// A disk that has lost its last 40 KiB: a loop device whose file is cut.
#[test]
fn a_read_test_finds_what_e2fsck_finds() {
    let named = Named::new();
    let image = Image::mke2fs(16 << 20, &["-t", "ext4", "-b", "1024"]);
    image.leave_unjudged("it loses its end");
    let disk = extant_testkit::kernel::Loop::attach(image.path(), false);
    let cut = (16 << 20) - (40 << 10);
    std::fs::File::options().write(true).open(image.path()).unwrap().set_len(cut).unwrap();
    let list = || run("dumpe2fs", &args!["-b", disk.device()]).text();
    let asked = named.call("e2fsck", &["-c"], disk.device());
    assert!(asked.code == 4 && asked.text().contains("block 16344, blocks: 40"), "{asked}");
    let printed = named.call("e2fsck", &["-yc"], disk.device());
    assert_eq!(printed.code, 1, "{printed}");
    let own = list();
    assert_eq!(own.lines().count(), 40, "{own}");
    run("e2fsck", &args!["-fyc", disk.device()]);
    assert_eq!(list(), own);
    let kept = named.call("e2fsck", &["-yck"], disk.device());
    assert!(kept.code == 0 && list() == own, "{kept}");
}

/// New file systems list bad blocks as those of mke2fs do, and their files lie elsewhere.
#[test]
fn new_file_systems_list_bad_blocks_as_by_mke2fs() {
    let named = Named::new();
    std::os::unix::fs::symlink(EXTANT, named.0.join("mke2fs")).unwrap();
    let scratch = Scratch::new();
    let list = scratch.join("list");
    let list = list.to_str().unwrap();
    let bad = |image: &Image| run("dumpe2fs", &args!["-b", image.path()]).text();
    for kind in ["ext4", "ext2"] {
        // Blocks that would be a part of the root, and of the journal if there is one.
        let usual = Image::mke2fs(16 << 20, &["-t", kind, "-b", "1024"]);
        let root = debugfs::read(usual.path(), "bmap / 0");
        let other = match kind {
            "ext4" => debugfs::read(usual.path(), "bmap <8> 9"),
            _ => "15999".into(),
        };
        std::fs::write(list, format!("{}\n16000\n{}\n", other.trim(), root.trim())).unwrap();
        let (own, theirs) = (Image::blank(16 << 20), Image::blank(16 << 20));
        let options = ["-q", "-t", kind, "-b", "1024", "-l", list];
        named.call("mke2fs", &options, own.path()).must_succeed();
        let args = options.iter().map(OsString::from).chain(args![theirs.path()]);
        run("mke2fs", &args.collect::<Vec<_>>()).must_succeed();
        assert_eq!(bad(&own), bad(&theirs), "{kind}");
        assert_eq!(bad(&own).lines().count(), 3, "{kind}");
        own.assert_clean();
        let size = |image: &Image| {
            let header = run("dumpe2fs", &args!["-h", image.path()]).text();
            header.lines().find(|line| line.contains("Total journal size")).map(ToOwned::to_owned)
        };
        assert_eq!(size(&own), size(&theirs));
    }
    let read = Image::blank(16 << 20);
    named.call("mke2fs", &["-q", "-c", "-t", "ext4", "-b", "1024"], read.path()).must_succeed();
    assert_eq!(bad(&read), "");
    // Of an inode table, nothing can be made.
    std::fs::write(scratch.join("list"), "200\n").unwrap();
    let refused = Image::blank(16 << 20);
    refused.leave_unjudged("it has no list");
    let printed = named.call("mke2fs", &["-q", "-b", "1024", "-l", list], refused.path());
    assert!(printed.code == 1 && printed.errors().contains("replace the device"), "{printed}");
}

/// Directories lose their gaps, and files their pointers.
#[test]
fn directories_and_files_are_written_anew() {
    let named = Named::new();
    let image = Image::mke2fs(16 << 20, &["-t", "ext3", "-b", "1024"]);
    let mount = extant_testkit::kernel::Mount::new(image.path(), "");
    for n in 0..900 {
        std::fs::write(mount.join(format!("a file of a longer name {n}")), "text").unwrap();
    }
    for n in 10..900 {
        std::fs::remove_file(mount.join(format!("a file of a longer name {n}"))).unwrap();
    }
    mount.unmount();
    run("tune2fs", &args!["-O", "extent", image.path()]).must_succeed();
    let before = image.bytes();
    let asked = named.call("e2fsck", &["-fnD"], image.path());
    assert!(asked.code == 0 && image.bytes() == before, "{asked}");
    let theirs = image.copy();
    let expected = run("e2fsck", &args!["-fyD", theirs.path()]);
    let printed = named.call("e2fsck", &["-fyD"], image.path());
    assert_eq!(printed.code, expected.code, "{printed}");
    let size = |image: &Image| {
        let text = run("debugfs", &args!["-R", "stat /", image.path()]).text();
        let size = text.split("Size: ").nth(1).and_then(|rest| rest.split_whitespace().next());
        size.and_then(|size| size.parse::<u64>().ok()).expect("a size")
    };
    assert!(size(&image) <= size(&theirs), "{} {}", size(&image), size(&theirs));
    let printed = named.call("e2fsck", &["-fy", "-E", "bmap2extent"], image.path());
    assert_eq!(printed.code, 0, "{printed}");
    let text = run("debugfs", &args!["-R", "stat /", image.path()]).text();
    assert!(text.contains("EXTENTS:"), "{text}");
    image.assert_clean();
}

/// The list is read, and compared with the layout, before the first write.
#[test]
fn a_list_of_bad_blocks_that_cannot_be_had_changes_nothing() {
    let (image, scratch) = (FeatureSet::named("default").make_sized(16 << 20), Scratch::new());
    let (before, list, fifo) = (image.bytes(), scratch.join("list"), scratch.join("fifo"));
    run("mkfifo", &[&fifo]).must_succeed();
    std::fs::write(&list, "5000\n1\n").expect("a list");
    for (list, words) in [
        (&list, "nothing was written"),
        (&scratch.join("missing"), "missing"),
        (&scratch.path().to_owned(), "regular file"),
        (&fifo, "regular file"),
    ] {
        refused(&args!["mkfs", "-F", "--bad-blocks", list, image.path()], 1, words);
        assert!(image.bytes() == before, "{words}");
    }
}
