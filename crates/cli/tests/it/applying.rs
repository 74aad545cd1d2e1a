//! `extant apply`: all edits of a script or none, as the single commands make them.

use crate::args;
use crate::program::{EXTANT, done, extant, json, refused};
use crate::recovery::crashed;
use extant_check::RedoRecord;
use extant_check::edit::{Edit, EditBase};
use extant_engine::device::BlockDevice;
use extant_engine::{Fs, NodeKind, OpenOptions};
use extant_testkit::kernel::Mount;
use extant_testkit::memory::Memory;
use extant_testkit::tool::run;
use extant_testkit::{FeatureSet, Image, Scratch, debugfs};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

/// Edits of all kinds: the command, and its arguments behind the image.
const EDITS: &[(&str, &[&str])] = &[
    ("mkdir", &["-p", "-m", "750", "--owner", "1:2", "/srv/with space/deep"]),
    ("mkdir", &["/empty"]),
    ("put", &["tree", "/srv/tree"]),
    ("put", &["tree/file", "/srv/with space/"]),
    ("put", &["--owner", "7:8", "tree/file", "/srv/it's \"quoted\" \\ \n$HOME"]),
    ("put", &["tree/large", "/srv/tree/file"]),
    ("ln", &["/srv/tree/file", "/hard"]),
    ("ln", &["-s", "../some where", "/srv/link"]),
    ("ln", &["/srv/tree/file", "/srv/tree/large", "/empty"]),
    ("mknod", &["/srv/null", "c", "1", "3", "-m", "666"]),
    ("mknod", &["/srv/disk", "b", "8", "300", "--owner", "0:6"]),
    ("mknod", &["/srv/pipe", "p"]),
    ("mknod", &["/srv/socket", "s"]),
    ("chmod", &["600", "/hard", "/empty"]),
    ("chown", &["1000:1001", "/srv/link", "/hard"]),
    ("setfattr", &["-n", "user.text", "-V", "a b", "/srv/tree"]),
    ("setfattr", &["-n", "user.bytes", "-V", "0x00ff", "/srv/tree"]),
    ("setfattr", &["-x", "user.text", "/srv/tree"]),
    ("truncate", &["-s", "10k", "/srv/tree/large"]),
    ("mv", &["/hard", "/srv/with space/moved"]),
    ("mv", &["/srv/tree/sub", "/empty"]),
    ("rm", &["/srv/tree/gone"]),
    ("rm", &["-rf", "/empty/sub", "/none"]),
    ("utimes", &["@1700000000.25", "/srv/tree", "/srv/link", "/srv/with space"]),
    ("utimes", &["-m", "20200102", "/empty"]),
];

/// Returns a word as a shell quotes it.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// The edits as a script.
fn script() -> String {
    let line = |(command, args): &(&str, &[&str])| {
        let words: Vec<String> = args.iter().map(|word| quoted(word)).collect();
        format!("{command} {}\n", words.join(" "))
    };
    EDITS.iter().map(line).collect()
}

/// Files to put.
fn stage() -> Scratch {
    let scratch = Scratch::new();
    let tree = scratch.dir("tree");
    fs::create_dir(tree.join("sub")).unwrap();
    fs::write(tree.join("file"), "text").unwrap();
    fs::write(tree.join("gone"), [1; 5000]).unwrap();
    fs::write(tree.join("sub/inner"), "inner").unwrap();
    fs::write(tree.join("large"), (0..400_000u32).map(|n| n as u8).collect::<Vec<_>>()).unwrap();
    scratch
}

/// Runs the program in a directory, with standard input.
fn within(dir: &Path, arguments: &[OsString], input: &[u8]) -> extant_testkit::tool::Printed {
    let mut child = Command::new(EXTANT)
        .args(arguments)
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    // A program that refuses its arguments reads nothing.
    let _ = stdin.write_all(input);
    drop(stdin);
    let out = child.wait_with_output().expect("the program ends");
    extant_testkit::tool::Printed {
        command: format!("extant {arguments:?}"),
        code: out.status.code().unwrap_or(-1),
        stdout: out.stdout,
        stderr: out.stderr,
    }
}

