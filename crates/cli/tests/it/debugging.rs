//! `extant debug` and the program under the name debugfs, beside debugfs itself.

use crate::args;
use crate::program::{EXTANT, done, extant, json, refused};
use extant_testkit::kernel::Mount;
use extant_testkit::tool::{Printed, run};
use extant_testkit::{FeatureSet, Image, Scratch, debugfs};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Requests whose output is that of debugfs, byte by byte.
const REQUESTS: &[&str] = &[
    "stat /a",
    "stat <2>",
    "stat /big",
    "stat /long",
    "stat /fifo",
    "stat /large",
    "stat <8>",
    "stat /d/../a",
    "ls",
    "ls -l",
    "ls -p /",
    "ls -l /d",
    "ls /big",
    "dirsearch /d h",
    "dirsearch /big a-name-that-is-rather-long-77",
    "dirsearch / nope",
    "cat /a",
    "blocks /a",
    "blocks /large",
    "blocks /big",
    "bmap /large 3",
    "bmap /large 299",
    "bmap /large 99999",
    "imap /a",
    "imap <1>",
    "testi /a",
    "testi <500>",
    "testb 2",
    "testb 1000 3",
    "ex /large",
    "ex /big",
    "ex -l /big",
    "ex -n /big",
    "freefrag",
    "lsdel",
    "logdump",
];

/// The program under the name debugfs.
struct Named(Scratch);

impl Named {
    fn new() -> Named {
        let scratch = Scratch::new();
        std::os::unix::fs::symlink(EXTANT, scratch.join("debugfs")).expect("a link");
        Named(scratch)
    }

    fn call(&self, request: &str, image: &Path) -> Printed {
        let program = self.0.join("debugfs");
        run(program.to_str().expect("text"), &args!["-R", request, image])
    }
}

/// A tree with files of all kinds.
fn tree(scratch: &Scratch) -> std::path::PathBuf {
    let top = scratch.dir("top");
    let script = "mkdir d big; echo hello >a; ln -s a short; ln a d/h; mkfifo fifo
        ln -s $(printf 'x%.0s' $(seq 90)) long; seq 60000 >large
        for i in $(seq 300); do echo $i >big/a-name-that-is-rather-long-$i; done
        setfattr -n user.k -v val a";
    run("sh", &["-euc", &format!("cd {}; {script}", top.display())]).must_succeed();
    top
}

fn image(set: &FeatureSet, scratch: &Scratch) -> Image {
    let image = Image::mke2fs_from(set.bytes, set.args, &tree(scratch));
    image.leave_unjudged("nothing is written");
    image
}

#[test]
fn requests_have_the_output_of_debugfs() {
    let (named, mut differences) = (Named::new(), Vec::new());
    for name in [
        "default",
        "1k",
        "ext2",
        "ext3_1k",
        "no_journal",
        "inode_128",
        "ea_inode",
        "meta_bg",
        "no_flex_bg",
        "no_csum",
        "inline_data",
    ] {
        let image = image(FeatureSet::named(name), &Scratch::new());
        for request in REQUESTS {
            let mut theirs = run("debugfs", &args!["-R", request, image.path()]);
            if name == "inline_data" && *request == "cat /a" {
                // debugfs prints the whole space of content in an inode.
                let is_text = |byte: &u8| *byte != 0;
                let len = theirs.stdout.iter().take_while(|byte| is_text(byte)).count();
                theirs.stdout.truncate(len);
            }
            let own = named.call(request, image.path());
            if own.stdout != theirs.stdout || own.code != 0 {
                let own = own.text();
                differences
                    .push(format!("{name}: {request}:\n{own}\ninstead of\n{}", theirs.text()));
            }
        }
    }
    let count = differences.len();
    assert!(count == 0, "{count} differences:\n{}", differences.join("\n"));
}

#[test]
fn blocks_and_names_are_found_as_by_debugfs() {
    let named = Named::new();
    for name in ["default", "ext3_1k", "1k"] {
        let image = image(FeatureSet::named(name), &Scratch::new());
        let blocks: Vec<String> = (0..16).map(|n| (n * 251 + 900).to_string()).collect();
        let request = format!("icheck {}", blocks.join(" "));
        let own = named.call(&request, image.path()).must_succeed().text();
        let theirs = debugfs::read(image.path(), &request);
        // debugfs gives blocks that are kept for descriptors to an inode of their own, too.
        assert_eq!(own, theirs, "{name}");
        let inodes: Vec<String> = (11..40).map(|ino: u32| ino.to_string()).collect();
        let request = format!("ncheck {}", inodes.join(" "));
        let sorted = |text: String| {
            let mut lines: Vec<String> = text.lines().map(|line| line.replace("//", "/")).collect();
            lines.sort();
            lines
        };
        let own = sorted(named.call(&request, image.path()).must_succeed().text());
        assert_eq!(own, sorted(debugfs::read(image.path(), &request)), "{name}");
    }
}

