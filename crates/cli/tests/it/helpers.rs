//! The program under the names of helpers of mount(8), umount(8) and mkfs(8).

use crate::args;
use crate::program::{EXTANT, extant, is_mount, json};
use crate::recovery::crashed;
use extant_testkit::tool::{Printed, run, run_with_env};
use extant_testkit::{FeatureSet, Image, Scratch, e2fsck, kernel};
use rustix::fs::{FlockOperation, fcntl_lock};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A directory with the program under its other names.
pub struct Names(pub Scratch);

impl Names {
    pub fn new() -> Names {
        let scratch = Scratch::new();
        for name in [
            "mount.fuse.extant",
            "mount.ext4",
            "umount.fuse.extant",
            "umount.fuse",
            "mkfs.extant",
            "fuse2fs",
            "mke2fs",
            "mkfs.ext2",
            "mkfs.ext3",
            "mkfs.ext4",
        ] {
            std::os::unix::fs::symlink(EXTANT, scratch.join(name)).unwrap();
        }
        Names(scratch)
    }

    pub fn call(&self, name: &str, args: &[OsString]) -> Printed {
        let path: PathBuf = self.0.join(name);
        run(path.to_str().unwrap(), args)
    }
}

pub fn options_of(dir: &Path, column: &str) -> String {
    run("findmnt", &["-no".as_ref(), column.as_ref(), dir.as_os_str()])
        .must_succeed()
        .text()
        .trim()
        .into()
}

#[test]
fn mount_and_unmount_as_mount8_calls_them() {
    let names = Names::new();
    let image = FeatureSet::named("default").make_sized(32 << 20);
    let dir = names.0.dir("mnt");
    for round in 0..2 {
        let options = "rw,acl,user_xattr,nosuid,nodev,nodiratime";
        let printed = names
            .call("mount.fuse.extant", &args![image.path(), &dir, "-o", options])
            .must_succeed();
        assert!(printed.stdout.is_empty() && printed.stderr.is_empty(), "{printed}");
        let shown = options_of(&dir, "VFS-OPTIONS");
        for word in ["rw", "nosuid", "nodev", "nodiratime"] {
            assert!(shown.split(',').any(|w| w == word), "{word} in {shown}");
        }
        std::fs::write(dir.join(format!("f{round}")), vec![1; 1 << 20]).unwrap();
        names.call("umount.fuse.extant", &args![&dir]).must_succeed();
        // The server has ended by now: the check waits for no process.
        image.assert_clean();
    }
}

/// A lock that every reader of the image can take.
fn locked(image: &Path) -> File {
    let file = File::open(image).expect("the image opens");
    fcntl_lock(&file, FlockOperation::NonBlockingLockShared).expect("a lock");
    file
}

#[test]
fn a_mount_that_waits_for_seconds_names_the_image_and_its_holder() {
    let names = Names::new();
    let image = FeatureSet::named("default").make_sized(32 << 20);
    let dir = names.0.dir("mnt");
    let helper = names.0.join("mount.fuse.extant").into_os_string();
    let commands =
        [&args![&helper][..], &args![EXTANT, "mount"], &args![EXTANT, "mount", "--wait"]];
    for command in commands {
        let lock = locked(image.path());
        let mut mount = Command::new(&command[0])
            .args(&command[1..])
            .args([image.path(), &dir])
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut told = BufReader::new(mount.stderr.take().expect("a pipe")).lines();
        let first = told.next().expect("a line").expect("text");
        let name = image.path().display().to_string();
        assert!(first.contains(&format!("{name} is in use")), "{first}");
        assert!(first.contains("waiting for up to"), "{first}");
        // Children of other tests have the descriptor, too, until they become other programs.
        let holder = format!("process {}, ", std::process::id());
        assert!(first.contains(&holder), "{first}");
        drop(lock);
        assert!(mount.wait().expect("wait").success() && is_mount(&dir), "{command:?}");
        names.call("umount.fuse.extant", &args![&dir]).must_succeed();
    }
}

/// An unmount that ends meanwhile holds the image for a moment only.
#[test]
fn a_mount_that_waits_for_a_moment_prints_nothing() {
    let names = Names::new();
    let image = FeatureSet::named("default").make_sized(32 << 20);
    let dir = names.0.dir("mnt");
    let lock = locked(image.path());
    let mount = Command::new(names.0.join("mount.fuse.extant"))
        .args([image.path(), &dir])
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    std::thread::sleep(Duration::from_millis(300));
    assert!(!is_mount(&dir), "the mount waits for the image");
    drop(lock);
    let ended = mount.wait_with_output().expect("wait");
    assert!(ended.status.success() && is_mount(&dir), "{ended:?}");
    assert_eq!(String::from_utf8_lossy(&ended.stderr), "");
    names.call("umount.fuse.extant", &args![&dir]).must_succeed();
}

