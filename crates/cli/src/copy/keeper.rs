//! The end of an output by a process outside of the sandbox.
//!
//! A command that reads the image of a stranger begins its output before it enters its sandbox, as
//! a file or a directory of a temporary name or none, and keeps no right to the directory that is
//! to have it. A second process of the program waits until it is complete and gives it the name
//! from its own command line: `export --tar backups/a.tar` can fill one file in `backups`, and
//! reach no other one there, even to give it another name. A command that is taken over can ask for
//! its name early, for the end of a name that it got, and for nothing else. An output that is not
//! complete at the command's end is removed.

use super::output::{Output, parent, remove_own};
use crate::failure::{At, Failure, Result};
use crate::process;
use crate::text::shown;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, fstat, openat, renameat, statat, unlinkat};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown,
    socketpair,
};
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

/// Name of the program as such a process.
pub const NAME: &str = "extant-output";

/// The first argument for a directory; [`Output`] has others.
const DIRECTORY: &str = "directory";

/// Requests: a name for the output, or for the one file in a directory.
const PLACE: u8 = 1;
const PLACE_FILE: u8 = 2;

/// Request: the file that has got its name is removed.
const REMOVE: u8 = 3;

/// Longest reply in bytes.
const REPLY: usize = 1024;

/// The process. It ends with this value.
#[derive(Debug)]
pub struct OutputKeeper {
    socket: OwnedFd,
    process: Child,
}

impl OutputKeeper {
    /// Starts the process for an output.
    pub fn start(words: &[&OsStr], file: Stdio) -> Result<OutputKeeper> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let pair = socketpair(family, kind, SocketFlags::CLOEXEC, None);
        let (socket, its_socket) = pair.at("a socket")?;
        let mut command = Command::new(process::program());
        command.arg0(NAME).args(words);
        command.stdin(Stdio::from(its_socket)).stdout(file).stderr(Stdio::null());
        extant_fuse::keep_descriptors_from_children().at("/proc/self/fd")?;
        let child = command.spawn().at("cannot start the process that names the output")?;
        Ok(OutputKeeper { socket, process: child })
    }

    /// Gives the output its name.
    ///
    /// # Errors
    /// Those of the system calls.
    pub fn place(&self) -> io::Result<()> {
        self.ask(PLACE)
    }

    /// Removes the output, which has its name.
    ///
    /// # Errors
    /// Those of the system calls.
    pub fn remove(&self) -> io::Result<()> {
        self.ask(REMOVE)
    }

    fn ask(&self, request: u8) -> io::Result<()> {
        send(&self.socket, &[request], SendFlags::NOSIGNAL)?;
        self.reply().map(drop)
    }

    /// Waits for a reply, and returns its text.
    fn reply(&self) -> io::Result<String> {
        let mut reply = [0; REPLY];
        let len = retry_on_intr(|| {
            recv(&self.socket, reply.as_mut_slice(), RecvFlags::empty()).map(|(_, len)| len)
        })?;
        decode(&String::from_utf8_lossy(&reply[..len]))
    }
}

impl Drop for OutputKeeper {
    /// Waits until it has removed an output that is not complete.
    fn drop(&mut self) {
        // An error says that it has ended.
        let _ = shutdown(&self.socket, Shutdown::Both);
        let _ = self.process.wait();
    }
}

/// A reply: the number of the error, 0 for none, -1 for one without a number, and a text.
fn encode(done: Result<&str, &io::Error>) -> String {
    match done {
        Ok(text) => format!("0 {text}"),
        Err(error) => format!("{} {error}", error.raw_os_error().unwrap_or(-1)),
    }
}

fn decode(reply: &str) -> io::Result<String> {
    match reply.split_once(' ').map(|(number, text)| (number.parse(), text)) {
        Some((Ok(0), text)) => Ok(text.into()),
        Some((Ok(number @ 1..), _)) => Err(io::Error::from_raw_os_error(number)),
        Some((_, text)) => Err(io::Error::other(text)),
        None => Err(io::Error::other("the process that names the output has ended")),
    }
}

