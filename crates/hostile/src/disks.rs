//! Fuzz target for disk images in the format qcow2.
//!
//! An input is a byte of choices, [`STEPS`] bytes that choose changes, and the image file. A reader
//! must write nothing. A writer that opens the image must keep the disk equal to a model, also
//! beside a host that lacks space, and must leave an image that passes its own check again with the
//! content that was flushed.

use extant_blocks::{BlockDevice, Failure, Fault, FaultDevice, MemDevice, Op};
use extant_qcow2::Qcow2Device;
use extant_testkit::rng::Rng;
use std::io;
use std::sync::Arc;

/// Bits of the first byte. The image is opened for reading.
pub const READER: u8 = 1;
/// The image has a backing file.
pub const BACKED: u8 = 1 << 1;
/// Refcounts are set to the uses of clusters before, where they are of 16 bits.
pub const COUNTED: u8 = 1 << 2;
/// A write of the file fails for lack of space.
pub const FULL: u8 = 1 << 3;

/// Bytes that choose changes.
pub const STEPS: usize = 47;

/// The longest disk that is compared with a model, in bytes, and the most changes.
const MAX_DISK: u64 = 1 << 20;
const MAX_CHANGES: usize = 12;

const ENOSPC: i32 = 28;

/// Opens an image, reads it, changes it and opens it again.
pub fn run(input: &[u8]) {
    let Some((choices, rest)) = input.split_first() else { return };
    let Some((steps, file)) = rest.split_at_checked(STEPS) else { return };
    let mut file = file.to_vec();
    if choices & COUNTED != 0 {
        count(&mut file);
    }
    let mut rng = Rng::laid_down(steps);
    let below = (choices & BACKED != 0).then(|| backing(&mut rng));
    if choices & READER == 0 {
        write(&file, below.as_ref(), choices & FULL != 0, &mut rng);
    } else {
        read(&file, below.as_ref(), &mut rng);
    }
}

/// Makes a backing file, whose bytes tell their place.
fn backing(rng: &mut Rng) -> Vec<u8> {
    let len = *rng.pick(&[1, 700, 40_000, 100_000]);
    (0..len).map(|at: usize| (at / 512 + 1) as u8).collect()
}

fn open(
    file: Arc<dyn BlockDevice>,
    below: Option<&Vec<u8>>,
    read_only: bool,
) -> io::Result<Qcow2Device> {
    let below = below.map(|bytes| Arc::new(MemDevice::from_bytes(bytes)) as Arc<dyn BlockDevice>);
    Qcow2Device::open(file, below, read_only)
}

fn read(file: &[u8], below: Option<&Vec<u8>>, rng: &mut Rng) {
    let memory = Arc::new(MemDevice::from_bytes(file));
    if let Ok(device) = open(memory.clone(), below, true) {
        look(&device, rng);
        assert!(device.write_all_at(&[1], 0).is_err(), "a reader writes");
    }
    if let Ok(layer) = Qcow2Device::open_layer(memory.clone()) {
        let mut at = 0;
        // Errors are the expected answer to most inputs.
        while let Ok(Some(found)) = layer.next_in_layer(at)
            && at < MAX_DISK
        {
            assert!(found.range.start >= at && found.range.end > found.range.start);
            at = found.range.end;
        }
        if layer.len() <= MAX_DISK {
            let _ = layer.commit_to(&MemDevice::new(layer.len()), &mut |_| ());
        }
    }
    assert!(memory.to_vec() == file, "a reader has written");
}

/// Reads parts of a disk of any size.
fn look(device: &Qcow2Device, rng: &mut Rng) {
    let len = device.len();
    for _ in 0..6 {
        let at = match rng.below(4) {
            0 => 0,
            1 => len / 2,
            2 => len - 1,
            _ => rng.below(len),
        };
        let mut buf = vec![0; (len - at).min(70_000) as usize];
        let _ = device.read_exact_at(&mut buf, at);
    }
    let mut at = 0;
    for _ in 0..64 {
        let Ok(Some(data)) = device.next_data(at) else { break };
        assert!(data.start >= at && data.end > data.start && data.end <= len, "{data:?}");
        at = data.end;
    }
}

/// The content that a disk must have. Bytes are unknown after a failed change.
struct Model {
    bytes: Vec<u8>,
    known: Vec<bool>,
}

impl Model {
    fn assert_in(&self, device: &Qcow2Device, when: &str) {
        let mut now = vec![0; self.bytes.len()];
        device.read_exact_at(&mut now, 0).expect("a disk that was read before");
        let wrong = (0..now.len()).find(|at| self.known[*at] && now[*at] != self.bytes[*at]);
        assert_eq!(wrong, None, "{when}: wrong content");
    }

