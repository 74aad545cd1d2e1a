//! Opening images: positions, locks, refusals.

use extant_blocks::{BlockDevice, DeviceError, FileDevice, OpenOptions, Place, parse_image_spec};
use std::fs::File;
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tempfile::TempDir;

pub fn image(len: u64) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("image");
    File::create(&path).unwrap().set_len(len).unwrap();
    (directory, path)
}

fn open(path: &PathBuf) -> std::io::Result<FileDevice> {
    OpenOptions::new(path).open()
}

#[test]
fn transfers_reach_the_file_at_its_place() {
    let (_directory, path) = image(100_000);
    let device = OpenOptions::new(&path).offset(1000).open().unwrap();
    assert_eq!(device.len(), 99_000);
    device
        .write_vectored_at(&[IoSlice::new(b"ab"), IoSlice::new(b""), IoSlice::new(b"cd")], 5)
        .unwrap();
    device.write_all_at(b"e", 9).unwrap();
    device.flush().unwrap();
    let mut bytes = [0; 5];
    File::open(&path).unwrap().read_exact_at(&mut bytes, 1005).unwrap();
    assert_eq!(&bytes, b"abcde");
    let (mut a, mut b) = ([0; 2], [0; 3]);
    device.read_vectored_at(&mut [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)], 5).unwrap();
    assert_eq!((&a, &b), (b"ab", b"cde"));
    device.set_len(10).unwrap();
    assert_eq!(path.metadata().unwrap().len(), 1010);
    assert_eq!(device.len(), 10);
}

/// Other programs may make the file longer while the device is open.
#[test]
fn a_longer_file_is_seen_when_that_is_asked() {
    let (_directory, path) = image(100_000);
    let device = OpenOptions::new(&path).offset(1000).open().unwrap();
    let set_len = |len| File::options().write(true).open(&path).unwrap().set_len(len).unwrap();
    set_len(200_000);
    assert_eq!((device.len(), device.refresh_len().unwrap()), (99_000, 199_000));
    assert_eq!(device.len(), 199_000);
    device.write_all_at(b"x", 198_999).unwrap();
    // A shorter file is an error of transfers.
    set_len(50_000);
    assert_eq!(device.refresh_len().unwrap(), 199_000);
    assert!(device.read_exact_at(&mut [0], 100_000).is_err());
    let dynamic: &dyn BlockDevice = &device;
    set_len(300_000);
    assert_eq!((&dynamic).refresh_len().unwrap(), 299_000);
}

#[test]
fn errors_tell_the_place() {
    let (_directory, path) = image(4096);
    let device = open(&path).unwrap();
    let error = device.read_exact_at(&mut [0; 100], 4000).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    let place = error.get_ref().and_then(|inner| inner.downcast_ref::<DeviceError>()).unwrap();
    assert_eq!(
        (place.offset, place.len, place.device.as_str()),
        (4000, 100, path.to_str().unwrap())
    );
    assert_eq!(device.write_all_at(&[0; 100], 4000).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(device.set_len(u64::MAX).is_err());
    assert_eq!(device.len(), 4096);
}

#[test]
fn zeroes_and_holes() {
    let (_directory, path) = image(1 << 20);
    let device = open(&path).unwrap();
    device.write_all_at(&vec![1; 1 << 20], 0).unwrap();
    device.write_zeroes(100, (1 << 19) + 1).unwrap();
    device.discard(1 << 19, 4096).unwrap();
    let mut bytes = vec![2; 1 << 20];
    device.read_exact_at(&mut bytes, 0).unwrap();
    let zeroes = 100..100 + (1 << 19) + 1;
    assert!(bytes[zeroes.clone()].iter().all(|byte| *byte == 0));
    assert!(bytes[..zeroes.start].iter().all(|byte| *byte == 1));
    let mut at = 0;
    let mut data = 0;
    while let Some(range) = device.next_data(at).unwrap() {
        assert!(range.start >= at && range.end <= device.len());
        data += range.end - range.start;
        at = range.end;
    }
    assert!(((1 << 19) - 8192..=1 << 20).contains(&data));
    assert_eq!(device.next_data(device.len()).unwrap(), None);
}

/// Returns the bytes of storage that a file has.
pub fn stored(path: &PathBuf) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(path).unwrap()) * 512
}