#[test]
fn files_are_dumped_and_failures_are_told() {
    let (named, scratch) = (Named::new(), Scratch::new());
    let image = image(FeatureSet::named("default"), &Scratch::new());
    let bytes = image.bytes();
    let out = scratch.join("out");
    named.call(&format!("dump /large {}", out.display()), image.path()).must_succeed();
    assert_eq!(fs::read(&out).expect("a file"), debugfs::read_bytes(image.path(), "cat /large"));
    let tree = scratch.dir("tree");
    named.call(&format!("rdump /d /a {}", tree.display()), image.path()).must_succeed();
    assert_eq!(fs::read(tree.join("d/h")).expect("a file"), b"hello\n");
    assert_eq!(fs::read(tree.join("a")).expect("a file"), b"hello\n");
    for (request, words) in [
        ("stat /nope", "/nope: File not found by ext2_lookup"),
        ("stat <99999>", "File not found"),
        ("ls /a", "not a directory"),
        ("rm /a", "Command not found rm"),
        ("stat", "Usage: stat <file>"),
        ("dirsearch /d", "Usage: dirsearch dir filename"),
        ("dirsearch /a h", "not a directory"),
        ("testb x", "Bad block number"),
        ("htree_dump /d", "Not a hash-indexed directory"),
    ] {
        let printed = named.call(request, image.path());
        assert!(printed.code == 0 && printed.errors().contains(words), "{printed}");
    }
    let program = named.0.join("debugfs");
    let program = program.to_str().expect("text");
    let refused = run(program, &args!["-w", "-R", "rm /a", image.path()]);
    assert!(refused.code == 1 && refused.errors().contains("extant apply"), "{refused}");
    let missing = run(program, &args!["-R", "ls", "/nonexistent"]);
    assert_eq!(missing.code, 1, "{missing}");
    let requests = scratch.join("requests");
    fs::write(&requests, "testb 2\nquit\ntestb 3\n").expect("a file");
    let printed = run(program, &args!["-f", &requests, image.path()]).must_succeed();
    assert_eq!(printed.text(), "Block 2 marked in use\n");
    assert!(image.bytes() == bytes, "nothing is written");
}

/// A disk on which the kernel deleted files, and the content of one of them.
pub fn deleted(name: &str, dirty: bool) -> (Image, Vec<u8>) {
    let image = FeatureSet::named(name).make_sized(64 << 20);
    let mount = Mount::new(image.path(), "rw");
    let lines = (0..100_000).map(|number| format!("{number}\n"));
    let content = lines.collect::<String>().into_bytes();
    fs::write(mount.join("kept"), b"kept").expect("a file");
    fs::create_dir(mount.join("dir")).expect("a directory");
    fs::write(mount.join("dir/gone"), &content).expect("a file");
    run("sync", &["-f".as_ref(), mount.path().as_os_str()]).must_succeed();
    fs::remove_file(mount.join("dir/gone")).expect("a removal");
    run("sync", &["-f".as_ref(), mount.path().as_os_str()]).must_succeed();
    let copy = dirty.then(|| image.copy());
    mount.unmount();
    let image = copy.unwrap_or(image);
    image.leave_unjudged("nothing is written, or it is dirty");
    (image, content)
}

