//! Devices that die: each read, write and flush of a workload fails in its turn, once, from then
//! on, or after a part of a write.
//!
//! The caller of a failed operation gets an error, and each open file that lost data reports it
//! once. Durable data stay, and the image that is left recovers. A failure of the log stops all
//! changes. Nothing panics.

mod work;

use crate::crash::{Copy, LAYOUTS, PageDevice, Pages, Setup, kinds};
use extant_blocks::{Failure, Fault, FaultDevice, Op};
use extant_engine::{Errno, Error, Fs, NodeKind};
use extant_hostile::drive::panics_since;
use extant_testkit::Scratch;
use extant_testkit::e2fsck::{self, Verdict};
use extant_testkit::figures::{self, Figures};
use extant_testkit::rng::Rng;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use work::{Durable, WORKLOADS, Work, Workload, assert_durable, prepared};

pub(crate) type Device = Arc<FaultDevice<PageDevice>>;

/// Failures of one run in `make test`.
const SHORT: u64 = 700;

/// Plans whose failure once broke something.
const KEPT: [&str; 2] = [
    "cuts on ext3: Plan { op: Read, nth: 8, how: FromThenOn }",
    "cuts on quota: Plan { op: Read, nth: 22, how: FromThenOn }",
];

/// The duration and the kind of a failure.
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
    fn fault(self) -> Fault {
        let fault = Fault::new(self.op, self.nth);
        match self.how {
            How::Once => fault,
            How::FromThenOn => fault.from_then_on(),
            How::Partly => fault.with(Failure::Short(512, 5)),
        }
    }
}

/// A workload over a kind of file system, with how often each kind of request happens.
struct Subject {
    name: &'static str,
    setup: Setup,
    workload: Workload,
    base: Pages,
    plans: Vec<Plan>,
}

