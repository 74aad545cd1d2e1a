//! File systems that are worked on over a device that records, with what they have promised meanwhile.

use extant::{Caller, Fs, New, Node, OpenFlags, OpenOptions};
use extant_blocks::{Event, MemDevice, RecordingDevice};
use extant_testkit::image::Image;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// A kind of file system, and how it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Setup {
    pub name: &'static str,
    /// Bytes of the image: small, since each state is checked from a copy.
    pub bytes: u64,
    /// What `mke2fs` is told.
    pub args: &'static [&'static str],
    /// `data=journal`.
    pub log_data: bool,
    /// The kernel mounts it for writing.
    pub kernel: bool,
}

/// A kind of the usual size.
pub(crate) const fn setup(name: &'static str, args: &'static [&'static str]) -> Setup {
    Setup { name, bytes: 4 << 20, args, log_data: false, kernel: true }
}

pub(crate) const EXT4: Setup =
    setup("ext4", &["-t", "ext4", "-b", "1024", "-O", "orphan_file,metadata_csum_seed", "-J", "size=1"]);
pub(crate) const INLINE: Setup =
    setup("inline", &["-t", "ext4", "-b", "1024", "-O", "orphan_file,inline_data,ea_inode", "-J", "size=1"]);
pub(crate) const EXT3: Setup = setup("ext3", &["-t", "ext3", "-b", "1024", "-J", "size=1"]);
pub(crate) const BIGALLOC: Setup =
    setup("bigalloc", &["-t", "ext4", "-b", "1024", "-O", "bigalloc,orphan_file", "-C", "4096", "-J", "size=1"]);
pub(crate) const POINTERS: Setup =
    Setup { bytes: 8 << 20, ..setup("pointers", &["-t", "ext3", "-b", "2048", "-O", "^dir_index", "-J", "size=2"]) };
/// Blocks of eight sectors, which a cut may separate.
pub(crate) const WIDE: Setup =
    Setup { bytes: 10 << 20, ..setup("4k", &["-t", "ext4", "-b", "4096", "-O", "orphan_file", "-J", "size=4"]) };
/// This kernel has no format for quota files.
pub(crate) const QUOTA: Setup = Setup {
    kernel: false,
    ..setup("quota", &["-t", "ext4", "-b", "1024", "-O", "quota,project,orphan_file", "-J", "size=1"])
};
pub(crate) const LOGGED: Setup = Setup { name: "data journal", log_data: true, ..EXT4 };
pub(crate) const LOGGED_EXT3: Setup = Setup { name: "ext3, data journal", log_data: true, ..EXT3 };

/// What the blocks of a new image hold that nobody has written to yet.
pub(crate) const GARBAGE: u8 = 0xA5;

impl Setup {
    /// How the file system is opened. Nothing depends on time, so that a seed gives the same scene again.
    pub fn options(&self) -> OpenOptions {
        let hour = Duration::from_secs(3600);
        OpenOptions::new().memory(64 << 20).seed(1).commit_interval(hour).log_data(self.log_data)
    }

    /// An image whose free blocks hold garbage. Made once.
    pub fn base(&self) -> Arc<[u8]> {
        static MADE: OnceLock<Mutex<BTreeMap<Setup, Arc<[u8]>>>> = OnceLock::new();
        let mut made = MADE.get_or_init(Mutex::default).lock().unwrap_or_else(|e| e.into_inner());
        made.entry(*self).or_insert_with(|| self.make()).clone()
    }

    fn make(&self) -> Arc<[u8]> {
        let device = Arc::new(MemDevice::from_bytes(&Image::mke2fs(self.bytes, self.args).bytes()));
        let fs = Fs::open_device(device.clone(), &self.options()).expect("a new image opens");
        let root = fs.root().expect("root");
        let node = fs.create(&Caller::default(), &root, b"garbage", 0o600, New::File).expect("create");
        let file = fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).expect("open");
        while file.write_at(file.len(), &[GARBAGE; 1 << 16]).is_ok_and(|written| written == 1 << 16) {}
        file.sync().expect("fsync");
        drop((file, node));
        fs.unlink(&root, b"garbage").expect("unlink");
        drop(root);
        fs.unmount().expect("unmount");
        device.to_vec().into()
    }
}

