//! The checks of a state that a power cut left. Extant recovers it, keeps the promises, writes to
//! it, and leaves an image that e2fsck finds clean. The recoveries of e2fsck and of the kernel lead
//! to the same tree. Some recoveries are cut, too.

use super::pages::{Copy, PageDevice};
use super::scene::{Base, Durable, Setup};
use super::seen::{blocks, broken, comparable, seen};
use super::states::{PARTS, State, Walk, name_since};
use extant_blocks::RecordingDevice;
use extant_engine::{Fs, Node, NodeKind, OpenFlags, RenameFlags};
use extant_testkit::kernel::Mount;
use extant_testkit::rng::Rng;
use extant_testkit::tree::Manifest;
use extant_testkit::{Scratch, e2fsck};
use std::sync::Arc;

/// Differences that a message shows.
const SHOWN: usize = 5;

/// The checks of a state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Depth {
    /// Whether the state is written to, closed, and checked by e2fsck.
    pub go_on: bool,
    /// Whether e2fsck recovers a copy, which must have the same tree.
    pub e2fsck: bool,
    /// Whether the kernel mounts a copy, which must have the same tree.
    pub kernel: bool,
    /// Number of states of the recovery itself to examine; only with `go_on`.
    pub again: usize,
}

/// Counts of examined states.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// States that Extant recovered.
    pub states: u64,
    /// Of these, states that recovered to the tree of an earlier state, the log aside: only their
    /// promises were checked.
    pub same: u64,
    /// States equal to an earlier one, not included above: only their promises were checked.
    pub equal: u64,
    pub gone_on: u64,
    pub e2fsck: u64,
    pub kernel: u64,
    /// States of recoveries that were cut.
    pub again: u64,
    /// States in which a file was still to be truncated to its size.
    pub truncated: u64,
}

/// A state and its origin.
#[derive(Clone, Copy)]
pub(crate) struct Case<'a> {
    pub state: &'a State,
    pub setup: Setup,
    pub durable: &'a Durable,
    /// See [`super::scene::Scene::tagged`].
    pub tagged: bool,
}

/// A state that was recovered.
pub(crate) struct Recovered {
    fs: Fs,
    device: Arc<RecordingDevice<PageDevice>>,
}

impl Recovered {
    /// Returns whether a file was still to be truncated to its size.
    pub fn truncated(&self) -> bool {
        self.fs.recovery().orphans.truncated > 0
    }

    /// Returns a name for the contents outside of the log, which states with equal contents share.
    pub fn name(&self, base: &Base) -> u64 {
        name_since(&base.pages, &self.device.inner().pages(), |nr| base.log.contains(&nr))
    }

    /// Drops the image without further checks.
    pub fn drop(self) {
        self.fs.crash();
    }
}

/// The files for images of other programs, and the counts.
pub(crate) struct Bench {
    after: Copy,
    theirs: Copy,
    kernel: Copy,
    _scratch: Scratch,
    pub tally: Tally,
}

impl Bench {
    pub fn new() -> Bench {
        let scratch = Scratch::new();
        let [after, theirs, kernel] =
            ["after", "theirs", "kernel"].map(|name| Copy::new(scratch.join(name)));
        Bench { after, theirs, kernel, _scratch: scratch, tally: Tally::default() }
    }

    /// Recovers a state. With `record` the writes of the recovery, and later ones, are recorded.
    pub fn recover(&mut self, case: Case<'_>, record: bool) -> Result<Recovered, String> {
        self.tally.states += 1;
        let device = Arc::new(RecordingDevice::new(PageDevice::new(case.state.pages.clone())));
        device.pause(!record);
        let fs = Fs::open_device(device.clone(), &case.setup.options())
            .map_err(|e| format!("opening: {e}"))?;
        device.mark("recovered");
        Ok(Recovered { fs, device })
    }

    /// Recovers and examines a state. Returns its tree.
    pub fn examine(
        &mut self,
        case: Case<'_>,
        depth: Depth,
        rng: &mut Rng,
    ) -> Result<Manifest, String> {
        let recovered = self.recover(case, depth.again > 0)?;
        self.look(case, recovered, depth, rng)
    }

    /// Examines a recovered state. Returns its tree.
    pub fn look(
        &mut self,
        case: Case<'_>,
        recovered: Recovered,
        depth: Depth,
        rng: &mut Rng,
    ) -> Result<Manifest, String> {
        let truncated = recovered.truncated();
        let Recovered { fs, device } = recovered;
        self.tally.truncated += u64::from(truncated);
        let held = seen(&fs, case.tagged)?;
        let owned = blocks(&fs, &held)?;
        let complaints = broken(case.durable, &held);
        if !complaints.is_empty() {
            return Err(complaints.join("; "));
        }
        if depth.go_on {
            self.tally.gone_on += 1;
            go_on(&fs, &held, depth.again == 0, rng).map_err(|e| format!("going on: {e}"))?;
            fs.unmount().map_err(|e| format!("unmounting: {e}"))?;
            let verdict = e2fsck::check(self.after.put(&device.inner().pages()));
            if !verdict.is_clean() {
                return Err(format!("e2fsck after going on: {verdict:?}"));
            }
        } else {
            fs.crash();
        }
        if depth.e2fsck {
            self.by_e2fsck(case, &held, &owned, truncated)?;
        }
        if depth.kernel {
            self.by_kernel(case.state, &held)?;
        }
        let events = device.take_log();
        let changes = events.iter().filter(|event| event.changes()).count();
        for _ in 0..depth.again.min(changes) {
            let mut walk = Walk::new(&case.state.pages, &events);
            let mut cut = 0;
            for _ in 0..=rng.below(changes as u64) {
                cut = walk.step().unwrap_or(cut);
            }
            self.again(case, &walk, &held, rng)
                .map_err(|why| format!("recovery cut at {cut}: {why}"))?;
        }
        Ok(held)
    }