impl Subject {
    fn new(setup: Setup, (name, workload): (&'static str, Workload)) -> Subject {
        let base = prepared(setup);
        let device = Arc::new(FaultDevice::new(PageDevice::new(base.clone())));
        let fs = Fs::open_device(device.clone(), &setup.options()).expect("a good image opens");
        let before = [Op::Read, Op::Write, Op::Flush].map(|op| device.count(op));
        let mut work = Work::new(&fs, &device);
        workload(&mut work);
        let errors = work.finish().errors;
        assert!(errors.is_empty(), "{name} on {}: {errors:?}", setup.name);
        fs.unmount().expect("unmount");
        let mut plans = Vec::new();
        for (op, before) in [Op::Read, Op::Write, Op::Flush].into_iter().zip(before) {
            for nth in 0..device.count(op) - before {
                plans.extend([How::Once, How::FromThenOn].map(|how| Plan { op, nth, how }));
                plans.extend((op == Op::Write).then_some(Plan { op, nth, how: How::Partly }));
            }
        }
        assert!(plans.len() > 10, "{name} on {}: {} requests", setup.name, plans.len());
        Subject { name, setup, workload, base, plans }
    }

    /// Returns the name of the case for messages.
    fn label(&self, plan: Plan) -> String {
        format!("{} on {}: {plan:?}", self.name, self.setup.name)
    }
}

/// Counts of the cases.
#[derive(Default, Debug)]
struct Tally {
    faults: u64,
    /// Requests that were not made any more.
    missed: u64,
    read_only: u64,
    recovered: u64,
}

fn is_eio(e: &Error) -> bool {
    e.errno() == Errno::Io as i32
}

/// Makes the request fail, and checks the errors and the image that is left.
fn fail(subject: &Subject, plan: Plan, copy: &mut Copy, tally: &mut Tally) -> Result<(), String> {
    let device = Arc::new(FaultDevice::new(PageDevice::new(subject.base.clone())));
    let fs = Fs::open_device(device.clone(), &subject.setup.options())
        .map_err(|e| format!("opening: {e}"))?;
    device.inject(plan.fault());
    let mut work = Work::new(&fs, &device);
    (subject.workload)(&mut work);
    let outcome = work.finish();
    let hit = device.failed() > 0;
    let read_only = fs.is_read_only();
    tally.faults += 1;
    tally.missed += u64::from(!hit);
    tally.read_only += u64::from(read_only);
    check_errors(&outcome.errors, hit, read_only)?;
    if read_only {
        stays_read_only(&fs)?;
    }
    outcome.told?;
    let told = outcome.errors.iter().any(is_eio);
    device.heal();
    let unmounted = fs.unmount();
    // A read may be done without, and one write of data is tried again.
    let must_tell =
        hit && (plan.op == Op::Flush || plan.op == Op::Write && plan.how == How::FromThenOn);
    if must_tell && !told && unmounted.is_ok() {
        return Err("no caller got an error".into());
    }
    if read_only && unmounted.is_ok() {
        return Err("closing did not tell that changes were stopped".into());
    }
    if !subject.setup.unlogged {
        tally.recovered += 1;
        recovers(subject, &device, &outcome.durable, copy)?;
    }
    Ok(())
}

/// Verifies the errors: those of the failed device, and those that follow from operations that
/// failed.
fn check_errors(errors: &[Error], hit: bool, read_only: bool) -> Result<(), String> {
    let follows = [Errno::Io, Errno::RoFs, Errno::NoEnt, Errno::Exist, Errno::NotEmpty]
        .map(|errno| errno as i32);
    for e in errors {
        if !follows.contains(&e.errno()) {
            return Err(format!("an error of another kind: {e:?}"));
        }
    }
    if !hit && (!errors.is_empty() || read_only) {
        return Err(format!("nothing failed, and yet {errors:?}, read-only: {read_only}"));
    }
    Ok(())
}

/// From the abort on, changes are refused with EROFS.
fn stays_read_only(fs: &Fs) -> Result<(), String> {
    let refused = fs.root().and_then(|root| fs.create(&root, b"later", 0o644, NodeKind::File));
    match refused.map(|node| node.ino()) {
        Err(e) if e.errno() == Errno::RoFs as i32 || is_eio(&e) => Ok(()),
        other => Err(format!("a change after the abort: {other:?}")),
    }
}

/// Verifies that the image opens, holds the durable data, and is consistent.
fn recovers(
    subject: &Subject,
    device: &Device,
    durable: &Durable,
    copy: &mut Copy,
) -> Result<(), String> {
    let after = Arc::new(PageDevice::new(device.inner().pages()));
    let fs = Fs::open_device(after.clone(), &subject.setup.options())
        .map_err(|e| format!("opening again: {e}"))?;
    assert_durable(&fs, durable)?;
    let has_errors = fs.superblock().state().contains(extant_engine::format::State::ERROR);
    fs.unmount().map_err(|e| format!("closing again: {e}"))?;
    let path = copy.put(&after.pages()).to_owned();
    // A file system with errors recorded is to be checked in any case, and a check that may not
    // write stops there.
    let verdict = if has_errors {
        copy.forget();
        e2fsck::recover(&path)
    } else {
        e2fsck::check(&path)
    };
    match verdict {
        Verdict::Complaints(lines)
            if !(has_errors && lines.iter().all(|line| is_of_quota(line))) =>
        {
            let kept = std::env::temp_dir().join("extant-dying.img");
            let _ = std::fs::write(&kept, device.inner().pages().to_vec());
            Err(format!("{lines:?}, kept in {}", kept.display()))
        }
        _ => Ok(()),
    }
}

/// Returns whether a line of e2fsck concerns a quota file. A quota file that could not be read in
/// part is not used any more, and a check rebuilds it.
fn is_of_quota(line: &str) -> bool {
    let about = [
        "Update quota info for quota type ",
        "[QUOTA WARNING] Usage inconsistent ",
        "[QUOTA WARNING] Missing ",
    ];
    about.iter().any(|start| line.starts_with(start))
}

/// One failure of a subject, with panics of any thread caught.
fn attempt(
    subject: &Subject,
    plan: Plan,
    copy: &mut Copy,
    tally: &mut Tally,
) -> Result<(), String> {
    let result = catch_unwind(AssertUnwindSafe(|| fail(subject, plan, copy, tally)));
    let mut result = result.unwrap_or_else(|_| Err("a panic".into()));
    let panicked = panics_since();
    if !panicked.is_empty() {
        result = Err(panicked.join("; "));
    }
    result.map_err(|why| format!("{}: {why}", subject.label(plan)))
}

fn subjects(setups: impl IntoIterator<Item = Setup>) -> Vec<Subject> {
    let all = setups.into_iter().flat_map(|setup| WORKLOADS.map(|workload| (setup, workload)));
    all.map(|(setup, workload)| Subject::new(setup, workload)).collect()
}

fn fail_if_any(wrong: &[String]) {
    assert!(wrong.is_empty(), "{} failures were not borne:\n{}", wrong.len(), wrong.join("\n"));
}

/// A sample of all requests of all workloads, or the one that `EXTANT_FAULT_ONLY` names in the form
/// of a message.
#[test]
fn devices_die() {
    let (subjects, mut rng, only) =
        (subjects(kinds()), Rng::new(1), std::env::var("EXTANT_FAULT_ONLY"));
    let all = subjects.iter().map(|subject| subject.plans.len() as u64).sum::<u64>();
    let (scratch, mut tally, mut wrong) = (Scratch::new(), Tally::default(), Vec::new());
    let mut copy = Copy::new(scratch.join("after"));
    for subject in &subjects {
        let sample = (subject.plans.len() as u64 * SHORT).div_ceil(all);
        let of_name = |only: &dyn Fn(&str) -> bool| {
            subject
                .plans
                .iter()
                .copied()
                .filter(|plan| only(&subject.label(*plan)))
                .collect::<Vec<_>>()
        };
        let mut plans = of_name(&|label| {
            only.as_deref().map_or_else(|_| KEPT.contains(&label), |only| label == only)
        });
        if only.is_err() {
            plans.extend((0..sample).map(|_| *rng.pick(&subject.plans)));
        }
        wrong.extend(
            plans
                .into_iter()
                .filter_map(|plan| attempt(subject, plan, &mut copy, &mut tally).err()),
        );
    }
    println!("{tally:?} of {all} requests");
    fail_if_any(&wrong);
}

/// All requests of all workloads in random order, for at most `EXTANT_FAULT_SECONDS` (default: an
/// hour).
#[test]
#[ignore = "runs for as long as it is told to"]
fn all_devices_die() {
    let end = Instant::now() + Duration::from_secs(figures::number("EXTANT_FAULT_SECONDS", 3600));
    let subjects = subjects(kinds().into_iter().chain(LAYOUTS));
    let mut figures = Figures::open();
    let seed = figures.next_seed("failing requests");
    let mut rng = Rng::new(seed);
    let plans =
        subjects.iter().flat_map(|subject| subject.plans.iter().map(move |plan| (subject, *plan)));
    let mut plans = plans.map(|plan| (rng.next_u64(), plan)).collect::<Vec<_>>();
    plans.sort_by_key(|(chance, _)| *chance);
    let (scratch, mut tally, mut wrong) = (Scratch::new(), Tally::default(), Vec::new());
    let mut copy = Copy::new(scratch.join("after"));
    for (_, (subject, plan)) in plans.iter().take_while(|_| Instant::now() < end) {
        if let Err(why) = attempt(subject, *plan, &mut copy, &mut tally) {
            println!("{why}");
            wrong.push(why);
        }
    }
    let (all, failures) = (plans.len() as u64, wrong.len() as u64);
    println!("{tally:?} of {all} requests");
    let numbers = [
        ("requests", tally.faults),
        ("made read-only", tally.read_only),
        ("recovered", tally.recovered),
        ("failures", failures),
    ];
    figures.add("failing requests", seed, &numbers);
    fail_if_any(&wrong);
}
