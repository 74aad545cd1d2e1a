//! `extant tune`, and the program under the names tune2fs and e2label.

use crate::args;
use crate::program::{EXTANT, done, extant, json, refused};
use crate::recovery::crashed;
use extant_testkit::kernel::{Loop, Mount};
use extant_testkit::tool::{Printed, run, run_with_env};
use extant_testkit::{FeatureSet, Image, Scratch, debugfs, dumpe2fs};
use std::ffi::OsString;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

/// Four groups, with copies of the superblock in two of them.
fn image() -> Image {
    FeatureSet::named("1k").make_sized(32 << 20)
}

/// Returns the lines of dumpe2fs, but for those of times, checksums and the log.
fn dumped(image: &Path) -> Vec<(String, String)> {
    let renewed = |name: &str| {
        ["Last write time", "Lifetime writes", "Checksum"].contains(&name)
            || name.starts_with("Journal")
    };
    dumpe2fs::header(image).values.into_iter().filter(|(name, _)| !renewed(name)).collect()
}

const UUID: &str = "30313233-3435-3637-3839-616263646566";

#[test]
fn all_changes_of_a_call_are_those_of_tune2fs() {
    let own = image();
    let theirs = own.copy();
    let options = [
        ["--label", "-L", "a label"],
        ["--uuid", "-U", UUID],
        ["--reserved-percent", "-m", "2.5"],
        ["--reserved-uid", "-u", "7"],
        ["--reserved-gid", "-g", "8"],
        ["--errors", "-e", "remount-ro"],
        ["--default-mount-options", "-o", "^acl,debug,journal_data_writeback"],
        ["--max-mount-count", "-c", "20"],
        ["--mount-count", "-C", "5"],
        ["--check-interval", "-i", "3w"],
        ["--last-checked", "-T", "20200102030405"],
    ];
    let of = |column: usize| options.iter().flat_map(move |row| [row[column], row[2]]);
    let end = |image: &Image| [OsString::from(image.path())];
    let all = of(0).chain(["--mount-options", "nodelalloc"]).map(OsString::from);
    let all: Vec<OsString> = args!["tune"].into_iter().chain(all).chain(end(&own)).collect();
    done(&all);
    let zone = [("TZ", "UTC")];
    let seed = args!["-O", "metadata_csum_seed", theirs.path()];
    run_with_env("tune2fs", &seed, &zone).must_succeed();
    let all = of(1).chain(["-E", "mount_opts=nodelalloc"]).map(OsString::from);
    let all: Vec<OsString> = all.chain(end(&theirs)).collect();
    run_with_env("tune2fs", &all, &zone).must_succeed();
    assert_eq!(dumped(own.path()), dumped(theirs.path()));
    own.assert_clean();
}

#[test]
fn values_are_printed_and_a_document() {
    let image = image();
    let before = image.bytes();
    let printed = done(&args!["tune", image.path()]).text();
    for line in ["label                  none", "errors                 continue"] {
        assert!(printed.lines().any(|found| found == line), "{line} in {printed}");
    }
    let document = json(&args!["tune", image.path()]);
    assert_eq!(document["changed"], serde_json::json!([]));
    assert_eq!(document["default_mount_options"], serde_json::json!(["user_xattr", "acl"]));
    assert_eq!(document["max_mount_count"], serde_json::Value::Null);
    assert!(image.bytes() == before, "printing wrote");
    let changed = args!["tune", image.path(), "--label", "x", "--reserved-blocks", "99", "-c", "3"];
    let document = json(&changed);
    assert_eq!(
        document["changed"],
        serde_json::json!(["label", "reserved_blocks", "max_mount_count"])
    );
    assert_eq!((&document["label"], &document["max_mount_count"]), (&"x".into(), &3.into()));
    assert_eq!(document["reserved_blocks"], 99);
    let document = json(&args!["tune", image.path()]);
    assert_eq!((&document["label"], &document["reserved_blocks"]), (&"x".into(), &99.into()));
}

#[test]
fn uuids_are_chosen() {
    let image = image();
    let uuid = |choice: &str| {
        let document = json(&args!["tune", image.path(), "--uuid", choice]);
        let uuid = document["uuid"].as_str().expect("a text").to_owned();
        let dumped = dumpe2fs::header(image.path()).value("Filesystem UUID").to_owned();
        assert!(uuid == dumped || dumped == "<none>", "{uuid}, {dumped}");
        image.assert_clean();
        uuid
    };
    assert_eq!(uuid("clear"), "00000000-0000-0000-0000-000000000000");
    let (random, time) = (uuid("random"), uuid("time"));
    assert!(random != uuid("random") && random.as_bytes()[14] == b'4', "{random}");
    assert!(time != uuid("time") && time.as_bytes()[14] == b'1', "{time}");
    assert_eq!(uuid(UUID), UUID);
    refused(&args!["tune", image.path(), "--uuid", "new"], 2, "not a UUID");
}

