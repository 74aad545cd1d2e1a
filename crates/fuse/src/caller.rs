//! Who sent a request, beyond what it says itself.

use crate::service::Who;

/// Whether the caller belongs to a group. A request names his main one only; the others are looked up where it matters.
pub fn is_member(who: Who, gid: u32) -> bool {
    who.gid == gid || further_groups(who.pid).is_some_and(|groups| groups.contains(&gid))
}

/// What a request has instead of ids where the kernel maps them, but for creations.
const UNTOLD: u32 = u32::MAX;

/// The ids by which access to files is decided, of those that a line has.
const OF_FILES: usize = 3;

/// The sender of a request that does not say whose it is: the thread, which waits for its request meanwhile, is looked up. Nobody in particular,
/// and not root, if it is not seen from here, or the kernel itself.
pub fn told_or_looked_up(who: Who) -> Who {
    if who.uid != UNTOLD || who.pid == 0 {
        return who;
    }
    status(who.pid).and_then(|status| sender(&status, who.pid)).unwrap_or(who)
}

fn sender(status: &str, pid: u32) -> Option<Who> {
    let id = |name| numbers(status, name)?.get(OF_FILES).copied();
    Some(Who { uid: id("Uid:")?, gid: id("Gid:")?, pid })
}

/// The supplementary groups of a thread. None if it is not seen from here.
fn further_groups(thread: u32) -> Option<Vec<u32>> {
    numbers(&status(thread)?, "Groups:")
}

fn status(thread: u32) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{thread}/status")).ok()
}

fn numbers(status: &str, name: &str) -> Option<Vec<u32>> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read() {
        let parse = |status| numbers(status, "Groups:");
        assert_eq!(parse("Name:\tx\nGroups:\t4 24 100 \nNgid:\t0\n"), Some(vec![4, 24, 100]));
        assert_eq!(parse("Groups:\t\n"), Some(vec![]));
        assert_eq!(parse("Groups:\tmany\n"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn who_is_not_told_is_looked_up() {
        let found = sender("Uid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\n", 9).expect("both lines");
        assert_eq!((found.uid, found.gid, found.pid), (4, 8, 9));
        assert!(sender("Uid:\t1\t2\t3\n", 9).is_none());
        let looked_up = |uid, pid| told_or_looked_up(Who { uid, gid: uid, pid }).uid;
        assert_eq!(looked_up(UNTOLD, nix::unistd::gettid().as_raw() as u32), nix::unistd::geteuid().as_raw());
        assert_eq!(looked_up(UNTOLD, 0), UNTOLD, "the kernel itself");
        assert_eq!(looked_up(7, 1), 7, "told");
    }

    #[test]
    fn own_groups_are_found() {
        let own: Vec<u32> = nix::unistd::getgroups().expect("getgroups").into_iter().map(|gid| gid.as_raw()).collect();
        let mut found = further_groups(nix::unistd::gettid().as_raw() as u32).expect("/proc has this thread");
        found.retain(|gid| own.contains(gid));
        assert_eq!(found.len(), own.len());
    }
}
