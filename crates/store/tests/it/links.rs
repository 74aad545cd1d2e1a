//! Transports of other processes.

use crate::{address, content, disk, in_directory, options, store};
use extant_store::{
    ChunkDigest, LinkTransport, ObjectTransport, StoreDevice, StoreObject, StoredImage,
    open_transport, push, serve_link,
};
use std::io::{ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

fn link(inner: Arc<dyn ObjectTransport>, writes: bool) -> LinkTransport {
    LinkTransport::new(Box::new(move || {
        let (own, theirs) = UnixStream::pair()?;
        let inner = inner.clone();
        thread::spawn(move || serve_link(theirs, &*inner, writes));
        Ok(own)
    }))
}

#[test]
fn images_are_stored_and_read_over_a_link() {
    let dir = tempfile::tempdir().unwrap();
    let (disk, place) = (disk(60), in_directory(dir.path(), "disk"));
    let inner = open_transport(&place).unwrap();
    let linked = Arc::new(link(inner.clone(), true));
    let whole = Box::new(std::iter::once(0..extant_blocks::BlockDevice::len(&disk)));
    let stop = AtomicBool::new(false);
    push(&disk, whole, (&place, &*linked), &options(), (&stop, &|_| ())).unwrap();
    let image = StoredImage::open_by(&place, linked).unwrap();
    assert_eq!(content(&StoreDevice::of(image)), content(&disk));
    let reading = link(inner, false);
    let denied = reading.put(StoreObject::Manifest, vec![1, 2], true).unwrap_err();
    assert_eq!(denied.kind(), ErrorKind::PermissionDenied);
    let chunk = StoreObject::Chunk(ChunkDigest::of(b"none"));
    let missing = reading.get(chunk, 100, false).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert!(!reading.exists(chunk).unwrap());
    let large = reading.get(StoreObject::Manifest, 10, false).unwrap_err();
    assert_eq!(large.kind(), ErrorKind::FileTooLarge);
}

#[test]
fn other_ends_that_break_the_protocol_are_errors() {
    let place = address("http://127.0.0.1:1/disk");
    for answer in [
        &b""[..],
        &[0; 5],
        &[0, 255, 255, 255, 255, 255, 255, 255, 255],
        &[0, 9, 0, 0, 0, 0, 0, 0, 0, 1],
    ] {
        let answer = answer.to_vec();
        let liar = LinkTransport::new(Box::new(move || {
            let (own, mut theirs) = UnixStream::pair()?;
            let answer = answer.clone();
            thread::spawn(move || theirs.write_all(&answer).map(|()| drop(theirs)));
            Ok(own)
        }));
        let error = StoredImage::open_by(&place, Arc::new(liar)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotConnected, "{error}");
    }
    // Requests that are none end the service.
    let dir = tempfile::tempdir().unwrap();
    store(&disk(2), &in_directory(dir.path(), "disk"), &options()).unwrap();
    let inner = open_transport(&in_directory(dir.path(), "disk")).unwrap();
    for request in [[9; 42], [255; 42]] {
        let (mut own, theirs) = UnixStream::pair().unwrap();
        own.write_all(&request).unwrap();
        drop(own);
        assert!(serve_link(theirs, &*inner, true).is_err());
    }
}
