//! Everything that is promised to users other than root, done by one: images are made, filled,
//! changed, recovered, read and mounted.

use crate::program::EXTANT;
use crate::recovery::crashed;
use extant_testkit::kernel::{Mount, enable_rings};
use extant_testkit::tool::{Printed, install, need, run};
use extant_testkit::tree::Manifest;
use extant_testkit::{FeatureSet, Scratch, e2fsck};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;

/// A user and a group without any privilege.
pub const NOBODY: u32 = 65534;

/// Permissions of `/dev/fuse`. In distributions every user may open it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fuse {
    Everybody,
    Root,
}

/// A directory of the user's own, with a copy of the program, which may lie where only root gets
/// to.
pub fn home() -> Scratch {
    let scratch = Scratch::new();
    install(EXTANT.as_ref(), &scratch.join("extant"));
    belongs_to_user(scratch.path());
    scratch
}

pub fn belongs_to_user(path: &Path) {
    chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
}

/// Runs a script as the user in his directory; nothing of the system is changed, for mounts and
/// devices are seen by the script alone.
pub fn as_user(home: &Scratch, fuse: Fuse, script: &str) -> Printed {
    let mode = if fuse == Fuse::Everybody { "666" } else { "600" };
    need("fusermount3");
    let all = format!(
        "set -e; mount --make-rprivate /; cd {}; mknod ../$$.fuse c 10 229; chmod {mode} \
        ../$$.fuse; mount --bind ../$$.fuse /dev/fuse; \
         rm ../$$.fuse; export PATH=$PWD:$PATH; exec {} --reuid={NOBODY} --regid={NOBODY} \
         --clear-groups sh -euc '{script}'",
        home.path().display(),
        need("setpriv").display()
    );
    run("unshare", &["--mount", "sh", "-c", &all])
}

#[test]
fn images_are_made_filled_changed_and_read() {
    let home = home();
    // Modes that keep the owner out are not for users to copy.
    let script = "mkdir -p source/d/e; head -c 100000 /dev/urandom > source/d/random; ln -s random \
    source/d/e/l; mkfifo source/fifo; \
                  echo text > source/text; ln source/text source/d/text; chmod 6751 source/text; \
                  setfattr -n user.a -v b source/d; \
                  setfacl -m u:7:rx source/d/e; touch -d 1969-12-31T23:59:58.5Z source/text; \
                  extant mkfs disk.img 64M; extant put disk.img source /all; extant mkdir disk.img \
                  /new; \
                  extant mv disk.img /all /new/all; extant chmod disk.img 0 /new; extant get \
                  disk.img /new/all out";
    as_user(&home, Fuse::Root, script).must_succeed();
    let image = home.join("disk.img");
    e2fsck::check(&image).assert_clean();
    let expected = Manifest::walk(&home.join("source")).without_root();
    expected.assert_same(&Manifest::walk(&home.join("out")).without_root());
    let kernel = Mount::new(&image, "ro");
    expected.assert_same(&Manifest::walk(&kernel.join("new/all")).without_root());
    kernel.unmount();
    let script = "extant chown disk.img 0:0 /new/all/text; extant get disk.img /new/all/text taken";
    let printed = as_user(&home, Fuse::Root, script).must_succeed();
    assert!(printed.errors().contains("1 owner left out"), "{printed}");
    let meta = std::fs::metadata(home.join("taken")).unwrap();
    assert_eq!(
        (meta.uid(), meta.mode() & 0o7777),
        (NOBODY, 0o751),
        "a command that root can run fails for the user"
    );
}

