//! File systems on a recording device, with the promises that they made during the work.

use super::pages::{PAGE, PageDevice, Pages};
use extant_blocks::{Event, RecordingDevice};
use extant_engine::{Clock, Fs, Node, NodeKind, OpenFlags, OpenOptions, Timestamp};
use extant_hostile::deep::Layout;
use extant_testkit::debugfs;
use extant_testkit::image::Image;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// A kind of file system, with its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Setup {
    pub name: &'static str,
    /// Bytes of the image: small, since each state is checked from a copy.
    pub bytes: u64,
    /// Arguments of `mke2fs`.
    pub args: &'static [&'static str],
    /// `data=journal`.
    pub log_data: bool,
    /// The kernel mounts it for writing.
    pub kernel: bool,
    /// Some of its files and a directory have maps and an index of several levels, and operations
    /// use a larger range of offsets.
    pub layout: Option<Layout>,
    /// Without a journal: promises hold after the file system was closed.
    pub unlogged: bool,
}

/// A kind of the usual size.
pub(crate) const fn setup(name: &'static str, args: &'static [&'static str]) -> Setup {
    Setup {
        name,
        bytes: 4 << 20,
        args,
        log_data: false,
        kernel: true,
        layout: None,
        unlogged: false,
    }
}

pub(crate) const EXT4: Setup = setup(
    "ext4",
    &["-t", "ext4", "-b", "1024", "-O", "orphan_file,metadata_csum_seed", "-J", "size=1"],
);
pub(crate) const INLINE: Setup = setup(
    "inline",
    &["-t", "ext4", "-b", "1024", "-O", "orphan_file,inline_data,ea_inode", "-J", "size=1"],
);
pub(crate) const EXT3: Setup = setup("ext3", &["-t", "ext3", "-b", "1024", "-J", "size=1"]);
pub(crate) const BIGALLOC: Setup = setup(
    "bigalloc",
    &["-t", "ext4", "-b", "1024", "-O", "bigalloc,orphan_file", "-C", "4096", "-J", "size=1"],
);
pub(crate) const POINTERS: Setup = Setup {
    bytes: 8 << 20,
    ..setup("pointers", &["-t", "ext3", "-b", "2048", "-O", "^dir_index", "-J", "size=2"])
};
/// Blocks of eight sectors, which a cut may separate.
pub(crate) const WIDE: Setup = Setup {
    bytes: 10 << 20,
    ..setup("4k", &["-t", "ext4", "-b", "4096", "-O", "orphan_file", "-J", "size=4"])
};
/// Blocks of 1 KiB, maps of three levels and an index of two, with few entries in each node.
pub(crate) const DEEP: Setup = Setup {
    layout: Some(Layout { levels: 2, ..Layout::sparse(3) }),
    ..setup(
        "deep",
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "large_dir,orphan_file,metadata_csum_seed",
            "-J",
            "size=1",
        ],
    )
    .sized(12)
};
pub(crate) const DEEP_BIGALLOC: Setup =
    Setup { name: "deep bigalloc", layout: Some(Layout::sparse(2)), ..BIGALLOC.sized(24) };
/// Its map is full: the next extent makes it grow.
pub(crate) const FULL: Setup =
    Setup { name: "full leaf", layout: Some(Layout::full(1)), ..EXT4.sized(12) };

/// Further layouts, for campaigns without a bound on their time.
pub(crate) const LAYOUTS: [Setup; 5] = [
    Setup { name: "one level", layout: Some(Layout::sparse(1)), ..EXT4.sized(12) },
    Setup { name: "two levels", layout: Some(Layout::sparse(2)), ..EXT4.sized(12) },
    Setup { name: "two full levels", layout: Some(Layout::full(2)), ..EXT4.sized(12) },
    Setup { name: "three full levels", layout: Some(Layout::full(3)), ..EXT4.sized(24) },
    Setup { name: "deep, data journal", log_data: true, ..DEEP },
];
/// This kernel has no format for quota files.
pub(crate) const QUOTA: Setup = Setup {
    kernel: false,
    ..setup(
        "quota",
        &["-t", "ext4", "-b", "1024", "-O", "quota,project,orphan_file", "-J", "size=1"],
    )
};
pub(crate) const LOGGED: Setup = Setup { name: "data journal", log_data: true, ..EXT4 };
pub(crate) const LOGGED_EXT3: Setup = Setup { name: "ext3, data journal", log_data: true, ..EXT3 };

