use extant_engine::device::BlockDevice;
use extant_testkit::judge::{BEYOND_THE_KERNEL, Sign, beyond_the_kernel};
use extant_testkit::kernel::{Loop, Mount, Shutdown};
use extant_testkit::verity::{Wanted, make};
use extant_testkit::{FEATURE_SETS, FeatureSet, Image, Memory, debugfs, dumpe2fs, e2fsck};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;

#[test]
fn every_feature_set_is_clean_and_mounts() {
    for set in FEATURE_SETS {
        let image = set.make();
        println!("{}", set.name);
        image.assert_clean();
        assert_eq!(dumpe2fs::header(image.path()).number("Block size"), u64::from(set.block_size));
        let mounted = Mount::try_new(image.path(), "");
        assert_eq!(mounted.is_ok(), set.kernel_mountable, "{}: {mounted:?}", set.name);
    }
}

/// Simulates the child process of another test, which has copies of descriptors until execve(2).
#[test]
fn an_unmount_waits_for_descriptors_of_other_programs() {
    let image = FeatureSet::named("default").make();
    let mount = Mount::new(image.path(), "");
    let held = std::fs::File::create(mount.join("held")).unwrap();
    let mut holder = Command::new("sleep").arg("0.3").stdin(held).spawn().unwrap();
    mount.unmount();
    assert!(holder.wait().unwrap().success());
    image.assert_clean();
}

#[test]
fn an_image_has_everything_though_another_program_has_its_device_open() {
    let image = Image::blank(1 << 20);
    image.leave_unjudged("no file system");
    let on = Loop::attach(image.path(), false);
    let device = File::options().write(true).open(on.device()).unwrap();
    device.write_all_at(b"cached", 4096).unwrap();
    drop(on);
    assert_eq!(&image.bytes()[4096..4102], b"cached");
    drop(device);
}

#[test]
fn damage_is_a_complaint() {
    let image = FeatureSet::named("default").make();
    debugfs::write(image.path(), "set_inode_field <2> links_count 9");
    assert!(!e2fsck::check(image.path()).is_clean());
    assert!(!e2fsck::recover(image.path()).is_clean());
    assert!(e2fsck::check(image.path()).is_clean());
}

#[test]
fn recovery_after_a_crash_prints_allowed_lines_only() {
    let image = FeatureSet::named("orphan_file").make();
    let mount = Mount::new(image.path(), "");
    std::fs::write(mount.join("kept"), "kept").unwrap();
    let open = std::fs::File::create(mount.join("orphan")).unwrap();
    std::fs::remove_file(mount.join("orphan")).unwrap();
    mount.sync();
    std::fs::write(mount.join("lost"), "lost").unwrap();
    mount.shut_down(Shutdown::NoFlushLog);
    assert!(std::fs::write(mount.join("late"), "").is_err());
    drop(open);
    mount.unmount();
    assert!(!e2fsck::check(image.path()).is_clean());
    e2fsck::recover(image.path()).assert_clean();
    assert_eq!(debugfs::read(image.path(), "cat /kept"), "kept");
    let stat = debugfs::stat(image.path(), "/kept");
    assert_eq!((stat.kind.as_str(), stat.size, stat.links), ("regular", 4, 1));
}

#[test]
fn images_with_bitmaps_before_their_recovery_are_read() {
    let image = FeatureSet::named("default").make();
    let bitmap = dumpe2fs::dump(image.path()).groups[0].inode_bitmap;
    image.leave_unjudged("its bitmap is damaged");
    let file = File::options().write(true).open(image.path()).unwrap();
    file.write_all_at(&[0x55; 16], bitmap * 4096).unwrap();
    assert_eq!(debugfs::stat(image.path(), "<2>").kind, "directory");
}

#[test]
fn groups_are_dumped() {
    let image = FeatureSet::named("1k").make();
    let dump = dumpe2fs::dump(image.path());
    assert_eq!(dump.groups.len(), 8);
    assert_eq!(dump.groups[0].directories, 2);
    assert!(dump.features().contains("orphan_file"));
}

/// Drops `thing` and returns the message of the panic, if any.
fn said_in_the_end<T>(thing: T) -> Option<String> {
    let end = catch_unwind(AssertUnwindSafe(move || drop(thing)));
    end.err().map(|why| *why.downcast::<String>().expect("a message"))
}

fn damage(image: &Image) {
    debugfs::write(image.path(), "set_inode_field <2> links_count 9");
}

