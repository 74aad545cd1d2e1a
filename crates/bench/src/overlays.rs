//! Rows of writes through an overlay in the format qcow2.

use crate::inputs;
use crate::program::Program;
use crate::row::Row;
use extant_blocks::{BlockDevice, OpenOptions};
use extant_measure::scratch::{Scratch, need};
use extant_qcow2::{Qcow2Device, create};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Bytes of a cluster. Scattered writes are so far apart that each needs one of its own.
const CLUSTER: u64 = 64 << 10;

/// Clusters between two scattered writes: a prime number, so that each is written once.
const STEP: u64 = 7919;

/// Makes an overlay and writes by QEMU. Arguments: base, overlay, writes, bytes of each, distance.
const BY_QEMU: &str = r#"qemu-img create -q -f qcow2 -F raw -b "$1" "$2"
qemu-img bench -w -f qcow2 -t writeback -d 1 -c "$3" -s "$4" -S "$5" "$2" > /dev/null"#;

/// Writes of one length, at places that follow each other by a distance and wrap around.
#[derive(Clone, Copy)]
struct Pattern {
    disk: u64,
    count: u64,
    len: u64,
    distance: u64,
}

impl Pattern {
    fn write(self, device: &dyn BlockDevice) -> io::Result<()> {
        let data = vec![0x5a; self.len as usize];
        for number in 0..self.count {
            device.write_all_at(&data, number * self.distance % self.disk)?;
        }
        device.flush()
    }
}

/// Returns the rows: new clusters in order, and scattered ones of which a part is written.
pub fn rows(scratch: &Scratch, out: &Path, clusters: u64) -> io::Result<Vec<Row>> {
    need("qemu-img")?;
    let base = scratch.dir("base")?.join("base.img");
    // A base whose content is copied around the writes.
    inputs::large(&base, clusters * CLUSTER)?;
    let pattern =
        |len, distance| Pattern { disk: clusters * CLUSTER, count: clusters, len, distance };
    let rows = [
        ("64 KiB in order", pattern(CLUSTER, CLUSTER)),
        ("4 KiB scattered", pattern(4096, STEP * CLUSTER)),
    ];
    let row = |(name, pattern): (&str, Pattern)| {
        let numbers = [pattern.count, pattern.len, pattern.distance].map(|n| n.to_string());
        let words = [base.as_os_str(), out.as_os_str()].into_iter();
        let words = words.chain(numbers.iter().map(OsStr::new));
        let (over, raw) = ((base.clone(), out.to_path_buf()), out.to_path_buf());
        Row::new(format!("{clusters} writes of {name} into an overlay"), &[out])
            .here(move || {
                let (base, out) = &over;
                File::create(out)?;
                let base = OpenOptions::new(base).read_only(true).open()?;
                let file = OpenOptions::new(out).open()?;
                create(&file, base.len(), Some((b"base.img", "raw")))?;
                pattern.write(&Qcow2Device::open(Arc::new(file), Some(Arc::new(base)), false)?)
            })
            .beside("floor", move || {
                File::create(&raw)?.set_len(pattern.disk)?;
                pattern.write(&OpenOptions::new(&raw).open()?)
            })
            .with("qemu", Program::script(BY_QEMU, words))
            .within(1.0, "qemu")
    };
    Ok(rows.map(row).into())
}
