use extant_testkit::kernel::{Mount, Shutdown};
use extant_testkit::{FEATURE_SETS, FeatureSet, debugfs, dumpe2fs, e2fsck};

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

#[test]
fn damage_is_a_complaint() {
    let image = FeatureSet::named("default").make();
    debugfs::write(image.path(), "set_inode_field <2> links_count 9");
    assert!(!e2fsck::check(image.path()).is_clean());
    assert!(!e2fsck::recover(image.path()).is_clean());
    assert!(e2fsck::check(image.path()).is_clean());
}

#[test]
fn crash_leaves_only_what_recovery_may_say() {
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
fn groups_are_dumped() {
    let image = FeatureSet::named("1k").make();
    let dump = dumpe2fs::dump(image.path());
    assert_eq!(dump.groups.len(), 8);
    assert_eq!(dump.groups[0].directories, 2);
    assert!(dump.features().contains("orphan_file"));
}