#[track_caller]
fn apply(dir: &Path, image: &Path, script: &[u8]) -> extant_testkit::tool::Printed {
    within(dir, &args!["apply", image, "-"], script)
}

/// Applies a script that must fail and change nothing.
#[track_caller]
fn fails(dir: &Path, image: &Image, script: &[u8], words: &[&str]) {
    let before = image.bytes();
    let printed = apply(dir, image.path(), script);
    assert!([1, 2].contains(&printed.code), "{printed}");
    for word in words {
        assert!(printed.errors().contains(word), "{word}: {printed}");
    }
    assert!(image.bytes() == before, "changed: {printed}");
}

fn hash(image: &Path) -> String {
    done(&args!["hash", "--ignore", "times", image]).text()
}

#[test]
fn a_script_makes_what_single_commands_make() {
    let stage = stage();
    for set in ["default", "1k", "ext3", "inline_data", "bigalloc"] {
        let [one, all] = [(); 2].map(|()| FeatureSet::named(set).make());
        for (command, args) in EDITS {
            let mut words = args![*command, one.path()].to_vec();
            words.extend(args.iter().map(OsString::from));
            within(stage.path(), &words, b"").must_succeed();
        }
        fs::write(stage.join("script"), script()).unwrap();
        let before = all.bytes();
        let planned =
            within(stage.path(), &args!["apply", "-n", all.path(), "script"], b"").must_succeed();
        assert!(all.bytes() == before, "{set}: a trial wrote");
        assert_eq!(planned.text().lines().count(), EDITS.len(), "{planned}");
        assert!(planned.text().contains("script:1: mkdir -p"), "{planned}");
        within(stage.path(), &args!["apply", all.path(), "script"], b"").must_succeed();
        assert_eq!(hash(one.path()), hash(all.path()), "{set}");
        all.assert_clean();
        let time = "stat -c %.2Y";
        let mount = Mount::new(all.path(), "");
        let dir = mount.path().display();
        let times = format!("{time} {dir}/srv/tree {dir}/srv/link {dir}/empty");
        let printed = run("sh", &["-c", &times]).must_succeed().text();
        assert_eq!(printed, "1700000000.25\n1700000000.25\n1577923200.00\n", "{set}");
        fs::write(mount.join("by the kernel"), "text").unwrap();
        mount.unmount();
        all.assert_clean();
    }
}

#[test]
fn a_report_names_edits_paths_and_blocks() {
    let stage = stage();
    let image = FeatureSet::named("default").make();
    fs::write(stage.join("script"), "# two edits\n\nmkdir /a\nmkdir /b /c\n").unwrap();
    for dry_run in [true, false] {
        let mut arguments = args!["apply", image.path(), stage.join("script")].to_vec();
        arguments.extend(dry_run.then(|| "--dry-run".into()));
        let report = json(&arguments);
        assert_eq!(report["dry_run"], dry_run);
        assert_eq!(report["edits"][0]["line"], 3, "{report}");
        assert_eq!(report["edits"][1]["command"], "mkdir /b /c");
        assert_eq!(report["edits"][1]["changed"][1]["path"], "/c");
        assert!(report["blocks"]["in_use"].as_u64() > Some(2), "{report}");
        assert_eq!(report["blocks"]["new"], 3, "{report}");
    }
    // A list that cannot be printed is a failure, and no panic.
    let command =
        format!("echo mkdir /d | {EXTANT} apply -n {} >/dev/full", image.path().display());
    let printed = run("sh", &["-c", &command]);
    assert_eq!(printed.code, 1, "{printed}");
    assert!(printed.errors().contains("standard output: "), "{printed}");
    image.assert_clean();
}

