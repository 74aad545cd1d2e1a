//! Quotas on a mount: the applied limits, the errors, and the agreement of the quota files with
//! e2fsck.

use crate::served::Served;
use extant_engine::{Caller, Follow, Fs, NodeKind, OpenOptions, QuotaKind, QuotaLimits};
use extant_testkit::image::Image;
use extant_testkit::tool::{Printed, run};
use std::os::unix::fs::chown;
use std::path::Path;

const USER: u32 = 1000;

/// Makes an image in which the user has a directory and limits of 4 MiB and 20 inodes.
fn limited() -> Image {
    let image = Image::mke2fs(64 << 20, &["-t", "ext4", "-O", "quota,project"]);
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("open");
    let who = Caller { uid: USER, gid: USER, ..Caller::default() };
    fs.create_as(&who, (&fs.root().expect("root"), b"home"), 0o755, NodeKind::Dir).expect("mkdir");
    let limits = QuotaLimits { block_hard: 4096, inode_hard: 20, ..QuotaLimits::default() };
    fs.set_quota(QuotaKind::User, USER, limits).expect("limits");
    fs.unmount().expect("unmount");
    image
}

fn by_user(dir: &Path, script: &str) -> Printed {
    let id = USER.to_string();
    let shell = format!("cd {} && {script}", dir.display());
    run("setpriv", &["--reuid", &id, "--regid", &id, "--clear-groups", "sh", "-ec", &shell])
}

#[track_caller]
fn is_refused(printed: &Printed) {
    assert!(printed.code != 0 && printed.errors().contains("Disk quota exceeded"), "{printed}");
}

#[test]
fn limits_bind_users_and_e2fsck_counts_the_same() {
    let mut served = Served::of(limited());
    let home = served.path("home");
    by_user(&home, "dd if=/dev/zero of=a bs=1M count=3 conv=fsync status=none").must_succeed();
    is_refused(&by_user(&home, "dd if=/dev/zero of=b bs=1M count=3 conv=fsync status=none"));
    is_refused(&by_user(&home, "dd if=/dev/zero of=c bs=1M count=3 oflag=direct status=none"));
    is_refused(&by_user(&home, "rm -f b c; fallocate -l 3M d"));
    by_user(&home, "rm -f d a; dd if=/dev/zero of=b bs=1M count=3 conv=fsync status=none")
        .must_succeed();
    // Root writes to the user's files beyond the limit: limits apply to the user's own calls only,
    // while all usage is charged to the owner.
    is_refused(&by_user(&home, "for i in $(seq 1 30); do touch f$i; done"));
    by_user(&home, "rm -f f* b").must_succeed();
    std::fs::write(home.join("roots"), vec![1; 2 << 20]).expect("write");
    chown(home.join("roots"), Some(USER), Some(USER)).expect("chown");
    is_refused(&by_user(&home, "dd if=/dev/zero of=b bs=1M count=3 conv=fsync status=none"));
    chown(home.join("roots"), Some(0), Some(0)).expect("chown");
    by_user(&home, "rm -f b; dd if=/dev/zero of=b bs=1M count=3 conv=fsync status=none")
        .must_succeed();
    // The next syncfs(2) also reports the failed writeback. Consume that error before the unmount.
    is_refused(&run("sync", &["-f".as_ref(), home.as_os_str()]));
    // e2fsck compares the quota files with its own counts.
    served.unmount();
    let fs = Fs::open(served.image(), &OpenOptions::new().read_only(true)).expect("open");
    let usage = fs.quota(QuotaKind::User, USER).expect("a record");
    assert_eq!(usage.inodes, 2, "the directory and its file");
    assert!(usage.space > 3 << 20 && usage.space < 4 << 20, "{usage:?}");
    assert_eq!(fs.resolve("/home/b", Follow::No).expect("b").attr().size, 3 << 20);
    fs.unmount().expect("unmount");
}

fn errno(done: std::io::Result<()>) -> Option<i32> {
    done.err().and_then(|e| e.raw_os_error())
}

/// Returns the project that `lsattr` prints.
fn project(path: &Path) -> u32 {
    let shown = run("lsattr", &["-pd".as_ref(), path.as_os_str()]).must_succeed().text();
    shown
        .split_whitespace()
        .next()
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("{shown}"))
}

/// Projects of chattr(1) and lsattr(1) are inherited, restrict renames and links, and are charged.
#[test]
fn projects_are_set_and_shown() {
    let mut served = Served::of(limited());
    let (tree, out) = (served.path("tree"), served.path("out"));
    std::fs::create_dir(&tree).expect("mkdir");
    run("chattr", &["-p".as_ref(), "4200000000".as_ref(), "+P".as_ref(), tree.as_os_str()])
        .must_succeed();
    let (inside, sub) = (tree.join("inside"), tree.join("sub"));
    std::fs::write(&inside, vec![1; 100_000]).expect("write");
    std::fs::create_dir(&sub).expect("mkdir");
    std::fs::write(&out, b"of no project").expect("write");
    for (path, expected) in
        [(&tree, 4_200_000_000), (&inside, 4_200_000_000), (&sub, 4_200_000_000), (&out, 0)]
    {
        assert_eq!(project(path), expected, "{}", path.display());
    }
    let flags = run("lsattr", &["-d".as_ref(), sub.as_os_str()]).must_succeed().text();
    assert!(flags.split(' ').next().is_some_and(|flags| flags.contains('P')), "{flags}");
    assert_eq!(errno(std::fs::rename(&out, tree.join("in"))), Some(nix::libc::EXDEV));
    assert_eq!(errno(std::fs::hard_link(&out, tree.join("in"))), Some(nix::libc::EXDEV));
    run("chattr", &["-p".as_ref(), "4200000000".as_ref(), out.as_os_str()]).must_succeed();
    std::fs::rename(&out, tree.join("in")).expect("now it is of the project");
    served.unmount();
    let fs = Fs::open(served.image(), &OpenOptions::new().read_only(true)).expect("open");
    let usage = fs.quota(QuotaKind::Project, 4_200_000_000).expect("a record");
    assert_eq!(usage.inodes, 4);
    assert!(usage.space > 100_000, "{usage:?}");
    fs.unmount().expect("unmount");
}
