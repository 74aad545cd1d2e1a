//! The writes of new groups, behind the end of the file system.

use extant_blocks::{BlockDevice, Plug};
use extant_format::growth::NewGroups;
use std::io;
use std::ops::Range;

/// Groups whose bitmaps are written together.
const BATCH: usize = 256;

/// Writes bitmaps, and zeroes over inode tables that must be zero. Notes the tables that are zero.
pub fn write_groups(groups: &mut NewGroups, size: u64, device: &dyn BlockDevice) -> io::Result<()> {
    let mut numbers = groups.numbers().peekable();
    while numbers.peek().is_some() {
        let mut plug = Plug::new(device);
        for group in numbers.by_ref().take(BATCH) {
            let table = groups.table(group);
            let table = table.start.saturating_mul(size)..table.end.saturating_mul(size);
            if groups.needs_zero_tables() {
                zero(device, table)?;
            } else if is_zero(device, &table)? {
                groups.note_zero(group);
            }
            for (nr, bits) in groups.bitmaps(group) {
                plug.add(nr.saturating_mul(size), bits);
            }
        }
        plug.finish()?;
    }
    Ok(())
}

/// Returns whether bytes of the device are known to be zero.
fn is_zero(device: &dyn BlockDevice, bytes: &Range<u64>) -> io::Result<bool> {
    Ok(device.next_data(bytes.start)?.is_none_or(|data| data.start >= bytes.end))
}

fn zero(device: &dyn BlockDevice, bytes: Range<u64>) -> io::Result<()> {
    if is_zero(device, &bytes)? {
        return Ok(());
    }
    device.write_zeroes(bytes.start, bytes.end.saturating_sub(bytes.start))
}