/// A directory beside its destination, under a temporary name.
#[derive(Debug)]
pub struct Stage {
    dir: PathBuf,
    keeper: OutputKeeper,
}

impl Stage {
    /// Makes the directory, with permissions `mode` less the umask.
    ///
    /// # Errors
    /// Those of mkdir(2), with the path of the destination.
    pub fn begin(dest: &Path, mode: u32) -> Result<Stage> {
        let name = dest.as_os_str().as_bytes();
        if dest.file_name().is_none() {
            return Err(Failure::new(format_args!("{}: not a name", shown(name))));
        }
        // The process that removes the directory makes it, so that it never stays behind.
        let mode = OsString::from(mode.to_string());
        let words = [OsStr::new(DIRECTORY), dest.as_os_str(), &mode];
        let keeper = OutputKeeper::start(&words, Stdio::null())?;
        let dir = parent(dest).join(keeper.reply().at_path(name)?);
        Ok(Stage { dir, keeper })
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Gives the directory the name of the destination, which must be missing or an empty
    /// directory. From then on it stays, complete or not.
    ///
    /// # Errors
    /// Those of rename(2).
    pub fn place(&self) -> io::Result<()> {
        self.keeper.place()
    }

    /// Moves the file with the name of the destination from the directory there, in place of
    /// another file.
    ///
    /// # Errors
    /// Those of rename(2).
    pub fn place_file(&self) -> io::Result<()> {
        self.keeper.ask(PLACE_FILE)
    }
}

/// An output in the hands of the process.
enum Begun {
    File(Option<Output>, Named),
    Directory(Moves),
}

/// A file, and the name that it gets.
struct Named {
    file: File,
    dest: PathBuf,
}

/// A [`Stage`] and its destination.
struct Moves {
    path: PathBuf,
    /// The directory that has both, held: others may rename it, or put a symlink in its place.
    parent: OwnedFd,
    dir: OwnedFd,
    name: OsString,
    is_placed: bool,
}

impl Moves {
    /// Makes the directory.
    fn begin(dest: &Path, mode: u32) -> io::Result<Moves> {
        let make = |path: &Path| DirBuilder::new().mode(mode).create(path);
        let made = tempfile::Builder::new().prefix(".extant.").make_in(parent(dest), make)?;
        let dir = made.into_temp_path().keep().map_err(|kept| kept.error)?;
        Moves::of(&dir, dest).inspect_err(|_| {
            // The first failure is the one to tell.
            let _ = std::fs::remove_dir(&dir);
        })
    }

    fn of(dir: &Path, dest: &Path) -> io::Result<Moves> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let above = openat(CWD, parent(dest), flags, Mode::empty())?;
        let name = dir.file_name().unwrap_or_default();
        let held = openat(&above, name, flags | OFlags::NOFOLLOW, Mode::empty())?;
        let name = dest.file_name().unwrap_or_default().to_owned();
        Ok(Moves { path: dir.into(), parent: above, dir: held, name, is_placed: false })
    }

    fn act(&mut self, request: u8) -> io::Result<()> {
        let Moves { path, parent, dir, name, .. } = &*self;
        match request {
            PLACE => {
                self.check_name()?;
                renameat(parent, path.file_name().unwrap_or_default(), parent, name)?;
                self.is_placed = true;
            }
            PLACE_FILE => renameat(dir, name, parent, name)?,
            _ => return Err(Errno::INVAL.into()),
        }
        Ok(())
    }
}

impl Moves {
    /// Fails if another file has the name of the directory by now.
    fn check_name(&self) -> io::Result<()> {
        let Moves { path, parent, dir, .. } = self;
        let name = path.file_name().unwrap_or_default();
        let (named, own) = (statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?, fstat(dir)?);
        if (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino) {
            return Ok(());
        }
        Err(io::Error::other("another file has the place of the output by now"))
    }