#[test]
fn the_wait_of_a_mount_ends() {
    let image = FeatureSet::named("default").make_sized(32 << 20);
    let scratch = Scratch::new();
    let lock = locked(image.path());
    let printed = extant(&args!["mount", "--quiet", image.path(), scratch.dir("mnt")]);
    drop(lock);
    assert_eq!(printed.code, 1, "{printed}");
    let holder = format!("(process {}, ", std::process::id());
    for words in ["waiting for up to 10 s", "let that end", "--wait", &holder] {
        assert!(printed.errors().contains(words), "{words}: {printed}");
    }
}

/// umount(8) runs this helper if it gets a directory: then it has read only `fuse` of the type.
#[test]
fn an_unmount_by_directory_waits_for_the_server() {
    let names = Names::new();
    let image = FeatureSet::named("default").make_sized(32 << 20);
    let dir = names.0.dir("mnt");
    names.call("mount.ext4", &args![image.path(), &dir, "-o", "rw"]).must_succeed();
    std::fs::write(dir.join("f"), vec![1; 8 << 20]).unwrap();
    names.call("umount.fuse", &args![&dir]).must_succeed();
    image.assert_clean();
}

/// An unmount waits for its own server, not for that of a mount that came meanwhile. Each round
/// meets another moment of the unmount; it may be that in which the other looks at the place, which
/// is busy then.
#[test]
fn an_unmount_does_not_wait_for_the_next_mount() {
    let names = Names::new();
    let image = FeatureSet::named("default").make_sized(32 << 20);
    let dir = names.0.dir("mnt");
    for round in 0..12 {
        names.call("mount.fuse.extant", &args![image.path(), &dir, "-o", "rw"]).must_succeed();
        (0..40).for_each(|n| std::fs::write(dir.join(format!("f{n}")), vec![round; 4096]).unwrap());
        let unmount = Command::new(names.0.join("umount.fuse.extant"))
            .arg(&dir)
            .stderr(Stdio::piped())
            .spawn();
        let mut unmount = unmount.expect("the helper starts");
        std::thread::sleep(Duration::from_millis(2 * u64::from(round)));
        names.call("mount.fuse.extant", &args![image.path(), &dir, "-o", "rw"]).must_succeed();
        let mut left = 1000;
        let ended = loop {
            match unmount.try_wait().expect("wait") {
                Some(status) => break status,
                None if left == 0 => {
                    unmount.kill().expect("kill");
                    panic!("round {round}: the unmount waits for the next mount");
                }
                None => std::thread::sleep(Duration::from_millis(20)),
            }
            left -= 1;
        };
        let mut told = String::new();
        unmount.stderr.take().expect("a pipe").read_to_string(&mut told).expect("text");
        assert!(ended.success() || told.contains("target is busy"), "round {round}: {told}");
        while is_mount(&dir) {
            names.call("umount.fuse.extant", &args![&dir]).must_succeed();
        }
        image.assert_clean();
    }
}

#[test]
fn other_types_show_their_name() {
    let names = Names::new();
    let image = FeatureSet::named("default").make_sized(32 << 20);
    let dir = names.0.dir("mnt");
    names.call("mount.ext4", &args![image.path(), &dir, "-o", "rw"]).must_succeed();
    assert_eq!(options_of(&dir, "FSTYPE"), "fuse.ext4");
    names.call("umount.fuse.extant", &args![&dir]).must_succeed();
    image.assert_clean();
}

/// The kernel holds a disk for its mount, unless that is not wanted: then it is as with images in
/// files.
#[test]
fn a_disk_shows_as_one() {
    let names = Names::new();
    let image = FeatureSet::named("default").make_sized(32 << 20);
    let dir = names.0.dir("mnt");
    let disk = kernel::Loop::attach(image.path(), false);
    for (options, shown) in [("rw", "fuseblk.ext4"), ("rw,noblkdev", "fuse.ext4")] {
        names.call("mount.ext4", &args![disk.device(), &dir, "-o", options]).must_succeed();
        let found = options_of(&dir, "FSTYPE");
        let again = run(EXTANT, &args!["mount", disk.device(), names.0.dir("other")]);
        names.call("umount.fuse", &args![&dir]).must_succeed();
        assert_eq!(found, shown);
        assert!(again.code != 0 && again.errors().contains("is mounted at"), "{again}");
        let list = args!["mount", "--subtype", "ext4", "-o", options, disk.device(), &dir];
        let mounted = crate::program::json(&list);
        let found = options_of(&dir, "FSTYPE");
        names.call("umount.fuse", &args![&dir]).must_succeed();
        assert_eq!((mounted["type"].as_str(), found.as_str()), (Some(shown), shown));
        image.assert_clean();
    }
}