#[test]
fn a_failed_edit_leaves_the_image_unchanged() {
    let stage = stage();
    let image = FeatureSet::named("default").make();
    let name = image.path().display().to_string();
    let end = format!("{name} is unchanged");
    for (script, place, cause) in [
        ("mkdir /a\nput tree /a/t\nrm /nope\nmkdir /b\n", ":3: rm /nope: ", "no such file"),
        ("mkdir /a\nrm /a /x\n", ":2: rm /a /x: ", "/a: is a directory (-r removes"),
        ("mkdir /a\nput missing /a/b\n", ":2: put missing /a/b: ", "No such file"),
        ("put tree /t\nmkdir /t/file\n", ":2: mkdir /t/file: ", "exists"),
        ("put tree /\nln /file /large /no/dir\n", ":2: ln ", "ot a directory"),
        ("mkdir /a\nmknod /a/x c 99999999 1\n", ":2: mknod ", "/a/x"),
        ("mkdir /d\nput tree/file /d\nput tree /d/file\n", ":3: put ", "ot a directory"),
        ("mkdir /d\nmkdir /d/file\nput tree /d\n", ":3: put tree /d: ", "file: is a directory"),
    ] {
        fails(stage.path(), &image, script.as_bytes(), &[place, cause, &end]);
    }
    let printed =
        within(stage.path(), &args!["--json", "apply", image.path()], b"mkdir /a\nrm /nope\n");
    assert_eq!(printed.code, 1, "{printed}");
    let document: serde_json::Value = serde_json::from_slice(&printed.stdout).unwrap();
    assert_eq!(document["error"]["path"], "/nope", "{document}");
    assert_eq!(document["line"], 2, "{document}");
}

/// The disk is full in the middle: of blocks, or of inodes.
#[test]
fn a_full_disk_leaves_the_image_unchanged() {
    let stage = stage();
    fs::write(stage.join("huge"), vec![3; 40 << 20]).unwrap();
    let image = Image::mke2fs(32 << 20, &["-t", "ext4", "-N", "64"]);
    let blocks = b"mkdir /a\nput tree /a/tree\nput huge /a/huge\nmkdir /b\n";
    fails(stage.path(), &image, blocks, &[":3: put huge /a/huge: ", "o space left", "unchanged"]);
    let many: String = (0..100).map(|n| format!("mkdir /{n}\n")).collect();
    fails(stage.path(), &image, many.as_bytes(), &[": mkdir /", "o space left", "unchanged"]);
    apply(stage.path(), image.path(), b"put tree /tree").must_succeed();
    image.assert_clean();
}

#[test]
fn a_dirty_image_is_recovered_before() {
    let stage = stage();
    for set in ["default", "orphan_file", "ext3"] {
        let image = crashed(FeatureSet::named(set));
        image.leave_unjudged("its copies are");
        let bytes = image.bytes();
        // In memory only.
        let trial = json(&args!["apply", "-n", image.path(), "/dev/null"]);
        assert_eq!(trial["recovery"]["orphans"]["freed"], 1, "{set}: {trial}");
        assert!(image.bytes() == bytes, "{set}: a trial wrote");
        let recovered = image.copy();
        done(&args!["recover", recovered.path()]);
        // A script that fails leaves the recovered image, one that is wrong leaves all bytes.
        fails(stage.path(), &image, b"mkdir /new\nchmod x /f2\n", &[":2: chmod x /f2"]);
        let failed = image.copy();
        let printed = apply(stage.path(), failed.path(), b"mkdir /new\nrm /none\n");
        let state = "was recovered, and is otherwise unchanged";
        assert!(printed.code == 1 && printed.errors().contains(state), "{printed}");
        assert_eq!(hash(failed.path()), hash(recovered.path()), "{set}");
        failed.assert_clean();
        let changed = image.copy();
        let printed = apply(stage.path(), changed.path(), b"mkdir /new\nrm /f2\nput tree /f3\n");
        // The third one is a file.
        assert_eq!(printed.code, 1, "{printed}");
        let printed = apply(stage.path(), changed.path(), b"mkdir /new\nrm /f2\nmv /f3 /new\n");
        printed.must_succeed();
        changed.assert_clean();
        for command in [
            &args!["mkdir", recovered.path(), "/new"][..],
            &args!["rm", recovered.path(), "/f2"],
            &args!["mv", recovered.path(), "/f3", "/new"],
        ] {
            done(command);
        }
        assert_eq!(hash(changed.path()), hash(recovered.path()), "{set}");
    }
}

