mod free_batches;
mod harness;
mod hostile;
mod model;
mod preallocs;
mod threads;
mod trees;

use super::*;
use extant_blocks::BlockDevice;
use extant_format::group_desc::GroupFlags;
use extant_format::types::FileType;
use extant_sync::atomic::{AtomicU64, Ordering::SeqCst};
use extant_testkit::Image;
use harness::House;

fn want(goal: u64, len: u32, min: u32) -> Request {
    Request {
        goal: BlockNr(goal),
        len,
        min,
        purpose: Purpose::Data,
        privileged: false,
        reserved: false,
        low: false,
    }
}

/// Wants everything there is.
fn all(goal: u64, len: u32) -> Request {
    Request { purpose: Purpose::Metadata, privileged: true, ..want(goal, len, 1) }
}

/// Claims and books one run.
fn take(house: &House, want: &Request) -> crate::Result<(BlockNr, u32)> {
    let mut claim = house.alloc.claim(want)?;
    let len = claim.len;
    let mut h = house.vol.start(house.alloc.credits(len))?;
    Ok((house.alloc.book(&mut h, &mut claim, len)?, len))
}

fn give(house: &House, (start, len): (BlockNr, u32)) -> crate::Result<()> {
    let mut h = house.vol.start(house.alloc.credits(len))?;
    house.alloc.free(&mut h, start, len, Purpose::Data)
}

/// The feature sets that differ for this module.
const SETS: [&str; 9] = [
    "default",
    "1k",
    "ext2_1k",
    "bigalloc_1k",
    "meta_bg",
    "uninit_bg",
    "no_flex_bg",
    "no_64bit",
    "sparse_super2",
];

#[test]
fn every_kind_of_groups_fills_and_empties() {
    for set in SETS {
        let house = House::named(set);
        let before = house.groups.superblock();
        let total = house.groups.free_clusters();
        let mut taken = Vec::new();
        while let Ok(run) = take(&house, &all(taken.len() as u64 * 977, 5000)) {
            taken.push(run);
        }
        assert_eq!(house.groups.free_clusters(), 0, "{}", set);
        assert_eq!(house.alloc.usage().free, 0, "{}", set);
        house.sync();
        house.check_counts();
        let house = house.reopen();
        house.check_counts();
        assert!(house.alloc.claim(&all(0, 1)).is_err());
        for run in taken {
            give(&house, run).unwrap();
        }
        assert_eq!(house.groups.free_clusters(), total, "{}", set);
        assert!(
            house.alloc.claim(&all(0, 1)).is_err(),
            "freed space is not allocated before its commit"
        );
        house.sync();
        assert_eq!(house.alloc.pending(), 0);
        drop(house.alloc.claim(&all(0, 1)).unwrap());
        assert_eq!(house.alloc.usage().free, before.free_blocks_count(), "{}", set);
        house.close().assert_clean();
    }
}

#[test]
fn every_kind_of_groups_gives_all_inodes_once() {
    for set in SETS {
        let house = House::named(set);
        let total = house.groups.free_inodes();
        let mut taken = Vec::new();
        let dir = |n: usize| n.is_multiple_of(7);
        loop {
            let mut h = house.vol.start(Alloc::INODE_CREDITS).unwrap();
            let home = GroupNr((taken.len() % 3) as u32 % house.groups.count());
            match house.alloc.inodes.take_elsewhere(&mut h, home, dir(taken.len())) {
                Ok(ino) => taken.push(ino),
                Err(error) => break assert!(error.is(Errno::NoSpc), "{error}"),
            }
            assert_eq!(house.vol.journal.stats().overdrawn, 0);
        }
        assert_eq!((taken.len() as u64, house.groups.free_inodes()), (total, 0), "{}", set);
        house.sync();
        house.check_counts();
        let house = house.reopen();
        assert!(taken.iter().all(|ino| house.alloc.inode_in_use(*ino).unwrap()));
        for (n, ino) in taken.iter().enumerate() {
            let ftype = if dir(n) { FileType::Directory } else { FileType::Regular };
            let mut h = house.vol.start(Alloc::INODE_CREDITS).unwrap();
            house.alloc.free_inode(&mut h, *ino, ftype, n % 3 == 0).unwrap();
            assert!(house.alloc.free_inode(&mut h, *ino, ftype, n % 3 == 0).is_err());
        }
        assert_eq!(house.groups.free_inodes(), total, "{}", set);
        house.close().assert_clean();
    }
}

