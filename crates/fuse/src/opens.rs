//! Opens without requests.
//!
//! A server that answers OPEN with `ENOSYS` gets no more OPEN and RELEASE: the kernel opens files
//! itself, by the attributes that it has. On a file system that is open for reading only nothing
//! depends on opens. Where files are written, too, few things depend on them, for which other
//! requests stand in (`server/unseen.rs`), and one that none can stand in for: an open of a file
//! with certain flags fails. An image with such a file is refused.
//!
//! CREATE is sent as ever. Its RELEASE is sent until the first OPEN, and not from then on.
//!
//! In some releases of Linux such a server may be waited for forever: if the server needs memory
//! while it reads ahead, the kernel may evict the inode of that very file, and waits for its pages
//! ("fuse: fix readahead reclaim deadlock", commit bd5603eaae0a). These get requests.

use extant_engine::Fs;
use std::io;

/// Releases whose later versions have the correction. All versions from [`SINCE`] on have it.
const CORRECTED: [(u32, u32, u32); 2] = [(6, 12, 64), (6, 18, 3)];
const SINCE: (u32, u32, u32) = (6, 19, 0);

/// Returns the reason why the kernel gets a reply to each open; `None` if it need not.
pub fn missing() -> Option<String> {
    let system = rustix::system::uname();
    let release = system.release().to_string_lossy();
    (!is_corrected(&release))
        .then(|| format!("that needs Linux 6.12.64, 6.18.3 or 6.19, and this is {release}"))
}

/// Returns whether the kernel opens files of a mount without a request: as wanted, and by default
/// where nothing is written, if it can.
///
/// # Errors
/// The file system is open for writing and has an inode for which opens must be requests; errors of
/// the look for it.
pub fn are_fast(fs: &Fs, wanted: Option<bool>) -> io::Result<bool> {
    if !wanted.unwrap_or(fs.is_read_only()) || missing().is_some() {
        return Ok(false);
    }
    if fs.is_read_only() {
        return Ok(true);
    }
    let restricted = fs.operations().find_restricted();
    match restricted.map_err(|error| io::Error::other(format!("open=fast: {error}")))? {
        None => Ok(true),
        Some(ino) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!(
                "open=fast cannot be used: inode {ino} is immutable, append-only, verified or \
                encrypted, so opens must be requests (mount without open=fast)"
            ),
        )),
    }
}

fn is_corrected(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    let version = (next(), next(), next());
    let of_series = |at: &&(u32, u32, u32)| (at.0, at.1) == (version.0, version.1);
    version >= *CORRECTED.iter().find(of_series).unwrap_or(&SINCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corrected_kernels_are_known_by_their_release() {
        for good in ["6.12.64", "6.18.3-generic", "6.18.44-fc-v669", "6.19.0-rc1", "6.19", "7.0.1"]
        {
            assert!(is_corrected(good), "{good}");
        }
        for bad in ["6.12.63", "6.18.2", "6.18", "6.17.13", "6.1.200", "5.17.0", "", "x.y"] {
            assert!(!is_corrected(bad), "{bad}");
        }
    }
}