#[test]
fn images_of_a_test_are_judged() {
    let image = FeatureSet::named("default").make_sized(12 << 20);
    let written = image.copy();
    let mount = Mount::new(written.path(), "");
    std::fs::write(mount.join("file"), "content").unwrap();
    mount.unmount();
    assert_eq!(said_in_the_end(written), None);
    let damaged = image.copy();
    damage(&damaged);
    assert!(said_in_the_end(damaged).unwrap().contains("ref count"));
    let elsewhere = extant_testkit::Scratch::new();
    std::fs::copy(image.path(), elsewhere.dir("below").join("any name")).unwrap();
    debugfs::write(&elsewhere.join("below/any name"), "set_inode_field <2> links_count 9");
    assert!(said_in_the_end(elsewhere).unwrap().contains("ref count"));
}

#[test]
fn judged_images_are_judged_again_after_a_change() {
    let image = FeatureSet::named("default").make_sized(12 << 20);
    image.assert_clean();
    damage(&image);
    assert!(said_in_the_end(image).unwrap().contains("ref count"));
}

#[test]
fn an_image_is_left_unjudged_for_a_reason() {
    let image = FeatureSet::named("default").make_sized(12 << 20);
    damage(&image);
    image.leave_unjudged("it is damaged");
    assert_eq!(said_in_the_end(image), None);
}

/// Changes in the log belong to the tree; a crashed image is recovered before it is judged.
#[test]
fn crashed_images_are_recovered_and_judged() {
    let crashed = || {
        let image = FeatureSet::named("orphan_file").make_sized(16 << 20);
        let mount = Mount::new(image.path(), "");
        (0..100).for_each(|n| std::fs::write(mount.join(format!("old{n}")), "old").unwrap());
        mount.unmount();
        let mount = Mount::new(image.path(), "");
        std::fs::write(mount.join("kept"), "kept").unwrap();
        mount.crash(Shutdown::FlushLog);
        assert!(dumpe2fs::header(image.path()).features().contains("needs_recovery"));
        image
    };
    assert_eq!(said_in_the_end(crashed()), None);
    let damaged = crashed();
    // The inode is in a block without a copy in the log.
    debugfs::write(damaged.path(), "set_inode_field /old50 links_count 9");
    assert!(said_in_the_end(damaged).unwrap().contains("ref count"));
}

#[test]
fn devices_in_memory_are_judged() {
    let image = FeatureSet::named("default").make_sized(12 << 20);
    let bytes = image.bytes();
    damage(&image);
    image.leave_unjudged("it is damaged");
    let damaged = image.bytes();
    let changed = |bytes: &[u8]| {
        let device = Memory::from_bytes(bytes);
        device.write_all_at(b"note", 0).unwrap();
        device
    };
    assert_eq!(said_in_the_end(changed(&bytes)), None);
    assert!(said_in_the_end(changed(&damaged)).unwrap().contains("ref count"));
    assert_eq!(said_in_the_end(Memory::from_bytes(&damaged)), None, "no test wrote to it");
}

/// This kernel must refuse to mount the image of each row, or to open its files, unless it reports
/// support; it mounts all other images for reading.
#[test]
fn the_kernel_refuses_images_beyond_it() {
    for (sign, why) in BEYOND_THE_KERNEL {
        let image = match sign {
            Sign::BlocksAbove(bytes) => {
                Image::mke2fs(64 << 20, &["-t", "ext4", "-b", &(2 * bytes).to_string()])
            }
            Sign::Feature("casefold") => {
                Image::mke2fs(16 << 20, &["-t", "ext4", "-O", "casefold", "-E", "encoding=utf8"])
            }
            Sign::Feature("verity") => {
                make(16 << 20, 4096, &[Wanted { name: "file", content: b"x", args: &[] }]).0
            }
            Sign::Feature(other) => panic!("no image of `{other}`"),
        };
        let read = Mount::try_new(image.path(), "ro,noload").and_then(|mount| match sign {
            Sign::Feature("verity") => std::fs::read(mount.join("file")).map_err(|e| e.to_string()),
            _ => Ok(Vec::new()),
        });
        assert_eq!(beyond_the_kernel(image.path()), read.is_err().then_some(why), "{read:?}");
    }
    for set in FEATURE_SETS {
        let image = set.make();
        let mounted = Mount::try_new(image.path(), "ro,noload");
        assert_eq!(
            mounted.is_ok(),
            beyond_the_kernel(image.path()).is_none(),
            "{}: {mounted:?}",
            set.name
        );
    }
}