#[test]
fn unknown_options_end_with_32() {
    let names = Names::new();
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let dir = names.0.dir("mnt");
    let printed = names.call("mount.fuse.extant", &args![image.path(), &dir, "-o", "rw,nonsense"]);
    assert_eq!(printed.code, 32, "{printed}");
    assert!(printed.errors().contains("nonsense"), "{printed}");
    let printed =
        names.call("mount.fuse.extant", &args![names.0.join("missing"), &dir, "-o", "rw"]);
    assert_eq!(printed.code, 32, "{printed}");
    assert!(!is_mount(&dir));
}

#[test]
fn a_mount_becomes_read_only_and_writable_again() {
    let names = Names::new();
    let image = FeatureSet::named("default").make_sized(32 << 20);
    let dir = names.0.dir("mnt");
    names.call("mount.fuse.extant", &args![image.path(), &dir, "-o", "rw"]).must_succeed();
    names.call("mount.fuse.extant", &args![image.path(), &dir, "-o", "ro,remount"]).must_succeed();
    assert!(std::fs::write(dir.join("f"), "x").is_err());
    names.call("mount.fuse.extant", &args![image.path(), &dir, "-o", "rw,remount"]).must_succeed();
    std::fs::write(dir.join("f"), "x").unwrap();
    names.call("umount.fuse.extant", &args![&dir]).must_succeed();
    image.assert_clean();
}

/// The kernel's cache, and content that waits in the server, are on the device when a mount has
/// become read-only.
#[test]
fn content_is_durable_when_a_mount_has_become_read_only() {
    let names = Names::new();
    let image = FeatureSet::named("default").make_sized(32 << 20);
    let dir = names.0.dir("mnt");
    names
        .call("mount.fuse.extant", &args![image.path(), &dir, "-o", "delalloc,commit=3600"])
        .must_succeed();
    let written = std::fs::write(dir.join("f"), "content");
    let remounted = names.call("mount.fuse.extant", &args![image.path(), &dir, "-o", "ro,remount"]);
    let copy = names.0.join("copy");
    let copied = std::fs::copy(image.path(), &copy);
    names.call("umount.fuse.extant", &args![&dir]).must_succeed();
    written.unwrap();
    copied.unwrap();
    remounted.must_succeed();
    let found = run(EXTANT, &args!["cat", &copy, "/f"]);
    assert_eq!(found.must_succeed().text(), "content");
    image.assert_clean();
}

#[test]
fn an_image_shows_at_two_places() {
    let names = Names::new();
    let image = FeatureSet::named("default").make_sized(32 << 20);
    let (first, second) = (names.0.dir("first"), names.0.dir("second"));
    names.call("mount.fuse.extant", &args![image.path(), &first, "-o", "rw"]).must_succeed();
    names.call("mount.fuse.extant", &args![image.path(), &second, "-o", "rw"]).must_succeed();
    std::fs::write(first.join("f"), "x").unwrap();
    assert_eq!(std::fs::read(second.join("f")).unwrap(), b"x");
    names.call("umount.fuse.extant", &args![&first]).must_succeed();
    assert_eq!(std::fs::read(second.join("f")).unwrap(), b"x");
    names.call("umount.fuse.extant", &args![&second]).must_succeed();
    image.assert_clean();
}

/// Files that must not be trusted at the first place must not be trusted at the second.
#[test]
fn a_second_place_has_the_protection_of_the_first() {
    let names = Names::new();
    let image = FeatureSet::named("default").make_sized(32 << 20);
    let (first, second) = (names.0.dir("first"), names.0.dir("second"));
    names
        .call("mount.fuse.extant", &args![image.path(), &first, "-o", "rw,nosuid,nodev"])
        .must_succeed();
    names
        .call("mount.fuse.extant", &args![image.path(), &second, "-o", "rw,noexec"])
        .must_succeed();
    let shown = options_of(&second, "VFS-OPTIONS");
    names.call("umount.fuse.extant", &args![&second]).must_succeed();
    names.call("umount.fuse.extant", &args![&first]).must_succeed();
    for word in ["nosuid", "nodev", "noexec"] {
        assert!(shown.split(',').any(|w| w == word), "{word} in {shown}");
    }
    image.assert_clean();
}