    /// Recovers a copy by e2fsck. `owned` are the blocks of files. e2fsck leaves the extent tree of
    /// a file that it truncates as deep as before.
    fn by_e2fsck(
        &mut self,
        case: Case<'_>,
        held: &Manifest,
        owned: &[u64],
        truncated: bool,
    ) -> Result<(), String> {
        self.tally.e2fsck += 1;
        let path = self.theirs.put(&case.state.pages);
        // An image that was closed needs no recovery.
        let verdict = if case.setup.unlogged { e2fsck::check(path) } else { e2fsck::recover(path) };
        if !verdict.is_clean() {
            self.theirs.forget();
            return Err(format!("e2fsck recovering: {verdict:?}"));
        }
        let device = Arc::new(PageDevice::new(self.theirs.read()));
        let fs = Fs::open_device(device, &case.setup.options().read_only(true))
            .map_err(|e| e.to_string())?;
        same("e2fsck", held, &seen(&fs, case.tagged)?)?;
        let theirs = blocks(&fs, held)?;
        let as_many = owned == theirs
            || truncated && owned.iter().zip(&theirs).all(|(own, theirs)| own <= theirs);
        if as_many {
            Ok(())
        } else {
            Err(format!("files have {owned:?} blocks, and {theirs:?} by e2fsck"))
        }
    }

    fn by_kernel(&mut self, state: &State, held: &Manifest) -> Result<(), String> {
        self.tally.kernel += 1;
        let path = self.kernel.put(&state.pages).to_owned();
        self.kernel.forget();
        let mount = Mount::try_new(&path, "")?;
        let theirs = comparable(Manifest::walk(mount.path()));
        mount.unmount();
        same("the kernel", held, &theirs)?;
        let verdict = e2fsck::check(&path);
        if verdict.is_clean() {
            Ok(())
        } else {
            Err(format!("e2fsck after the kernel: {verdict:?}"))
        }
    }

    /// Recovers again after a cut of the recovery, or of the writes after it, to which `walk` came.
    fn again(
        &mut self,
        case: Case<'_>,
        walk: &Walk<'_>,
        held: &Manifest,
        rng: &mut Rng,
    ) -> Result<(), String> {
        let second = walk.state(*rng.pick(&PARTS), rng);
        self.tally.again += 1;
        let depth = Depth { go_on: true, e2fsck: rng.one_in(4), kernel: false, again: 0 };
        let found = self.examine(Case { state: &second, ..case }, depth, rng)?;
        if walk.has_passed_mark() { Ok(()) } else { same("the second recovery", held, &found) }
    }
}

fn same(who: &str, ours: &Manifest, theirs: &Manifest) -> Result<(), String> {
    let lines = ours.diff(theirs);
    if lines.is_empty() {
        Ok(())
    } else {
        let (count, some) = (lines.len(), lines.into_iter().take(SHOWN).collect::<Vec<_>>());
        Err(format!("{who} comes to a tree with {count} differences: {}", some.join("; ")))
    }
}

/// Writes to the file system again: new files, and with `everywhere` changes of existing ones.
fn go_on(fs: &Fs, held: &Manifest, everywhere: bool, rng: &mut Rng) -> extant_engine::Result<()> {
    let root = fs.root()?;
    let name = format!("afterwards{}", held.nodes.len());
    let dir = fs.create(&root, name.as_bytes(), 0o755, NodeKind::Dir)?;
    for name in [&b"one"[..], b"two"] {
        let node = fs.create(&dir, name, 0o644, NodeKind::File)?;
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
    for path in
        held.nodes.keys().filter(|path| path.contains(&b'/') && !path.starts_with(b"lost+found"))
    {
        if rng.one_in(4) {
            change(fs, &dir, path, rng).or_else(fine)?;
        }
    }
    Ok(())
}

fn change(fs: &Fs, dir: &Node, path: &[u8], rng: &mut Rng) -> extant_engine::Result<()> {
    let (parent, name) = fs.resolve_parent(path)?;
    match rng.below(3) {
        0 => fs.unlink(&parent, name),
        1 => fs.rename((&parent, name), (dir, name), RenameFlags::empty()),
        _ => {
            let node = fs.lookup(&parent, name)?;
            let file = fs.open_file(&node, OpenFlags { write: true, ..Default::default() })?;
            file.write_at(rng.below(9000), &[0x77; 3000])?;
            file.set_len(rng.below(9000))
        }
    }
}

/// Accepts the errors of a name that exists or is absent, and of a directory that is not empty.
fn fine(error: extant_engine::Error) -> extant_engine::Result<()> {
    match error {
        extant_engine::Error::Posix(_) => Ok(()),
        other => Err(other),
    }
}