#[test]
fn threads_share_the_space_exactly() {
    let house = House::named("1k");
    let (total, sum) = (house.groups.free_clusters(), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let (house, sum) = (&house, &sum);
            scope.spawn(move || {
                let mut mine = Vec::new();
                while let Ok(run) = take(house, &all(u64::from(thread) * 9000, 7 + thread)) {
                    mine.push(run);
                    if mine.len() % 5 == 0
                        && let Some(run) = mine.pop()
                    {
                        give(house, run).unwrap();
                    }
                }
                sum.fetch_add(mine.iter().map(|(_, len)| u64::from(*len)).sum(), SeqCst);
            });
        }
    });
    let pending = house.alloc.pending();
    assert_eq!(sum.load(SeqCst) + pending, total);
    house.sync();
    assert_eq!(house.alloc.usage().free, pending);
    while let Ok((_, len)) = take(&house, &all(0, 100)) {
        sum.fetch_add(len.into(), SeqCst);
    }
    assert_eq!(sum.load(SeqCst), total);
    house.check_counts();
}

#[test]
fn reservations_are_kept() {
    let house = House::named("default");
    let free = house.alloc.usage();
    house.alloc.reserve(1000, 0, false).unwrap();
    assert_eq!(house.alloc.usage().free, free.free - 1000);
    let mut claims = Vec::new();
    while let Ok(claim) = house.alloc.claim(&all(0, 4000)) {
        claims.push(claim);
    }
    assert!(house.alloc.reserve(1, 0, true).is_err());
    let mut got = 0;
    while got < 1000 {
        let claim =
            house.alloc.claim(&Request { reserved: true, ..want(0, 1000 - got, 1) }).unwrap();
        got += claim.len;
        claims.push(claim);
    }
    drop(claims);
    assert_eq!(house.alloc.usage().free, free.free);
    house.alloc.reserve(100, 0, false).unwrap();
    house.alloc.unreserve(100);
    assert_eq!(house.alloc.usage().free, free.free);
}

#[test]
fn data_leave_the_reserves() {
    let house = House::named("default");
    let usage = house.alloc.usage();
    let (root, margin) = house.alloc.space.kept();
    let mut claims = Vec::new();
    let mut take_all = |privileged| {
        while let Ok(claim) = house.alloc.claim(&Request { privileged, ..want(0, 512, 1) }) {
            claims.push(claim);
        }
        house.alloc.usage()
    };
    let plain = take_all(false);
    assert_eq!((plain.free, plain.available), (root + margin, 0));
    assert_eq!(plain.free, usage.free - usage.available);
    assert_eq!(take_all(true).free, margin);
    house.alloc.claim(&Request { purpose: Purpose::Metadata, ..want(0, 1, 1) }).unwrap();
}

#[test]
fn a_claim_is_near_its_goal() {
    let house = House::named("default");
    let claim = |goal, len| house.alloc.claim(&want(goal, len, 1)).unwrap();
    let first = claim(5000, 20);
    assert_eq!((first.start, first.len), (BlockNr(5000), 20));
    let second = claim(5000, 20);
    assert_eq!((second.start, second.len), (BlockNr(5020), 20));
    // A file that grows by more goes to free space of that length.
    let mut apart = claim(5000, 100);
    assert!(apart.start.0 > 6000 && apart.len == 100, "{apart:?}");
    let start = apart.start.0;
    let next = claim(start + 100, 100);
    assert_eq!(next.start.0, start + 100);
    let front = apart.split(30);
    assert_eq!((front.start.0, front.len, apart.start.0, apart.len), (start, 30, start + 30, 70));
    let rest = apart.split(99);
    assert_eq!((rest.len, apart.len), (70, 0));
    drop((front, rest));
    assert_eq!(claim(start, 100).start.0, start);
}

