//! The keeper of a mount: a second process of this program that mounts and unmounts for a server
//! which has given up its privileges.
//!
//! With the option `restart` it starts another server after the loss of one. That one recovers the
//! image first; then the keeper mounts in place of the dead mount. A server that
//! ended in order, at a signal for example, is not lost ([`ServerEnd`]).

use super::pace::Pace;
use super::same_image::ImageFile;
use super::serve::{change_flags, fuse_options};
use super::{Plan, spawn};
use crate::failure::{At, Result};
use crate::log::{Log, Sink};
use crate::process;
use crate::table::HeldMount;
use extant_engine::device::image_spec;
use extant_fuse::{Keep, Keeper, MountIdentity, ServerEnd};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{Builder, JoinHandle, sleep};
use std::time::{Duration, Instant};

/// Name of the program as a keeper. Image and directory come through a socket: programs that look
/// for them in the list of processes find the server only.
pub const NAME: &str = "extant-keeper";

/// How long the end of the process is waited for, and how often it is looked for it.
const PATIENCE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(1);

/// Longest list of arguments in bytes.
const ARGUMENTS: usize = 128 << 10;

/// Receives the arguments of a keeper, the program's name first.
pub fn arguments() -> Vec<OsString> {
    let mut message = vec![0; ARGUMENTS];
    let received = rustix::net::recv(io::stdin(), message.as_mut_slice(), RecvFlags::empty());
    message.truncate(received.map_or(0, |(_, len)| len));
    let words = message.split(|byte| *byte == 0).map(|word| OsStr::from_bytes(word).to_owned());
    [NAME.into()].into_iter().chain(words).collect()
}

/// A keeper, which ends with this value if it is a process of its own.
#[derive(Debug)]
pub struct Kept {
    keeper: Keeper,
    process: Option<Child>,
}

impl Kept {
    /// Returns a keeper in this process.
    pub fn own(plan: &Plan) -> Kept {
        // This one replaces no dead mount.
        let there = There { dead: None, served: plan.adopts };
        Kept { keeper: own(plan, there), process: None }
    }

    /// Returns the keeper at the other ends of two sockets.
    pub fn by(plan: &Plan, acts: OwnedFd, quick: OwnedFd) -> Kept {
        Kept { keeper: Keeper::other(&plan.dir, acts, quick), process: None }
    }
}

impl Kept {
    /// Leaves the process as at a loss of its server: it may start another one when this one has
    /// ended.
    pub fn leave(self) {
        std::mem::forget(self);
    }
}

impl Deref for Kept {
    type Target = Keeper;
    fn deref(&self) -> &Keeper {
        &self.keeper
    }
}

impl Drop for Kept {
    /// Waits for the process for a while, so that no dead one is left to others.
    fn drop(&mut self) {
        self.keeper.end();
        let Some(process) = &mut self.process else { return };
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE && matches!(process.try_wait(), Ok(None)) {
            sleep(LOOK);
        }
    }
}

/// The sockets between a server and its keeper, as one of the two has them.
pub struct Sockets {
    /// For acts, which may wait for the server.
    pub acts: OwnedFd,
    /// For requests that wait for no process.
    pub quick: OwnedFd,
}

impl Sockets {
    /// Makes both ends.
    fn pairs() -> Result<(Sockets, Sockets)> {
        let pair = || {
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .at("a socket")
        };
        let ((acts, its_acts), (quick, its_quick)) = (pair()?, pair()?);
        Ok((Sockets { acts, quick }, Sockets { acts: its_acts, quick: its_quick }))
    }

    /// Takes those that standard input and output are. Programs that this one starts do not get
    /// them.
    pub fn take() -> Result<Sockets> {
        let descriptor = |of: &dyn AsFd| of.as_fd().try_clone_to_owned().at("a socket");
        let (acts, quick) = (descriptor(&io::stdin())?, descriptor(&io::stdout())?);
        let nowhere = File::options().read(true).write(true).open("/dev/null").at("/dev/null")?;
        rustix::stdio::dup2_stdin(&nowhere).at("standard input")?;
        rustix::stdio::dup2_stdout(&nowhere).at("standard output")?;
        Ok(Sockets { acts, quick })
    }

    /// Makes them standard input and output of a process.
    fn give(self, command: &mut Command) -> Result {
        command.stdin(Stdio::from(self.acts)).stdout(Stdio::from(self.quick)).stderr(Stdio::null());
        extant_fuse::keep_descriptors_from_children().at("/proc/self/fd")
    }
}

/// The mount at the place of a plan.
#[derive(Clone, Copy, Debug, Default)]
struct There {
    /// Its server is gone.
    dead: Option<MountIdentity>,
    /// Its server hands it over.
    served: Option<MountIdentity>,
}

impl There {
    fn of(plan: &Plan) -> Result<There> {
        let there = || MountIdentity::at(&plan.dir).at_path(plan.dir.as_os_str().as_bytes());
        let dead = plan.replaces.then(there).transpose()?;
        Ok(There { dead, served: plan.adopts })
    }
}

fn own(plan: &Plan, there: There) -> Keeper {
    let spec = image_spec(&plan.image);
    let is_whole = plan.options.block_device && spec.path == plan.image;
    let for_flags = plan.clone();
    Keeper::own(Keep {
        dir: plan.dir.clone(),
        read_only: plan.options.read_only,
        options: fuse_options(plan),
        disk: is_whole.then_some(spec.path),
        claim: None,
        replaces: there.dead,
        adopts: there.served,
        set_flags: Box::new(move || change_flags(&for_flags)),
    })
}

