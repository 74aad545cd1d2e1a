//! Files of many extents, in every kind of map: written sparsely, in any order, punched, shifted,
//! truncated and removed; checked by e2fsck, debugfs and the kernel.

use extant_engine::{Errno, Falloc, File, Fs, NodeKind, OpenFlags, OpenOptions};
use extant_testkit::debugfs;
use extant_testkit::image::{FeatureSet, Image};
use extant_testkit::kernel::Mount;
use extant_testkit::rng::Rng;
use std::collections::BTreeMap;
use std::ops::Range;

/// One file of an image, and its expected blocks: block to the word that fills it.
struct Sparse {
    // Closed before the image is judged.
    fs: Option<Fs>,
    image: Image,
    block: u64,
    model: BTreeMap<u64, u64>,
    size: u64,
}

/// Returns the content of a block: its number, with the version of its last write.
fn word(block: u64, version: u64) -> u64 {
    block << 20 | version
}

impl Sparse {
    fn new(set: &FeatureSet, bytes: u64) -> Sparse {
        let image = set.make_sized(bytes);
        let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
        fs.create(&fs.root().unwrap(), b"file", 0o644, NodeKind::File).unwrap();
        Sparse {
            image,
            fs: Some(fs),
            block: set.block_size.into(),
            model: BTreeMap::new(),
            size: 0,
        }
    }

    fn open(&self, direct: bool) -> File {
        let fs = self.fs.as_ref().unwrap();
        let node = fs.lookup(&fs.root().unwrap(), b"file").unwrap();
        fs.open_file(&node, OpenFlags { write: true, direct, ..Default::default() }).unwrap()
    }

    fn write(&mut self, file: &File, blocks: Range<u64>, version: u64) {
        let data: Vec<u8> = blocks
            .clone()
            .flat_map(|b| word(b, version).to_le_bytes().repeat(self.block as usize / 8))
            .collect();
        assert_eq!(file.write_at(blocks.start * self.block, &data).unwrap(), data.len());
        self.size = self.size.max(blocks.end * self.block);
        self.model.extend(blocks.map(|b| (b, word(b, version))));
    }

    fn punch(&mut self, file: &File, blocks: Range<u64>) {
        file.allocate(
            Falloc::Punch,
            blocks.start * self.block,
            (blocks.end - blocks.start) * self.block,
        )
        .unwrap();
        self.model.retain(|b, _| !blocks.contains(b));
    }

    fn cut(&mut self, file: &File, blocks: u64) {
        file.set_len(blocks * self.block).unwrap();
        self.size = blocks * self.block;
        self.model.retain(|b, _| *b < blocks);
    }

    fn expected(&self, block: u64) -> Vec<u8> {
        self.model.get(&block).unwrap_or(&0).to_le_bytes().repeat(self.block as usize / 8)
    }

    /// Compares all the content.
    fn verify(&self, read: impl Fn(u64, &mut [u8])) {
        let mut bytes = vec![0; (self.block * 256) as usize];
        for first in (0..self.size / self.block).step_by(256) {
            let end = (first + 256).min(self.size / self.block);
            let len = ((end - first) * self.block) as usize;
            read(first * self.block, &mut bytes[..len]);
            for (block, got) in (first..end).zip(bytes.chunks(self.block as usize)) {
                assert!(got == self.expected(block), "block {block}");
            }
        }
    }

    /// Unmounts, lets e2fsck and where possible the kernel judge, and opens again.
    fn judge(&mut self, kernel: bool) {
        let file = self.open(false);
        assert_eq!(file.len(), self.size);
        self.verify(|at, buf| assert_eq!(file.read_at(at, buf).unwrap(), buf.len()));
        drop(file);
        self.fs.take().unwrap().unmount().unwrap();
        self.image.assert_clean();
        if kernel {
            let mount = Mount::new(self.image.path(), "ro");
            let file = std::fs::File::open(mount.join("file")).unwrap();
            self.verify(|at, buf| {
                std::os::unix::fs::FileExt::read_exact_at(&file, buf, at).unwrap()
            });
            drop(file);
            mount.unmount();
        }
        self.fs = Some(Fs::open(self.image.path(), &OpenOptions::new()).unwrap());
    }

    /// Unlinks the file and expects all its space back.
    fn remove(mut self, free_before: u64) {
        let fs = self.fs.take().unwrap();
        fs.unlink(&fs.root().unwrap(), b"file").unwrap();
        fs.unmount().unwrap();
        self.image.assert_clean();
        let fs = Fs::open(self.image.path(), &OpenOptions::new()).unwrap();
        assert_eq!(fs.usage().free, free_before);
        fs.unmount().unwrap();
    }

