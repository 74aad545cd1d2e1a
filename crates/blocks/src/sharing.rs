//! Ranges of two devices that are the same storage.

use crate::{BlockDevice, Origin};
use std::io;

/// Compares the origins of two ranges of `len` bytes, each at an offset of a device. Returns how
/// many bytes from their beginnings on are alike in this, and whether they are the same storage.
///
/// # Errors
/// Those of [`BlockDevice::origin`].
pub fn compare_origins(
    devices: [&dyn BlockDevice; 2],
    offsets: [u64; 2],
    len: u64,
) -> io::Result<(u64, bool)> {
    let first = devices[0].origin(offsets[0], len)?;
    let second = devices[1].origin(offsets[1], first.len)?;
    let is_same = first.origin == second.origin && first.origin != Origin::Own;
    Ok((first.len.min(second.len).clamp(1, len.max(1)), is_same))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemDevice, OriginRun, OverlayDevice, PartDevice, Place, ReplaySource};
    use std::sync::Arc;

    /// A device whose bytes are those of file 7.
    #[derive(Debug)]
    struct Known(MemDevice);

    impl BlockDevice for Known {
        crate::forward_device!(self => self.0; len, read_exact_at, write_all_at, flush);

        fn origin(&self, offset: u64, len: u64) -> io::Result<OriginRun> {
            let origin = Origin::Host { device: 1, ino: Some(7), offset };
            Ok(OriginRun { origin, len })
        }
    }

    #[derive(Debug)]
    struct Second;

    impl ReplaySource for Second {
        fn covers(&self, nr: u64) -> bool {
            nr == 2
        }
        fn read_block(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn devices_of_one_origin_are_compared() {
        let known = || -> Arc<dyn BlockDevice> { Arc::new(Known(MemDevice::new(1 << 16))) };
        let part = PartDevice::at(known(), Place::Offset(4096)).unwrap();
        let compare = |a: &dyn BlockDevice, b: &dyn BlockDevice, offsets| {
            compare_origins([a, b], offsets, 8192).unwrap()
        };
        assert_eq!(compare(&*known(), &*known(), [512, 512]), (8192, true));
        assert_eq!(compare(&*known(), &*known(), [512, 1024]), (8192, false));
        assert_eq!(compare(&*known(), &*part, [4608, 512]), (8192, true));
        let memory = MemDevice::new(1 << 16);
        assert_eq!(compare(&memory, &memory, [0, 0]), (8192, false));
        let overlay = OverlayDevice::new(known(), 1024, 4096).with_source(Arc::new(Second));
        overlay.write_all_at(&[1; 10], 4 * 1024 + 5).unwrap();
        for (offset, expected) in [
            (0, (2048, true)),
            (1000, (1048, true)),
            (2048, (1024, false)),
            (3 * 1024, (1024, true)),
            (4 * 1024 + 24, (1000, false)),
            (5 * 1024, (8192, true)),
        ] {
            let found = compare(&overlay, &*known(), [offset; 2]);
            assert_eq!(found, expected, "{offset}");
        }
    }
}