#[test]
fn bigalloc_gives_whole_clusters() {
    let house = House::named("bigalloc");
    let mut claim = house.alloc.claim(&want(5000, 17, 1)).unwrap();
    assert_eq!((claim.start.0 % 16, claim.len), (0, 32));
    let front = claim.split(1);
    assert_eq!((front.len, claim.len), (16, 16));
    let mut h = house.vol.start(house.alloc.credits(32)).unwrap();
    let start = house.alloc.book(&mut h, &mut claim, 3).unwrap();
    assert_eq!((claim.len, start.0 % 16), (0, 0));
    house.alloc.free(&mut h, start, 16, Purpose::Metadata).unwrap();
    drop(h);
    drop(front);
    house.close().assert_clean();
}

#[test]
fn double_frees_and_metadata_are_refused() {
    let house = House::named("default");
    let run = take(&house, &want(5000, 10, 10)).unwrap();
    give(&house, run).unwrap();
    let error = give(&house, run).unwrap_err().to_string();
    assert!(error.contains("group 0"), "{error}");
    let desc = house.groups.desc(GroupNr(0)).unwrap();
    for block in [0, 1, desc.block_bitmap, desc.inode_bitmap, desc.inode_table + 3] {
        assert!(give(&house, (BlockNr(block), 1)).is_err());
    }
    assert!(give(&house, (BlockNr(house.vol.geo.blocks_count - 1), 2)).is_err());
    assert!(give(&house, (BlockNr(u64::MAX), 2)).is_err());
    house.close().assert_clean();
}

/// Flips a byte of the image.
fn damage(image: &Image, byte: u64) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::options().read(true).write(true).open(image.path()).unwrap();
    let mut was = [0];
    file.read_exact_at(&mut was, byte).unwrap();
    file.write_all_at(&[was[0] ^ 0x10], byte).unwrap();
}

#[test]
fn a_bad_bitmap_disables_its_group_only() {
    let house = House::named("1k");
    let block_size = u64::from(house.vol.geo.block_size);
    let uninit = |g: u32| {
        house.groups.with(GroupNr(g), |desc| desc.flags.contains(GroupFlags::BLOCK_UNINIT))
    };
    let g = (1..house.groups.count()).find(|g| !uninit(*g)).unwrap();
    let desc = house.groups.desc(GroupNr(g)).unwrap();
    let inode_bitmap = house.groups.desc(GroupNr(0)).unwrap().inode_bitmap;
    let image = house.close();
    damage(&image, desc.block_bitmap * block_size + 100);
    damage(&image, inode_bitmap * block_size + 1);
    let house = House::on(image);
    let goal = house.vol.geo.first_block_of_group(GroupNr(g));
    let claim = house.alloc.claim(&want(goal.0, 10, 10)).unwrap();
    assert_ne!(house.vol.geo.group_of_block(claim.start), Some(GroupNr(g)));
    let before = house.groups.free_clusters();
    drop(claim);
    while take(&house, &all(goal.0, 5000)).is_ok() {}
    assert_eq!(house.groups.free_clusters(), u64::from(desc.free_clusters));
    assert!(before > u64::from(desc.free_clusters));
    let mut h = house.vol.start(Alloc::INODE_CREDITS).unwrap();
    assert!(house.alloc.inodes.take(&mut h, GroupNr(0), false).unwrap().is_none());
    assert!(house.alloc.inodes.take_elsewhere(&mut h, GroupNr(0), false).is_ok());
    assert!(house.alloc.inode_in_use(InodeNr::ROOT).is_err());
    let sb = house.groups.superblock();
    assert_eq!(sb.error_count(), 2);
    assert!(sb.first_error().is_some());
}