#[test]
fn zeroing_keeps_the_storage_of_data_and_gives_holes_none() {
    const LEN: u64 = 1 << 20;
    for shared_memory in [false, true] {
        let directory = if shared_memory {
            // It cannot zero a range without writing it.
            tempfile::tempdir_in("/dev/shm").unwrap()
        } else {
            tempfile::tempdir_in("/var/tmp").unwrap()
        };
        let path = directory.path().join("image");
        std::fs::write(&path, vec![1; LEN as usize]).unwrap();
        File::options().write(true).open(&path).unwrap().sync_all().unwrap();
        let whole = stored(&path);
        let device = open(&path).unwrap();
        device.write_zeroes(0, LEN).unwrap();
        device.flush().unwrap();
        assert!(stored(&path) >= whole.min(LEN), "{} of {whole} bytes are left", stored(&path));
        let mut bytes = vec![2; LEN as usize];
        device.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0));
        drop(device);

        File::create(&path).unwrap().set_len(LEN).unwrap();
        let device = open(&path).unwrap();
        device.write_all_at(&[1; 4096], 8192).unwrap();
        device.write_zeroes(0, LEN).unwrap();
        device.flush().unwrap();
        assert!(stored(&path) <= 16_384, "{} bytes for a hole", stored(&path));
        device.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0));
    }
}

#[test]
fn one_writer_or_many_readers() {
    let (_directory, path) = image(8192);
    let reader = || OpenOptions::new(&path).read_only(true).open();
    let writer = open(&path).unwrap();
    let error = open(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceBusy);
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    assert_eq!(reader().unwrap_err().kind(), ErrorKind::ResourceBusy);
    drop(writer);
    let readers = [reader().unwrap(), reader().unwrap()];
    assert_eq!(open(&path).unwrap_err().kind(), ErrorKind::ResourceBusy);
    assert!(readers[0].write_all_at(&[0], 0).is_err());
    assert!(readers[0].read_only());
    drop(readers);
    let writer = open(&path).unwrap();
    assert!(OpenOptions::new(&path).lock(false).open().is_ok());
    drop(writer);
}

#[test]
fn a_waiting_open_gets_its_turn() {
    let (_directory, path) = image(8192);
    let writer = open(&path).unwrap();
    let released = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            released.store(true, Ordering::SeqCst);
            drop(writer);
        });
        OpenOptions::new(&path).wait(Some(Duration::from_secs(60))).open().unwrap();
        assert!(released.load(Ordering::SeqCst));
    });
}

#[test]
fn a_file_is_made_if_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("new");
    let error = open(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.to_string().contains("new"), "{error}");
    let device = OpenOptions::new(&path).create(true).open().unwrap();
    device.set_len(5000).unwrap();
    device.write_all_at(&[7], 4999).unwrap();
    drop(device);
    assert_eq!(OpenOptions::new(&path).create(true).open().unwrap().len(), 5000);
}

#[test]
fn paths_other_than_images_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    for path in [directory.path().to_path_buf(), PathBuf::from("/dev/null")] {
        assert_eq!(open(&path).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    let (_directory, path) = image(100);
    assert_eq!(
        OpenOptions::new(&path).offset(101).open().unwrap_err().kind(),
        ErrorKind::InvalidData
    );
    assert!(OpenOptions::new(&path).offset(u64::MAX).open().is_err());
    assert_eq!(OpenOptions::new(&path).offset(100).open().unwrap().len(), 0);
}

#[test]
fn a_spec_opens_its_place() {
    let (_directory, path) = image(8192);
    let spec = parse_image_spec(&format!("{}@4k", path.display()));
    assert_eq!(spec.place, Place::Offset(4096));
    let device = OpenOptions::from_spec(&spec).open().unwrap();
    assert_eq!((device.start(), device.len()), (4096, 4096));
    assert!(device.name().ends_with("image@4096"));
}