pub(crate) const UNLOGGED: Setup = Setup {
    unlogged: true,
    ..setup("no journal", &["-t", "ext4", "-b", "1024", "-O", "^has_journal"])
};
pub(crate) const EXT2: Setup =
    Setup { unlogged: true, ..setup("ext2", &["-t", "ext2", "-b", "1024"]) };

/// The contents of blocks of a new image that were never written.
pub(crate) const GARBAGE: u8 = 0xA5;

/// A new image whose free blocks hold garbage.
#[derive(Debug)]
pub(crate) struct Base {
    pub pages: Pages,
    /// Pages that hold nothing but parts of the log.
    pub log: BTreeSet<usize>,
}

/// Some moment in the past.
#[derive(Debug)]
struct Still;

impl Clock for Still {
    fn now(&self) -> Timestamp {
        Timestamp { sec: 1_750_000_000, nsec: 0 }
    }
}

impl Setup {
    /// The same in so many MiB.
    const fn sized(self, mebibytes: u64) -> Setup {
        Setup { bytes: mebibytes << 20, ..self }
    }

    /// Returns the options of the file system. None depends on time, so that a seed repeats its
    /// scene.
    pub fn options(&self) -> OpenOptions {
        let hour = Duration::from_secs(3600);
        let options = OpenOptions::new()
            .memory(64 << 20)
            .seed(1)
            .commit_interval(hour)
            .log_data(self.log_data);
        options.clock(Arc::new(Still))
    }

    /// An image whose free blocks hold garbage. Made once.
    pub fn base(&self) -> Arc<Base> {
        static MADE: OnceLock<Mutex<BTreeMap<Setup, Arc<Base>>>> = OnceLock::new();
        let mut made = MADE.get_or_init(Mutex::default).lock().unwrap_or_else(|e| e.into_inner());
        made.entry(*self).or_insert_with(|| Arc::new(self.make())).clone()
    }

    /// An image whose free blocks hold garbage.
    pub fn pages(&self) -> Pages {
        self.base().pages.clone()
    }

    fn make(&self) -> Base {
        let image = Image::mke2fs(self.bytes, self.args);
        let log = if self.unlogged { BTreeSet::new() } else { log_of(&image) };
        let device = Arc::new(PageDevice::new(Pages::new(&image.bytes())));
        let fs = Fs::open_device(device.clone(), &self.options()).expect("a new image opens");
        let root = fs.root().expect("root");
        let node = fs.create(&root, b"garbage", 0o600, NodeKind::File).expect("create");
        let file =
            fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).expect("open");
        while file.write_at(file.len(), &[GARBAGE; 1 << 16]).is_ok_and(|written| written == 1 << 16)
        {
        }
        file.sync().expect("fsync");
        drop((file, node));
        fs.unlink(&root, b"garbage").expect("unlink");
        drop(root);
        fs.unmount().expect("unmount");
        let pages = device.pages();
        let planted = self.layout.map(|layout| Pages::new(&layout.plant(&pages.to_vec())));
        Base { pages: planted.unwrap_or(pages), log }
    }
}

/// Pages that hold nothing but blocks of the journal's inode.
fn log_of(image: &Image) -> BTreeSet<usize> {
    let block_size = Fs::open(image.path(), &OpenOptions::new().read_only(true))
        .expect("opens")
        .superblock()
        .block_size();
    let per_page = (PAGE / block_size as usize).max(1);
    let mut pages = BTreeMap::<usize, usize>::new();
    for block in debugfs::read(image.path(), "blocks <8>").split_whitespace() {
        let at = block.parse::<usize>().expect("a block's number") * block_size as usize;
        *pages.entry(at / PAGE).or_default() += 1;
    }
    pages.into_iter().filter(|(_, blocks)| *blocks >= per_page).map(|(nr, _)| nr).collect()
}

/// The promised state of a path.
#[derive(Clone, Debug)]
pub(crate) enum Promise {
    Gone,
    /// The path exists; its content is not promised.
    There,
    Holds(Arc<Content>),
}

