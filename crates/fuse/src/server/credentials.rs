//! Credentials of the thread that made a request, beyond those in the request itself.
//!
//! A request carries a user, a group and a thread id. Capabilities and supplementary groups are
//! read from `/proc`.
//!
//! # Invariants
//! - The thread waits for the reply to its request. So its id is not reused meanwhile, and its
//!   credentials are constant: only the thread itself can change them. (Asynchronous direct writes
//!   are the exception.) All files are read through one descriptor of the thread's directory, so
//!   that they belong to one thread.
//! - `/proc` shows the thread's own credentials. The kernel may act with others on its behalf:
//!   overlayfs with those of the mounter, nfsd with those of the client. The ids of request and
//!   `/proc` differ then, and `/proc` is ignored.
//! - A capability counts in the user namespace of this process only: in a namespace of its own
//!   every user has all of them. The map of ids tells namespaces apart: only a process with
//!   CAP_SETUID in a namespace can give a new one the same map. For CAP_SYS_ADMIN, which such a
//!   process need not have, `ns/user` decides as well.
//! - No file is read under a lock that the sender may hold while it waits for the server. execve(2)
//!   holds one while it closes files and waits for asynchronous writes; `ns/user` needs that lock,
//!   `status` and `uid_map` do not. The requests that need CAP_SYS_ADMIN (ioctls, lists of names)
//!   come from threads that are in no execve, and execve of another thread ends them before it
//!   takes the lock.
//! - Without an answer (no `/proc`, another PID namespace, no access) a thread has no capability
//!   and no further group.

use crate::handler::Credentials;
use rustix::fs::{CWD, Mode, OFlags, openat, readlinkat};
use rustix::process::geteuid;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

/// A privilege of a thread, by its bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// CAP_FOWNER: changes that are otherwise reserved to the owner.
    FileOwner = 3,
    /// CAP_FSETID: set-id bits survive changes.
    FileSetId = 4,
    /// CAP_SYS_ADMIN: shutdown, trimming, labels, growth, tunables, names of trusted attributes.
    SysAdmin = 21,
    /// CAP_SYS_RESOURCE: quota limits do not apply, and content may be journaled.
    SysResource = 24,
}

/// The value of both ids in a request on a mount that allows mapped ids; creations are the
/// exception.
pub const UNTOLD: u32 = u32::MAX;

/// Index of the ids that decide about access to files, in a line of four.
const OF_FILES: usize = 3;

/// Credentials in `/proc`.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
    /// Effective capabilities in the thread's user namespace, a bit each.
    capabilities: u64,
    /// A kernel thread, which acts on behalf of other threads.
    of_kernel: bool,
}

impl Shown {
    /// Reads the credentials of a thread and opens its directory; `None` if `/proc` does not show
    /// the thread.
    fn of(thread: u32) -> Option<(Shown, OwnedFd)> {
        if thread == 0 || !numbers_are_own() {
            return None;
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = openat(CWD, format!("/proc/{thread}"), flags, Mode::empty()).ok()?;
        Some((parse(&read(&dir, "status")?)?, dir))
    }

    /// Reads the credentials of a request's sender; `None` if `/proc` does not show them, or if the
    /// kernel acts with other credentials.
    fn of_sender(credentials: Credentials) -> Option<Shown> {
        let (shown, _) = Shown::of(credentials.pid)?;
        Some(shown).filter(|shown| (shown.uid, shown.gid) == (credentials.uid, credentials.gid))
    }
}

/// Returns whether `/proc` uses the numbers of this process's PID namespace, as requests do.
fn numbers_are_own() -> bool {
    let own = std::process::id().to_string();
    std::fs::read_link("/proc/self").is_ok_and(|shown| shown.as_os_str() == own.as_str())
}

/// Returns whether the thread of a directory in `/proc` is in the user namespace of this process.
fn shares_user_namespace(dir: &OwnedFd) -> bool {
    let theirs = read(dir, "uid_map");
    theirs.is_some() && theirs == std::fs::read_to_string("/proc/self/uid_map").ok()
}

/// Another process that looks into threads, where this one has given up the privilege.
static LOOK: OnceLock<Look> = OnceLock::new();

/// Tells whether the thread of a number is in the user namespace of this process.
pub type Look = Box<dyn Fn(u32) -> bool + Send + Sync>;

/// Lets another process of the same user namespace, with more privileges, tell from now on which
/// threads are in it.
pub fn look_through(look: Look) {
    // Each of them gives the same answers.
    let _ = LOOK.set(look);
}

/// Returns whether a thread is in the user namespace of this process, by its number.
pub fn is_in_own_user_namespace(thread: u32) -> bool {
    Shown::of(thread).is_some_and(|(_, dir)| shows_own_user_namespace(&dir))
}

/// Returns whether the thread is in the user namespace of this process, by the number of the
/// namespace. Without CAP_SYS_PTRACE this process may not read the numbers of all threads: a server
/// of root then refuses, a server of another user relies on the map of ids alone.
fn shows_own_user_namespace(dir: &OwnedFd) -> bool {
    let Ok(own) = readlinkat(CWD, "/proc/self/ns/user", Vec::new()) else {
        // A kernel without user namespaces.
        return true;
    };
    readlinkat(dir, "ns/user", Vec::new()).map_or(!geteuid().is_root(), |theirs| theirs == own)
}

/// Reads the text of a file in a thread's directory.
fn read(dir: &OwnedFd, name: &str) -> Option<String> {
    let mut text = String::new();
    let file = openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    File::from(file).read_to_string(&mut text).ok()?;
    Some(text)
}

fn parse(status: &str) -> Option<Shown> {
    let id = |name| numbers(status, name)?.get(OF_FILES).copied();
    Some(Shown {
        uid: id("Uid:")?,
        gid: id("Gid:")?,
        groups: numbers(status, "Groups:")?,
        capabilities: u64::from_str_radix(line(status, "CapEff:")?.trim(), 16).ok()?,
        // Kernels before 6.8 have no such line.
        of_kernel: numbers(status, "Kthread:").is_some_and(|told| told == [1]),
    })
}

fn line<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name))
}

