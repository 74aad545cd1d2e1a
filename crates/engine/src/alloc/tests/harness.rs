//! The modules up to `alloc` on an image in memory, with a journal that has no log.

use crate::alloc::Alloc;
use crate::groups::Groups;
use crate::volume::{LiveGeometry, SystemClock, Volume};
use extant_blocks::{BlockDevice, Cache, MemDevice, SparseDevice};
use extant_format::Geometry;
use extant_format::superblock::Superblock;
use extant_journal::{Client, Config, Error, Freezer, Journal, Tid};
use extant_sync::atomic::AtomicBool;
use extant_testkit::{FeatureSet, Image};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

#[derive(Debug)]
pub struct House {
    pub image: Image,
    pub dev: Arc<SparseDevice>,
    pub vol: Arc<Volume>,
    pub groups: Arc<Groups>,
    pub alloc: Arc<Alloc>,
    client: Arc<Rooms>,
}

#[derive(Debug)]
struct Rooms {
    groups: Arc<Groups>,
    alloc: Arc<Alloc>,
    /// The newest transaction with durable frees.
    durable: AtomicU64,
}

impl Client for Rooms {
    fn freeze(&self, tid: Tid, out: &mut Freezer<'_>) -> Result<(), Error> {
        self.alloc
            .freeze(out)
            .and_then(|()| self.groups.freeze(tid, out))
            .map_err(|error| Error::Client { errno: 5, message: error.to_string() })
    }

    fn committed(&self, tid: Tid) {
        self.durable.fetch_max(tid.0, SeqCst);
        self.alloc.committed(tid);
    }

    fn aborted(&self, why: &Error) {
        eprintln!("aborted: {why}");
    }
}

impl House {
    pub fn named(set: &str) -> House {
        House::on(FeatureSet::named(set).make())
    }

    pub fn on(image: Image) -> House {
        House::open(image).unwrap()
    }

    pub fn open(image: Image) -> crate::Result<House> {
        let bytes = image.bytes();
        House::of_bytes(image, &bytes)
    }

    /// As [`House::open`], with other bytes than the image's.
    pub fn of_bytes(image: Image, bytes: &[u8]) -> crate::Result<House> {
        image.leave_unjudged(
            "allocated blocks belong to no file, unless the test returns them, and asks",
        );
        let dev = Arc::new(SparseDevice::copy_of(&MemDevice::from_bytes(bytes))?);
        let mut bytes = [0; 1024];
        dev.read_exact_at(&mut bytes, 1024)?;
        let sb = Superblock::parse(&bytes)?;
        let geo = Geometry::new(&sb)?;
        let cache = Cache::new(dev.clone(), geo.block_size as usize, 8 << 20);
        let journal = Journal::open(Config::new(cache.clone(), None)).unwrap();
        let vol = Arc::new(Volume {
            geo: LiveGeometry::new(geo),
            dev: dev.clone(),
            mounted: extant_blocks::MountedDevice::unclaimed(dev.clone()),
            closed: AtomicBool::new(false),
            cause: Default::default(),
            cache,
            journal,
            clock: Arc::new(SystemClock),
            rng: extant_sync::SharedRng::new(1),
            read_only: AtomicBool::new(false),
            shut_down: AtomicBool::new(false),
            policy: Default::default(),
            shards: extant_sync::shard_count(),
            remarks: Default::default(),
        });
        let groups = Arc::new(Groups::open(vol.clone(), sb)?);
        let alloc = Arc::new(Alloc::open(vol.clone(), groups.clone())?);
        let client = Arc::new(Rooms {
            groups: groups.clone(),
            alloc: alloc.clone(),
            durable: AtomicU64::new(0),
        });
        let weak: std::sync::Weak<Rooms> = Arc::downgrade(&client);
        vol.journal.set_client(weak);
        Ok(House { image, dev, vol, groups, alloc, client })
    }

    /// Commits everything.
    pub fn sync(&self) {
        self.vol.journal.sync().unwrap();
    }

    /// Returns the newest transaction with durable frees.
    pub fn durable(&self) -> u64 {
        self.client.durable.load(SeqCst)
    }

    /// Evicts all trees.
    pub fn evict(&self) {
        let blocks = &self.alloc.space;
        (0..blocks.meta.len()).for_each(|t| blocks.forget(t, &mut blocks.tree(t).unwrap()));
    }

    /// Ends the journal and gives the image as it is then.
    pub fn close(self) -> Image {
        self.vol.journal.shutdown().unwrap();
        let mut bytes = vec![0; self.dev.len() as usize];
        self.dev.read_exact_at(&mut bytes, 0).unwrap();
        std::fs::write(self.image.path(), bytes).unwrap();
        self.image
    }

    /// Opens the image again as it is.
    pub fn reopen(self) -> House {
        House::on(self.close())
    }

    /// Fails unless every group's counts are those of its bitmaps, and the totals their sums.
    pub fn check_counts(&self) {
        use crate::groups::Kind;
        use extant_format::bitmap::count_zeros;
        use extant_format::types::GroupNr;
        let (mut clusters, mut inodes) = (0, 0);
        for g in (0..self.groups.count()).map(GroupNr) {
            let desc = self.groups.desc(g).unwrap();
            let bits = self.groups.bitmap(g, Kind::Blocks).unwrap();
            let free =
                bits.with(|bits| count_zeros(bits, 0..self.vol.geo.clusters_in_group(g) as usize));
            assert_eq!(free, desc.free_clusters as usize, "clusters of group {g}");
            let bits = self.groups.bitmap(g, Kind::Inodes).unwrap();
            let free =
                bits.with(|bits| count_zeros(bits, 0..self.vol.geo.inodes_per_group as usize));
            assert_eq!(free, desc.free_inodes as usize, "inodes of group {g}");
            clusters += u64::from(desc.free_clusters);
            inodes += u64::from(desc.free_inodes);
        }
        assert_eq!((self.groups.free_clusters(), self.groups.free_inodes()), (clusters, inodes));
    }
}
