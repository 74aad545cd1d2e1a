//! Append-only and immutable files against users with open descriptors, as with the kernel's ext4.

use crate::oracle::{Notes, as_user, same_with_each_cache};
use crate::permissions::{USER, set_flags, set_mode};
use crate::watchdog::await_that;
use extant_testkit::tool;
use rustix::fs::{IFlags, OFlags, fcntl_setfl};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const OLD: &[u8] = b"AAAAAAAAAAAAAAAA";

/// A file that any user may write.
fn writable(path: &Path) {
    fs::write(path, OLD).expect("write");
    set_mode(path, 0o666).expect("chmod");
}

/// Opens as a user.
fn opened(path: &Path, options: &OpenOptions) -> File {
    as_user(USER, USER, || options.open(path)).expect("a user opens")
}

fn reading() -> OpenOptions {
    File::options().read(true).clone()
}

/// Removes O_APPEND from the descriptor and writes at the start. Returns an error of the write or
/// of the fsync.
fn overwrite(file: &File) -> io::Result<()> {
    fcntl_setfl(file, OFlags::empty())?;
    let written = file.write_all_at(b"HACK", 0).and_then(|()| file.sync_all());
    fcntl_setfl(file, OFlags::APPEND)?;
    written
}

/// Starts a program that maps the file for writing and reads commands.
fn mapping(path: &Path, options: &[&str]) -> Child {
    Command::new(tool::need("xfs_io"))
        .args(options)
        .arg(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("xfs_io runs")
}

/// Sends a command and waits until the program has executed all earlier ones.
fn tell(program: &mut Child, command: &str) {
    let input = program.stdin.as_mut().expect("a pipe");
    writeln!(input, "{command}").expect("the program takes commands");
}

/// Consumes errors of writeback: the kernel reports them once per open file.
fn told_of_errors(dir: &Path, file: &File) {
    let _ = file.sync_all();
    let _ = nix::unistd::syncfs(File::open(dir).expect("open"));
}

fn contents(dir: &Path, notes: &mut Notes) {
    let mut names: Vec<_> =
        fs::read_dir(dir).expect("read_dir").map(|e| e.expect("entry").file_name()).collect();
    names.sort();
    for name in names.into_iter().filter(|name| name != "lost+found") {
        let data = fs::read(dir.join(&name)).expect("read");
        let sum =
            data.iter().fold(0u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
        notes.value(
            format!("{name:?}"),
            (data.len(), sum, String::from_utf8_lossy(&data[..data.len().min(40)])),
        );
    }
}

#[test]
pub fn append_only_files_are_only_appended_to() {
    same_with_each_cache(
        "default",
        |dir, notes| {
            let path = dir.join("log");
            writable(&path);
            notes.call("chattr", set_flags(&path, IFlags::APPEND));
            for options in [File::options().append(true), File::options().read(true).append(true)] {
                let mut file = opened(&path, options);
                notes.call("append", file.write_all(b"first "));
                notes.call("overwrite", as_user(USER, USER, || overwrite(&file)));
                notes.call("write behind the end", file.write_all_at(b"hole", 100_000));
                notes.call("set the length", file.set_len(3));
                notes.call("append again", file.write(b"more "));
                notes.call("append much", file.write_all(&[b'm'; 3_000_000]));
                let copied = rustix::fs::copy_file_range(
                    File::open(&path).expect("open"),
                    Some(&mut 0),
                    &file,
                    Some(&mut 0),
                    4,
                );
                notes.value("copy", copied.is_ok());
            }
            for options in [["-a", "-f"], ["-a", "-a"]] {
                let mut program = mapping(&path, &options);
                tell(&mut program, "mmap -rw 0 16");
                tell(&mut program, "mwrite -S 0x58 0 4");
                tell(&mut program, "msync -s");
                notes.value("xfs_io", program.wait_with_output().is_ok());
            }
            notes.call(
                "content",
                fs::read(&path).map(|data| (data.len(), data[..OLD.len()].to_vec())),
            );
        },
        contents,
    );
}

#[test]
pub fn a_cleared_append_flag_holds_for_no_request() {
    same_with_each_cache(
        "default",
        |dir, notes| {
            // With pages of the file in the cache.
            let path = dir.join("log");
            writable(&path);
            let reader = File::open(&path).expect("open");
            notes.call("chattr", set_flags(&path, IFlags::APPEND));
            for round in 0..10 {
                let mut file = opened(&path, File::options().append(true));
                notes.call("append", file.write_all(format!("line {round}\n").as_bytes()));
                notes.call("overwrite", overwrite(&file));
                let mut seen = [0; 400];
                let len = reader.read_at(&mut seen, 0).expect("read");
                notes.value("seen", String::from_utf8_lossy(&seen[..len]));
            }
            notes.call("chattr", set_flags(&path, IFlags::empty()));
            let file = opened(&path, File::options().append(true));
            notes.call("overwrite", overwrite(&file));
        },
        contents,
    );
}

#[test]
pub fn descriptors_from_before_a_file_was_append_only() {
    same_with_each_cache(
        "default",
        |dir, notes| {
            for name in ["plain", "appending"] {
                writable(&dir.join(name));
            }
            let plain = opened(&dir.join("plain"), reading().write(true));
            let mut appending = opened(&dir.join("appending"), reading().append(true));
            notes.call(
                "write",
                plain.write_all_at(b"before", 1).and_then(|()| appending.write_all(b"before")),
            );
            notes.call("chattr", set_flags(&dir.join("plain"), IFlags::APPEND));
            notes.call("chattr", set_flags(&dir.join("appending"), IFlags::APPEND));
            notes.call(
                "plain goes on",
                plain.write_all_at(b"after", 2).and_then(|()| plain.sync_all()),
            );
            notes.call(
                "appending goes on",
                appending.write_all(&[b'a'; 10_000]).and_then(|()| appending.sync_all()),
            );
            notes.call(
                "appending goes on",
                appending.write_all(b"last").and_then(|()| appending.sync_all()),
            );
            notes.value("appending overwrites", overwrite(&appending).is_ok());
            told_of_errors(dir, &appending);
        },
        contents,
    );
}

#[test]
pub fn older_and_newer_descriptors_append_in_turn() {
    same_with_each_cache(
        "default",
        |dir, notes| {
            let path = dir.join("log");
            writable(&path);
            let mut older = opened(&path, reading().append(true));
            notes.call("write", older.write_all(b"before"));
            notes.call("chattr", set_flags(&path, IFlags::APPEND));
            let mut newer = opened(&path, reading().append(true));
            let reader = File::open(&path).expect("open");
            for round in 0..20 {
                notes.call("older", older.write_all(format!("older {round}").as_bytes()));
                for file in [&newer, &reader] {
                    let mut seen = [0; 1000];
                    let len = file.read_at(&mut seen, 0).expect("read");
                    notes.value("seen", String::from_utf8_lossy(&seen[..len]));
                }
                notes.call("newer", newer.write_all(format!("newer {round}").as_bytes()));
                for file in [&older, &reader] {
                    let mut seen = [0; 1000];
                    let len = file.read_at(&mut seen, 0).expect("read");
                    notes.value("seen", String::from_utf8_lossy(&seen[..len]));
                }
            }
            notes.value("overwrite", (overwrite(&newer).is_ok(), overwrite(&older).is_ok()));
            told_of_errors(dir, &older);
        },
        contents,
    );
}

/// The kernel sends the parts of a large direct write at once.
#[test]
pub fn parts_of_direct_appends_overtake_each_other() {
    same_with_each_cache(
        "default",
        |dir, notes| {
            let path = dir.join("log");
            writable(&path);
            fs::write(&path, [b'o'; 4096]).expect("write");
            let direct =
                || opened(&path, File::options().append(true).custom_flags(nix::libc::O_DIRECT));
            let before = direct();
            notes.call("chattr", set_flags(&path, IFlags::APPEND));
            let memory = vec![b'd'; (16 << 20) + 4096];
            let start = memory.as_ptr().align_offset(4096);
            for mut file in [before, direct()] {
                for _ in 0..3 {
                    notes.call("append", file.write_all(&memory[start..start + (16 << 20)]));
                }
            }
        },
        contents,
    );
}

#[test]
pub fn immutable_files_are_not_written_through_older_descriptors() {
    same_with_each_cache(
        "default",
        |dir, notes| {
            let path = dir.join("f");
            writable(&path);
            let mut both = opened(&path, reading().write(true));
            let mut append = opened(&path, File::options().append(true));
            let write = opened(&path, File::options().write(true));
            notes.call("write", both.write_all_at(b"before", 1));
            notes.call("append", append.write_all(&[b'b'; 9000]));
            notes.call("chattr", set_flags(&path, IFlags::IMMUTABLE));
            notes.call("write", both.write_all_at(b"HACK", 0));
            notes.call("write", write.write_all_at(b"HACK", 0));
            notes.call("append", append.write(b"HACK"));
            notes.call(
                "copy",
                rustix::fs::copy_file_range(&both, Some(&mut 0), &both, Some(&mut 100), 4),
            );
            let mut seen = vec![0; 20_000];
            notes.call("read to the end", io::Read::read(&mut both, &mut seen));
            notes.call("length", fs::metadata(&path).map(|m| m.len()));
            // The kernel's copy of the attributes may still be valid for a moment.
            await_that("writes are refused", || write.write_all_at(b"HACK", 0).is_err());
            told_of_errors(dir, &write);
            told_of_errors(dir, &append);
            notes.call("write", write.write_all_at(b"HACK", 0));
            notes.call("chattr", set_flags(&path, IFlags::empty()));
            notes.call("write", write.write_all_at(b"later", 3000));
            notes.call("append", append.write(b"last"));
            notes.call("fsync", append.sync_all());
        },
        contents,
    );
}

#[test]
pub fn mappings_do_not_change_immutable_files() {
    same_with_each_cache(
        "default",
        |dir, notes| {
            let path = dir.join("f");
            writable(&path);
            let mut program = mapping(&path, &[]);
            tell(&mut program, "mmap -rw 0 16");
            tell(&mut program, "mwrite -S 0x42 8 4");
            await_that("it is mapped", || fs::read(&path).expect("read")[8] == 0x42);
            notes.call("chattr", set_flags(&path, IFlags::IMMUTABLE));
            tell(&mut program, "mwrite -S 0x58 0 4");
            tell(&mut program, "msync -s");
            drop(program.stdin.take());
            notes.value("xfs_io", program.wait_with_output().is_ok());
            told_of_errors(dir, &File::open(&path).expect("open"));
            await_that("pages that were refused are dropped", || {
                fs::read(&path).expect("read")[0] == OLD[0]
            });
        },
        contents,
    );
}