    fn free(&self) -> u64 {
        self.fs.as_ref().unwrap().usage().free
    }
}

/// Numbers below `count` in some order.
fn shuffled(count: u64, seed: u64) -> Vec<u64> {
    let mut numbers: Vec<u64> = (0..count).collect();
    let mut rng = Rng::new(seed);
    for i in (1..numbers.len()).rev() {
        numbers.swap(i, rng.below(i as u64 + 1) as usize);
    }
    numbers
}

/// Every other block of `count`, in any order, then holes, overwrites and a cut.
fn sparse_life(name: &str, bytes: u64, count: u64) {
    let set = FeatureSet::named(name);
    let mut file = Sparse::new(set, bytes);
    let free = file.free();
    let handle = file.open(false);
    for (i, n) in shuffled(count / 2, 7).into_iter().enumerate() {
        file.write(&handle, n * 2..n * 2 + 1, 1);
        if i % 500 == 499 {
            handle.sync_data().unwrap();
        }
    }
    drop(handle);
    file.judge(set.kernel_mountable);
    second_half(file, set, count, free);
}

/// Holes, overwrites and a cut.
fn second_half(mut file: Sparse, set: &FeatureSet, count: u64, free: u64) {
    let handle = file.open(false);
    let mut rng = Rng::new(9);
    for round in 2..40 {
        let start = rng.below(count);
        let len = rng.between(1, count / 8);
        match rng.below(3) {
            0 => file.write(&handle, start..start + rng.between(1, 9), round),
            _ => file.punch(&handle, start..start + len),
        }
    }
    file.cut(&handle, count / 2 + 1);
    drop(handle);
    file.judge(set.kernel_mountable);
    file.remove(free);
}

/// As [`sparse_life`], where the kernel writes the blocks.
fn sparse_life_from_the_kernel(name: &str, bytes: u64, count: u64) {
    let set = FeatureSet::named(name);
    let mut file = Sparse::new(set, bytes);
    let free = file.free();
    file.fs.take().unwrap().unmount().unwrap();
    let mount = Mount::new(file.image.path(), "rw");
    let theirs = std::fs::OpenOptions::new().write(true).open(mount.join("file")).unwrap();
    for (i, n) in shuffled(count / 2, 8).into_iter().enumerate() {
        let block = n * 2;
        let data = word(block, 1).to_le_bytes().repeat(file.block as usize / 8);
        std::os::unix::fs::FileExt::write_all_at(&theirs, &data, block * file.block).unwrap();
        file.model.insert(block, word(block, 1));
        file.size = file.size.max((block + 1) * file.block);
        if i % 200 == 199 {
            theirs.sync_data().unwrap();
        }
    }
    drop(theirs);
    mount.unmount();
    file.fs = Some(Fs::open(file.image.path(), &OpenOptions::new()).unwrap());
    file.judge(false);
    second_half(file, set, count, free);
}

#[test]
fn the_kernels_trees_are_read_and_changed() {
    sparse_life_from_the_kernel("default", 64 << 20, 8_000);
    sparse_life_from_the_kernel("1k", 64 << 20, 12_000);
}

#[test]
fn the_kernels_clusters_are_read_and_changed() {
    sparse_life_from_the_kernel("bigalloc", 256 << 20, 4_000);
    sparse_life_from_the_kernel("bigalloc_1k", 64 << 20, 12_000);
}

#[test]
fn the_kernels_pointers_are_read_and_changed() {
    sparse_life_from_the_kernel("ext3_1k", 64 << 20, 12_000);
}

#[test]
fn a_tree_of_4k_blocks() {
    sparse_life("default", 128 << 20, 12_000);
}

#[test]
fn a_tree_of_1k_blocks_gets_deep() {
    sparse_life("1k", 128 << 20, 60_000);
}

#[test]
fn a_tree_of_64k_blocks() {
    sparse_life("64k", 512 << 20, 2_000);
}

#[test]
fn a_tree_without_checksums() {
    sparse_life("no_csum", 128 << 20, 4_000);
}

#[test]
fn clusters_are_shared() {
    sparse_life("bigalloc", 512 << 20, 6_000);
}

#[test]
fn clusters_of_1k_blocks_are_shared() {
    sparse_life("bigalloc_1k", 128 << 20, 20_000);
}

#[test]
fn pointers_of_4k_blocks() {
    sparse_life("ext2", 128 << 20, 12_000);
}

