//! Failing devices: each read, write, growth and flush of the file fails in its turn. The image
//! that is left is consistent, opens, and has all that was flushed before.

use crate::images::*;
use extant_blocks::{BlockDevice, Failure, Fault, FaultDevice, MemDevice, Op, RecordingDevice};
use extant_qcow2::Qcow2Device;
use extant_testkit::Scratch;
use extant_testkit::cuts::chosen_cuts;
use extant_testkit::rng::Rng;
use std::fs;
use std::path::Path;
use std::sync::Arc;

type Device = Arc<FaultDevice<Arc<RecordingDevice<MemDevice>>>>;

/// Changes of the workload.
const STEPS: usize = 24;

const OPS: [Op; 4] = [Op::Read, Op::Write, Op::SetLen, Op::Flush];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Once,
    FromThenOn,
    /// A write fails once, after its first sector.
    Partly,
}

/// The request that fails.
#[derive(Clone, Copy, Debug)]
struct Plan {
    op: Op,
    nth: u64,
    how: How,
}

impl Plan {
    /// Returns whether the request may be the last of a flush, after which all is durable.
    fn is_of_leaks(self) -> bool {
        [Op::Read, Op::Write].contains(&self.op)
    }

    fn fault(self) -> Fault {
        let fault = Fault::new(self.op, self.nth);
        match self.how {
            How::Once => fault,
            How::FromThenOn => fault.from_then_on(),
            How::Partly => fault.with(Failure::Short(512, 5)),
        }
    }
}

/// A disk as it must be: bytes of ranges whose change failed are unknown.
#[derive(Clone)]
struct Model {
    bytes: Vec<u8>,
    known: Vec<bool>,
}

impl Model {
    fn new(bytes: Vec<u8>) -> Model {
        Model { known: vec![true; bytes.len()], bytes }
    }

    #[track_caller]
    fn assert_in(&self, disk: &[u8], plan: Plan) {
        let wrong = (0..disk.len()).find(|at| self.known[*at] && disk[*at] != self.bytes[*at]);
        assert_eq!(wrong, None, "{plan:?}: content is lost");
    }
}

/// An image file, its base, and the changes of its disk.
struct Subject {
    before: Vec<u8>,
    base: Option<Vec<u8>>,
    seed: u64,
}

/// Changes under way.
struct Run {
    /// The disk as it was flushed last, where no change came later.
    durable: Model,
    /// The disk as it was written.
    last: Model,
    refused: usize,
    device: Qcow2Device,
    file: Device,
}

impl Subject {
    fn below(&self) -> Option<Arc<dyn BlockDevice>> {
        self.base.as_ref().map(|base| Arc::new(MemDevice::from_bytes(base)) as _)
    }

    fn open(&self, file: Arc<dyn BlockDevice>) -> Qcow2Device {
        Qcow2Device::open(file, self.below(), false).unwrap()
    }

    /// Opens the image, and plans a failure.
    fn begin(&self, plan: Option<Plan>) -> Run {
        let recorder = RecordingDevice::new(MemDevice::from_bytes(&self.before));
        let file = Arc::new(FaultDevice::new(Arc::new(recorder)));
        let device = self.open(file.clone());
        let last = Model::new(content(&device));
        plan.into_iter().for_each(|plan| file.inject(plan.fault()));
        Run { durable: last.clone(), last, refused: 0, device, file }
    }

    /// Changes the disk with a failing request.
    fn run(&self, plan: Option<Plan>) -> Run {
        let mut run = self.begin(plan);
        let mut rng = Rng::new(self.seed);
        (0..STEPS).for_each(|number| run.step(&mut rng, number % 4 == 3));
        run
    }

    /// Returns the plans of all requests of a run without failures, with its end.
    fn plans(&self) -> Vec<Plan> {
        let count = |run: Run| {
            assert_eq!(run.refused, 0);
            let file = run.file.clone();
            drop(run);
            OPS.map(|op| file.count(op))
        };
        let opened = count(self.begin(None));
        let all = count(self.run(None));
        let mut plans = Vec::new();
        for (number, op) in OPS.into_iter().enumerate() {
            let hows: &[How] = match op {
                Op::Write => &[How::Once, How::FromThenOn, How::Partly],
                _ => &[How::Once, How::FromThenOn],
            };
            for nth in 0..all[number] - opened[number] {
                plans.extend(hows.iter().map(|how| Plan { op, nth, how: *how }));
            }
        }
        plans
    }

    /// Asserts that the image is consistent, opens, has the content of the model and takes changes.
    fn assert_state(&self, image: &Path, state: &[u8], model: &Model, plan: Plan) {
        fs::write(image, state).unwrap();
        assert_consistent(image);
        let device = self.open(Arc::new(MemDevice::from_bytes(state)));
        model.assert_in(&content(&device), plan);
        device.write_all_at(&[1; 5000], 3000).unwrap();
        device.flush().unwrap();
    }

    fn check(&self, image: &Path, plan: Plan) {
        let Run { durable, last, refused, device, file } = self.run(Some(plan));
        let failed = file.failed();
        assert!(failed == 0 || refused > 0 || plan.is_of_leaks(), "{plan:?}: no error is told");
        if plan.how == How::FromThenOn || plan.op == Op::Flush {
            // The program ends, and its last changes cannot be written, or are refused.
            drop(device);
            let events = file.inner().take_log();
            self.assert_state(image, &file.inner().inner().to_vec(), &durable, plan);
            if plan.nth.is_multiple_of(3) {
                let is_last = |cut| cut == events.len();
                chosen_cuts(&self.before, &events, &is_last, &mut |_, state| {
                    self.assert_state(image, &state, &durable, plan);
                });
            }
            return;
        }
        // It goes on: the next flush makes all of it durable.
        device.flush().unwrap();
        last.assert_in(&content(&device), plan);
        drop(device);
        let state = file.inner().inner().to_vec();
        self.assert_state(image, &state, &last, plan);
        fs::write(image, &state).unwrap();
        assert_clean(image);
    }
}