#[test]
fn a_mount_below_one_of_two_places_does_not_show_at_the_other() {
    let names = Names::new();
    let image = FeatureSet::named("default").make_sized(32 << 20);
    let (first, second) = (names.0.dir("first"), names.0.dir("second"));
    names.call("mount.fuse.extant", &args![image.path(), &first, "-o", "rw"]).must_succeed();
    run("mount", &["--make-shared".as_ref(), first.as_os_str()]).must_succeed();
    names.call("mount.fuse.extant", &args![image.path(), &second, "-o", "rw"]).must_succeed();
    std::fs::create_dir(first.join("sub")).unwrap();
    run("mount", &["-t", "tmpfs", "none", first.join("sub").to_str().unwrap()]).must_succeed();
    let shows = is_mount(&second.join("sub"));
    run("umount", &[first.join("sub").as_os_str()]).must_succeed();
    assert!(!shows);
    names.call("umount.fuse.extant", &args![&second]).must_succeed();
    names.call("umount.fuse.extant", &args![&first]).must_succeed();
    image.assert_clean();
}

#[test]
fn an_unused_read_only_server_is_replaced_by_a_writable_one() {
    let names = Names::new();
    let image = FeatureSet::named("default").make_sized(32 << 20);
    let (dir, second) = (names.0.dir("mnt"), names.0.dir("second"));
    let remount =
        |options: &str| names.call("mount.fuse.extant", &args![image.path(), &dir, "-o", options]);
    names.call("mount.fuse.extant", &args![image.path(), &dir, "-o", "ro"]).must_succeed();
    remount("ro,noexec,remount").must_succeed();
    let used = std::fs::File::open(dir.join("lost+found")).unwrap();
    let printed = remount("rw,remount");
    assert_eq!(printed.code, 32, "{printed}");
    assert!(printed.errors().contains("in use"), "{printed}");
    drop(used);
    names.call("mount.fuse.extant", &args![image.path(), &second, "-o", "ro"]).must_succeed();
    let printed = remount("rw,remount");
    assert!(printed.code == 32 && printed.errors().contains("other places"), "{printed}");
    names.call("umount.fuse.extant", &args![&second]).must_succeed();
    assert!(std::fs::write(dir.join("f"), "x").is_err());
    remount("remount,rw,nosuid").must_succeed();
    std::fs::write(dir.join("f"), "x").unwrap();
    assert!(options_of(&dir, "VFS-OPTIONS").split(',').any(|w| w == "nosuid"));
    names.call("umount.fuse.extant", &args![&dir]).must_succeed();
    image.assert_clean();
}

/// For a line of fstab with the type `fuse` and the source `extant#IMAGE`.
#[test]
fn mount_fuse_calls_the_program_with_image_and_directory() {
    let scratch = Scratch::new();
    let image = FeatureSet::named("default").make();
    let dir = scratch.dir("mnt");
    let source = format!("extant#{}", image.path().display());
    let programs = Path::new(EXTANT).parent().unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let args = args![&source, &dir, "-o", "rw,nosuid,nodev"];
    run_with_env("mount.fuse3", &args, &[("PATH", &path)]).must_succeed();
    assert_eq!(options_of(&dir, "FSTYPE"), "fuse.extant");
    std::fs::write(dir.join("f"), "x").unwrap();
    run("umount", &args![&dir]).must_succeed();
    // umount(8) returns before the server has written everything.
    extant(&args!["ls", "--wait", image.path()]).must_succeed();
}

/// flock(1) gives its lock to the program that it runs.
#[test]
fn a_server_holds_no_lock_of_its_caller() {
    let names = Names::new();
    let image = FeatureSet::named("default").make();
    let (dir, lock) = (names.0.dir("mnt"), names.0.join("lock"));
    let mount = names.0.join("mount.fuse.extant");
    run("flock", &args![&lock, &mount, image.path(), &dir]).must_succeed();
    run("flock", &args!["--nonblock", &lock, "true"]).must_succeed();
    names.call("umount.fuse.extant", &args![&dir]).must_succeed();
}