#[test]
fn the_root_of_a_new_image_belongs_to_its_maker_where_asked() {
    let home = home();
    let script = "extant mkfs -E root_owner own.img 16M; truncate -s 16M theirs.img
        mke2fs -q -E root_owner theirs.img
        extant mkfs -E root_owner,nodiscard -O ^has_journal listed.img 16M
        if extant mkfs -E root_owner= wrong.img 16M; then exit 1; fi";
    let printed = as_user(&home, Fuse::Root, script).must_succeed();
    assert!(printed.errors().contains("root_owner"), "{printed}");
    for name in ["own.img", "theirs.img", "listed.img"] {
        let image = home.join(name);
        e2fsck::check(&image).assert_clean();
        let kernel = Mount::new(&image, "ro");
        let meta = std::fs::metadata(kernel.path()).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (NOBODY, NOBODY), "{name}");
    }
}

#[test]
fn torn_images_are_recovered() {
    let home = home();
    let image = crashed(FeatureSet::named("orphan_file"));
    std::fs::copy(image.path(), home.join("torn.img")).unwrap();
    belongs_to_user(&home.join("torn.img"));
    let printed =
        as_user(&home, Fuse::Root, "extant ls torn.img /; extant recover torn.img").must_succeed();
    assert!(printed.text().contains("f99") && printed.errors().contains("replayed"), "{printed}");
    e2fsck::check(&home.join("torn.img")).assert_clean();
}

/// Mounts, works, leaves a file open so that the first unmount is refused, and unmounts.
fn mounted(transport: &str) -> String {
    let home = home();
    let script = format!(
        "extant mkfs -E root_owner={NOBODY}:{NOBODY} disk.img 64M; mkdir mnt; extant mount -o \
        noatime,transport={transport} disk.img mnt; \
         cat /proc/self/mounts | grep mnt; cat /proc/$(pgrep -u {NOBODY} -f $PWD/mnt)/task/*/comm; \
         mkdir mnt/d; echo text > mnt/d/f; mv mnt/d/f mnt/g; ln mnt/g mnt/h; chmod 600 mnt/h; sync \
         -f mnt; cat mnt/h; \
         extant stats mnt | grep journal.commits; \
         exec 3< mnt/h; if fusermount3 -u mnt; then exit 1; fi; exec 3<&-; fusermount3 -u mnt; \
         extant info --wait disk.img > /dev/null; extant cat disk.img /g"
    );
    let printed = as_user(&home, Fuse::Everybody, &script).must_succeed();
    let text = printed.text();
    assert!(text.contains("fuse.extant rw,nosuid,nodev,noatime,user_id=65534"), "{printed}");
    assert_eq!(text.matches("text\n").count(), 2, "{printed}");
    assert!(
        printed.errors().contains("busy") && !printed.errors().contains("served through"),
        "{printed}"
    );
    e2fsck::check(&home.join("disk.img")).assert_clean();
    let kernel = Mount::new(&home.join("disk.img"), "ro");
    let meta = std::fs::metadata(kernel.join("g")).unwrap();
    assert_eq!((meta.uid(), meta.mode() & 0o777, meta.nlink()), (NOBODY, 0o600, 2));
    text
}

#[test]
fn a_user_mounts() {
    assert!(mounted("dev").contains("extant-fuse-0"));
}

#[test]
fn a_user_mounts_over_rings() {
    enable_rings();
    assert!(mounted("uring").contains("extant-ring-0"));
}

#[test]
fn a_refused_mount_names_its_reason() {
    let home = home();
    let printed = as_user(
        &home,
        Fuse::Root,
        "extant mkfs disk.img 16M; mkdir mnt; extant mount disk.img mnt",
    );
    assert_eq!(printed.code, 1, "{printed}");
    assert!(printed.errors().contains("/dev/fuse: Permission denied"), "{printed}");
    let printed =
        as_user(&home, Fuse::Everybody, "mkdir -p mnt; PATH=$PWD extant mount disk.img mnt");
    assert!(printed.code == 1 && printed.errors().contains("package fuse3"), "{printed}");
    let printed = as_user(&home, Fuse::Everybody, "extant mount disk.img /srv");
    assert!(printed.code == 1 && printed.errors().contains("/srv"), "{printed}");
    e2fsck::check(&home.join("disk.img")).assert_clean();
}
