//! Images stored in directories, and fetched.

use crate::{CHUNK, address, chunks_in, content, disk, in_directory, open, options, store};
use extant_blocks::{BlockDevice, MemDevice, SparseDevice};
use extant_store::{
    ChunkDigest, ObjectTransport, PullSink, StoreObject, StoredImage, open_transport, pull, push,
};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

struct Sink(MemDevice);

impl PullSink for Sink {
    fn chunk(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }
}

#[test]
fn images_come_back_as_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, address) = (disk(50), in_directory(dir.path(), "a/disk"));
    let report = store(&disk, &address, &options()).unwrap();
    assert_eq!((report.chunks, report.sent_chunks), (44, 44));
    let stored = open(address.to_string()).unwrap();
    assert_eq!(content(&stored), content(&disk));
    let image = StoredImage::open(&address).unwrap();
    assert_eq!(image.digest(), report.manifest);
    let sink = Sink(MemDevice::new(disk.len()));
    pull(&image, 3, &AtomicBool::new(false), &sink).unwrap();
    assert_eq!(content(&sink.0), content(&disk));
}

#[test]
fn chunks_are_frames_that_zstd_reads() {
    let dir = tempfile::tempdir().unwrap();
    let disk = disk(1);
    store(&disk, &in_directory(dir.path(), "disk"), &options()).unwrap();
    let hex = ChunkDigest::of(&content(&disk)).hex();
    let chunk = dir.path().join("chunks").join(&hex[..2]).join(&hex);
    let zstd = extant_testkit::tool::run("zstd", &["-dc", chunk.to_str().unwrap()]).must_succeed();
    assert_eq!(zstd.stdout, content(&disk));
}

#[test]
fn equal_chunks_are_sent_once() {
    let dir = tempfile::tempdir().unwrap();
    let disk = SparseDevice::new(100 * CHUNK);
    (0..90).for_each(|number| disk.write_all_at(&[7; 4096], number * CHUNK).unwrap());
    let first = store(&disk, &in_directory(dir.path(), "first"), &options()).unwrap();
    assert_eq!((first.chunks, first.sent_chunks), (90, 1));
    disk.write_all_at(&[8], 5).unwrap();
    let second = store(&disk, &in_directory(dir.path(), "second"), &options()).unwrap();
    assert_eq!((second.chunks, second.sent_chunks), (90, 1));
    for name in ["first", "second"] {
        let stored = open(in_directory(dir.path(), name).to_string()).unwrap();
        assert_eq!(stored.next_data(0).unwrap(), Some(0..90 * CHUNK));
        assert_eq!(stored.next_data(91 * CHUNK).unwrap(), None);
    }
}

#[test]
fn unused_parts_are_zeroes() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, address) = (disk(4), in_directory(dir.path(), "disk"));
    let transport = open_transport(&address).unwrap();
    let used = Box::new([100..200, 300..CHUNK + 1].into_iter());
    let stop = AtomicBool::new(false);
    push(&disk, used, (&address, &*transport), &options(), (&stop, &|_| ())).unwrap();
    let mut expected = vec![0; disk.len() as usize];
    for part in [100..200, 300..4097] {
        expected[part.clone()].copy_from_slice(&content(&disk)[part]);
    }
    assert_eq!(content(&open(address.to_string()).unwrap()), expected);
}

#[test]
fn an_image_is_replaced_only_when_asked() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, address) = (disk(4), in_directory(dir.path(), "disk"));
    let first = store(&disk, &address, &options()).unwrap();
    let error = store(&disk, &address, &options()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
    disk.write_all_at(&[1], 0).unwrap();
    let mut replacing = options();
    replacing.replace = true;
    let second = store(&disk, &address, &replacing).unwrap();
    // A reader that wants the first one is told.
    let pinned = address.clone().with_digest(first.manifest);
    let error = StoredImage::open(&pinned).unwrap_err().to_string();
    assert!(error.contains("was replaced"), "{error}");
    StoredImage::open(&address.with_digest(second.manifest)).unwrap();
}

/// A transport that fails after some chunks.
#[derive(Debug)]
struct Failing<'t> {
    inner: &'t dyn ObjectTransport,
    left: AtomicU64,
}