#[test]
fn hostile_scripts_are_refused_or_obeyed_within_the_image() {
    let stage = stage();
    let image = FeatureSet::named("default").make();
    let long = format!("mkdir /{}", "x".repeat(1 << 20));
    for (script, words) in [
        (&b"mkdir '/a\n"[..], &[":1: ", "a quote has no end"][..]),
        (b"mkdir /a\nmkdir \\", &[":2: ", "end of the script"]),
        (b"\x7fELF\x02\x01\0\0", &[":1: ", "byte 0"]),
        (b"\xff\xfe\xfd", &[":1: \\xff", "unrecognized subcommand"]),
        (b"mkdir /a\nmount /b\n", &[":2: mount", "unrecognized subcommand"]),
        (b"mkdir\n", &[":1: mkdir: ", "not provided"]),
        (b"mkdir --help\n", &[":1: mkdir --help"]),
        (b"--help\n", &[":1: --help"]),
        (b"help\n", &[":1: help"]),
        (b"mknod /x c\n", &[":1: mknod /x c: ", "major"]),
        (b"mknod /x p 1 2\n", &[":1: ", "only a device"]),
        (b"setfattr -n user.a -V 0x1 /\n", &[":1: ", "even number"]),
        (b"put - /a\n", &[":1: put - /a", "standard input"]),
        (long.as_bytes(), &["name too long", "unchanged"]),
        (b"mkdir \"\"\n", &[":1: mkdir ", "unchanged"]),
        (b"rm -r /\n", &["root directory stays"]),
    ] {
        fails(stage.path(), &image, script, words);
    }
    for nothing in [&b""[..], b"\n\n", b"# only a comment", b" \t\r\n"] {
        let before = image.bytes();
        let printed = apply(stage.path(), image.path(), nothing).must_succeed();
        assert!(printed.errors().contains("0 edits"), "{printed}");
        assert!(image.bytes() == before);
    }
    // Symlinks of the image lead to places of the image.
    let outside = stage.dir("outside");
    let script = [
        &b"symlink "[..],
        outside.as_os_str().as_bytes(),
        b" /out\nmkdir -p ",
        outside.as_os_str().as_bytes(),
        b"\nput tree/file /out/escaped\nmkdir /../../up\nln -s ../../../.. /dots\nmkdir /dots/in\n\
          mkdir \"/a\nb\" /\xff\xfe\n",
    ]
    .concat();
    apply(stage.path(), image.path(), &script).must_succeed();
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    let place = [outside.as_os_str().as_bytes(), b"/escaped"].concat();
    assert_eq!(done(&args!["cat", image.path(), OsStr::from_bytes(&place)]).text(), "text");
    done(&args!["stat", image.path(), "/up", "/in", "/a\nb", OsStr::from_bytes(b"/\xff\xfe")]);
    image.assert_clean();
}

/// Standard input is the script, or the content of one file.
#[test]
fn standard_input_is_read_once() {
    let stage = stage();
    let image = FeatureSet::named("default").make();
    fs::write(stage.join("script"), "put - /a\nchmod 600 /a\n").unwrap();
    let arguments = args!["apply", image.path(), "script"];
    within(stage.path(), &arguments, b"content").must_succeed();
    assert_eq!(done(&args!["cat", image.path(), "/a"]).text(), "content");
    fs::write(stage.join("script"), "put - /a\nput - /b\n").unwrap();
    let before = image.bytes();
    let printed = within(stage.path(), &arguments, b"content");
    assert_eq!(printed.code, 2, "{printed}");
    assert!(printed.errors().contains("script:2: put - /b: standard input is read"), "{printed}");
    assert!(image.bytes() == before);
}