#[test]
fn a_bad_descriptor_names_its_group() {
    let image = extant_testkit::FeatureSet::named("1k").make();
    let house = House::on(image);
    let (block, at) = house.vol.geo.desc_location(GroupNr(3));
    let byte = house.vol.geo.gdt_block(block).0 * 1024 + at as u64 + 12;
    let image = house.close();
    damage(&image, byte);
    let error = House::open(image).unwrap_err().to_string();
    assert!(error.contains("group 3"), "{error}");
}

#[test]
fn no_number_is_passed_over() {
    let house = House::named("1k");
    let per_group = house.vol.geo.inodes_per_group;
    let mut h = house.vol.start(64).unwrap();
    let taken: Vec<_> = (0..per_group)
        .map(|_| house.alloc.inodes.take_elsewhere(&mut h, GroupNr(0), false))
        .collect();
    let numbers: Vec<u32> = taken.into_iter().map(|ino| ino.unwrap().0).collect();
    let behind: Vec<u32> =
        numbers.windows(2).filter(|pair| pair[1] != pair[0] + 1).map(|pair| pair[1]).collect();
    assert!(behind.len() <= 1, "{behind:?}");
}

/// A search of a full group stores its hint after other threads freed numbers that it passed.
#[test]
fn numbers_freed_behind_a_search_are_found() {
    let house = House::named("1k");
    let mut taken = Vec::new();
    let take = || {
        let mut h = house.vol.start(Alloc::INODE_CREDITS).unwrap();
        house.alloc.inodes.take_elsewhere(&mut h, GroupNr(0), false)
    };
    while let Ok(ino) = take() {
        taken.push(ino);
    }
    // In different chunks: a thread looks at its own chunk without a hint.
    for (ino, at_once) in [(taken[0], true), (taken[99], false)] {
        let mut h = house.vol.start(Alloc::INODE_CREDITS).unwrap();
        house.alloc.free_inode(&mut h, ino, FileType::Regular, at_once).unwrap();
        drop(h);
        house.sync();
        house.alloc.inodes.pass_all();
        assert_eq!(take().unwrap(), ino, "freed at once: {at_once}");
        assert!(take().unwrap_err().is(Errno::NoSpc));
    }
}

#[test]
fn free_space_is_trimmed_and_used_space_is_not() {
    for set in ["default", "1k", "bigalloc_1k"] {
        let house = House::named(set);
        let geo = *house.vol.geo;
        let (bytes, bits) = (vec![7; geo.block_size as usize], geo.block_bits);
        let (used, len) = take(&house, &want(6000, 64, 64)).unwrap();
        let freed = take(&house, &want(used.0 + 64, 64, 64)).unwrap();
        let write = |block: u64| house.dev.write_all_at(&bytes, block << bits).unwrap();
        let read = |block: u64| {
            let mut is = vec![0; bytes.len()];
            house.dev.read_exact_at(&mut is, block << bits).unwrap();
            is == bytes
        };
        [used.0, used.0 + 63, freed.0.0, freed.0.0 + 64].into_iter().for_each(write);
        give(&house, freed).unwrap();
        let free = house.alloc.usage().free - house.alloc.pending();
        assert_eq!(house.alloc.trim(0..u64::MAX, 1).unwrap(), free, "{set}");
        assert!(read(used.0) && read(used.0 + 63) && read(freed.0.0), "{set}");
        assert!(!read(freed.0.0 + 64), "{set}");
        house.alloc.set_discard(true);
        house.sync();
        assert!(!read(freed.0.0), "{set}");
        assert_eq!(house.alloc.trim(used.0..used.0 + u64::from(len), 1).unwrap(), 0);
        give(&house, (used, len)).unwrap();
        house.sync();
        house.close().assert_clean();
    }
}

#[test]
fn a_trim_holds_a_slice_and_leaves_the_margin() {
    let house = House::on(Image::mke2fs(256 << 20, &["-t", "ext4", "-b", "4096"]));
    let blocks = &house.alloc.space;
    let before = blocks.budget.amount();
    let clusters = house.vol.geo.clusters_in_group(GroupNr(1));
    let (slice, end) = blocks.hold_slice(GroupNr(1), 0..clusters, 1, 0).unwrap();
    assert!(
        u64::from(slice.len) * 4096 <= 8 << 20 && end > slice.end(),
        "{slice:?} of a run to {end}"
    );
    assert_eq!(blocks.budget.amount(), before - u64::from(slice.len));
    blocks.release(GroupNr(1), slice);
    let (_, margin) = blocks.kept();
    assert!(blocks.budget.take(before - margin, 0));
    assert!(blocks.hold_slice(GroupNr(1), 0..clusters, 1, 0).is_none(), "a slice of the margin");
    blocks.budget.give(before - margin);
    house.close().assert_clean();
}

