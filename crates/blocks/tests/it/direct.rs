//! Direct I/O on the working directory's file system, which supports it.

use extant_blocks::{BlockDevice, OpenOptions};
use std::io::IoSlice;

#[test]
fn direct_and_buffered_transfers_agree() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = directory.path().join("image");
    let device = OpenOptions::new(&path).create(true).direct(true).open().unwrap();
    device.set_len(4 << 20).unwrap();
    assert!(device.is_direct());
    assert!(device.host_bytes().is_none(), "a copy by the host would go through the page cache");
    let mut model = vec![0u8; 4 << 20];
    let pattern: Vec<u8> = (0..3 << 20).map(|n: u32| (n % 251) as u8).collect();
    // Aligned in offset and length; then neither; then aligned only as a whole, and longer than one
    // aligned copy.
    for (offset, len) in
        [(4096, 8192), (5000, 3), (8192, 4096), (4096 * 3, (2 << 20) + 4096), (1, 1 << 20)]
    {
        device.write_all_at(&pattern[offset % 97..][..len], offset as u64).unwrap();
        model[offset..offset + len].copy_from_slice(&pattern[offset % 97..][..len]);
    }
    let pieces: Vec<IoSlice<'_>> = pattern[..2 << 20].chunks(1000).map(IoSlice::new).collect();
    device.write_vectored_at(&pieces, 1 << 20).unwrap();
    model[1 << 20..3 << 20].copy_from_slice(&pattern[..2 << 20]);
    device.flush().unwrap();
    let mut bytes = vec![0; 4 << 20];
    device.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == model);
    device.read_exact_at(&mut bytes[1..2000], 4095).unwrap();
    assert!(bytes[1..2000] == model[4095..4095 + 1999]);
}