impl ObjectTransport for Failing<'_> {
    fn get(&self, object: StoreObject, max: u64, fresh: bool) -> io::Result<Vec<u8>> {
        self.inner.get(object, max, fresh)
    }

    fn exists(&self, object: StoreObject) -> io::Result<bool> {
        self.inner.exists(object)
    }

    fn put(&self, object: StoreObject, data: Vec<u8>, replace: bool) -> io::Result<()> {
        let left = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        left.map_err(|_| io::Error::other("the store is full"))?;
        self.inner.put(object, data, replace)
    }
}

#[test]
fn a_failed_push_leaves_no_image_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, address) = (disk(40), in_directory(dir.path(), "disk"));
    let inner = open_transport(&address).unwrap();
    let failing = Failing { inner: &*inner, left: AtomicU64::new(20) };
    let whole = Box::new(std::iter::once(0..disk.len()));
    let stop = AtomicBool::new(false);
    let error = push(&disk, whole, (&address, &failing), &options(), (&stop, &|_| ())).unwrap_err();
    assert!(error.to_string().contains("the store is full"), "{error}");
    assert!(error.to_string().contains("chunk file://"), "{error}");
    let missing = open(address.to_string()).unwrap_err();
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    let report = store(&disk, &address, &options()).unwrap();
    assert_eq!((report.chunks, report.sent_chunks), (35, 15));
    let stop = AtomicBool::new(true);
    let whole = Box::new(std::iter::once(0..disk.len()));
    let other = in_directory(dir.path(), "other");
    let inner = open_transport(&other).unwrap();
    let error = push(&disk, whole, (&other, &*inner), &options(), (&stop, &|_| ())).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Interrupted);
}

/// Also one that has the right name and length. Others are not sent.
#[test]
fn a_verifying_push_replaces_damaged_chunks() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, address) = (disk(8), in_directory(dir.path(), "disk"));
    store(&disk, &address, &options()).unwrap();
    let chunks = chunks_in(dir.path());
    for (chunk, damage) in chunks.iter().zip([0, 5, usize::MAX]) {
        let mut bytes = std::fs::read(chunk).unwrap();
        match bytes.get_mut(damage) {
            Some(byte) => *byte ^= 0xff,
            None => bytes.push(0),
        }
        std::fs::write(chunk, bytes).unwrap();
    }
    let mut again = options();
    again.replace = true;
    assert_eq!(store(&disk, &address, &again).unwrap().sent_chunks, 0);
    let read = |n: u64| open(address.to_string())?.read_exact_at(&mut [0], n * CHUNK);
    assert!((0..8).any(|number| read(number).is_err()));
    again.verify = true;
    assert_eq!(store(&disk, &address, &again).unwrap().sent_chunks, 3);
    assert_eq!(content(&open(address.to_string()).unwrap()), content(&disk));
}

#[test]
fn stores_for_reading_take_nothing() {
    let http = address("http://127.0.0.1:1/disk");
    let transport = open_transport(&http).unwrap();
    let error = transport.put(StoreObject::Manifest, vec![1], true).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::Unsupported);
}

/// A file that another program has made shorter.
#[derive(Debug)]
struct Shortened(MemDevice);

impl BlockDevice for Shortened {
    fn len(&self) -> u64 {
        2 * self.0.len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buf, offset)
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn next_data(&self, offset: u64) -> io::Result<Option<std::ops::Range<u64>>> {
        self.0.next_data(offset)
    }
}

#[test]
fn a_source_that_became_shorter_is_not_stored() {
    let dir = tempfile::tempdir().unwrap();
    let address = in_directory(dir.path(), "one");
    let device = Shortened(MemDevice::new(CHUNK));
    let error = store(&device, &address, &options()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    assert!(open(address.to_string()).is_err());
}

#[test]
fn objects_that_are_no_files_are_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("pipe");
    extant_testkit::tool::run("mkfifo", &[&fifo]).must_succeed();
    let error = open(in_directory(dir.path(), "pipe").to_string()).unwrap_err();
    assert!(error.to_string().contains("no regular file"), "{error}");
}