#[test]
fn a_file_system_without_a_journal_needs_consent() {
    let stage = stage();
    let image = FeatureSet::named("ext2").make();
    fails(stage.path(), &image, b"mkdir /a", &["no journal", "--in-place"]);
    let trial = within(stage.path(), &args!["apply", "-n", image.path()], b"mkdir /a");
    assert!(trial.must_succeed().errors().contains("needs --redo or --in-place"));
    let arguments = args!["apply", "--in-place", image.path()];
    within(stage.path(), &arguments, b"mkdir /a\nput tree /a").must_succeed();
    assert_eq!(done(&args!["cat", image.path(), "/a/file"]).text(), "text");
    image.assert_clean();
}

/// Interrupts a change of the image when its redo file is complete. Returns that.
fn interrupted(image: &Path) -> Vec<u8> {
    let memory = Arc::new(Memory::from_bytes(&fs::read(image).unwrap()));
    memory.leave_unjudged("the image is judged");
    let device: Arc<dyn BlockDevice> = memory.clone();
    let base = EditBase { device: &device, journal: None, threads: 1 };
    let overlay = Arc::new(base.overlay(64 << 20).unwrap());
    let made = Fs::open_device(overlay.clone(), &OpenOptions::new()).unwrap();
    made.create(&made.root().unwrap(), b"made", 0o755, NodeKind::Dir).unwrap();
    made.unmount().unwrap();
    let (edit, mut file) = (Edit::plan(base, overlay).unwrap(), Vec::new());
    let mut save = |redo: &RedoRecord<'_>| {
        fs::write(image, memory.to_vec())?;
        redo.write_to(&mut file)
    };
    edit.apply_with_redo(&mut save).unwrap();
    file
}

#[test]
fn a_redo_file_holds_a_change_without_a_journal_until_it_is_made() {
    let stage = stage();
    let image = FeatureSet::named("ext2").make();
    let redo = stage.join("redo");
    let arguments = args!["apply", "--redo", &redo, image.path()];
    let printed = within(stage.path(), &arguments, b"mkdir /a\nput tree /a").must_succeed();
    let command = format!("`extant recover --redo {} ", redo.display());
    assert!(printed.errors().contains(&command), "{printed}");
    assert!(!redo.exists(), "the file of a change that is made stays");
    assert_eq!(done(&args!["cat", image.path(), "/a/file"]).text(), "text");
    image.assert_clean();
    fs::write(&redo, interrupted(image.path())).unwrap();
    let before = image.bytes();
    let printed = within(stage.path(), &arguments, b"mkdir /b");
    assert!(printed.code == 1 && printed.errors().contains(&command), "{printed}");
    assert!(image.bytes() == before, "a refused edit wrote");
    let recover = args!["recover", "--redo", &redo, image.path()];
    assert!(done(&recover).errors().contains("completed a change of "));
    assert!(json(&args!["stat", image.path(), "/made"]).to_string().contains("directory"));
    image.assert_clean();
    assert!(done(&recover).errors().contains("made already"));
    done(&args!["rm", "-r", image.path(), "/made"]);
    let before = image.bytes();
    refused(&recover, 1, "the image was changed since");
    assert!(image.bytes() == before, "a refused recovery wrote");
    fs::write(&redo, "x").unwrap();
    refused(&recover, 1, "redo file");
    // A journal needs none.
    let image = FeatureSet::named("default").make();
    let unused = stage.join("unused");
    let arguments = args!["apply", "--redo", &unused, image.path()];
    let printed = within(stage.path(), &arguments, b"mkdir /a").must_succeed();
    assert!(!printed.errors().contains("--redo") && !unused.exists(), "{printed}");
}