/// An image that cannot be opened for writing stays mounted for reading.
#[test]
fn a_mount_that_cannot_become_writable_stays() {
    let names = Names::new();
    let journal = Image::mke2fs(8 << 20, &["-b", "4096", "-O", "journal_dev"]);
    let on = kernel::Loop::attach(journal.path(), false);
    let image = Image::mke2fs(
        32 << 20,
        &["-t", "ext4", "-b", "4096", "-J", &format!("device={}", on.device().display())],
    );
    image.leave_unjudged("its log is on another device");
    drop(on);
    let dir = names.0.dir("mnt");
    names.call("mount.fuse.extant", &args![image.path(), &dir, "-o", "ro"]).must_succeed();
    let remounted = names.call("mount.fuse.extant", &args![image.path(), &dir, "-o", "remount,rw"]);
    let found = dir.join("lost+found").is_dir();
    let written = std::fs::write(dir.join("f"), "x").map_err(|e| e.kind());
    let unmounted = names.call("umount.fuse.extant", &args![&dir]);
    assert!(remounted.code == 32 && remounted.errors().contains("journal"), "{remounted}");
    assert!(found, "it is mounted");
    assert_eq!(written, Err(std::io::ErrorKind::ReadOnlyFilesystem));
    unmounted.must_succeed();
}

#[test]
fn the_program_remounts_as_its_helper_does() {
    let names = Names::new();
    let image = FeatureSet::named("default").make_sized(32 << 20);
    let dir = names.0.dir("mnt");
    run(EXTANT, &args!["mount", "-o", "ro", image.path(), &dir]).must_succeed();
    let refused = std::fs::write(dir.join("f"), "x").map_err(|e| e.kind());
    let remounted = run(EXTANT, &args!["mount", "-o", "remount,rw", image.path(), &dir]);
    let written = std::fs::write(dir.join("f"), "x");
    names.call("umount.fuse.extant", &args![&dir]).must_succeed();
    assert_eq!(refused, Err(std::io::ErrorKind::ReadOnlyFilesystem));
    remounted.must_succeed();
    written.unwrap();
    image.assert_clean();
}

#[test]
fn a_protected_disk_is_mounted_for_reading() {
    let names = Names::new();
    let image = FeatureSet::named("default").make_sized(32 << 20);
    let dir = names.0.dir("mnt");
    let disk = kernel::Loop::attach(image.path(), true);
    let asked = names.call("mount.fuse.extant", &args![disk.device(), &dir, "-o", "rw,ro"]);
    let unmounted_first = names.call("umount.fuse.extant", &args![&dir]);
    let mounted = names.call("mount.fuse.extant", &args![disk.device(), &dir, "-o", "ro,rw"]);
    let refused = std::fs::write(dir.join("f"), "x").map_err(|e| e.kind());
    let remounted =
        names.call("mount.fuse.extant", &args![disk.device(), &dir, "-o", "remount,rw"]);
    let unmounted = names.call("umount.fuse.extant", &args![&dir]);
    drop(disk);
    let asked = asked.must_succeed();
    assert!(asked.errors().is_empty(), "the last word counts, and it was `ro`: {asked}");
    unmounted_first.must_succeed();
    let mounted = mounted.must_succeed();
    assert!(mounted.errors().contains("write-protected, mounted read-only"), "{mounted}");
    assert_eq!(refused, Err(std::io::ErrorKind::ReadOnlyFilesystem));
    assert!(
        remounted.code == 32 && remounted.errors().contains("is write-protected"),
        "{remounted}"
    );
    unmounted.must_succeed();
    image.assert_clean();
}

/// As the kernel has it; the program itself recovers in memory.
#[test]
fn a_protected_disk_that_needs_recovery_is_refused() {
    let names = Names::new();
    let image = FeatureSet::named("default").make_sized(32 << 20);
    let mount = kernel::Mount::new(image.path(), "commit=300");
    std::fs::write(mount.join("f"), "x").unwrap();
    std::fs::File::open(mount.join("f")).unwrap().sync_all().unwrap();
    mount.crash(kernel::Shutdown::NoFlushLog);
    let dir = names.0.dir("mnt");
    let disk = kernel::Loop::attach(image.path(), true);
    let refused = names.call("mount.fuse.extant", &args![disk.device(), &dir, "-o", "rw"]);
    let mounted = names.call("mount.fuse.extant", &args![disk.device(), &dir, "-o", "norecovery"]);
    let unmounted = names.call("umount.fuse.extant", &args![&dir]);
    let own = run(EXTANT, &args!["mount", disk.device(), &dir]);
    let found = std::fs::read(dir.join("f"));
    let unmounted_again = names.call("umount.fuse.extant", &args![&dir]);
    drop(disk);
    assert!(refused.code == 32 && refused.errors().contains("needs recovery"), "{refused}");
    for printed in [mounted, unmounted, own, unmounted_again] {
        printed.must_succeed();
    }
    assert_eq!(found.unwrap(), b"x");
}