fn numbers(status: &str, name: &str) -> Option<Vec<u32>> {
    line(status, name)?.split_ascii_whitespace().map(|number| number.parse().ok()).collect()
}

/// Returns whether the sender belongs to a group.
pub fn is_member(credentials: Credentials, gid: u32) -> bool {
    credentials.gid == gid
        || Shown::of_sender(credentials).is_some_and(|shown| shown.groups.contains(&gid))
}

/// Returns whether the sender has a capability. If the kernel acts with other credentials than the
/// thread's, root has all capabilities and other users none.
pub fn is_capable(credentials: Credentials, capability: Capability) -> bool {
    let Some((shown, dir)) = Shown::of(credentials.pid) else { return false };
    if (shown.uid, shown.gid) == (credentials.uid, credentials.gid) {
        shown.has(capability)
            && shares_user_namespace(&dir)
            && (capability != Capability::SysAdmin
                || LOOK
                    .get()
                    .map_or_else(|| shows_own_user_namespace(&dir), |look| look(credentials.pid)))
    } else {
        credentials.uid == 0
    }
}

impl Shown {
    fn has(&self, capability: Capability) -> bool {
        self.capabilities & 1 << capability as u32 != 0
    }
}

/// Returns the credentials of a request. If the request carries no ids, these are the ids of its
/// thread; they stay unknown for kernel threads, which act on behalf of others, and for threads
/// that `/proc` does not show.
pub fn told_or_looked_up(credentials: Credentials) -> Credentials {
    if credentials.uid != UNTOLD {
        return credentials;
    }
    match Shown::of(credentials.pid) {
        Some((shown, _)) if !shown.of_kernel => {
            Credentials { uid: shown.uid, gid: shown.gid, pid: credentials.pid }
        }
        _ => credentials,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{getegid, getgroups};
    use rustix::thread::gettid;

    const STATUS: &str = "Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t4 24 100 \
    \nKthread:\t0\nCapEff:\t0000000000200010\n";

    #[test]
    fn a_thread_is_understood() {
        let shown = parse(STATUS).expect("all lines");
        let capabilities = 1 << Capability::SysAdmin as u32 | 1 << Capability::FileSetId as u32;
        assert_eq!(
            shown,
            Shown { uid: 4, gid: 8, groups: vec![4, 24, 100], capabilities, of_kernel: false }
        );
        assert!(parse(&STATUS.replace("Kthread:\t0", "Kthread:\t1")).expect("all lines").of_kernel);
        assert!(parse(&STATUS.replace("4 24 100", "")).expect("all lines").groups.is_empty());
        for missing in ["Uid:", "Gid:", "Groups:", "CapEff:"] {
            assert_eq!(parse(&STATUS.replace(missing, "Other:")), None, "{missing}");
        }
        assert_eq!(parse(&STATUS.replace("4 24 100", "many")), None);
        assert_eq!(parse(&STATUS.replace("1\t2\t3\t4", "1\t2\t3")), None);
    }

    fn own() -> Credentials {
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        Credentials { uid, gid, pid: gettid().as_raw_nonzero().get() as u32 }
    }

    #[test]
    fn ids_that_a_request_does_not_carry_are_looked_up() {
        let looked_up = |uid, pid| told_or_looked_up(Credentials { uid, gid: uid, pid }).uid;
        assert_eq!(looked_up(UNTOLD, own().pid), own().uid);
        assert_eq!(looked_up(UNTOLD, 0), UNTOLD, "the kernel itself");
        assert_eq!(looked_up(UNTOLD, 2), UNTOLD, "a thread of the kernel, or none that is seen");
        assert_eq!(looked_up(7, 1), 7, "told");
    }

    #[test]
    fn own_groups_and_capabilities_are_found() {
        let groups = getgroups().expect("getgroups");
        assert!(groups.iter().all(|gid| is_member(own(), gid.as_raw())));
        assert!(is_member(own(), own().gid) && !is_member(own(), 54321));
        let (shown, _) = Shown::of(own().pid).expect("/proc has this thread");
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("status");
        assert_eq!(
            format!("{:016x}", shown.capabilities),
            line(&status, "CapEff:").expect("a line").trim()
        );
        assert_eq!(is_capable(own(), Capability::SysAdmin), shown.has(Capability::SysAdmin));
        assert!(
            !is_capable(Credentials { pid: 0, ..own() }, Capability::SysAdmin),
            "not seen from here"
        );
    }

    /// nfsd acts for a client, overlayfs for the mounter.
    #[test]
    fn capabilities_of_the_thread_do_not_count_for_other_credentials() {
        let other = |uid, gid| Credentials { uid, gid, pid: own().pid };
        assert!(!is_capable(other(54321, own().gid), Capability::SysAdmin));
        assert!(!is_capable(other(54321, 0), Capability::FileSetId));
        assert!(is_capable(other(0, 54321), Capability::SysAdmin));
    }
}
