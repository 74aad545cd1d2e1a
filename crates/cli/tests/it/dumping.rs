//! The program under the name dumpe2fs, and `tune2fs -l`, beside those of e2fsprogs.

use crate::args;
use crate::program::{EXTANT, done, refused};
use crate::recovery::crashed;
use extant_testkit::kernel::Mount;
use extant_testkit::tool::{run, run_with_env};
use extant_testkit::{FEATURE_SETS, FeatureSet, Image, Scratch};
use std::ffi::OsString;
use std::os::unix::fs::symlink;

/// The program under other names.
struct Named(Scratch);

impl Named {
    fn new() -> Named {
        let scratch = Scratch::new();
        for name in ["dumpe2fs", "tune2fs"] {
            symlink(EXTANT, scratch.join(name)).expect("a link");
        }
        Named(scratch)
    }

    fn printed(&self, name: &str, args: &[OsString]) -> String {
        let name = self.0.join(name);
        run(name.to_str().expect("a name"), args).must_succeed().text()
    }
}

/// Returns the output of a program of e2fsprogs, without its version, in UTC.
fn theirs(name: &str, args: &[OsString]) -> String {
    let printed = run_with_env(name, args, &[("TZ", "UTC")]).must_succeed().text();
    let (first, rest) = printed.split_once('\n').unwrap_or((&printed, ""));
    if first.starts_with(name) { rest.into() } else { printed }
}

/// Compares all that dumpe2fs prints of an image, and as the second program tune2fs.
fn compare(named: &Named, image: &Image, (what, programs): (&str, usize)) {
    for (name, option) in [("dumpe2fs", "-h"), ("tune2fs", "-l")].into_iter().take(programs) {
        let args = args![option, image.path()];
        let (own, theirs) = (named.printed(name, &args), theirs(name, &args));
        assert_eq!(own.trim_end(), theirs.trim_end(), "{what}: {name}");
    }
}

#[test]
fn values_are_printed_as_by_dumpe2fs() {
    let named = Named::new();
    for set in FEATURE_SETS {
        compare(&named, &set.make(), (set.name, 2));
    }
    let old = Image::mke2fs(4 << 20, &["-t", "ext2", "-r", "0"]);
    compare(&named, &old, ("revision 0", 2));
    let dirty = crashed(FeatureSet::named("1k"));
    dirty.leave_unjudged("it needs recovery");
    // `tune` shows the values after a recovery.
    compare(&named, &dirty, ("needs recovery", 1));
}

/// A file system that the kernel has mounted is read as it is; nothing else is done to it.
#[test]
fn a_mounted_file_system_is_read_under_other_names() {
    let scratch = Scratch::new();
    let names = ["dumpe2fs", "tune2fs", "e2label", "debugfs", "e2image", "e2fsck"];
    names.iter().for_each(|name| symlink(EXTANT, scratch.join(name)).expect("a link"));
    let call =
        |name: &str, args: &[OsString]| run(scratch.join(name).to_str().expect("a name"), args);
    let image = FeatureSet::named("default").make();
    let saved = scratch.join("saved");
    scratch.leave_unjudged("saved", "it has no content of files");
    done(&args!["tune", "--label", "a-label", image.path()]);
    let mount = Mount::new(image.path(), "rw");
    refused(&args!["info", image.path()], 1, "in use");
    for (name, args, words) in [
        ("dumpe2fs", args!["-h"].to_vec(), "needs_recovery"),
        ("tune2fs", args!["-l"].to_vec(), "needs_recovery"),
        ("e2label", vec![], "a-label"),
        ("debugfs", args!["-R", "ls /"].to_vec(), "lost+found"),
        ("e2fsck", args!["-fn"].to_vec(), ""),
        ("e2fsck", args!["-n"].to_vec(), ""),
    ] {
        let printed = call(name, &[&args[..], &args![image.path()]].concat()).must_succeed();
        assert!(printed.text().contains(words), "{name}: {printed}");
    }
    call("e2image", &args!["-r", image.path(), &saved]).must_succeed();
    for (name, args, code) in
        [("e2fsck", args!["-fy"], 8), ("e2fsck", args!["-f"], 8), ("tune2fs", args!["-Lb"], 1)]
    {
        let printed = call(name, &[&args[..], &args![image.path()]].concat());
        assert!(printed.errors().contains("in use") && printed.code == code, "{name}: {printed}");
    }
    mount.unmount();
}