    /// Writes, zeroes or discards a range.
    fn change(&mut self, device: &Qcow2Device, rng: &mut Rng) {
        let len = self.bytes.len() as u64;
        let at = rng.below(len);
        let end = at + rng.below((len - at).min(9000) + 1);
        let range = at as usize..end as usize;
        let (kind, value) = (rng.below(5), rng.below(256) as u8);
        let data = vec![if kind == 0 { 0 } else { value }; range.len()];
        let done = match kind {
            0 => device.write_zeroes(at, end - at),
            1 => device.discard(at, end - at),
            _ => device.write_all_at(&data, at),
        };
        self.known[range.clone()].fill(done.is_ok() && kind != 1);
        self.bytes[range].copy_from_slice(&data);
    }
}

fn write(file: &[u8], below: Option<&Vec<u8>>, is_full: bool, rng: &mut Rng) {
    let host = Arc::new(FaultDevice::new(MemDevice::from_bytes(file)));
    let Ok(device) = open(host.clone(), below, false) else {
        assert!(host.inner().to_vec() == file, "a refused image was changed");
        return;
    };
    if device.len() > MAX_DISK {
        look(&device, rng);
        return;
    }
    let mut bytes = vec![0; device.len() as usize];
    device.read_exact_at(&mut bytes, 0).expect("an image without damage");
    let mut model = Model { known: vec![true; bytes.len()], bytes };
    if is_full {
        let lack = Failure::Short(rng.below(2) as usize * 512, ENOSPC);
        host.inject(Fault::new(Op::Write, rng.below(24)).with(lack));
    }
    for _ in 0..MAX_CHANGES {
        model.change(&device, rng);
        if rng.left() == 0 {
            break;
        }
        if rng.one_in(4) {
            let done = device.flush();
            assert!(done.is_ok() || host.failed() > 0, "{done:?}");
        }
    }
    model.assert_in(&device, "before the flush");
    // One write fails at most.
    device.flush().or_else(|_| device.flush()).expect("a flush after one that failed");
    model.assert_in(&device, "after the flush");
    let opened_again = |when: &str| {
        let state = Arc::new(MemDevice::from_bytes(&host.inner().to_vec()));
        model.assert_in(&open(state, below, false).expect("an image without damage"), when);
    };
    opened_again("killed");
    drop(device);
    opened_again("closed");
}

/// Sets refcounts of 16 bits to the uses of clusters of 512 bytes, as far as the header and the
/// tables can be followed.
fn count(file: &mut [u8]) {
    const CLUSTER: usize = 512;
    const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
    let word = |file: &[u8], at: usize| {
        let field = file.get(at..).and_then(|rest| rest.first_chunk());
        field.copied().map_or(0, u64::from_be_bytes)
    };
    let short = |file: &[u8], at: usize| (word(file, at) >> 32) as usize;
    if file.len() < CLUSTER || short(file, 20) != 9 || short(file, 96) != 4 {
        return;
    }
    let clusters = file.len().div_ceil(CLUSTER);
    let mut uses = vec![0u16; clusters];
    let mut take = |offset: u64, count: usize| {
        let first = (offset / CLUSTER as u64) as usize;
        for used in uses.iter_mut().skip(first).take(count) {
            *used = used.saturating_add(1);
        }
    };
    let (l1, l1_len) = (word(file, 40) as usize, short(file, 36).min(clusters * 64));
    let (reftable, reftable_len) = (word(file, 48) as usize, short(file, 56).min(clusters));
    take(0, 1);
    take(l1 as u64, (l1_len * 8).div_ceil(CLUSTER));
    take(reftable as u64, reftable_len);
    let entries = |file: &[u8], at: usize, count: usize| -> Vec<u64> {
        let entry = |number: usize| word(file, at.saturating_add(number * 8)) & OFFSET;
        (0..count).map(entry).filter(|offset| *offset != 0).collect()
    };
    for table in entries(file, l1, l1_len) {
        take(table, 1);
        for data in entries(file, table as usize, CLUSTER / 8) {
            take(data, 1);
        }
    }
    let blocks: Vec<u64> = (0..reftable_len * CLUSTER / 8)
        .map(|number| word(file, reftable.saturating_add(number * 8)) & OFFSET)
        .collect();
    blocks.iter().filter(|offset| **offset != 0).for_each(|offset| take(*offset, 1));
    for (cluster, used) in uses.iter().enumerate() {
        let block = blocks.get(cluster / (CLUSTER / 2)).copied().unwrap_or_default() as usize;
        let at = block.saturating_add(cluster % (CLUSTER / 2) * 2);
        if let Some(field) = file.get_mut(at..at.saturating_add(2)).filter(|_| block != 0) {
            field.copy_from_slice(&used.to_be_bytes());
        }
    }
}