#[test]
fn a_caller_without_space_waits_for_the_slice_of_a_trim() {
    let house = House::named("default");
    let blocks = &house.alloc.space;
    let (_, margin) = blocks.kept();
    let clusters = house.vol.geo.clusters_in_group(GroupNr(0));
    let scope = blocks.discards.begin_slice();
    let (slice, _) = blocks.hold_slice(GroupNr(0), 0..clusters, 1, 0).unwrap();
    let all = u32::try_from(blocks.budget.amount() + u64::from(slice.len) - margin).unwrap();
    std::thread::scope(|threads| {
        let lacking = threads.spawn(|| house.alloc.reserve(all, 0, true));
        while blocks.discards.lacking() == 0 && !lacking.is_finished() {
            std::thread::yield_now();
        }
        blocks.release(GroupNr(0), slice);
        drop(scope);
        lacking.join().unwrap().unwrap();
    });
    house.alloc.unreserve(all);
    house.close().assert_clean();
}

/// Blocks with bytes in them, and whether they are there still.
fn fill_blocks(house: &House, (start, len): (BlockNr, u32)) {
    let bytes = vec![7; house.vol.geo.block_size as usize * len as usize];
    house.dev.write_all_at(&bytes, start.0 << house.vol.geo.block_bits).unwrap();
}

fn is_filled(house: &House, block: u64) -> bool {
    let mut bytes = vec![0; house.vol.geo.block_size as usize];
    house.dev.read_exact_at(&mut bytes, block << house.vol.geo.block_bits).unwrap();
    bytes.iter().all(|byte| *byte == 7)
}

#[test]
fn frees_of_one_commit_are_merged_and_short_ones_not_discarded() {
    let house = House::named("default");
    house.alloc.set_discard(true);
    let run = take(&house, &want(6000, 32, 32)).unwrap();
    let lone = take(&house, &want(run.0.0 + 100, 1, 1)).unwrap();
    assert!(lone.0.0 > run.0.0 + 32, "{lone:?}");
    [run, lone].into_iter().for_each(|run| fill_blocks(&house, run));
    let blocks = (0..16).flat_map(|n| [n, 31 - n]).map(|n| (BlockNr(run.0.0 + n), 1));
    blocks.chain([lone]).for_each(|block| give(&house, block).unwrap());
    house.sync();
    assert!((0..32).all(|n| !is_filled(&house, run.0.0 + n)) && is_filled(&house, lone.0.0));
    assert_eq!(house.alloc.pending(), 0);
    house.close().assert_clean();
}

#[test]
fn freed_space_is_held_until_it_is_discarded_or_needed() {
    for needed in [false, true] {
        let house = House::named("default");
        let total = house.groups.free_clusters();
        house.alloc.set_discard(true);
        house.alloc.begin_discard_task();
        let freed = take(&house, &want(6000, 64, 64)).unwrap();
        fill_blocks(&house, freed);
        give(&house, freed).unwrap();
        house.sync();
        assert_eq!(house.alloc.pending(), 64, "a commit waits for no discard");
        house.evict();
        let other = house.alloc.claim(&want(freed.0.0, 64, 1)).unwrap();
        assert!(
            other.start.0 + u64::from(other.len) <= freed.0.0 || other.start.0 >= freed.0.0 + 64,
            "{other:?}"
        );
        drop(other);
        if needed {
            let mut claims = Vec::new();
            while let Ok(claim) = house.alloc.claim(&all(0, 5000)) {
                claims.push(claim);
            }
            assert_eq!(claims.iter().map(|claim| u64::from(claim.len)).sum::<u64>(), total);
            assert!(is_filled(&house, freed.0.0));
        } else {
            assert!(house.alloc.discard_next());
            assert!(!is_filled(&house, freed.0.0) && !is_filled(&house, freed.0.0 + 63));
        }
        assert_eq!(house.alloc.pending(), 0);
        house.alloc.end_discard_task();
        assert!(!house.alloc.discard_next());
        house.close().assert_clean();
    }
}