#[derive(Debug)]
pub(crate) struct Content {
    pub data: Vec<u8>,
    /// All attributes, or nothing is promised of them.
    pub xattrs: Option<BTreeMap<Vec<u8>, Vec<u8>>>,
    /// Permissions, user and group, or nothing is promised of them.
    pub access: Option<(u32, u32, u32)>,
}

/// The promise for each path; other paths have none.
pub(crate) type Durable = BTreeMap<String, Promise>;

/// The changes of a device, with the promises made between them.
pub(crate) struct Scene {
    pub setup: Setup,
    pub base: Arc<Base>,
    pub events: Vec<Event>,
    /// The durable promises after each mark.
    pub promises: Vec<Durable>,
    /// Whether a mark made something durable.
    pub promising: Vec<bool>,
    /// Whether bytes of files identify their file and differ from garbage ([`super::mix`]).
    pub tagged: bool,
}

/// A file system during the work, with its promises.
pub(crate) struct Stage {
    pub fs: Fs,
    /// See [`Setup::unlogged`].
    pub unlogged: bool,
    device: Arc<RecordingDevice<PageDevice>>,
    promised: Mutex<Promised>,
}

#[derive(Default)]
struct Promised {
    now: Durable,
    after: Vec<Durable>,
    promising: Vec<bool>,
}

impl Stage {
    pub fn root(&self) -> Node {
        self.fs.root().expect("root")
    }

    pub fn write(&self, dir: &Node, name: &str, offset: u64, data: &[u8]) -> Node {
        let node = match self.fs.lookup(dir, name.as_bytes()) {
            Ok(node) => node,
            Err(_) => self.fs.create(dir, name.as_bytes(), 0o644, NodeKind::File).expect(name),
        };
        let file =
            self.fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).expect(name);
        file.write_at(offset, data).expect(name);
        node
    }

    /// fsync; from here on `path` holds `data`.
    pub fn sync_file(&self, node: &Node, path: &str, data: &[u8]) {
        self.fs.sync_node(node, false).expect("fsync");
        self.holds(path, data.to_vec());
    }

    /// Drops the promises for `path`, which may change from here on.
    pub fn forget(&self, path: &str) {
        self.change(false, |now| drop(now.remove(path)));
    }

    /// Drops all promises.
    pub fn forget_all(&self) {
        self.change(false, |now| now.clear());
    }

    pub fn holds(&self, path: &str, data: Vec<u8>) {
        self.promise(path, Promise::Holds(Arc::new(Content { data, xattrs: None, access: None })));
    }

    pub fn promise(&self, path: &str, what: Promise) {
        self.change(true, |now| drop(now.insert(path.into(), what)));
    }

    /// Promises that `path` exists, with any content, unless more is promised already.
    pub fn promise_there(&self, path: &str) {
        self.change(true, |now| {
            now.entry(path.into()).or_insert(Promise::There);
        });
    }

    /// Changes the promises at this place of the recording.
    fn change(&self, promises: bool, change: impl FnOnce(&mut Durable)) {
        let mut promised = self.promised.lock().expect("no panic");
        change(&mut promised.now);
        self.device.mark(promised.after.len().to_string());
        let now = promised.now.clone();
        promised.after.push(now);
        promised.promising.push(promises);
    }
}

/// Records `work`. It ends with a power cut, or, without a journal, with an unmount.
pub(crate) fn record(setup: Setup, tagged: bool, work: impl FnOnce(&mut Stage)) -> Scene {
    let base = setup.base();
    let device = Arc::new(RecordingDevice::new(PageDevice::new(base.pages.clone())));
    let fs = Fs::open_device(device.clone(), &setup.options())
        .unwrap_or_else(|e| panic!("{}: {e}", setup.name));
    let mut stage =
        Stage { fs, unlogged: setup.unlogged, device: device.clone(), promised: Mutex::default() };
    stage.forget_all();
    work(&mut stage);
    let Promised { after: promises, promising, .. } =
        stage.promised.into_inner().expect("no panic");
    if setup.unlogged {
        stage.fs.unmount().expect("unmount")
    } else {
        stage.fs.crash()
    }
    Scene { setup, base, events: device.take_log(), promises, promising, tagged }
}