/// A refusal names the cause and the remedy, and leaves each byte.
#[test]
fn refusals_name_the_command_that_helps() {
    let unchanged = |image: &Image, code: i32, options: &[&str], words: &[&str]| {
        let before = image.bytes();
        let options = options.iter().map(OsString::from);
        let all: Vec<OsString> = args!["tune", image.path()].into_iter().chain(options).collect();
        for words in words {
            refused(&all, code, words);
        }
        assert!(image.bytes() == before, "{words:?}: a refusal wrote");
    };
    let label = ["--label", "x"];
    let dirty = crashed(FeatureSet::named("1k"));
    dirty.leave_unjudged("it needs recovery");
    unchanged(&dirty, 1, &label, &["needs recovery", "`extant recover "]);
    done(&args!["recover", dirty.path()]);
    done(&args!["tune", dirty.path(), "--label", "x"]);
    let broken = image();
    broken.leave_unjudged("it is marked");
    debugfs::write(broken.path(), "set_super_value state 3");
    unchanged(&broken, 1, &label, &["has errors", "`extant repair "]);
    extant(&args!["repair", broken.path()]);
    done(&args!["tune", broken.path(), "--label", "x"]);
    let good = image();
    unchanged(&good, 2, &["--label", "12345678901234567"], &["17 bytes"]);
    unchanged(&good, 2, &["--label", "x", "-o", "nonesuch"], &["nonesuch", "journal_data"]);
    unchanged(&good, 2, &["--label", "x", "-r", "99999999"], &["at most 16384"]);
    unchanged(&good, 2, &["--label", "x", "--check-interval", "3y"], &["unit `y`"]);
    unchanged(&good, 2, &["-m", "3", "-r", "5"], &["cannot be used with"]);
    unchanged(&good, 2, &["-E", "unknown=4"], &["mount_opts="]);
    let old = FeatureSet::named("uninit_bg").make_sized(32 << 20);
    unchanged(&old, 1, &["--uuid", "random"], &["the UUID cannot be changed", "uninit_bg"]);
    let foreign = Image::blank(1 << 20);
    foreign.leave_unjudged("it is no file system");
    unchanged(&foreign, 1, &label, &["no file system that is known"]);
}

#[test]
fn an_image_in_use_is_refused() {
    let image = image();
    let mount = Mount::new(image.path(), "");
    let device = mount.device().to_path_buf();
    refused(&args!["tune", &device, "--label", "x"], 1, "unmount it");
    refused(&args!["tune", image.path(), "--label", "x"], 1, "unmount it");
    mount.unmount();
    done(&args!["tune", image.path(), "--label", "x"]);
}

/// Without recovery the values are those of the log, and nothing is written.
#[test]
fn values_of_an_image_that_needs_recovery_are_printed() {
    let image = crashed(FeatureSet::named("1k"));
    image.leave_unjudged("it needs recovery");
    let before = image.bytes();
    assert!(done(&args!["tune", image.path()]).text().contains("label"));
    assert!(image.bytes() == before, "printing wrote");
}

#[test]
fn other_names_are_understood() {
    let names = Scratch::new();
    for name in ["tune2fs", "e2label"] {
        symlink(EXTANT, names.join(name)).expect("a link");
    }
    let call = |name: &str, args: &[OsString]| -> Printed {
        run(names.join(name).to_str().expect("a name"), args)
    };
    let own = image();
    let theirs = own.copy();
    let options =
        ["-L", "x", "-m", "1", "-u", "bin", "-g", "tty", "-e", "panic", "-c", "-1", "-C", "2"];
    let extended = "stride=4,stripe_width=8,hash_alg=tea,test_fs,mount_opts=nodelalloc";
    let further = ["-i", "5d", "-o", "^acl,debug", "-E", extended, "-M", "/at", "-f", "-T", "now"];
    let options: Vec<OsString> = options.iter().chain(&further).map(OsString::from).collect();
    let with = |image: &Image| [&options[..], &args![image.path()]].concat();
    call("tune2fs", &with(&own)).must_succeed();
    run("tune2fs", &with(&theirs)).must_succeed();
    assert_eq!(dumped(own.path()), dumped(theirs.path()));
    let listed = call("tune2fs", &args!["-l", own.path()]).must_succeed().text();
    assert!(listed.contains("nodelalloc"), "{listed}");
    call("tune2fs", &args!["-U", UUID, own.path()]).must_succeed();
    call("tune2fs", &args!["-r", "5", own.path()]).must_succeed();
    let dump = dumpe2fs::header(own.path());
    let values = ["Filesystem UUID", "Reserved block count"].map(|name| dump.value(name));
    assert_eq!(values, [UUID, "5"]);

    let label = |args: &[OsString]| call("e2label", args).must_succeed().text();
    assert_eq!(label(&args![own.path()]), "x\n");
    assert_eq!(label(&args![own.path(), "-new label"]), "");
    assert_eq!(label(&args![own.path()]), run("e2label", &args![own.path()]).text());
    assert_eq!(label(&args![own.path()]), "-new label\n");
    assert_eq!(label(&args![own.path(), ""]), "");
    assert_eq!(label(&args![own.path()]), "\n");
    assert_ne!(call("e2label", &args![]).code, 0);
    assert_ne!(call("e2label", &args!["/missing"]).code, 0);
    own.assert_clean();
}

