//! The child of [`crate::side`]: serves a FUSE mount until its input ends.

use crate::null::NullServer;
use crate::target::io_error;
use extant_engine::{Fs, OpenOptions};
use extant_fuse::{Claim, MountOptions, Unmounter};
use std::io::{self, BufRead, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Unmounts the current mount when the parent dies.
type Current = Arc<Mutex<Option<Unmounter>>>;

/// Serves `image`, or names in memory without one, on `dir`; again for each line of input; until
/// input ends.
pub fn serve(image: Option<&Path>, dir: &Path, options: &MountOptions) -> io::Result<()> {
    let current = Current::default();
    let lines = read_input(current.clone());
    let null = NullServer::new(options);
    loop {
        match image {
            Some(image) => serve_extant(image, dir, options, &current)?,
            None => serve_null(null.clone(), dir, options, &current)?,
        }
        if lines.recv().is_err() {
            return Ok(());
        }
    }
}

/// Hands on lines of input; at its end, lets go of the mount.
fn read_input(current: Current) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
        let last = current.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(unmounter) = last {
            // An error says that it is unmounted already.
            drop(unmounter.detach());
        }
    });
    lines
}

fn ready(current: &Current, unmounter: Unmounter) -> io::Result<()> {
    *current.lock().unwrap_or_else(PoisonError::into_inner) = Some(unmounter);
    println!("ready");
    io::stdout().flush()
}

fn serve_extant(
    image: &Path,
    dir: &Path,
    options: &MountOptions,
    current: &Current,
) -> io::Result<()> {
    let claim = Claim::of(image, options, false)?;
    let usual = OpenOptions::new().claimed(claim.is_some());
    let opening = usual.remember_names(false).look_ahead(true);
    let fs = Fs::open(image, &opening).map_err(io_error)?;
    let mounted = extant_fuse::mount_claimed(fs, dir, options, claim)?;
    if let Some(why) = mounted.instead() {
        return Err(io::Error::new(io::ErrorKind::Unsupported, why));
    }
    ready(current, mounted.unmounter())?;
    mounted.wait()
}

fn serve_null(
    server: NullServer,
    dir: &Path,
    options: &MountOptions,
    current: &Current,
) -> io::Result<()> {
    let options = MountOptions { subtype: "null".into(), source: "null".into(), ..options.clone() };
    let served = extant_fuse::bare::mount(server, dir, &options, false)?;
    ready(current, Unmounter::of(dir))?;
    served.join().map_err(|_| io::Error::other("the serving thread panicked"))?
}