#[test]
fn a_descriptor_that_calls_used_inodes_unused_costs_none_of_them() {
    let house = House::named("default");
    let geo = *house.vol.geo;
    let mut h = house.vol.start(2).unwrap();
    let lie = |desc: &mut extant_format::group_desc::GroupDesc| {
        desc.flags.remove(GroupFlags::INODE_ZEROED);
        desc.itable_unused = geo.inodes_per_group;
        Ok(())
    };
    house.groups.edit(&mut h, GroupNr(0), lie).unwrap();
    drop(h);
    let table = house.groups.desc(GroupNr(0)).unwrap().inode_table << geo.block_bits;
    let read = || {
        let mut block = vec![0; geo.block_size as usize];
        house.dev.read_exact_at(&mut block, table).unwrap();
        block
    };
    let before = read();
    assert!(before.iter().any(|byte| *byte != 0));
    assert!(matches!(house.alloc.zero_next_table(), Err(crate::error::Error::Corrupt(_))));
    assert_eq!(read(), before);
}

#[test]
fn a_table_over_anothers_costs_it_nothing() {
    let house = House::named("1k");
    let geo = *house.vol.geo;
    let table = house.groups.desc(GroupNr(0)).unwrap().inode_table;
    // The unused part of the other table begins where the used part of this one does.
    let mut h = house.vol.start(2).unwrap();
    let lie = |desc: &mut extant_format::group_desc::GroupDesc| {
        desc.flags.remove(GroupFlags::INODE_ZEROED);
        desc.itable_unused = geo.inodes_per_group;
        desc.inode_table = table;
        Ok(())
    };
    house.groups.edit(&mut h, GroupNr(1), lie).unwrap();
    drop(h);
    let read = || {
        let mut block = vec![0; geo.block_size as usize];
        house.dev.read_exact_at(&mut block, table << geo.block_bits).unwrap();
        block
    };
    let before = read();
    assert!(before.iter().any(|byte| *byte != 0));
    assert!(matches!(house.alloc.zero_next_table(), Err(crate::error::Error::Corrupt(_))));
    assert_eq!(read(), before);
}

#[test]
fn unused_parts_of_inode_tables_become_zero() {
    for set in ["default", "1k", "uninit_bg"] {
        let house = House::named(set);
        let geo = *house.vol.geo;
        let junk = vec![0xA5; geo.block_size as usize];
        let groups = || (0..house.groups.count()).map(GroupNr);
        let zeroed =
            |g: GroupNr| house.groups.with(g, |desc| desc.flags.contains(GroupFlags::INODE_ZEROED));
        let last = |g: GroupNr| {
            house.groups.desc(g).unwrap().inode_table + u64::from(geo.inode_table_blocks()) - 1
        };
        for g in groups() {
            let mut h = house.vol.start(2).unwrap();
            let remove = |desc: &mut extant_format::group_desc::GroupDesc| {
                desc.flags.remove(GroupFlags::INODE_ZEROED);
                Ok(())
            };
            house.groups.edit(&mut h, g, remove).unwrap();
            house.dev.write_all_at(&junk, last(g) << geo.block_bits).unwrap();
        }
        assert!(!groups().any(zeroed));
        while house.alloc.zero_next_table().unwrap() {}
        for g in groups() {
            let mut is = junk.clone();
            house.dev.read_exact_at(&mut is, last(g) << geo.block_bits).unwrap();
            assert!(zeroed(g) && is.iter().all(|byte| *byte == 0), "{set}: group {g}");
        }
        // Used blocks stay.
        house.close().assert_clean();
    }
}