impl Run {
    /// Writes, zeroes or discards a range, or flushes.
    fn step(&mut self, rng: &mut Rng, is_flush: bool) {
        if is_flush {
            match self.device.flush() {
                Ok(()) => self.durable = self.last.clone(),
                Err(_) => self.refused += 1,
            }
            return;
        }
        let len = self.last.bytes.len() as u64;
        let from = rng.below(len);
        let to = from + rng.below(7000.min(len - from) + 1);
        let range = from as usize..to as usize;
        let (data, kind) = (rng.bytes(range.len()), rng.below(6));
        let done = match kind {
            0 => self.device.write_zeroes(from, to - from),
            1 => self.device.discard(from, to - from),
            _ => self.device.write_all_at(&data, from),
        };
        self.refused += usize::from(done.is_err());
        self.last.known[range.clone()].fill(done.is_ok() && kind != 1);
        // Sectors are written as a whole.
        let sectors = range.start & !511..((range.end + 511) & !511).min(len as usize);
        self.durable.known[sectors].fill(false);
        if kind == 0 {
            self.last.bytes[range].fill(0);
        } else {
            self.last.bytes[range].copy_from_slice(&data);
        }
    }
}

#[test]
fn each_failing_request_leaves_what_was_flushed() {
    let scratch = Scratch::new();
    let image = scratch.join("i.qcow2");
    let size = 40 << 10;
    let base = pattern(13, size - 3000);
    let raw = scratch.join("base.raw");
    fs::write(&raw, &base).unwrap();
    for (seed, options, overlays) in
        [(1, "cluster_size=512,refcount_bits=64", true), (2, "cluster_size=1k", false)]
    {
        if overlays {
            let create = ["create", "-q", "-f", "qcow2", "-F", "raw", "-o", options, "-b"];
            qemu(&[&create[..], &[text(&raw), text(&image), &size.to_string()]].concat());
        } else {
            empty(&image, options, size as u64);
        }
        let before = fs::read(&image).unwrap();
        let subject = Subject { before, base: overlays.then(|| base.clone()), seed };
        let plans = subject.plans();
        assert!(plans.len() > 150, "{}", plans.len());
        plans.into_iter().for_each(|plan| subject.check(&image, plan));
        fs::remove_file(&image).unwrap();
    }
}

/// The refcount table moves, and each request of that fails in its turn.
#[test]
fn a_failing_move_of_the_refcount_table_is_made_later() {
    let scratch = Scratch::new();
    let image = scratch.join("i.qcow2");
    empty(&image, "cluster_size=512,refcount_bits=64", 3 << 20);
    let device = open(&image, false);
    // A table for 2 MiB of clusters, which are nearly used up.
    device.write_all_at(&vec![7; 1900 << 10], 0).unwrap();
    drop(device);
    let before = fs::read(&image).unwrap();
    let data = vec![8; 200 << 10];
    let at = 2 << 20;
    for op in [Op::Write, Op::SetLen, Op::Flush] {
        for nth in 0.. {
            let file = Arc::new(FaultDevice::new(MemDevice::from_bytes(&before)));
            let device = Qcow2Device::open(file.clone(), None, false).unwrap();
            file.inject(Fault::new(op, nth));
            let refused = device.write_all_at(&data, at).and_then(|()| device.flush()).is_err();
            if file.failed() == 0 {
                break;
            }
            // The move is complete, but clusters of the old table are not yet free.
            let again = device.write_all_at(&data, at).and_then(|()| device.flush());
            assert_eq!(again.is_err(), refused && op == Op::Flush, "{op:?} {nth}: {again:?}");
            drop(device);
            let bytes = file.inner().to_vec();
            fs::write(&image, &bytes).unwrap();
            assert_consistent(&image);
            let disk = content(&open(&image, false));
            assert!(disk[..1900 << 10].iter().all(|byte| *byte == 7), "{op:?} {nth}");
            if again.is_ok() {
                assert_clean(&image);
                assert!(bytes[48..60] != before[48..60], "the table has not moved");
                assert!(disk[at as usize..][..data.len()] == data, "{op:?} {nth}");
            }
        }
    }
}

/// Only mapped clusters are written: no table changes, and the flush must still count.
#[test]
fn a_failed_flush_of_content_alone_is_not_forgotten() {
    let scratch = Scratch::new();
    let image = scratch.join("i.qcow2");
    empty(&image, "cluster_size=4k", 1 << 20);
    let device = open(&image, false);
    device.write_all_at(&[1; 4096], 0).unwrap();
    drop(device);
    let before = fs::read(&image).unwrap();
    let file = Arc::new(FaultDevice::new(MemDevice::from_bytes(&before)));
    let device = Qcow2Device::open(file.clone(), None, false).unwrap();
    device.flush().unwrap();
    device.write_all_at(&[2; 4096], 0).unwrap();
    file.inject(Fault::new(Op::Flush, 0));
    device.flush().unwrap_err();
    let again = device.flush().unwrap_err();
    assert!(again.to_string().contains("open the image again"), "{again}");
    device.write_all_at(&[3; 4096], 0).unwrap_err();
}
