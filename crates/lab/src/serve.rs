//! The child of [`crate::side`]: serves a FUSE mount until its input ends.

use crate::null::NullServer;
use extant_engine::{Fs, OpenOptions};
use extant_fuse::{Claim, MountIdentity, MountOptions, Mounted, Unmounter};
use parking_lot::Mutex;
use std::io::{self, BufRead, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

/// Unmounts the current mount when the parent dies.
type Current = Arc<Mutex<Option<Unmounter>>>;

/// Serves `image`, or names in memory without one, on `dir`, once for each line of input.
pub fn serve(image: Option<&Path>, dir: &Path, options: &MountOptions) -> io::Result<()> {
    let current = Current::default();
    let lines = read_input(current.clone());
    let null = NullServer::new(options);
    let anonymous =
        MountOptions { subtype: "null".into(), source: "null".into(), ..options.clone() };
    while lines.recv().is_ok() {
        if let Some(image) = image {
            let mounted = mount(image, dir, options)?;
            ready(&current, mounted.unmounter())?;
            mounted.wait()?;
        } else {
            let served = extant_fuse::bare::mount(null.clone(), dir, &anonymous, false)?;
            ready(&current, Unmounter::of(dir, MountIdentity::at(dir)?))?;
            served.join().map_err(|_| io::Error::other("the serving thread panicked"))??;
        }
    }
    Ok(())
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
        let last = current.lock().take();
        if let Some(unmounter) = last {
            // An error says that it is unmounted already.
            drop(unmounter.detach());
        }
    });
    lines
}

fn ready(current: &Current, unmounter: Unmounter) -> io::Result<()> {
    *current.lock() = Some(unmounter);
    println!("ready");
    io::stdout().flush()
}

fn mount(image: &Path, dir: &Path, options: &MountOptions) -> io::Result<Mounted> {
    let claim = Claim::of(image, options, false)?;
    let usual = OpenOptions::new().claimed(claim.is_some());
    let opening = usual.remember_names(false).look_ahead(true);
    let fs = Fs::open(image, &opening)?;
    let mounted = extant_fuse::mount_claimed(fs, dir, options, claim)?;
    match mounted.instead() {
        Some(why) => Err(io::Error::new(io::ErrorKind::Unsupported, why)),
        None => Ok(mounted),
    }
}