#[test]
fn deleted_files_are_recovered() {
    let scratch = Scratch::new();
    for (number, (name, dirty)) in
        [("default", false), ("default", true), ("1k", false), ("no_csum", true)].iter().enumerate()
    {
        let (image, content) = deleted(name, *dirty);
        let bytes = image.bytes();
        let dir = scratch.join(format!("into{number}"));
        let found = json(&args!["debug", image.path(), "deleted", "--into", &dir]);
        let gone = found.as_array().expect("an array").iter().find(|file| file["blocks"] != 0);
        let gone = gone.unwrap_or_else(|| panic!("{name}: {found}"));
        assert_eq!(
            (&gone["complete"], &gone["path"]),
            (&true.into(), &"/dir/gone".into()),
            "{gone}"
        );
        assert!(gone["map"].as_str().expect("text").starts_with("transaction "), "{gone}");
        let file = Path::new(gone["recovered"].as_str().expect("a path"));
        assert!(fs::read(file).expect("a file") == content, "{name}: {gone}");
        assert!(image.bytes() == bytes, "nothing is written");
        // A file that is there is not overwritten.
        refused(&args!["debug", image.path(), "deleted", "--into", &dir], 1, "File exists");
    }
    // A removal by debugfs leaves the map in the inode.
    let image = image(FeatureSet::named("ext2"), &scratch);
    let content = debugfs::read_bytes(image.path(), "cat /large");
    let block: u64 = debugfs::read(image.path(), "bmap /large 5").trim().parse().expect("a number");
    debugfs::write(image.path(), "rm /large");
    let list =
        done(&args!["debug", image.path(), "deleted", "--into", scratch.join("ext2")]).text();
    assert!(list.contains("map=inode complete=yes path=/large"), "{list}");
    let ino = list.split(['=', ' ']).nth(1).expect("an inode").to_owned();
    let file = scratch.join("ext2").join(format!("inode-{ino}"));
    assert!(fs::read(&file).expect("a file") == content);
    // A block that is in use again is left out, and that is told.
    debugfs::write(image.path(), &format!("setb {block}"));
    let dir = scratch.join("partly");
    refused(&args!["debug", image.path(), "deleted", "--into", &dir], 1, "parts are missing");
    let partly = fs::read(dir.join(format!("inode-{ino}"))).expect("a file");
    assert_eq!(partly.len(), content.len());
    assert!(partly[..5 * 4096] == content[..5 * 4096]);
    assert!(partly[5 * 4096..6 * 4096].iter().all(|byte| *byte == 0));
    assert!(partly[6 * 4096..] == content[6 * 4096..]);
}

#[test]
fn earlier_states_of_blocks_are_in_the_journal() {
    let (image, _) = deleted("default", true);
    let log = json(&args!["debug", image.path(), "journal"]);
    let transactions: Vec<&Value> = log
        .as_array()
        .expect("an array")
        .iter()
        .filter(|part| part["state"] == "pending")
        .collect();
    assert!(transactions.len() > 1, "{log}");
    assert_eq!(log[0]["pending"], transactions.len(), "{log}");
    let theirs = debugfs::read(image.path(), "logdump -a");
    let named = Named::new();
    assert_eq!(named.call("logdump -a", image.path()).must_succeed().text(), theirs);
    // The inode of the file was in use as of the first transaction that has it.
    let gone = json(&args!["debug", image.path(), "deleted"]);
    let gone = gone.as_array().expect("an array").iter().find(|file| file["blocks"] != 0);
    let ino = gone.expect("a deleted file")["inode"].as_u64().expect("a number");
    let inode = json(&args!["debug", image.path(), "inode", format!("<{ino}>")]);
    let number = &inode[0]["block"];
    let block = number.to_string();
    let has = |found: &&&Value| {
        let blocks = found["blocks"].as_array().expect("an array");
        blocks.iter().any(|copy| copy["block"] == *number)
    };
    let with: Vec<&&Value> = transactions.iter().filter(has).collect();
    let (first, last) = (with.first().expect("one"), with.last().expect("one"));
    assert_ne!(first["sequence"], last["sequence"]);
    let as_of = |transaction: &Value| {
        let sequence = transaction["sequence"].to_string();
        let words = args!["debug", image.path(), "journal", "--block", &block, "--as-of", sequence];
        done(&[&words[..], &args!["--raw"]].concat()).stdout
    };
    let (early, late) = (as_of(first), as_of(last));
    assert!(early.len() == 4096 && late.len() == 4096 && early != late);
    let now = done(&args!["debug", image.path(), "block", &block, "--raw"]).stdout;
    assert!(now == late, "a recovery shows the newest state");
    refused(
        &args!["debug", image.path(), "journal", "--block", "99999999"],
        1,
        "in no committed transaction",
    );
}