/// What a path has been promised to be.
#[derive(Clone, Debug)]
pub(crate) enum Promise {
    Gone,
    /// Something is there; nothing is promised of what it holds.
    There,
    Holds(Arc<Content>),
}

#[derive(Debug)]
pub(crate) struct Content {
    pub data: Vec<u8>,
    /// All attributes, or nothing is promised of them.
    pub xattrs: Option<BTreeMap<Vec<u8>, Vec<u8>>>,
}

/// What is promised of each path; of those that are not here, nothing.
pub(crate) type Durable = BTreeMap<String, Promise>;

/// What was done to a device, and what was promised meanwhile.
pub(crate) struct Scene {
    pub setup: Setup,
    pub base: Arc<[u8]>,
    pub events: Vec<Event>,
    /// What was durable after each mark.
    pub promises: Vec<Durable>,
    /// Files hold bytes by which they can be told from each other and from garbage ([`super::mix`]).
    pub tagged: bool,
}

/// A file system that is being worked on, with what it has promised.
pub(crate) struct Stage {
    pub fs: Fs,
    device: Arc<RecordingDevice<Arc<MemDevice>>>,
    promised: Mutex<Promised>,
}

#[derive(Default)]
struct Promised {
    now: Durable,
    after: Vec<Durable>,
}

impl Stage {
    pub fn root(&self) -> Node {
        self.fs.root().expect("root")
    }

    pub fn write(&self, dir: &Node, name: &str, offset: u64, data: &[u8]) -> Node {
        let node = match self.fs.lookup(dir, name.as_bytes()) {
            Ok(node) => node,
            Err(_) => self.fs.create(&Caller::default(), dir, name.as_bytes(), 0o644, New::File).expect(name),
        };
        let file = self.fs.open_file(&node, OpenFlags { write: true, ..Default::default() }).expect(name);
        file.write_at(offset, data).expect(name);
        node
    }

    /// fsync; from here on `path` holds `data`.
    pub fn sync_file(&self, node: &Node, path: &str, data: &[u8]) {
        self.fs.sync_node(node, false).expect("fsync");
        self.holds(path, data.to_vec());
    }

    /// `path` may change from here on: nothing is promised of it.
    pub fn forget(&self, path: &str) {
        self.change(|now| drop(now.remove(path)));
    }

    /// Nothing is promised of anything.
    pub fn forget_all(&self) {
        self.change(|now| now.clear());
    }

    pub fn holds(&self, path: &str, data: Vec<u8>) {
        self.promise(path, Promise::Holds(Arc::new(Content { data, xattrs: None })));
    }

    pub fn promise(&self, path: &str, what: Promise) {
        self.change(|now| drop(now.insert(path.into(), what)));
    }

    /// `path` is there, whatever it holds, unless more is promised of it.
    pub fn promise_there(&self, path: &str) {
        self.change(|now| {
            now.entry(path.into()).or_insert(Promise::There);
        });
    }

    /// Changes what is promised, at this place of the recording.
    fn change(&self, change: impl FnOnce(&mut Durable)) {
        let mut promised = self.promised.lock().expect("no panic");
        change(&mut promised.now);
        self.device.mark(promised.after.len().to_string());
        let now = promised.now.clone();
        promised.after.push(now);
    }
}

/// Records what `work` does.
pub(crate) fn record(setup: Setup, tagged: bool, work: impl FnOnce(&mut Stage)) -> Scene {
    let base = setup.base();
    let device = Arc::new(RecordingDevice::new(Arc::new(MemDevice::from_bytes(&base))));
    let fs = Fs::open_device(device.clone(), &setup.options()).unwrap_or_else(|e| panic!("{}: {e}", setup.name));
    let mut stage = Stage { fs, device: device.clone(), promised: Mutex::default() };
    stage.forget_all();
    work(&mut stage);
    let promises = stage.promised.into_inner().expect("no panic").after;
    stage.fs.crash();
    Scene { setup, base, events: device.take_log(), promises, tagged }
}
