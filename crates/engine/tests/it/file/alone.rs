//! Single operations with a known outcome.

use super::model::{World, noise};
use extant_engine::{Errno, Falloc, Follow, Fs, NodeKind, OpenFlags, OpenOptions};
use extant_testkit::kernel::Mount;
use extant_testkit::rng::Rng;
use extant_testkit::{FeatureSet, Image};

fn world(set: &str) -> World {
    World::new(FeatureSet::named(set).make(), OpenOptions::new(), 1)
}

#[test]
fn delayed_blocks_are_counted_and_found() {
    let mut world = world("default");
    let file = world.open(0, false);
    file.write_at(8192, &[7; 10_000]).unwrap();
    assert_eq!(file.node().attr().blocks, 3 * 8);
    assert_eq!((file.seek_data(0).unwrap(), file.seek_hole(8192).unwrap()), (8192, 18192));
    let mut seen = Vec::new();
    file.extents(0, u64::MAX, |e| {
        seen.push(*e);
        true
    })
    .unwrap();
    assert_eq!(seen.len(), 1);
    assert!(seen[0].flags.delayed && seen[0].flags.last);
    assert_eq!((seen[0].logical, seen[0].len), (8192, 12288));
    file.sync().unwrap();
    seen.clear();
    file.extents(0, u64::MAX, |e| {
        seen.push(*e);
        true
    })
    .unwrap();
    assert!(!seen[0].flags.delayed && seen[0].physical > 0);
    assert_eq!(file.node().attr().blocks, 3 * 8);
    drop(file);
    world.close();
}

/// Groups so small that a long extent spans more of them than one transaction can change.
#[test]
fn long_ranges_may_lie_in_very_many_groups() {
    for flex in ["16", "128"] {
        let args =
            ["-t", "ext4", "-b", "1024", "-g", "256", "-G", flex, "-N", "2048", "-J", "size=1"];
        let image = Image::mke2fs(96 << 20, &args);
        let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
        let root = fs.root().unwrap();
        let file = |name: &[u8]| {
            let node = fs.create(&root, name, 0o644, NodeKind::File).unwrap();
            fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).unwrap()
        };
        let data = noise(&mut Rng::new(1), 30 << 20);
        let (kept, written) = (file(b"kept"), file(b"written"));
        kept.allocate(Falloc::Allocate, 0, 30 << 20).unwrap();
        for file in [&kept, &written] {
            assert_eq!(file.write_at(0, &data).unwrap(), data.len());
            file.sync().unwrap();
            let mut found = vec![0; data.len()];
            file.read_at(0, &mut found).unwrap();
            assert!(found == data);
        }
        kept.allocate(Falloc::Zero, 0, 30 << 20).unwrap();
        fs.write_direct(kept.node(), 0, &data, false).unwrap();
        written.allocate(Falloc::Punch, 0, 30 << 20).unwrap();
        kept.set_len(0).unwrap();
        drop((kept, written));
        fs.unmount().unwrap();
        image.assert_clean();
    }
}

#[test]
fn a_long_write_is_one_extent() {
    for (set, direct) in
        [("default", false), ("default", true), ("bigalloc", false), ("ext3", true)]
    {
        let mut world = world(set);
        let data = noise(&mut Rng::new(1), 6 << 20);
        let file = world.open(0, direct);
        for (i, part) in data.chunks(1 << 17).enumerate() {
            assert_eq!(file.write_at((i as u64) << 17, part).unwrap(), part.len());
        }
        file.sync().unwrap();
        let mut count = 0;
        file.extents(0, u64::MAX, |_| {
            count += 1;
            true
        })
        .unwrap();
        assert!(count <= 8, "{set}: {count} extents");
        drop(file);
        world.files[0] = data;
        world.verify();
        world.close();
    }
}

#[test]
fn limits_are_told() {
    let mut world = world("default");
    let file = world.open(0, false);
    assert!(file.write_at(1 << 45, b"x").is_err_and(|e| e.is(Errno::FBig)));
    assert!(file.set_len(1 << 45).is_err_and(|e| e.is(Errno::FBig)));
    let last = (u64::from(u32::MAX) << 12) - 1;
    assert_eq!(file.write_at(last, b"xyz").unwrap(), 1);
    assert_eq!(file.len(), last + 1);
    assert!(file.seek_data(last + 1).is_err_and(|e| e.is(Errno::Nxio)));
    assert!(file.seek_data(0).unwrap() > 1 << 40);
    assert!(file.allocate(Falloc::Collapse, 0, 4097).is_err_and(|e| e.is(Errno::Inval)));
    assert!(file.allocate(Falloc::Insert, 0, 4096).is_err_and(|e| e.is(Errno::FBig)));
    assert!(file.allocate(Falloc::Allocate, 0, 0).is_err_and(|e| e.is(Errno::Inval)));
    drop(file);
    world.close();
}

#[test]
fn maps_without_extents_only_punch() {
    let world = world("ext3");
    let file = world.open(0, false);
    file.write_at(0, &[1; 20_000]).unwrap();
    for how in [Falloc::Allocate, Falloc::KeepSize, Falloc::Zero, Falloc::Collapse, Falloc::Insert]
    {
        assert!(file.allocate(how, 4096, 4096).is_err_and(|e| e.is(Errno::OpNotSupp)), "{how:?}");
    }
    file.allocate(Falloc::Punch, 4096, 8192).unwrap();
    assert_eq!(file.seek_hole(0).unwrap(), 4096);
}