#[test]
fn pointers_of_1k_blocks() {
    sparse_life("ext3_1k", 128 << 20, 70_000);
}

#[test]
fn three_levels_of_pointers_are_reached_and_freed() {
    let set = FeatureSet::named("ext2_1k");
    let mut file = Sparse::new(set, 64 << 20);
    let free = file.free();
    let handle = file.open(false);
    let (single, double, triple) = (12, 12 + 256, 12 + 256 + 65536);
    for first in [0, single, double, triple, triple + 65536 * 3 + 256 * 5, triple + 65536 * 40] {
        file.write(&handle, first..first + 3, 1);
    }
    handle.sync().unwrap();
    for start in [triple + 65536, double + 1, single] {
        file.punch(&handle, start..triple + 65536 * 30);
    }
    file.fs.as_ref().unwrap().sync().unwrap();
    file.size = handle.len();
    drop(handle);
    let stat = debugfs::stat(file.image.path(), "file");
    assert_eq!(stat.size, file.size);
    let handle = file.open(false);
    file.cut(&handle, double);
    drop(handle);
    file.judge(true);
    file.remove(free);
}

/// Unwritten blocks, written here and there.
#[test]
fn unwritten_blocks_are_written_piecemeal() {
    for name in ["default", "1k", "bigalloc_1k"] {
        let set = FeatureSet::named(name);
        let mut file = Sparse::new(set, 128 << 20);
        let free = file.free();
        let handle = file.open(false);
        handle.allocate(Falloc::Allocate, 0, 8000 * file.block).unwrap();
        file.size = 8000 * file.block;
        let direct = file.open(true);
        for (i, n) in shuffled(1500, 3).into_iter().enumerate() {
            let blocks = n * 5..n * 5 + 1 + n % 3;
            file.write(if i % 4 == 0 { &direct } else { &handle }, blocks, 1);
        }
        drop((handle, direct));
        file.judge(true);
        let handle = file.open(false);
        for start in [0u64, 100, 5000] {
            handle.allocate(Falloc::Zero, start * file.block, 777 * file.block).unwrap();
            file.model.retain(|b, _| !(start..start + 777).contains(b));
        }
        drop(handle);
        file.judge(true);
        file.remove(free);
    }
}

/// Ranges are collapsed and inserted, with thousands of extents behind them.
#[test]
fn ranges_collapse_and_open() {
    for (name, unit) in [("default", 1), ("1k", 1), ("bigalloc_1k", 16)] {
        let set = FeatureSet::named(name);
        let mut file = Sparse::new(set, 128 << 20);
        let free = file.free();
        let handle = file.open(false);
        for n in 0..3000 {
            file.write(&handle, n * 3..n * 3 + 1 + n % 2, 0);
        }
        handle.sync().unwrap();
        let mut rng = Rng::new(5);
        for _ in 0..12 {
            let blocks = file.size / file.block;
            let (at, len) = (rng.below(blocks / unit / 2) * unit, rng.between(1, 50) * unit);
            let how = if rng.one_in(2) { Falloc::Collapse } else { Falloc::Insert };
            handle.allocate(how, at * file.block, len * file.block).unwrap();
            file.size = handle.len();
            let moved = |b: u64| match how {
                Falloc::Collapse if b >= at + len => Some(b - len),
                Falloc::Collapse if b >= at => None,
                Falloc::Insert if b >= at => Some(b + len),
                _ => Some(b),
            };
            file.model =
                file.model.iter().filter_map(|(b, word)| Some((moved(*b)?, *word))).collect();
        }
        drop(handle);
        file.judge(true);
        file.remove(free);
    }
}

/// Bytes of the map are changed at random: everything may fail, nothing may panic or hang.
fn damage(name: &str, seeds: Range<u64>) {
    let set = FeatureSet::named(name);
    let mut file = Sparse::new(set, 20 << 20);
    let handle = file.open(false);
    for n in 0..2000 {
        file.write(&handle, n * 2..n * 2 + 1, 1);
    }
    drop(handle);
    file.fs.take().unwrap().unmount().unwrap();
    let mut places = map_blocks(&file.image, file.block);
    assert!(!places.is_empty());
    places.push(i_block(&file.image, file.block));
    let pristine = file.image.bytes();
    for seed in seeds {
        let mut rng = Rng::new(seed);
        let image = file.image.copy();
        image.leave_unjudged("it is damaged");
        let mut bytes = pristine.clone();
        for _ in 0..rng.between(1, 8) {
            let place = rng.pick(&places).clone();
            let len = place.end - place.start;
            let offset = if rng.one_in(2) { rng.below(len.min(64)) } else { rng.below(len) };
            bytes[(place.start + offset) as usize] = rng.next_u64() as u8;
        }
        std::fs::write(image.path(), &bytes).unwrap();
        abuse(&image, &mut rng);
    }
}