/// Old content that new content takes the place of goes through the journal, which is too small.
#[test]
fn changes_beyond_the_journal_are_refused() {
    let stage = stage();
    fs::write(stage.join("huge"), vec![3; 20 << 20]).unwrap();
    fs::write(stage.join("other"), vec![4; 20 << 20]).unwrap();
    let image = Image::mke2fs(32 << 20, &["-t", "ext4", "-b", "1024", "-J", "size=1"]);
    apply(stage.path(), image.path(), b"put huge /huge").must_succeed();
    let script = b"rm /huge\nput other /other";
    fails(stage.path(), &image, script, &["blocks in use change", "the journal has", "in parts"]);
    apply(stage.path(), image.path(), b"rm /huge").must_succeed();
    apply(stage.path(), image.path(), b"put other /other").must_succeed();
    image.assert_clean();
}

/// Attributes of many files: free space serves as a larger journal.
#[test]
fn changes_beyond_the_journal_go_through_free_space() {
    let stage = stage();
    let many = stage.dir("many");
    (0..1200).for_each(|n| fs::write(many.join(format!("{n}")), "").unwrap());
    let image = Image::mke2fs(16 << 20, &["-t", "ext4", "-b", "1024", "-J", "size=1"]);
    let values = |letter: &str| -> String {
        let line = |n| format!("setfattr -n user.v -V v{n}{} /many/{n}\n", letter.repeat(300));
        (0..1200).map(line).collect()
    };
    let first = format!("put many /many\n{}", values("a"));
    apply(stage.path(), image.path(), first.as_bytes()).must_succeed();
    let before = image.bytes();
    let script = values("b");
    let dry = args!["apply", "-v", "--dry-run", image.path(), "-"];
    let printed = within(stage.path(), &dry, script.as_bytes()).must_succeed();
    assert!(printed.errors().contains("exceed the journal"), "{printed}");
    assert!(image.bytes() == before, "changed: {printed}");
    apply(stage.path(), image.path(), script.as_bytes()).must_succeed();
    image.assert_clean();
    let found = debugfs::read(image.path(), "ea_get /many/777 user.v");
    assert!(found.contains(&"b".repeat(300)), "{found}");
    let size = debugfs::read(image.path(), "stat <8>");
    assert!(size.contains("Size: 1048576"), "{size}");
}

#[test]
fn images_that_cannot_be_changed_are_refused() {
    let stage = stage();
    let script = stage.join("script");
    fs::write(&script, "mkdir /a\n").unwrap();
    let image = FeatureSet::named("default").make();
    let mount = Mount::new(image.path(), "");
    refused(&args!["apply", image.path(), &script], 1, "in use");
    mount.unmount();
    refused(&args!["apply", stage.join("none"), &script], 1, "none");
    refused(&args!["apply", image.path(), stage.join("no script")], 1, "no script");
    let blank = stage.file("blank", 1 << 20);
    refused(&args!["apply", &blank, &script], 1, "no file system");
    let swap = stage.file("swap", 1 << 20);
    run("mkswap", &args![&swap]).must_succeed();
    refused(&args!["apply", &swap, &script], 1, "swap");
    image.assert_clean();
}

/// The journal on another device takes the transaction.
#[test]
fn an_external_journal_is_used() {
    let stage = stage();
    let journal = stage.file("journal", 8 << 20);
    run("mke2fs", &args!["-q", "-F", "-O", "journal_dev", "-b", "4096", &journal]).must_succeed();
    stage.leave_unjudged("journal", "it holds a journal only");
    let loop_device = extant_testkit::kernel::Loop::attach(&journal, false);
    let option = format!("device={}", loop_device.device().display());
    let image = Image::mke2fs(64 << 20, &["-t", "ext4", "-b", "4096", "-J", &option]);
    drop(loop_device);
    fails(stage.path(), &image, b"mkdir /a", &["journal"]);
    let arguments = args!["apply", "--journal", &journal, image.path()];
    within(stage.path(), &arguments, b"mkdir /a\nput tree /a/tree").must_succeed();
    let found = debugfs::read(image.path(), "ls /a/tree");
    assert!(found.contains("large"), "{found}");
    extant(&args!["check", "--journal", &journal, image.path()]).must_succeed();
    image.leave_unjudged("its journal is not at hand");
}
