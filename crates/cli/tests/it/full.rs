//! Mounts of sparse images whose host has no space.

use crate::args;
use crate::program::{done, refused};
use extant_testkit::host::SmallHost;
use extant_testkit::tool::run;
use extant_testkit::{Scratch, e2fsck};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

const ENOSPC: i32 = 28;

/// A mount of an image on a host of 16 MiB.
struct Stage {
    scratch: Scratch,
    host: SmallHost,
    image: PathBuf,
    dir: PathBuf,
}

impl Stage {
    fn new(mkfs: &[&str]) -> Stage {
        let scratch = Scratch::new();
        let (host, dir) = (SmallHost::new(scratch.dir("host"), "16M"), scratch.dir("mnt"));
        let image = host.join("disk.img");
        let options = mkfs.iter().map(std::ffi::OsString::from);
        let call = args!["mkfs", &image, "64M"].into_iter().chain(options);
        done(&call.collect::<Vec<_>>());
        done(&args!["mount", &image, &dir]);
        Stage { scratch, host, image, dir }
    }

    /// Makes files, each durable, until one fails.
    fn fill_log(&self) -> (PathBuf, io::Error) {
        let made = |name: &Path| File::create(name)?.sync_all();
        (0..100_000)
            .map(|n| self.dir.join(format!("{n}")))
            .find_map(|name| made(&name).err().map(|error| (name, error)))
            .expect("the log lacks space")
    }

    /// Unmounts the image, and judges a copy of it.
    fn end(self) -> (Scratch, PathBuf) {
        done(&args!["umount", &self.dir]);
        let copy = self.scratch.join("copy.img");
        run("cp", &args!["--sparse=always", &self.image, &copy]).must_succeed();
        self.host.unmount();
        e2fsck::check(&copy).assert_clean();
        (self.scratch, copy)
    }
}

/// The error comes from fsync, and the changes are durable once there is space.
#[test]
fn a_mount_goes_on_once_its_host_has_space_again() {
    for options in [&[][..], &["-O", "^has_journal"], &["-b", "4096", "-J", "size=8"]] {
        let stage = Stage::new(options);
        fs::write(stage.dir.join("kept"), vec![1; 1 << 20]).unwrap();
        File::open(stage.dir.join("kept")).unwrap().sync_all().unwrap();
        let filler = stage.host.fill();
        let (last, error) = stage.fill_log();
        let again = File::open(&last).and_then(|file| file.sync_all());
        let read = fs::read(stage.dir.join("kept")).unwrap();
        drop(filler);
        let synced = File::create(&last).and_then(|file| file.sync_all());
        let write = fs::write(stage.dir.join("more"), vec![4; 2 << 20]);
        let more = File::open(stage.dir.join("more")).and_then(|file| file.sync_all());
        let name = last.file_name().unwrap().to_owned();
        let (_scratch, copy) = stage.end();
        assert_eq!(error.raw_os_error(), Some(ENOSPC), "{options:?}: {error}");
        assert!(again.is_err() && read == vec![1; 1 << 20], "{options:?}: {again:?}");
        synced.and(write).and(more).unwrap();
        for (path, bytes) in [("/kept", vec![1; 1 << 20]), ("/more", vec![4; 2 << 20])] {
            assert!(done(&args!["cat", &copy, path]).stdout == bytes, "{options:?}: {path}");
        }
        let path = format!("/{}", name.display());
        assert!(done(&args!["cat", &copy, path]).stdout.is_empty());
    }
}

/// Changes that fsync did not confirm are lost; the image is as after a power cut.
#[test]
fn an_unmount_without_space_keeps_what_was_durable() {
    let stage = Stage::new(&[]);
    fs::write(stage.dir.join("kept"), vec![1; 1 << 20]).unwrap();
    File::open(stage.dir.join("kept")).unwrap().sync_all().unwrap();
    let filler = stage.host.fill();
    let (_, error) = stage.fill_log();
    refused(&args!["umount", &stage.dir], 1, "are lost");
    drop(filler);
    done(&args!["mount", &stage.image, &stage.dir]);
    let (_scratch, copy) = stage.end();
    assert_eq!(error.raw_os_error(), Some(ENOSPC), "{error}");
    assert!(done(&args!["cat", &copy, "/kept"]).stdout == vec![1; 1 << 20]);
}