/// The kernel replays the journal and frees orphans of a disk that it mounts with `ro`;
/// `extant mount -o ro` never writes.
#[test]
fn mounting_for_reading_recovers_as_the_kernel_does() {
    for set in ["default", "orphan_file"] {
        let names = Names::new();
        let image = crashed(FeatureSet::named(set));
        let dir = names.0.dir("mnt");
        let before = image.bytes();
        for options in ["ro", "ro,noload"] {
            let mounted = match options {
                "ro" => run(EXTANT, &args!["mount", "-o", options, image.path(), &dir]),
                _ => names.call("mount.ext4", &args![image.path(), &dir, "-o", options]),
            };
            let unmounted = names.call("umount.fuse", &args![&dir]);
            mounted.must_succeed();
            unmounted.must_succeed();
            assert!(before == image.bytes(), "{set}, {options}: it wrote");
        }
        let last_mount = json(&args!["info", image.path()])["last_mount"].clone();
        let disk = kernel::Loop::attach(image.path(), false);
        let mounted = names.call("mount.ext4", &args![disk.device(), &dir, "-o", "ro"]);
        let found =
            dir.join("f99").exists() && dir.join("last").exists() && !dir.join("f0").exists();
        let refused = std::fs::write(dir.join("f"), "x").map_err(|e| e.kind());
        let unmounted = names.call("umount.fuse", &args![&dir]);
        drop(disk);
        let mounted = mounted.must_succeed();
        assert!(mounted.errors().is_empty(), "{set}: {mounted}");
        assert!(found, "{set}: the journal was replayed");
        assert_eq!(refused, Err(std::io::ErrorKind::ReadOnlyFilesystem), "{set}");
        unmounted.must_succeed();
        let info = json(&args!["info", image.path()]);
        assert_eq!(
            (&info["needs_recovery"], &info["last_mount"]),
            (&false.into(), &last_mount),
            "{set}"
        );
        image.assert_clean();
    }
}

/// An image on a file system that is mounted read-only is mounted for reading, as a disk that is
/// write-protected.
#[test]
fn an_image_on_a_read_only_file_system_is_mounted_for_reading() {
    let names = Names::new();
    let image = FeatureSet::named("default").make_sized(16 << 20);
    let (held, dir) = (names.0.dir("held"), names.0.dir("mnt"));
    let source = image.path().parent().unwrap();
    run("mount", &["--bind".as_ref(), source.as_os_str(), held.as_os_str()]).must_succeed();
    let protected = run("mount", &["-o".as_ref(), "remount,bind,ro".as_ref(), held.as_os_str()]);
    let inside = held.join(image.path().file_name().unwrap());
    let mounted = run(EXTANT, &args!["mount", &inside, &dir]);
    let found = dir.join("lost+found").is_dir();
    let written = std::fs::write(dir.join("f"), "x").map_err(|e| e.kind());
    let unmounted = names.call("umount.fuse", &args![&dir]);
    let changed = run(EXTANT, &args!["mkdir", &inside, "/d"]);
    let made = run(EXTANT, &args!["mkfs", "-F", &inside]);
    run("umount", &[&held]).must_succeed();
    protected.must_succeed();
    let mounted = mounted.must_succeed();
    assert!(found && mounted.errors().contains("mounted read-only"), "{mounted}");
    assert_eq!(written, Err(std::io::ErrorKind::ReadOnlyFilesystem));
    unmounted.must_succeed();
    assert!(changed.code == 1 && changed.errors().contains("can be read only"), "{changed}");
    assert!(made.code == 1 && made.errors().contains("write-protected"), "{made}");
    image.assert_clean();
}

#[test]
fn mkfs_takes_sizes_in_blocks() {
    let names = Names::new();
    let image = names.0.file("image", 0);
    names.call("mkfs.extant", &args!["-q", "-b", "4096", &image, "8192"]).must_succeed();
    assert_eq!(std::fs::metadata(&image).unwrap().len(), 8192 * 4096);
    e2fsck::check(&image).assert_clean();
}