#[test]
fn multi_mount_protection_is_added_as_by_tune2fs() {
    let (own, by_length) = (image(), image());
    let theirs = own.copy();
    let options = args!["-O", "mmp", "-E", "mmp_update_interval=9"];
    let with = |image: &Image| [&options[..], &args![image.path()]].concat();
    done(&[&args!["tune"][..], &with(&own)].concat());
    run("tune2fs", &with(&theirs)).must_succeed();
    let comparable = |image: &Image| {
        let values = dumped(image.path()).into_iter();
        // The block has the time and the name of the host, and tune2fs sets the interval later.
        let is_equal = |name: &str| !name.starts_with("mmp_") || name == "mmp_sequence";
        let is_place = |name: &str| name == "MMP block number";
        values.filter(|(name, _)| is_equal(name) && !is_place(name)).collect::<Vec<_>>()
    };
    assert_eq!(comparable(&own), comparable(&theirs));
    own.assert_clean();
    let long = args!["tune", by_length.path(), "--features", "mmp", "--mmp-update-interval", "7"];
    let document = json(&long);
    assert_eq!(document["changed"], serde_json::json!(["features", "mmp_update_interval"]));
    assert_eq!(dumpe2fs::header(by_length.path()).value("MMP update interval"), "7");
}

#[test]
fn a_journal_moves_to_a_device_and_back() {
    let (image, journal) = (image(), Image::mke2fs(8 << 20, &["-b", "1024", "-O", "journal_dev"]));
    journal.leave_unjudged("it is no file system");
    let on = Loop::attach(journal.path(), false);
    let named = format!("device={}", on.device().display());
    done(&args!["tune", image.path(), "-J", named]);
    let number = std::fs::metadata(on.device()).expect("a device").rdev();
    let header = dumpe2fs::header(image.path());
    assert_eq!(header.value("Journal device"), format!("0x{number:04x}"));
    let back = args!["tune", image.path(), "--journal-size", "4M"];
    refused(&back, 1, "--journal");
    done(&[&back[..], &args!["--journal", on.device()]].concat());
    assert!(!dumpe2fs::header(image.path()).values.contains_key("Journal device"));
    image.assert_clean();
}