#[test]
fn all_values_are_printed_as_by_dumpe2fs() {
    let named = Named::new();
    let kind = "fast_commit,casefold,encrypt,quota,metadata_csum_seed,stable_inodes,^64bit";
    let image = Image::mke2fs(
        32 << 20,
        &["-t", "ext4", "-b", "1024", "-O", kind, "-E", "stride=4,stripe_width=8", "-M", "/m"],
    );
    let words = args![
        "-L",
        "a label",
        "-E",
        "test_fs,force_fsck,hash_alg=tea,mount_opts=debug",
        "-e",
        "panic",
        "-c",
        "20",
        "-i",
        "45d",
        "-u",
        "54321",
        "-g",
        "5",
        "-o",
        "journal_data,^acl"
    ];
    run("tune2fs", &[&words[..], &args![image.path()]].concat()).must_succeed();
    image.leave_unjudged("it has errors");
    compare(&named, &image, ("many values", 2));
    for value in ["error_count 3", "first_error_time 20200102030405", "last_orphan 44"] {
        let request = format!("ssv {value}");
        run("debugfs", &args!["-w", "-R", request, image.path()]).must_succeed();
    }
    for value in ["first_error_func ext4_f", "first_error_line 77", "kbytes_written 5000000"] {
        let request = format!("ssv {value}");
        run("debugfs", &args!["-w", "-R", request, image.path()]).must_succeed();
    }
    compare(&named, &image, ("errors", 2));
}

#[test]
fn a_copy_of_the_superblock_is_printed() {
    let named = Named::new();
    let image = Image::mke2fs(32 << 20, &["-t", "ext4", "-b", "1024"]);
    let args = args!["-h", "-o", "superblock=8193", "-o", "blocksize=1024", image.path()];
    let of_copy = named.printed("dumpe2fs", &args);
    assert!(of_copy.contains("Filesystem state:         not clean"), "{of_copy}");
}

/// Groups of all kinds of file systems, in each form, and with files in them.
#[test]
fn groups_are_printed_as_by_dumpe2fs() {
    let named = Named::new();
    let others: [&[&str]; 9] = [
        &["-t", "ext2", "-b", "1024"],
        &["-t", "ext2", "-r", "0"],
        &["-t", "ext2", "-b", "1024", "-O", "^sparse_super,^resize_inode"],
        &["-t", "ext4", "-b", "1024", "-O", "uninit_bg,^metadata_csum,^64bit"],
        &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "meta_bg,^resize_inode"],
        &["-t", "ext4", "-b", "1024", "-g", "4096", "-O", "sparse_super2,^resize_inode"],
        &["-t", "ext4", "-b", "1024", "-C", "4096", "-O", "bigalloc"],
        &["-t", "ext4", "-b", "1024", "-O", "^flex_bg", "-E", "lazy_itable_init=0"],
        &["-t", "ext4", "-b", "4096", "-g", "1024", "-E", "lazy_itable_init=1"],
    ];
    let sets = FEATURE_SETS.iter().map(|set| (set.name.to_owned(), set.make()));
    let others = others.iter().map(|options| (options.join(" "), Image::mke2fs(24 << 20, options)));
    for (what, image) in sets.chain(others) {
        // debugfs waits for other hosts at each call.
        let requests = if what == "mmp" { 0 } else { 3 };
        let file = image.scratch().join("file");
        std::fs::write(&file, vec![7; 300_000]).expect("a file");
        for n in 0..requests {
            let write = format!("write {} f{n}", file.display());
            run("debugfs", &args!["-w", "-R", write, image.path()]).must_succeed();
        }
        if requests > 1 {
            run("debugfs", &args!["-w", "-R", "rm f1", image.path()]).must_succeed();
        }
        image.leave_unjudged("debugfs does not keep quotas");
        for options in [&[][..], &["-x"], &["-g"], &["-xg"], &["-fh"]] {
            let args: Vec<OsString> = options.iter().map(OsString::from).collect();
            let args = [args, args![image.path()].to_vec()].concat();
            let (own, theirs) = (named.printed("dumpe2fs", &args), theirs("dumpe2fs", &args));
            assert_eq!(own.trim(), theirs.trim(), "{what}: {options:?}");
        }
    }
}

