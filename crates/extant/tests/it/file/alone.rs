//! Single operations with a known outcome.

use super::model::{World, noise};
use extant::{Caller, Errno, Falloc, Follow, Fs, New, OpenOptions};
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

#[test]
fn a_long_write_is_one_extent() {
    for (set, direct) in [("default", false), ("default", true), ("bigalloc", false), ("ext3", true)] {
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
    for how in [Falloc::Allocate, Falloc::KeepSize, Falloc::Zero, Falloc::Collapse, Falloc::Insert] {
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
            fs.create(&Caller::default(), &root, format!("l{len}").as_bytes(), 0o777, New::Symlink(&target)).unwrap();
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
        for (name, len) in [("empty", 0), ("tiny", 40), ("small", 130), ("block", 4096), ("large", 300_000)] {
            std::fs::write(mount.join(name), &data[..len]).unwrap();
        }
        mount.unmount();
        extend(&image, &data);
        image.assert_clean();
        let mount = Mount::new(image.path(), "ro");
        for (name, len) in [("empty", 0), ("tiny", 40), ("small", 130), ("block", 4096), ("large", 300_000)] {
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
    for (name, len) in [("empty", 0), ("tiny", 40), ("small", 130), ("block", 4096), ("large", 300_000)] {
        let node = fs.resolve(format!("/{name}"), Follow::No).unwrap();
        let file = fs.open_file(&node, extant::OpenFlags { write: true, append: true, ..Default::default() }).unwrap();
        super::model::assert_same(&super::model::read_all(&file), &data[..len], name);
        file.write_at(0, &data[..5000]).unwrap();
    }
    fs.unmount().unwrap();
}