#[test]
fn damaged_trees_cost_an_error_only() {
    damage("no_csum", 0..40);
}

#[test]
fn damaged_pointers_cost_an_error_only() {
    damage("ext3_1k", 100..140);
}

/// The bytes of the image that hold the file's extent or pointer blocks.
fn map_blocks(image: &Image, block: u64) -> Vec<Range<u64>> {
    let mapping = debugfs::stat(image.path(), "file").mapping;
    let marked = mapping.split('(').filter(|part| part.starts_with("ETB") || part.contains("IND)"));
    let numbers = marked
        .filter_map(|part| part.split_once("):")?.1.split([',', ' ']).next()?.trim().parse().ok());
    numbers.map(|nr: u64| nr * block..(nr + 1) * block).collect()
}

/// The bytes of the image that hold the root of the file's map.
fn i_block(image: &Image, block: u64) -> Range<u64> {
    let text = debugfs::read(image.path(), "imap file");
    let after = |key: &str| {
        text.split_once(key).unwrap().1.split([',', '\n']).next().unwrap().trim().to_owned()
    };
    let nr: u64 = after("located at block ").parse().unwrap();
    let offset = u64::from_str_radix(after("offset ").trim_start_matches("0x"), 16).unwrap();
    let start = nr * block + offset + 0x28;
    start..start + 60
}

fn abuse(image: &Image, rng: &mut Rng) {
    let Ok(fs) = Fs::open(image.path(), &OpenOptions::new()) else { return };
    let Ok(node) = fs.lookup(&fs.root().unwrap(), b"file") else { return };
    let Ok(file) = fs.open_file(&node, OpenFlags { write: true, ..Default::default() }) else {
        return;
    };
    let mut buf = vec![0; 1 << 16];
    for _ in 0..40 {
        let at = rng.below(4000 * 4096);
        let len = rng.between(1, 60_000);
        let _ = match rng.below(5) {
            0 => file.read_at(at, &mut buf).map(|_| ()),
            1 => file.write_at(at, &buf[..len as usize]).map(|_| ()),
            2 => file.allocate(Falloc::Punch, at, len * 20),
            3 => file.sync(),
            _ => file.seek_hole(at).map(|_| ()),
        };
    }
    let _ = file.set_len(rng.below(4000 * 4096));
    drop(file);
    let _ = fs.unlink(&fs.root().unwrap(), b"file");
    let _ = fs.unmount();
}

#[test]
fn unwritten_blocks_need_a_tree() {
    let set = FeatureSet::named("ext2");
    let file = Sparse::new(set, 64 << 20);
    let error = file.open(false).allocate(Falloc::Allocate, 0, 1 << 20).unwrap_err();
    assert!(error.is(Errno::OpNotSupp), "{error}");
}

/// A physical place is reported only for data that have one: not for dirty pages, inline data or
/// holes, and not for a range in two places.
#[test]
fn only_written_mapped_ranges_have_a_physical_place() {
    let image = FeatureSet::named("inline_data").make_sized(16 << 20);
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("open");
    let root = fs.root().expect("root");
    let [file, small] = [b"file", b"tiny"].map(|name| {
        let node = fs.create(&root, name, 0o644, NodeKind::File).expect("create");
        fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).expect("open")
    });
    small.write_at(0, b"in the inode").expect("write");
    file.write_at(0, &[1; 8192]).expect("write");
    file.write_at(16384, &[2; 4096]).expect("write");
    let place = |file: &File, at: u64, len: u64| fs.place_of(file.node(), at, len).expect("a map");
    assert_eq!((place(&file, 0, 4096), place(&small, 0, 12)), (None, None));
    fs.sync().expect("sync");
    let first = place(&file, 0, 8192).expect("it is written");
    assert_eq!(
        (place(&file, 4096, 4096), place(&file, 0, 4096)),
        (Some(first + 4096), Some(first))
    );
    assert_eq!(
        (place(&file, 8192, 4096), place(&file, 4096, 8192), place(&small, 0, 12)),
        (None, None, None)
    );
    drop((file, small, root));
    fs.unmount().expect("unmount");
    let blocks = debugfs::read(image.path(), "blocks file");
    assert_eq!(
        blocks.split_whitespace().next().and_then(|word| word.parse().ok()),
        Some(first / 4096),
        "{blocks}"
    );
    image.assert_clean();
}
