//! What is asked of a state that a power cut left: Extant recovers it, finds what was promised, goes on, and leaves what e2fsck
//! calls clean; e2fsck's own recovery and the kernel's come to the same tree; and recovery may be cut itself.

use super::scene::{Durable, Setup};
use super::seen::{broken, comparable, seen};
use super::states::{Bytes, PARTS, Walk};
use extant::{Caller, Fs, New, Node, OpenFlags, RenameFlags};
use extant_blocks::{MemDevice, RecordingDevice};
use extant_testkit::kernel::Mount;
use extant_testkit::rng::Rng;
use extant_testkit::tree::Manifest;
use extant_testkit::{Scratch, e2fsck};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// Differences that a message shows.
const SHOWN: usize = 5;

/// How much is asked of a state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Depth {
    /// e2fsck recovers a copy, and comes to the same tree.
    pub e2fsck: bool,
    /// So does the kernel's mount.
    pub kernel: bool,
    /// How many states of the recovery itself are examined.
    pub again: usize,
}

/// What was examined.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub states: u64,
    /// States that a state before had been equal to: only what was promised was looked for.
    pub equal: u64,
    pub e2fsck: u64,
    pub kernel: u64,
    /// States of recoveries that were cut.
    pub again: u64,
}

/// What a state is of.
#[derive(Clone, Copy)]
pub(crate) struct Case<'a> {
    pub setup: Setup,
    pub durable: &'a Durable,
    /// See [`super::scene::Scene::tagged`].
    pub tagged: bool,
}

/// A place to put images, and the counts.
pub(crate) struct Bench {
    scratch: Scratch,
    pub tally: Tally,
}

impl Bench {
    pub fn new() -> Bench {
        Bench { scratch: Scratch::new(), tally: Tally::default() }
    }

    fn put(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.scratch.join(name);
        // Not truncated first: its memory is used again.
        let file = std::fs::File::options().write(true).create(true).truncate(false).open(&path);
        let written = file.and_then(|file| file.set_len(bytes.len() as u64).and_then(|()| file.write_all_at(bytes, 0)));
        written.expect("room for an image");
        path
    }

    /// Examines a state; gives what it held.
    pub fn examine(&mut self, case: Case<'_>, state: &Bytes, depth: Depth, rng: &mut Rng) -> Result<Manifest, String> {
        self.tally.states += 1;
        let device = Arc::new(RecordingDevice::new(Arc::new(MemDevice::from_bytes(&state.bytes))));
        device.pause(depth.again == 0);
        let fs = Fs::open_device(device.clone(), &case.setup.options()).map_err(|e| format!("opening: {e}"))?;
        device.mark("recovered");
        let held = seen(&fs, case.tagged)?;
        let complaints = broken(case.durable, &held);
        if !complaints.is_empty() {
            return Err(complaints.join("; "));
        }
        go_on(&fs, &held, depth.again == 0, rng).map_err(|e| format!("going on: {e}"))?;
        fs.unmount().map_err(|e| format!("unmounting: {e}"))?;
        let after = self.put("after", &device.inner().to_vec());
        let verdict = e2fsck::check(&after);
        if !verdict.is_clean() {
            return Err(format!("e2fsck after going on: {verdict:?}"));
        }
        if depth.e2fsck {
            self.by_e2fsck(case, state, &held)?;
        }
        if depth.kernel {
            self.by_kernel(state, &held)?;
        }
        self.again(case, state, &device, &held, depth.again, rng)?;
        Ok(held)
    }

    fn by_e2fsck(&mut self, case: Case<'_>, state: &Bytes, held: &Manifest) -> Result<(), String> {
        self.tally.e2fsck += 1;
        let path = self.put("theirs", &state.bytes);
        let verdict = e2fsck::recover(&path);
        if !verdict.is_clean() {
            return Err(format!("e2fsck recovering: {verdict:?}"));
        }
        let bytes = std::fs::read(&path).map_err(|e| e.to_string())?;
        let device = Arc::new(MemDevice::from_bytes(&bytes));
        let fs = Fs::open_device(device, &case.setup.options().read_only(true)).map_err(|e| e.to_string())?;
        same("e2fsck", held, &seen(&fs, case.tagged)?)
    }