    /// Removes the content of the directory, through its descriptor: another directory may have its
    /// name by now.
    fn remove_content(&self) -> io::Result<()> {
        let inside = PathBuf::from(format!("/proc/self/fd/{}", self.dir.as_raw_fd()));
        for entry in std::fs::read_dir(inside)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                std::fs::remove_dir_all(entry.path())?;
            } else {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

impl Drop for Moves {
    fn drop(&mut self) {
        if !self.is_placed {
            // There is no one left to tell. A directory with content stays.
            let _ = self.remove_content();
            let name = self.path.file_name().unwrap_or_default();
            let _ = unlinkat(&self.parent, name, AtFlags::REMOVEDIR);
        }
    }
}

impl Begun {
    fn of(words: &[OsString]) -> io::Result<Begun> {
        if let [kind, dest, mode] = words
            && kind == DIRECTORY
        {
            let mode = mode.to_string_lossy().parse().map_err(|_| Errno::INVAL)?;
            return Moves::begin(Path::new(dest), mode).map(Begun::Directory);
        }
        let file = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        let dest = words.get(1).map(PathBuf::from).unwrap_or_default();
        let named = Named { file: file.try_clone()?, dest };
        Ok(Begun::File(Some(Output::handed(words, file)?), named))
    }

    fn act(&mut self, request: u8) -> io::Result<()> {
        match self {
            Begun::Directory(moves) => moves.act(request),
            Begun::File(output, named) => match (request, output.take()) {
                (PLACE, Some(output)) => output.settle(),
                (REMOVE, None) => remove_own(&named.file, &named.dest),
                _ => Err(Errno::INVAL.into()),
            },
        }
    }
}

/// Serves the command at the other end of standard input, until that ends.
pub fn run(words: &[OsString]) -> ExitCode {
    match serve(words) {
        Ok(()) => ExitCode::SUCCESS,
        // The command sees the end.
        Err(_) => ExitCode::FAILURE,
    }
}

fn serve(words: &[OsString]) -> Result {
    process::leave_signals()
        .and_then(|()| rustix::thread::set_name(c"extant-output").at("a name"))?;
    let begun = Begun::of(words);
    match &begun {
        Ok(Begun::File(..)) => {}
        Ok(Begun::Directory(moves)) => {
            let name = moves.path.file_name().unwrap_or_default().to_string_lossy();
            answer(Ok(&name))?;
        }
        Err(error) => answer(Err(error))?,
    }
    let (mut begun, mut request) = (begun.at("the output")?, [0]);
    while let Ok((_, 1)) = recv(io::stdin(), request.as_mut_slice(), RecvFlags::empty()) {
        answer(begun.act(request[0]).as_ref().map(|()| ""))?;
    }
    Ok(())
}

fn answer(done: Result<&str, &io::Error>) -> Result {
    let reply = encode(done);
    let reply = &reply.as_bytes()[..reply.len().min(REPLY)];
    send(io::stdin(), reply, SendFlags::NOSIGNAL).at("a socket").map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_took_the_place_of_the_stage_is_not_touched() {
        let scratch = extant_testkit::Scratch::new();
        let (stage, theirs, away) =
            (scratch.dir("stage"), scratch.dir("theirs"), scratch.join("away"));
        std::fs::write(theirs.join("file"), "theirs").unwrap();
        std::fs::write(stage.join("file"), "own").unwrap();
        std::fs::create_dir(stage.join("dir")).unwrap();
        let mut moves = Moves::of(&stage, &scratch.join("dest")).unwrap();
        std::fs::rename(&stage, &away).unwrap();
        std::fs::rename(&theirs, &stage).unwrap();
        assert!(moves.act(PLACE).is_err());
        drop(moves);
        assert_eq!(std::fs::read(stage.join("file")).unwrap(), b"theirs");
        assert_eq!(std::fs::read_dir(&away).unwrap().count(), 0, "the own content is gone");
    }

    #[test]
    fn replies_are_understood() {
        let full = io::Error::from_raw_os_error(28);
        let replied = |done| decode(&encode(done));
        assert_eq!(replied(Ok("a name")).expect("done"), "a name");
        assert_eq!(replied(Err(&full)).expect_err("full").raw_os_error(), Some(28));
        let text = replied(Err(&io::Error::other("a cause"))).expect_err("an error").to_string();
        assert_eq!(text, "a cause");
        assert!(decode("").is_err() && decode("0").is_err() && decode("x y").is_err());
    }
}