/// The rest is printed, as by dumpe2fs, and the bitmap named.
#[test]
fn a_damaged_bitmap_is_printed_and_told() {
    let named = Named::new();
    let image = Image::mke2fs(16 << 20, &["-t", "ext4", "-b", "1024", "-O", "^flex_bg"]);
    let text = theirs("dumpe2fs", &args!["-g", image.path()]);
    let line = text.lines().nth(2).expect("a group");
    let block: u64 = line.split(':').nth(4).and_then(|nr| nr.parse().ok()).expect("a block");
    let file = std::fs::File::options().write(true).open(image.path()).expect("the image");
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 1024], block * 1024).expect("a write");
    image.leave_unjudged("it is damaged");
    let name = named.0.join("dumpe2fs");
    let own = run(name.to_str().expect("a name"), &args![image.path()]);
    assert!(own.code == 1 && own.errors().contains("group 0: wrong checksum"), "{own}");
    let theirs = run_with_env("dumpe2fs", &args![image.path()], &[("TZ", "UTC")]).text();
    let groups = |text: &str| {
        let lines = text.lines().skip_while(|line| !line.starts_with("Group 0"));
        lines.filter(|line| line.starts_with(' ')).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(groups(&own.text()), groups(&theirs));
}

/// A device with a journal, made by `extant mkfs`, equals that of mke2fs, and holds a journal.
#[test]
fn journal_devices_are_those_of_mke2fs() {
    let named = Named::new();
    for size in ["1024", "4096"] {
        let uuid = "30313233-3435-3637-3839-616263646566";
        let options = ["-b", size, "-O", "journal_dev", "-U", uuid, "-L", "a journal"];
        let own = Image::blank(8 << 20);
        let words: Vec<OsString> = options.iter().map(OsString::from).collect();
        done(&[&args!["mkfs"][..], &words, &args![own.path()]].concat());
        let theirs = Image::mke2fs(8 << 20, &options);
        own.leave_unjudged("it is no file system");
        theirs.leave_unjudged("it is no file system");
        let dump = |image: &Image| {
            let printed = crate::dumping::theirs("dumpe2fs", &args!["-h", image.path()]);
            let is_equal = |line: &&str| {
                !["Hash Seed", "created", "write time", "checked"].iter().any(|n| line.contains(n))
            };
            printed.lines().filter(is_equal).map(String::from).collect::<Vec<_>>()
        };
        assert_eq!(dump(&own), dump(&theirs));
        let header = args!["-h", own.path()];
        let printed = named.printed("dumpe2fs", &header);
        assert_eq!(printed.trim_end(), crate::dumping::theirs("dumpe2fs", &header).trim_end());

        let image = Image::mke2fs(32 << 20, &["-t", "ext4", "-b", size]);
        let device = format!("device={}", own.path().display());
        done(&args!["tune", image.path(), "-J", device]);
        done(&args!["mkdir", "--journal", own.path(), image.path(), "/a"]);
        let check = args!["-fn", "-j", own.path(), image.path()];
        run("e2fsck", &check).must_succeed();
        done(&args!["tune", image.path(), "--journal", own.path(), "--journal-size", "4M"]);
        image.assert_clean();
    }
}
