//! Mounts of an unprivileged user that claim to show an image of root. Every user chooses source
//! and type of their mounts; the helpers of root must believe neither.

use crate::unprivileged::{NOBODY, home};
use extant_testkit::tool::{Printed, need, run};
use extant_testkit::{Scratch, e2fsck};

/// Runs a script of root in the user's directory, in a mount namespace of its own in which users
/// may mount for others. `user` runs a command without privileges. The mounts `fake` and `mnt` end
/// with the script, and with them their servers.
fn staged(home: &Scratch, script: &str) -> Printed {
    need("fusermount3");
    let setpriv = need("setpriv").display().to_string();
    let all = format!(
        "set -eu; mount --make-rprivate /; cd {}
         mkdir root mnt; touch root/null; mknod root/fuse c 10 229; chmod 666 root/fuse; mount \
         --bind root/fuse /dev/fuse
         echo user_allow_other > root/conf; mount --bind root/conf /etc/fuse.conf
         for name in mount.fuse.extant umount.fuse.extant umount.fuse; do ln -s $PWD/extant \
         root/$name; done
         PATH=$PWD/root:$PWD:$PATH
         user() {{ {setpriv} --reuid={NOBODY} --regid={NOBODY} --clear-groups \"$@\"; }}
         trap 'umount -il mnt 2>&- || :; umount -il fake 2>&- || :' EXIT
         {script}",
        home.path().display(),
    );
    let printed = run("unshare", &["--mount", "sh", "-c", &all]);
    // The server of a detached mount may still write: the image is judged when the test ends.
    for image in ["disk.img", "moved.img"].map(|name| home.join(name)) {
        if image.exists() {
            crate::program::done(&crate::args!["info", "--wait", &image]);
        }
    }
    printed
}

/// The user mounts an image at `fake`, with a file `impostor`, under the path at which root's image
/// lies later, with a directory `genuine`.
const FAKE: &str = "user extant mkfs -E root_owner=65534:65534 disk.img 64M; user mkdir fake
    user extant mount -o allow_other disk.img fake; user touch fake/impostor; user mv disk.img \
    moved.img
    grep -q $PWD/disk.img.*user_id=65534 /proc/self/mountinfo
    extant mkfs disk.img 128M; extant mkdir disk.img /genuine";

/// Makes a fake that root cannot inspect: so its mount is not shown at a second place, and the test
/// reaches the other uses of the table.
fn closed_fake() -> String {
    FAKE.replace("-o allow_other ", "")
}

#[test]
fn an_impostor_is_not_shown_as_roots_image() {
    let home = home();
    let script = format!(
        "{FAKE}; mount.fuse.extant disk.img mnt -o rw,suid,dev; ls mnt; findmnt -no OPTIONS mnt; \
        umount.fuse.extant mnt"
    );
    let printed = staged(&home, &script).must_succeed();
    let text = printed.text();
    assert!(text.contains("genuine") && !text.contains("impostor"), "{printed}");
    assert!(text.contains("user_id=0") && !text.contains("nosuid"), "{printed}");
    e2fsck::check(&home.join("disk.img")).assert_clean();
}

/// Not even of a mount that root can look into is the protection taken off.
#[test]
fn an_impostor_keeps_its_protection() {
    let home = home();
    let remount = "mount.fuse.extant disk.img fake -o rw,suid,dev,remount";
    let own = "extant mount -o remount,rw disk.img fake";
    let script = format!(
        "{FAKE}; if {remount}; then echo changed; fi; if {own}; then echo changed; fi; findmnt -no \
        OPTIONS fake; ls fake"
    );
    let printed = staged(&home, &script).must_succeed();
    let text = printed.text();
    assert!(
        text.contains("nosuid,nodev") && text.contains("impostor") && !text.contains("changed"),
        "{printed}"
    );
    assert_eq!(
        printed.errors().matches("another user, or another program, made this mount").count(),
        2,
        "{printed}"
    );
}

/// An image that the user serves for reading is not unmounted for root to mount its own there.
#[test]
fn an_impostor_for_reading_is_not_replaced() {
    let home = home();
    let script = format!(
        "{FAKE}; umount -i fake; extant info --wait moved.img; mv disk.img root; user mv moved.img \
        disk.img
         user extant mount -o ro,allow_other disk.img fake; user mv disk.img moved.img; mv \
         root/disk.img disk.img
         if mount.fuse.extant disk.img fake -o rw,remount; then echo changed; fi; ls fake; findmnt \
         -no OPTIONS fake"
    );
    let printed = staged(&home, &script).must_succeed();
    let text = printed.text();
    assert!(
        text.contains("impostor") && text.contains("user_id=65534") && !text.contains("changed"),
        "{printed}"
    );
}

/// The mount of the user is listed as theirs, without a question to their server, and not ended in
/// the place of root's image.
#[test]
fn an_impostor_is_neither_asked_nor_unmounted() {
    let home = home();
    let script = format!(
        "{FAKE}; extant mounts; if extant umount disk.img; then echo changed; fi
         if extant umount fake; then echo changed; fi; ls fake
         extant mount disk.img mnt; extant umount disk.img; ls fake; extant info disk.img > \
         root/null"
    );
    let printed = staged(&home, &script).must_succeed();
    let (text, errors) = (printed.text(), printed.errors());
    assert!(text.contains("not asked") && !text.contains("changed"), "{printed}");
    assert_eq!(text.matches("impostor").count(), 2, "{printed}");
    assert!(errors.contains("no mount point and no mounted image of this user"), "{printed}");
    assert!(errors.contains("another user, or another program, made this mount"), "{printed}");
}

#[test]
fn an_impostor_does_not_hinder_a_remount() {
    let home = home();
    let script = format!(
        "{}; mount.fuse.extant disk.img mnt -o ro; mount.fuse.extant disk.img mnt -o rw,remount
         touch mnt/written; umount.fuse.extant mnt; extant ls disk.img /",
        closed_fake()
    );
    let printed = staged(&home, &script).must_succeed();
    assert!(printed.text().contains("written"), "{printed}");
    e2fsck::check(&home.join("disk.img")).assert_clean();
}

/// The server holds the image until everything is written.
#[test]
fn an_impostor_does_not_end_the_wait_of_an_unmount() {
    let home = home();
    let script = format!(
        "{}; mount.fuse.extant disk.img mnt -o rw; head -c 48M /dev/zero > mnt/f; \
        umount.fuse.extant mnt
         extant info disk.img > root/null",
        closed_fake()
    );
    staged(&home, &script).must_succeed();
    e2fsck::check(&home.join("disk.img")).assert_clean();
}

/// The user holds the file that is the source of the mount, for as long as the unmount takes.
#[test]
fn an_unmount_does_not_wait_for_the_source_of_an_impostor() {
    let home = home();
    let script =
        "user extant mkfs disk.img 64M; user mkdir fake; user extant mount -o allow_other \
    disk.img fake
        user mv disk.img moved.img; user extant mkfs disk.img 64M; mkfifo pipe
        user extant put --wait disk.img - /f < pipe & exec 9> pipe
        while extant info disk.img > root/null 2>&1; do sleep 0.1; done
        timeout 60 umount.fuse fake || echo waited
        if grep -q $PWD/fake /proc/self/mountinfo; then echo mounted; fi
        if extant info disk.img > root/null 2>&1; then echo free; fi
        exec 9>&-; wait; extant info --wait moved.img > root/null";
    let printed = staged(&home, script).must_succeed();
    for word in ["waited", "mounted", "free"] {
        assert!(!printed.text().contains(word), "{printed}");
    }
    e2fsck::check(&home.join("moved.img")).assert_clean();
}

/// The image is in use when the mount is tried. Its last user ends later, and the image is mounted.
/// The pause only sees to it that the mount meets the user.
#[test]
fn an_impostor_does_not_end_the_wait_of_a_mount() {
    let home = home();
    let script = format!(
        "{}; mkfifo pipe; extant put --wait disk.img - /last < pipe & exec 9> pipe
         while extant info disk.img > root/null 2>&1; do sleep 0.1; done
         mount.fuse.extant disk.img mnt -o rw 9>&- & helper=$!
         sleep 1; exec 9>&-; wait $helper
         ls mnt; umount.fuse.extant mnt",
        closed_fake()
    );
    let printed = staged(&home, &script).must_succeed();
    let text = printed.text();
    assert!(
        text.contains("genuine") && text.contains("last") && !text.contains("impostor"),
        "{printed}"
    );
    e2fsck::check(&home.join("disk.img")).assert_clean();
}
