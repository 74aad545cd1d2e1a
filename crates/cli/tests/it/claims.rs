//! Multiple mount protection of commands that write below the engine: they refuse the image of
//! another host, and keep other hosts away. `extant_check`'s tests of this name have the single
//! steps.

use crate::args;
use crate::program::{EXTANT, await_that, done, extant, json, refused};
use extant_testkit::kernel::Mount;
use extant_testkit::tool::run;
use extant_testkit::{Image, Scratch, dumpe2fs};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn image() -> Image {
    Image::mke2fs(16 << 20, &["-t", "ext4", "-b", "4096", "-O", "mmp,^metadata_csum"])
}

/// The byte of the sequence number.
fn sequence_at(image: &Path) -> u64 {
    dumpe2fs::header(image).number("MMP block number") * 4096 + 4
}

fn sequence(image: &Path, at: u64) -> u32 {
    let mut bytes = [0; 4];
    File::open(image).expect("an image").read_exact_at(&mut bytes, at).expect("a block");
    u32::from_le_bytes(bytes)
}

const CLEAN: u32 = 0xFF4D_4D50;
const FSCK: u32 = 0xE24D_4D50;

/// The commands that write an image below the engine.
fn commands(image: &Path, scratch: &Scratch) -> Vec<Vec<OsString>> {
    let script = scratch.join("script");
    fs::write(&script, "mkdir /new\n").expect("a file");
    vec![
        args!["tune", "-L", "new", image].to_vec(),
        args!["repair", image].to_vec(),
        args!["resize", image, "24M"].to_vec(),
        args!["trim", image].to_vec(),
        args!["apply", image, script].to_vec(),
        args!["recover", image].to_vec(),
        args!["tune", "-O", "^has_journal", image].to_vec(),
    ]
}

#[test]
fn a_file_system_that_is_checked_elsewhere_is_not_changed() {
    let (image, scratch) = (image(), Scratch::new());
    let at = sequence_at(image.path());
    let file = File::options().write(true).open(image.path()).expect("an image");
    file.write_all_at(&FSCK.to_le_bytes(), at).expect("a write");
    image.leave_unjudged("another host checks it");
    let before = image.bytes();
    for command in commands(image.path(), &scratch) {
        let code = if command[0] == "repair" { 8 } else { 1 };
        refused(&command, code, "(MMP)");
        assert!(image.bytes() == before, "{command:?} wrote");
    }
}

/// A repair that was killed leaves its claim, which the user ends. Another host that still writes
/// the block is noticed, unless the user insists.
#[test]
fn the_claim_of_a_killed_repair_is_cleared() {
    let image = image();
    let at = sequence_at(image.path());
    let file = File::options().write(true).open(image.path()).expect("an image");
    file.write_all_at(&FSCK.to_le_bytes(), at).expect("a write");
    image.leave_unjudged("a host has claimed it");
    let theirs = image.copy();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The time of a check under way.
            for time in 1u64.. {
                file.write_all_at(&time.to_le_bytes(), at + 4).expect("a write");
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        let printed = extant(&args!["tune", image.path(), "--clear-mmp"]);
        ended.store(true, Ordering::Relaxed);
        assert!(printed.code == 1 && printed.errors().contains("in use"), "{printed}");
    });
    assert_eq!(sequence(image.path(), at), FSCK);
    let document = json(&args!["tune", "-f", "-E", "clear_mmp", image.path()]);
    assert_eq!(document["changed"], serde_json::json!(["mmp_claim"]));
    run("tune2fs", &args!["-f", "-E", "clear_mmp", theirs.path()]).must_succeed();
    let block = |image: &Image| {
        let mut bytes = vec![0; 4096];
        let file = File::open(image.path()).expect("an image");
        file.read_exact_at(&mut bytes, at - 4).expect("a block");
        // Without time and names.
        bytes[0x08..0x70].fill(0);
        bytes
    };
    assert_eq!(sequence(image.path(), at), CLEAN);
    assert!(block(&image) == block(&theirs));
    image.assert_clean();
    let again = done(&args!["tune", "--clear-mmp", image.path()]);
    assert!(again.errors().contains("no host has left a claim"), "{again}");
    refused(&args!["tune", "--force", image.path()], 2, "--clear-mmp");
    // Something else is in the place of the block.
    image.leave_unjudged("its block is damaged");
    file.write_all_at(b"content", at - 4).expect("a write");
    refused(&args!["tune", "--clear-mmp", "-f", image.path()], 1, "magic");
    let found = fs::read(image.path()).expect("an image");
    assert!(found[at as usize - 4..].starts_with(b"content"));
    let other = Image::mke2fs(16 << 20, &["-t", "ext4"]);
    refused(&args!["tune", "--clear-mmp", other.path()], 1, "no multi-mount protection");
}

/// The claim ends with the feature, and nothing writes the block then.
#[test]
fn multi_mount_protection_is_removed_under_a_claim() {
    let image = image();
    done(&args!["tune", "-O", "^mmp", image.path()]);
    assert!(!dumpe2fs::header(image.path()).features().contains("mmp"));
    image.assert_clean();
}