#[test]
fn symlinks_of_every_length() {
    for set in ["default", "ext2_1k", "inline_data", "bigalloc", "64k"] {
        let image = FeatureSet::named(set).make();
        let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
        let root = fs.root().unwrap();
        let lengths = [1, 59, 60, 61, 100, 155, 156, 200, 1000, 1023];
        for len in lengths {
            let target = vec![b'a' + (len % 26) as u8; len];
            fs.create(&root, format!("l{len}").as_bytes(), 0o777, NodeKind::Symlink(&target))
                .unwrap();
        }
        fs.unmount().unwrap();
        image.assert_clean();
        let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
        for len in lengths {
            let node = fs.resolve(format!("/l{len}"), Follow::No).unwrap();
            assert_eq!(fs.read_link(&node).unwrap(), vec![b'a' + (len % 26) as u8; len], "{set}");
        }
        fs.unmount().unwrap();
        if FeatureSet::named(set).kernel_mountable {
            let mount = Mount::new(image.path(), "ro");
            for len in lengths {
                let target = std::fs::read_link(mount.join(format!("l{len}"))).unwrap();
                assert_eq!(target.as_os_str().len(), len, "{set}");
            }
            mount.unmount();
        }
    }
}

#[test]
fn files_of_the_kernel_are_read_and_changed() {
    for set in ["default", "ext3", "bigalloc_1k", "inline_data", "1k"] {
        let image = FeatureSet::named(set).make();
        let data = noise(&mut Rng::new(5), 300_000);
        let mount = Mount::new(image.path(), "");
        for (name, len) in
            [("empty", 0), ("tiny", 40), ("small", 130), ("block", 4096), ("large", 300_000)]
        {
            std::fs::write(mount.join(name), &data[..len]).unwrap();
        }
        mount.unmount();
        extend(&image, &data);
        image.assert_clean();
        let mount = Mount::new(image.path(), "ro");
        for (name, len) in
            [("empty", 0), ("tiny", 40), ("small", 130), ("block", 4096), ("large", 300_000)]
        {
            let mut expected = data[..len].to_vec();
            expected.extend_from_slice(&data[..5000]);
            super::model::assert_same(&std::fs::read(mount.join(name)).unwrap(), &expected, name);
        }
        mount.unmount();
    }
}

/// Reads each file and appends to it.
fn extend(image: &Image, data: &[u8]) {
    let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
    for (name, len) in
        [("empty", 0), ("tiny", 40), ("small", 130), ("block", 4096), ("large", 300_000)]
    {
        let node = fs.resolve(format!("/{name}"), Follow::No).unwrap();
        let file = fs
            .open_file(
                &node,
                extant_engine::OpenFlags { write: true, append: true, ..Default::default() },
            )
            .unwrap();
        super::model::assert_same(&super::model::read_all(&file), &data[..len], name);
        file.write_at(0, &data[..5000]).unwrap();
    }
    fs.unmount().unwrap();
}

const JOURNAL_DATA: u32 = 0x4000;

#[test]
fn data_may_begin_and_cease_to_be_logged() {
    for set in ["default", "ext3_1k", "inline_data"] {
        let mut world = world(set);
        let mut rng = Rng::new(2);
        for round in 0..6u32 {
            let file = world.open(0, round % 2 == 1);
            for at in [0, 30_000, 7] {
                let data = noise(&mut rng, 20 + 9_000 * round as usize);
                file.write_at(at, &data).unwrap();
                super::model::put(&mut world.files[0], at as usize, &data);
            }
            world.verify();
            let flags = file.node().attr().flags;
            world.fs().set_flags(file.node(), flags ^ JOURNAL_DATA).unwrap();
            world.verify();
            drop(file);
            if round == 3 {
                world.remount();
            }
        }
        world.remount();
        world.verify();
        world.close();
        world.verify_by_kernel();
    }
}

#[test]
fn impossible_sizes_cost_an_error_at_most() {
    for set in ["default", "1k", "ext3", "bigalloc", "inline_data"] {
        for size in [
            "0xffffffffffffffff",
            "0x8000000000000000",
            "0x7fffffffffffffff",
            "0xfffffffffff",
            "0x100000000000",
        ] {
            for len in [0, 50, 10_000] {
                let mut world = world(set);
                world.open(0, false).write_at(0, &vec![1; len]).unwrap();
                world.close();
                world.image.leave_unjudged("a size is impossible");
                extant_testkit::debugfs::write(
                    world.image.path(),
                    &format!("set_inode_field file0 size {size}"),
                );
                abuse(&world.image);
            }
        }
    }
}

/// Runs every operation on a file with unknown content. It must not panic or hang.
fn abuse(image: &Image) {
    let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
    let Ok(node) = fs.resolve("/file0", Follow::No) else { return };
    assert!(node.attr().size >= 1 << 43, "debugfs has set the size");
    for direct in [false, true] {
        let file = fs
            .open_file(
                &node,
                extant_engine::OpenFlags { write: true, direct, ..Default::default() },
            )
            .unwrap();
        let mut buf = vec![0; 10_000];
        for at in [0, 4095, 1 << 32, (1 << 44) - 5000, 1 << 44, u64::MAX - 5000] {
            let _ = file.read_at(at, &mut buf);
            let _ = file.write_at(at, &buf);
            let _ = file.seek_data(at);
            let _ = file.seek_hole(at);
            let _ = file.extents(at, 100_000, |_| true);
            for how in [
                Falloc::KeepSize,
                Falloc::Punch,
                Falloc::ZeroKeepSize,
                Falloc::Collapse,
                Falloc::Insert,
            ] {
                let _ = file.allocate(how, at & !65535, 65536);
            }
        }
        let _ = file.sync();
        let _ = file.set_len(5000);
        let _ = file.set_len(0);
    }
    let _ = fs.unmount();
}