/// A file system with its journal on a device, made in one step under both names, equals that of
/// mke2fs. Without a journal of use nothing is overwritten.
#[test]
fn file_systems_are_made_with_a_journal_on_a_device() {
    let names = Scratch::new();
    symlink(EXTANT, names.join("mkfs.ext4")).expect("a link");
    let mkfs = names.join("mkfs.ext4").to_str().expect("a name").to_owned();
    let journal = || Image::mke2fs(8 << 20, &["-b", "1024", "-O", "journal_dev"]);
    let comparable = |image: &Image| {
        let values = dumped(image.path()).into_iter();
        let chosen = ["UUID", "Seed", "seed", "created", "checked", "Journal device", "Checksum"];
        values
            .filter(|(name, _)| !chosen.iter().any(|part| name.contains(part)))
            .collect::<Vec<_>>()
    };
    for kind in [["-t", "ext4", "-O", "orphan_file,metadata_csum_seed"], ["-t", "ext3", "-O", ""]] {
        let devices = [journal(), journal(), journal()];
        devices.iter().for_each(|device| device.leave_unjudged("it is no file system"));
        let on = devices.each_ref().map(|device| Loop::attach(device.path(), false));
        let images = [(); 3].map(|()| Image::blank(32 << 20));
        let option = |n: usize| format!("device={}", on[n].device().display());
        let call = |n: usize| {
            let kind = ["-q"].iter().chain(&kind).map(OsString::from);
            kind.chain(args!["-J", option(n), images[n].path()]).collect::<Vec<_>>()
        };
        run("mke2fs", &call(0)).must_succeed();
        run(&mkfs, &call(1)).must_succeed();
        let long = args![
            "mkfs",
            "-t",
            kind[1],
            "-O",
            kind[3],
            images[2].path(),
            "--journal-device",
            on[2].device()
        ];
        done(&long);
        for n in [1, 2] {
            assert_eq!(comparable(&images[n]), comparable(&images[0]), "{kind:?}");
            let judged = run("e2fsck", &args!["-fn", "-j", on[n].device(), images[n].path()]);
            assert_eq!(judged.code, 0, "{judged}");
            images[n].leave_unjudged("judged with its journal");
        }
        images[0].leave_unjudged("of mke2fs");
        // A journal in use, one with other blocks, and none.
        let bytes = images[1].bytes();
        let other = Image::mke2fs(16 << 20, &["-b", "4096", "-O", "journal_dev"]);
        other.leave_unjudged("it is no file system");
        for (device, words) in [
            (on[2].device(), "that a file system uses"),
            (other.path(), "blocks of 4096 bytes"),
            (images[0].path(), "no device with a journal"),
        ] {
            let journal = args!["--journal-device", device, "-b", "1024", "-F"];
            let printed = run(EXTANT, &[&args!["mkfs", images[1].path()][..], &journal].concat());
            assert!(printed.code != 0 && printed.errors().contains(words), "{printed}");
            assert!(images[1].bytes() == bytes, "{words}");
        }
    }
}

/// Features, journal and quota files by both names, as by tune2fs.
#[test]
fn features_are_switched_under_both_names() {
    let names = Scratch::new();
    symlink(EXTANT, names.join("tune2fs")).expect("a link");
    let program = names.join("tune2fs");
    let call = |args: &[OsString]| run(program.to_str().expect("a name"), args);
    let kind = ["-t", "ext4", "-b", "1024", "-O", "^has_journal,^metadata_csum"];
    let (own, theirs) = (Image::mke2fs(32 << 20, &kind), Image::mke2fs(32 << 20, &kind));
    theirs.leave_unjudged("tune2fs 1.47.0 leaves orphan files without checksums");
    // Values that mke2fs chooses at random are left out.
    let comparable = |image: &Image| {
        let values = dumped(image.path()).into_iter();
        let chosen = |name: &str| {
            name.contains("UUID")
                || name.contains("Seed")
                || name.contains("seed")
                || name.contains("created")
                || name.contains("checked")
        };
        values.filter(|(name, _)| !chosen(name)).collect::<Vec<_>>()
    };
    for args in [
        vec!["-j"],
        vec!["-O", "metadata_csum,metadata_csum_seed"],
        vec!["-O", "^has_journal"],
        vec!["-J", "size=4"],
        vec!["-Q", "usrquota,prjquota"],
        vec!["-O", "^dir_index,orphan_file"],
        vec!["-O", "^metadata_csum,^quota"],
    ] {
        let with = |image: &Image| {
            let args = args.iter().map(OsString::from);
            args.chain([OsString::from(image.path())]).collect::<Vec<_>>()
        };
        call(&with(&own)).must_succeed();
        run("tune2fs", &with(&theirs)).must_succeed();
        assert_eq!(comparable(&own), comparable(&theirs), "{args:?}");
        own.assert_clean();
    }
    let document =
        json(&args!["tune", own.path(), "--features", "large_dir", "--journal-size", "2M"]);
    assert_eq!(document["changed"], serde_json::json!(["features", "journal_size"]));
    let features = document["features"].as_array().expect("a list");
    assert!(features.contains(&"large_dir".into()), "{features:?}");
    assert_eq!(dumpe2fs::header(own.path()).value("Total journal size"), "2048k");
    for (options, code, words) in [
        (["--features", "nonesuch"], 2, "`nonesuch` is no feature"),
        (["--features", "^flex_bg"], 1, "copy its files"),
        (["--features", "bigalloc"], 1, "copy its files"),
        (["--quota", "all"], 2, "usrquota"),
        (["--journal-size", "100M"], 2, "half of the file system"),
        (["-J", "location=9"], 2, "size=MIB and device=PATH"),
    ] {
        let before = own.bytes();
        let args: Vec<OsString> = args!["tune", own.path()]
            .into_iter()
            .chain(options.iter().map(OsString::from))
            .collect();
        refused(&args, code, words);
        assert!(own.bytes() == before, "{options:?}: a refusal wrote");
    }
}