#[test]
fn structures_are_shown_with_their_checksums() {
    let image = image(FeatureSet::named("default"), &Scratch::new());
    let shown = |words: &[&str]| {
        let mut all = args!["debug", image.path()].to_vec();
        all.extend(words.iter().map(Into::into));
        json(&all)
    };
    let inode = shown(&["inode", "/a"]);
    assert_eq!((&inode[0]["checksum"], &inode[0]["in_use"]), (&"right".into(), &true.into()));
    assert_eq!(inode[0]["raw"]["links"], 2, "{inode}");
    let stat = debugfs::stat(image.path(), "/a");
    assert_eq!(inode[0]["inode"], stat.ino);
    let extents = shown(&["extents", "/big"]);
    assert_eq!(extents[0]["kind"], "node", "{extents}");
    let dir = shown(&["dir", "/d"]);
    assert_eq!((&dir[0]["checksum"], &dir[3]["name"]), (&"right".into(), &"h".into()), "{dir}");
    let xattrs = shown(&["xattrs", "/a"]);
    assert_eq!((&xattrs[0]["name"], &xattrs[0]["value"]), (&"user.k".into(), &"val".into()));
    let copies = shown(&["superblocks"]);
    assert_eq!(copies[0]["fields"]["inodes_count"], 16384, "{copies}");
    let groups = shown(&["groups"]);
    assert_eq!(groups[0]["checksum"], "right");
    assert_eq!(groups[0]["bitmaps"][0]["free"], groups[0]["free_clusters"], "{groups}");
    let block = extents[1]["physical"].to_string();
    let owner = shown(&["owner", &block, "0"]);
    assert_eq!((&owner[0]["owner"], &owner[0]["path"]), (&"content".into(), &"/big".into()));
    assert_eq!(owner[1]["owner"], "superblock");
    let names = shown(&["names", &stat.ino.to_string()]);
    assert_eq!(names.as_array().map(Vec::len), Some(2), "{names}");
    let free = shown(&["free-space"]);
    assert_eq!(free[0]["free_blocks"], copies[0]["fields"]["free_blocks_count_lo"]);
    let pieces = shown(&["fragmentation"]);
    assert!(pieces[0]["files"].as_u64().expect("a number") > 300, "{pieces}");
    let content = done(&args!["debug", image.path(), "cat", "/large"]).stdout;
    assert!(content == debugfs::read_bytes(image.path(), "cat /large"));
    let raw = done(&args!["debug", image.path(), "block", &block, "--raw"]).stdout;
    let at: usize = block.parse().expect("a number");
    assert!(raw == image.bytes()[at * 4096..(at + 1) * 4096]);
    refused(&args!["debug", image.path(), "inode", "/nope"], 1, "no such file");
    refused(&args!["debug", image.path(), "inode", "99999999"], 1, "does not exist");
    refused(&args!["--json", "debug", image.path(), "cat", "/a"], 2, "no JSON form");
    refused(&args!["debug", image.path()], 2, "Usage");
}

#[test]
fn damaged_images_are_shown_as_far_as_they_can_be_read() {
    let image = image(FeatureSet::named("default"), &Scratch::new());
    let file = fs::File::options().write(true).open(image.path()).expect("an image");
    // The root of the extent tree of a file, and its checksum with it.
    let place = json(&args!["debug", image.path(), "inode", "/large"]);
    let number = |key: &str| place[0][key].as_u64().expect("a number");
    let at = number("block") * 4096 + number("offset");
    file.write_all_at(&[0xff; 4], at + 40).expect("a write");
    let printed = extant(&args!["debug", image.path(), "extents", "/large"]);
    assert!(printed.code == 1 && printed.errors().contains("corrupt extent header"), "{printed}");
    let inode = json(&args!["debug", image.path(), "inode", "/large"]);
    assert_eq!(inode[0]["checksum"], "wrong");
    // The superblock and all descriptors, which other groups have copies of.
    let image = self::image(FeatureSet::named("1k"), &Scratch::new());
    let groups = done(&args!["debug", image.path(), "groups"]).text();
    let file = fs::File::options().write(true).open(image.path()).expect("an image");
    file.write_all_at(&[0; 8192], 0).expect("a write");
    let printed = extant(&args!["debug", image.path(), "stat"]);
    assert_eq!(printed.code, 2, "{printed}");
    let printed = extant(&args!["debug", image.path(), "inode", "/a"]);
    assert!(printed.code == 3 && printed.errors().contains("replaced by a copy"), "{printed}");
    let printed = extant(&args!["debug", image.path(), "groups"]);
    assert_eq!((printed.code, printed.text().lines().count()), (3, groups.lines().count()));
}