/// The other host renews its claim.
#[test]
fn a_file_system_that_is_mounted_elsewhere_is_not_changed() {
    each(commands, |image, command| {
        let at = sequence_at(image.path());
        let file = File::options().write(true).open(image.path()).expect("an image");
        image.leave_unjudged("another host has it");
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for sequence in 1u32.. {
                    file.write_all_at(&sequence.to_le_bytes(), at).expect("a write");
                    if ended.load(Ordering::Relaxed) {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(500));
                }
            });
            let printed = extant(command);
            ended.store(true, Ordering::Relaxed);
            assert_eq!(printed.code, if command[0] == "repair" { 8 } else { 1 }, "{printed}");
            assert!(printed.errors().contains("in use"), "{printed}");
        });
        let header = dumpe2fs::header(image.path());
        assert_eq!(header.value("Filesystem volume name"), "<none>");
    });
}

/// A script that has claimed the image and waits for its standard input.
fn applying(image: &Path, scratch: &Scratch, at: u64) -> Child {
    let script = scratch.join("script");
    fs::write(&script, "put - /file\n").expect("a file");
    let child = Command::new(EXTANT)
        .args([Path::new("apply"), image, &script])
        .stdin(Stdio::piped())
        .spawn()
        .expect("the program runs");
    await_that("the claim", || sequence(image, at) != CLEAN);
    child
}

/// Its claim is renewed.
#[test]
fn the_kernel_is_refused_while_a_script_is_applied() {
    let (image, scratch) = (image(), Scratch::new());
    let at = sequence_at(image.path());
    let mut child = applying(image.path(), &scratch, at);
    let claimed = sequence(image.path(), at);
    let mounted = Mount::try_new(image.path(), "");
    assert!(mounted.is_err(), "the kernel mounts it during a change");
    await_that("a renewal", || sequence(image.path(), at) != claimed);
    child.stdin.take().expect("a pipe").write_all(b"text").expect("a reader");
    assert!(child.wait().expect("a child").success());
    assert_eq!(sequence(image.path(), at), CLEAN);
    image.assert_clean();
    assert_eq!(done(&args!["cat", image.path(), "/file"]).stdout, b"text");
}

/// Power fails while a script is applied: after a while without a sign, another host goes on.
#[test]
fn a_killed_script_gives_the_file_system_up() {
    let (image, scratch) = (image(), Scratch::new());
    let at = sequence_at(image.path());
    let mut child = applying(image.path(), &scratch, at);
    child.kill().expect("a child");
    child.wait().expect("a child");
    assert_ne!(sequence(image.path(), at), CLEAN);
    let printed = done(&args!["tune", "-L", "new", image.path()]);
    assert!(printed.errors().contains("waiting 11 seconds"), "{printed}");
    assert_eq!(sequence(image.path(), at), CLEAN);
    image.assert_clean();
}

/// Each command releases its claim, and the file system is valid.
#[test]
fn claims_end_with_their_command() {
    each(commands, |image, command| {
        let at = sequence_at(image.path());
        let printed = extant(command);
        assert_eq!(printed.code, 0, "{printed}");
        assert!(printed.errors().contains("waiting 11 seconds"), "{printed}");
        assert_eq!(sequence(image.path(), at), CLEAN, "{printed}");
        image.assert_clean();
    });
}

/// A command that fails has left the block as it was, and one without changes does not claim it.
#[test]
fn failures_leave_the_block_as_it_was() {
    let impossible = |image: &Path, _: &Scratch| {
        vec![
            args!["tune", "-O", "bigalloc", image].to_vec(),
            args!["resize", image, "1M"].to_vec(),
            args!["resize", "-n", image, "32M"].to_vec(),
            args!["tune", image].to_vec(),
        ]
    };
    each(impossible, |image, command| {
        let before = image.bytes();
        let printed = extant(command);
        let changes = command[1] == "-O" || command.len() == 3 && command[0] == "resize";
        assert_eq!(printed.code, i32::from(changes), "{printed}");
        assert_eq!(printed.errors().contains("waiting"), changes, "{printed}");
        assert!(image.bytes() == before, "{command:?} wrote");
    });
}

/// Calls `work` with an image of its own for each of the commands, all at once: each waits for
/// seconds.
fn each(
    commands: impl Fn(&Path, &Scratch) -> Vec<Vec<OsString>>,
    work: impl Fn(&Image, &[OsString]) + Sync,
) {
    let scratch = Scratch::new();
    let count = commands(Path::new(""), &scratch).len();
    let images: Vec<Image> = (0..count).map(|_| image()).collect();
    std::thread::scope(|scope| {
        for (n, image) in images.iter().enumerate() {
            let command = commands(image.path(), &scratch).swap_remove(n);
            let work = &work;
            scope.spawn(move || work(image, &command));
        }
    });
}
