//! Processes that use a mount, and those that serve one. Users other than root see their own
//! processes only.

use crate::holders::{Process, descriptors, processes};
use crate::table;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

/// The processes that keep a file system mounted, by the number of its device.
#[derive(Debug, Default)]
pub struct MountUsers {
    /// Those with an open or mapped file of it, or with their working directory, root or program
    /// in it.
    pub inside: Vec<Process>,
    /// One of each other mount namespace in which it is mounted.
    pub namespaces: Vec<Process>,
}

impl MountUsers {
    /// Finds the users of a file system, without a question to its server.
    pub fn of(device: (u32, u32)) -> MountUsers {
        let own = fs::read_link("/proc/self/ns/mnt").unwrap_or_default();
        let mut users = MountUsers::default();
        let mut others: BTreeMap<OsString, Option<Process>> = BTreeMap::new();
        for (id, dir) in processes() {
            if is_inside(&dir, device) {
                users.inside.push(Process::of(id, &dir));
            }
            // Of the processes that this user may not look into, it is unknown.
            let Ok(namespace) = fs::read_link(dir.join("ns/mnt")) else { continue };
            if namespace != own {
                others
                    .entry(namespace.into())
                    .or_insert_with(|| shows(&dir, device).then(|| Process::of(id, &dir)));
            }
        }
        users.namespaces = others.into_values().flatten().collect();
        users
    }
}

/// Returns whether a mount namespace has a mount of the device.
fn shows(dir: &Path, device: (u32, u32)) -> bool {
    let table = fs::read(dir.join("mountinfo")).unwrap_or_default();
    table::parse_all(&table).iter().any(|mount| mount.device == device)
}

fn is_inside(dir: &Path, device: (u32, u32)) -> bool {
    ["cwd", "root", "exe"].iter().any(|name| is_on(&dir.join(name), device))
        || descriptors(dir).any(|link| is_on(&link, device))
        || maps(dir, device)
}

/// Returns whether a link of `/proc` leads to a file of the device. Nothing but the number of the
/// device is asked for, which the kernel knows.
fn is_on(link: &Path, device: (u32, u32)) -> bool {
    let found = statx(CWD, link, AtFlags::STATX_DONT_SYNC, StatxFlags::empty());
    found.is_ok_and(|found| (found.stx_dev_major, found.stx_dev_minor) == device)
}

/// Returns whether a process has mapped a file of the device. Lines of the table are `ADDRESSES
/// PERMISSIONS OFFSET MAJOR:MINOR INODE PATH`, with the numbers in hexadecimal digits.
fn maps(dir: &Path, (major, minor): (u32, u32)) -> bool {
    let wanted = format!("{major:02x}:{minor:02x}");
    let table = fs::read(dir.join("maps")).unwrap_or_default();
    table
        .split(|b| *b == b'\n')
        .filter_map(|line| line.split(|b| *b == b' ').nth(3))
        .any(|device| device == wanted.as_bytes())
}

/// Returns the process that serves a file system, by the number of its device. `None` if it cannot
/// be seen; kernels before 6.16 do not show it.
pub fn server_of((major, minor): (u32, u32)) -> Option<Process> {
    /// Position of the major number in the kernel's numbers of devices.
    const MINOR_BITS: u32 = 20;
    let number = u64::from(major) << MINOR_BITS | u64::from(minor);
    let line = format!("fuse_connection:\t{number}");
    let serves = |dir: &Path| {
        descriptors(dir).any(|link| {
            fs::read_link(&link).is_ok_and(|target| target == Path::new("/dev/fuse"))
                && link.file_name().is_some_and(|number| {
                    let info = fs::read_to_string(dir.join("fdinfo").join(number));
                    info.is_ok_and(|info| info.lines().any(|told| told == line))
                })
        })
    };
    let (id, dir) = processes().find(|(_, dir)| serves(dir))?;
    Some(Process::of(id, &dir))
}