/// Returns the keeper of a server: the one that started it, or a new process.
pub fn start(plan: &Plan) -> Result<Kept> {
    if plan.kept {
        let Sockets { acts, quick } = Sockets::take()?;
        return Ok(Kept::by(plan, acts, quick));
    }
    let (Sockets { acts, quick }, process) = start_process(plan)?;
    let mut kept = Kept::by(plan, acts, quick);
    kept.process = Some(process);
    Ok(kept)
}

/// Starts a keeper as a process of its own.
pub fn start_process(plan: &Plan) -> Result<(Sockets, Child)> {
    let (ours, theirs) = Sockets::pairs()?;
    let mut command = Command::new(process::program());
    command.arg0(NAME);
    theirs.give(&mut command)?;
    let child = command.spawn().at("cannot start the process that keeps the privileges")?;
    let image_file = image_file(plan)?;
    let mut words = spawn::arguments(&Plan { image_file, ..plan.clone() }, &plan.lists);
    // By the path of the image the keeper may find another kind of file.
    words.extend(["-o".into(), plan.options.by_name().join(",").into()]);
    let places = [plan.image.clone().into_os_string(), plan.dir.clone().into_os_string()];
    words.extend(["--keep".into(), "--".into()].into_iter().chain(places));
    let message = words.join(OsStr::from_bytes(&[0]));
    rustix::net::send(&ours.acts, message.as_bytes(), SendFlags::NOSIGNAL).at("a socket")?;
    Ok((ours, child))
}

/// Returns the file that each further server must find as the image.
fn image_file(plan: &Plan) -> Result<Option<ImageFile>> {
    if plan.image_file.is_some() || !plan.options.restart {
        return Ok(plan.image_file);
    }
    // Without it any file that takes the place would be mounted.
    let path = image_spec(&plan.image).path;
    let found = std::fs::metadata(&path).at_path(path.as_os_str().as_bytes())?;
    Ok(Some(ImageFile::of(&found)))
}

/// Serves as a keeper, until the last server has ended.
pub fn run(plan: &Plan) -> Result {
    rustix::thread::set_name(c"extant-keeper").at("the name of the process")?;
    process::leave_signals()?;
    std::env::set_current_dir("/").at("/")?;
    let sockets = Sockets::take()?;
    let there = There::of(plan)?;
    if !plan.options.restart {
        return serve(&own(plan, there), sockets).map(drop);
    }
    start_log(plan)?;
    supervise(Plan { succeeds: false, adopts: None, ..plan.clone() }, there, sockets)
}

fn serve(keeper: &Keeper, sockets: Sockets) -> Result<ServerEnd> {
    keeper.serve(sockets.acts, sockets.quick).at("the process that keeps the privileges")
}

/// Sends messages about servers that were lost where their own go.
pub fn start_log(plan: &Plan) -> Result {
    let file = plan.log.as_ref().map(|path| File::options().create(true).append(true).open(path));
    let file = file.transpose().at("the log file")?;
    let sink = file.map_or_else(|| Sink::syslog(&plan.syslog), Sink::File);
    Log::new(sink, true).install(tracing::Level::INFO, &[]);
    Ok(())
}

/// Serves a server, and those that follow it when it is lost.
fn supervise(mut plan: Plan, mut there: There, sockets: Sockets) -> Result {
    let dir = plan.dir.display().to_string();
    let (mut pace, mut sockets, own_lists) = (Pace::default(), sockets, plan.lists.len());
    let mut child: Option<Waiter> = None;
    loop {
        let end = serve(&own(&plan, there), sockets)?;
        // It has closed its sockets. When it has ended, the image is free.
        child.take().map_or(Ok(()), Waiter::join)?;
        let ServerEnd::Lost { mount, served } = end else { return Ok(()) };
        let Some(pause) = pace.after(served) else {
            tracing::error!(
                "the servers of {dir} end soon after their start: no other one is started; \
                 `umount {dir}` ends the mount, and `extant check` looks at the image"
            );
            return Ok(());
        };
        tracing::warn!("the server of {dir} has ended unexpectedly; another one is started");
        sleep(pause);
        let held = HeldMount::of(&plan.dir).at(&dir)?;
        if held.is_served() {
            tracing::info!("another server goes on with {dir}");
            return Ok(());
        }
        // Those of the mount before come first, without those of the mounts before that.
        plan.lists.truncate(own_lists);
        plan.follow(&held)?;
        there = There { dead: Some(mount), served: None };
        (sockets, child) = start_server(&plan).map(|(ours, child)| (ours, Some(child)))?;
    }
}

/// A thread that waits for the end of a process, so that no dead one is left: the client of a mount
/// service ends when that has mounted the image.
struct Waiter(JoinHandle<io::Result<ExitStatus>>);

impl Waiter {
    fn of(mut process: Child) -> Result<Waiter> {
        let waiter = Builder::new().name("extant-waiter".into()).spawn(move || process.wait());
        waiter.map(Waiter).at("a thread of the keeper")
    }

    fn join(self) -> Result {
        let panicked = |_| Err(io::Error::other("a thread of the keeper panicked"));
        self.0.join().unwrap_or_else(panicked).map(drop).at("the server before")
    }
}

/// Starts another server. Returns the keeper's ends of its sockets.
fn start_server(plan: &Plan) -> Result<(Sockets, Waiter)> {
    let (ours, theirs) = Sockets::pairs()?;
    let mut command = Command::new(process::program());
    command.arg0("extant").args(spawn::arguments(plan, &plan.lists)).args(["--kept", "--"]);
    command.args([&plan.image, &plan.dir]);
    theirs.give(&mut command)?;
    let child = command.spawn().at("cannot start a server")?;
    Ok((ours, Waiter::of(child)?))
}