    fn by_kernel(&mut self, state: &Bytes, held: &Manifest) -> Result<(), String> {
        self.tally.kernel += 1;
        let path = self.put("kernel", &state.bytes);
        let mount = Mount::try_new(&path, "")?;
        let theirs = comparable(Manifest::walk(mount.path()));
        mount.unmount();
        same("the kernel", held, &theirs)?;
        let verdict = e2fsck::check(&path);
        match verdict.is_clean() {
            true => Ok(()),
            false => Err(format!("e2fsck after the kernel: {verdict:?}")),
        }
    }

    /// Cuts the recovery and what came after it, and recovers again.
    fn again(
        &mut self,
        case: Case<'_>,
        state: &Bytes,
        device: &RecordingDevice<Arc<MemDevice>>,
        held: &Manifest,
        times: usize,
        rng: &mut Rng,
    ) -> Result<(), String> {
        let events = device.take_log();
        let changes = events.iter().filter(|event| event.changes()).count() as u64;
        for _ in 0..times.min(changes as usize) {
            let mut walk = Walk::new(&state.bytes, &events);
            let stop = rng.below(changes);
            let mut cut = 0;
            for _ in 0..=stop {
                cut = walk.step().unwrap_or(cut);
            }
            let second = walk.state(*rng.pick(&PARTS), rng);
            self.tally.again += 1;
            let depth = Depth { e2fsck: rng.one_in(4), kernel: false, again: 0 };
            let cut_at = |why| format!("recovery cut at {cut}: {why}");
            let found = self.examine(case, &second, depth, rng).map_err(cut_at)?;
            if !walk.has_passed_mark() {
                same("the second recovery", held, &found).map_err(cut_at)?;
            }
        }
        Ok(())
    }
}

fn same(who: &str, ours: &Manifest, theirs: &Manifest) -> Result<(), String> {
    let lines = ours.diff(theirs);
    match lines.is_empty() {
        true => Ok(()),
        false => {
            let (count, some) = (lines.len(), lines.into_iter().take(SHOWN).collect::<Vec<_>>());
            Err(format!("{who} comes to a tree with {count} differences: {}", some.join("; ")))
        }
    }
}

/// Goes on writing: new files, and with `everywhere` changes of what is there.
fn go_on(fs: &Fs, held: &Manifest, everywhere: bool, rng: &mut Rng) -> extant::Result<()> {
    let root = fs.root()?;
    let who = Caller::default();
    let name = format!("afterwards{}", held.nodes.len());
    let dir = fs.create(&who, &root, name.as_bytes(), 0o755, New::Dir)?;
    for name in [&b"one"[..], b"two"] {
        let node = fs.create(&who, &dir, name, 0o644, New::File)?;
        let file = fs.open_file(&node, OpenFlags { write: true, ..Default::default() })?;
        file.write_at(rng.below(3000), &[0x77; 7000])?;
        if rng.one_in(2) {
            file.sync()?;
        }
    }
    fs.unlink(&dir, b"one")?;
    if !everywhere {
        return Ok(());
    }
    for path in held.nodes.keys().filter(|path| path.contains(&b'/') && !path.starts_with(b"lost+found")) {
        if rng.one_in(4) {
            change(fs, &dir, path, rng).or_else(fine)?;
        }
    }
    Ok(())
}

fn change(fs: &Fs, dir: &Node, path: &[u8], rng: &mut Rng) -> extant::Result<()> {
    let (parent, name) = fs.resolve_parent(path)?;
    match rng.below(3) {
        0 => fs.unlink(&parent, name),
        1 => fs.rename(&parent, name, dir, name, RenameFlags::empty()),
        _ => {
            let node = fs.lookup(&parent, name)?;
            let file = fs.open_file(&node, OpenFlags { write: true, ..Default::default() })?;
            file.write_at(rng.below(9000), &[0x77; 3000])?;
            file.set_len(rng.below(9000))
        }
    }
}

/// A name may be taken or gone, a directory not empty.
fn fine(error: extant::Error) -> extant::Result<()> {
    match error {
        extant::Error::Posix(_) => Ok(()),
        other => Err(other),
    }
}