#[test]
fn inodes_get_larger_under_both_names() {
    let names = Scratch::new();
    symlink(EXTANT, names.join("tune2fs")).expect("a link");
    let program = names.join("tune2fs");
    let own = image();
    let args = args!["-I", "512", own.path()];
    run(program.to_str().expect("a name"), &args).must_succeed();
    own.assert_clean();
    let undo = names.join("undo");
    let before = own.bytes();
    let document =
        json(&args!["tune", "--inode-size", "1024", "--undo", undo.as_os_str(), own.path()]);
    assert_eq!(document["changed"], serde_json::json!(["inode_size"]));
    own.assert_clean();
    assert_eq!(dumpe2fs::header(own.path()).number("Inode size"), 1024);
    done(&args!["repair", "--restore", undo.as_os_str(), own.path()]);
    assert!(own.bytes() == before, "another image");
    refused(&args!["tune", "--inode-size", "256", own.path()], 1, "smaller");
    refused(&args!["tune", "--inode-size", "2048", own.path()], 2, "power of two");
}

/// A file that cannot be written is refused before the first write, with the reason.
#[test]
fn a_write_protected_image_is_refused() {
    let folder = Scratch::new();
    std::fs::copy(image().path(), folder.join("image")).expect("a copy");
    let bind = args!["--bind", folder.path(), folder.path()];
    run("mount", &bind).must_succeed();
    run("mount", &args!["-o", "remount,ro,bind", folder.path()]).must_succeed();
    let image = folder.join("image");
    let calls = [
        args!["tune", &image, "--label=x"],
        args!["tune", &image, "--features=quota"],
        args!["resize", &image, "64M"],
        args!["resize", &image, "20M"],
    ];
    let printed = calls.map(|call| extant(&call));
    run("umount", &args![folder.path()]).must_succeed();
    for printed in printed {
        let text = printed.errors();
        assert!(printed.code == 1 && text.contains("nothing was changed"), "{printed}");
        assert!(text.contains("write-protected") && !text.contains("recover"), "{printed}");
    }
}

/// Changes of a file system without a journal, and the removal of one.
#[test]
fn a_redo_file_holds_changes_until_they_are_made() {
    let image = FeatureSet::named("ext2").make_sized(12 << 20);
    let redo = image.scratch().join("redo");
    let told = format!("`extant recover --redo {} ", redo.display());
    let call = |change: &[&str]| -> Vec<OsString> {
        let change = change.iter().map(OsString::from);
        args!["tune", "--redo", &redo]
            .into_iter()
            .chain(change)
            .chain(args![image.path()])
            .collect()
    };
    let changes: [&[&str]; 5] = [
        &["--label", "new"],
        &["--features", "dir_index,extent,uninit_bg"],
        &["-j", "-L", "x"],
        &["--features", "^has_journal"],
        &["-O", "64bit"],
    ];
    for change in changes {
        let printed = done(&call(change));
        assert!(printed.errors().contains(&told), "{change:?}: {printed}");
        assert!(!redo.exists(), "the file of a change that is made stays");
        image.assert_clean();
    }
    for (change, words) in [(&["--features", "nonesuch"][..], "nonesuch"), (&[], "--redo")] {
        refused(&call(change), 2, words);
        assert!(!redo.exists(), "a refusal leaves a file");
    }
    // A journal that stays makes the change whole.
    done(&args!["tune", "-j", image.path()]);
    let printed = done(&call(&["-L", "z"]));
    assert!(!printed.errors().contains("--redo") && !redo.exists(), "{printed}");
    image.assert_clean();
}

#[test]
fn an_undo_file_takes_changes_back() {
    let names = Scratch::new();
    symlink(EXTANT, names.join("tune2fs")).expect("a link");
    let name = names.join("tune2fs");
    let image = image();
    let before = image.bytes();
    for (nr, list) in ["^metadata_csum", "^has_journal", "quota,project"].into_iter().enumerate() {
        let (undo, redo) = (names.join(format!("undo{nr}")), names.join("redo"));
        let call = args!["tune", "--undo", &undo, "--redo", &redo, "-O", list, image.path()];
        done(&call);
        image.assert_clean();
        done(&args!["repair", "--restore", &undo, image.path()]);
        assert!(image.bytes() == before, "{list}: the old image is not back");
        let undo = names.join(format!("undo{nr}z"));
        let call = args!["-z", &undo, "-O", list, image.path()];
        run(name.to_str().expect("a name"), &call).must_succeed();
        image.assert_clean();
        done(&args!["repair", "--restore", &undo, image.path()]);
        assert!(image.bytes() == before, "{list}: the old image is not back");
    }
}