/// A directory that only itself has, and one that has the root.
#[test]
fn directories_within_themselves_have_paths() {
    let image = image(FeatureSet::named("default"), &Scratch::new());
    let ino = debugfs::stat(image.path(), "/big").ino;
    let inside = debugfs::stat(image.path(), "/big/a-name-that-is-rather-long-1");
    for request in [&format!("ln <{ino}> /big/self"), "ln <2> /d/up", "unlink /big"] {
        debugfs::write(image.path(), request);
    }
    let names = |ino: u32| {
        let found = json(&args!["debug", image.path(), "names", ino.to_string()]);
        let paths = found.as_array().expect("an array").iter();
        paths.map(|name| name["path"].as_str().expect("a path").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(ino), [format!("<{ino}>/self")]);
    assert_eq!(names(2), ["/", "/d/up"]);
    assert_eq!(names(inside.ino), [format!("<{ino}>/a-name-that-is-rather-long-1")]);
    let through = json(&args!["debug", image.path(), "inode", "/d/up/d/up/a"]);
    assert_eq!(through[0]["links"], 2, "{through}");
}

#[test]
fn metadata_is_saved_under_the_name_e2image() {
    let scratch = Scratch::new();
    let image = image(FeatureSet::named("1k"), &scratch);
    std::os::unix::fs::symlink(EXTANT, scratch.join("e2image")).expect("a link");
    let program = scratch.join("e2image");
    let program = program.to_str().expect("text");
    let (own, named) = (scratch.join("own"), scratch.join("named"));
    for name in ["own", "named"] {
        scratch.leave_unjudged(name, "it has no content of files");
    }
    done(&args!["debug", image.path(), "metadata", &own]);
    for option in ["-r", "-r", "-Qs"] {
        run(program, &args![option, image.path(), &named]).must_succeed();
        let is_same = fs::read(&own).expect("a file") == fs::read(&named).expect("a file");
        assert_eq!(is_same, option == "-r", "{option}");
    }
    run("qemu-img", &args!["check", "-f", "qcow2", &named]).must_succeed();
    for (options, words) in [("-a", "extant clone"), ("-I", "-r and -Q"), ("-f", "-r or -Q")] {
        let refused = run(program, &args![options, image.path(), &named]);
        assert!(refused.code == 1 && refused.errors().contains(words), "{refused}");
    }
}

/// Images of metadata, raw and as qcow2: complete or absent, and as broken as the file system.
#[test]
fn metadata_is_saved() {
    let scratch = Scratch::new();
    let image = image(FeatureSet::named("default"), &scratch);
    image.leave_unjudged("it is damaged below");
    for name in ["raw", "packed"] {
        scratch.leave_unjudged(name, "it has no content of files");
    }
    let (raw, packed) = (scratch.join("raw"), scratch.join("packed"));
    let saved = json(&args!["debug", image.path(), "metadata", &raw]);
    let bytes = fs::metadata(image.path()).expect("an image").len();
    let (found, stored) = (&saved[0], saved[0]["stored_bytes"].as_u64().expect("a number"));
    assert_eq!((&found["bytes"], &found["scrambled"]), (&bytes.into(), &false.into()));
    assert!(stored < bytes / 4 && fs::metadata(&raw).expect("a file").len() == bytes, "{saved}");
    let check = |image: &Path, options: &[&str]| {
        let options = options.iter().map(std::ffi::OsString::from);
        let args: Vec<_> = args!["check", image].into_iter().chain(options).collect();
        let printed = extant(&args);
        (printed.code, printed.text())
    };
    assert_eq!(check(&raw, &[]), check(image.path(), &[]));
    refused(&args!["debug", image.path(), "metadata", &raw], 1, "--force replaces it");
    refused(&args!["debug", image.path(), "metadata", image.path(), "-f"], 1, "image itself");
    let journal = args!["debug", image.path(), "--journal", &raw, "metadata", &raw, "-f"];
    refused(&journal, 1, "image itself");
    debugfs::write(image.path(), "set_inode_field /a links_count 9");
    let options = ["metadata", "--force", "--scramble"];
    let of = |out: &Path, more: &[&str]| {
        let options = options.iter().chain(more).map(std::ffi::OsString::from);
        args!["debug", image.path()].into_iter().chain(options).chain(args![out]).collect()
    };
    let (one, other): (Vec<_>, Vec<_>) = (of(&raw, &[]), of(&packed, &["--qcow2"]));
    done(&one);
    done(&other);
    let damaged = check(image.path(), &[]);
    assert_eq!(damaged.0, 4, "{}", damaged.1);
    assert_eq!(check(&raw, &[]), damaged);
    assert_eq!(check(&packed, &["--format", "qcow2"]), damaged);
    run("qemu-img", &args!["check", &packed]).must_succeed();
    // A device that ends too early: its part is saved, and the end is told.
    let short = scratch.join("short");
    let bytes = image.bytes();
    fs::write(&short, &bytes[..bytes.len() / 2]).expect("a file");
    scratch.leave_unjudged("short", "it is too short");
    let printed = extant(&args!["debug", &short, "metadata", &raw, "-f"]);
    assert!(printed.code == 3 && printed.errors().contains("are missing"), "{printed}");
    assert_eq!(check(&raw, &[]), check(&short, &[]));
}
