//! The keeper of a mount: a second process of this program that mounts and unmounts for a server
//! which has given up its privileges.

use super::serve::{change_flags, fuse_options};
use super::{Plan, spawn};
use crate::failure::{At, Result};
use crate::process;
use extant_engine::device::image_spec;
use extant_fuse::{Keep, Keeper};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, socketpair};
use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
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
        Kept { keeper: own(plan), process: None }
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

fn own(plan: &Plan) -> Keeper {
    let spec = image_spec(&plan.image);
    let is_whole = plan.options.block_device && spec.path == plan.image;
    let for_flags = plan.clone();
    Keeper::own(Keep {
        dir: plan.dir.clone(),
        read_only: plan.options.read_only,
        options: fuse_options(plan),
        disk: is_whole.then_some(spec.path),
        claim: None,
        set_flags: Box::new(move || change_flags(&for_flags)),
    })
}

/// Starts a keeper as a process of its own.
pub fn start(plan: &Plan) -> Result<Kept> {
    let pair = || {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .at("a socket")
    };
    let ((acts, its_acts), (quick, its_quick)) = (pair()?, pair()?);
    let mut command = Command::new(process::program());
    command.arg0(NAME);
    command.stdin(Stdio::from(its_acts)).stdout(Stdio::from(its_quick)).stderr(Stdio::null());
    extant_fuse::keep_descriptors_from_children().at("/proc/self/fd")?;
    let child = command.spawn().at("cannot start the process that keeps the privileges")?;
    let mut arguments = spawn::arguments(plan, &plan.lists);
    // By the path of the image the keeper may find another kind of file.
    arguments.extend(["-o".into(), plan.options.by_name().join(",").into()]);
    let places = [plan.image.clone().into_os_string(), plan.dir.clone().into_os_string()];
    arguments.extend(["--keep".into(), "--".into()].into_iter().chain(places));
    let message = arguments.join(OsStr::from_bytes(&[0]));
    rustix::net::send(&acts, message.as_bytes(), SendFlags::NOSIGNAL).at("a socket")?;
    Ok(Kept { keeper: Keeper::other(&plan.dir, acts, quick), process: Some(child) })
}

/// Serves as a keeper, until the server has ended.
pub fn run(plan: &Plan) -> Result {
    rustix::thread::set_name(c"extant-keeper").at("the name of the process")?;
    process::leave_signals()?;
    std::env::set_current_dir("/").at("/")?;
    let descriptor = |of: &dyn AsFd| of.as_fd().try_clone_to_owned().at("a socket");
    let acts: OwnedFd = descriptor(&io::stdin())?;
    let quick: OwnedFd = descriptor(&io::stdout())?;
    // Programs that the keeper starts do not get the sockets.
    let nowhere =
        std::fs::File::options().read(true).write(true).open("/dev/null").at("/dev/null")?;
    rustix::stdio::dup2_stdin(&nowhere).at("standard input")?;
    rustix::stdio::dup2_stdout(&nowhere).at("standard output")?;
    own(plan).serve(acts, quick).at("the process that keeps the privileges")
}
