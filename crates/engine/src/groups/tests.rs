use super::*;
use crate::volume::{LiveGeometry, SystemClock};
use extant_blocks::{BlockDevice, Cache, SparseDevice};
use extant_format::Geometry;
use extant_format::features::{Features, Incompat, RoCompat};
use extant_format::group_desc::GroupFlags;
use extant_journal::{Config, Journal};

const GROUPS: u32 = 491_520;
const PER_GROUP: u32 = 32768;

/// 60 TiB in blocks of 4 KiB.
fn superblock() -> Superblock {
    let mut sb = Superblock::empty();
    sb.set_features(Features {
        incompat: Incompat::EXTENTS
            | Incompat::FILETYPE
            | Incompat::BIT64
            | Incompat::FLEX_BG
            | Incompat::META_BG,
        ro_compat: RoCompat::SPARSE_SUPER | RoCompat::METADATA_CSUM,
        ..Features::default()
    });
    sb.set_checksum_type(1);
    sb.set_desc_size(64);
    sb.set_log_groups_per_flex(4);
    sb.set_log_block_size(2);
    sb.set_log_cluster_size(2);
    sb.set_blocks_count(u64::from(GROUPS) * u64::from(PER_GROUP));
    sb.set_blocks_per_group(PER_GROUP);
    sb.set_clusters_per_group(PER_GROUP);
    sb.set_inodes_per_group(256);
    sb.set_inodes_count(GROUPS * 256);
    sb.set_inode_size(256);
    sb.set_first_ino(11);
    sb
}

fn desc(geo: &Geometry, g: u32) -> GroupDesc {
    let first = geo.first_block_of_group(GroupNr(g)).0;
    GroupDesc {
        block_bitmap: first + 100,
        inode_bitmap: first + 101,
        inode_table: first + 102,
        free_clusters: g % 1000,
        free_inodes: 256,
        used_dirs: g % 2,
        flags: GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT,
        itable_unused: 256,
        ..GroupDesc::default()
    }
}

fn device(geo: &Geometry) -> SparseDevice {
    let dev = SparseDevice::new(geo.blocks_count * 4096);
    for block in 0..geo.desc_blocks {
        let mut bytes = vec![0; 4096];
        let first = block * geo.descs_per_block();
        for (g, slot) in (first..GROUPS).zip(bytes.chunks_exact_mut(64)) {
            desc(geo, g).encode(slot, geo, GroupNr(g));
        }
        dev.write_all_at(&bytes, geo.gdt_block(block).0 * 4096).unwrap();
    }
    dev
}

fn volume(geo: Geometry, dev: Arc<dyn BlockDevice>) -> Arc<Volume> {
    let cache = Cache::new(dev.clone(), 4096, 1 << 20);
    let journal = Journal::open(Config::new(cache.clone(), None)).unwrap();
    let clock = Arc::new(SystemClock);
    Arc::new(Volume {
        geo: LiveGeometry::new(geo),
        mounted: extant_blocks::MountedDevice::unclaimed(dev.clone()),
        closed: false.into(),
        cause: Default::default(),
        dev,
        cache,
        journal,
        clock,
        rng: extant_sync::SharedRng::new(1),
        read_only: false.into(),
        shut_down: false.into(),
        policy: Default::default(),
        shards: extant_sync::shard_count(),
        remarks: Default::default(),
    })
}

#[test]
fn half_a_million_groups_open() {
    let sb = superblock();
    let geo = Geometry::new(&sb).unwrap();
    let vol = volume(geo, Arc::new(device(&geo)));
    let groups = Groups::open(vol.clone(), sb.clone()).unwrap();
    assert_eq!(groups.count(), GROUPS);
    assert_eq!(groups.free_inodes(), u64::from(GROUPS) * 256);
    assert_eq!(groups.directories(), u64::from(GROUPS) / 2);
    assert_eq!(groups.flex_count(), GROUPS / 16);
    assert_eq!(groups.flex(1).free_clusters, (16..32).sum::<u64>());
    assert_eq!(groups.desc(GroupNr(GROUPS - 1)).unwrap(), desc(&geo, GROUPS - 1));
    assert!(groups.desc(GroupNr(GROUPS)).is_err());
    assert!(crate::alloc::Alloc::open(vol, Arc::new(groups)).is_ok());
}

#[test]
fn a_lying_group_count_ends_with_the_device() {
    let sb = superblock();
    let geo = Geometry::new(&sb).unwrap();
    let dev = device(&geo);
    dev.set_len(4096 * u64::from(PER_GROUP) * 1000).unwrap();
    assert!(matches!(Groups::open(volume(geo, Arc::new(dev)), sb), Err(Error::Io(_))));
}
