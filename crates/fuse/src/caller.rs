//! Who sent a request, beyond what it says itself.

use crate::service::Who;

/// Whether the caller belongs to a group. A request names his main one only; the others are looked up where it matters.
pub fn is_member(who: Who, gid: u32) -> bool {
    who.gid == gid || further_groups(who.pid).is_some_and(|groups| groups.contains(&gid))
}

/// The supplementary groups of a thread, which waits for its request meanwhile. None if it is not seen from here.
fn further_groups(thread: u32) -> Option<Vec<u32>> {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    parse(&status)
}

fn parse(status: &str) -> Option<Vec<u32>> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"))?;
    line.split_ascii_whitespace().map(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read() {
        assert_eq!(parse("Name:\tx\nGroups:\t4 24 100 \nNgid:\t0\n"), Some(vec![4, 24, 100]));
        assert_eq!(parse("Groups:\t\n"), Some(vec![]));
        assert_eq!(parse("Groups:\tmany\n"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn own_groups_are_found() {
        let own: Vec<u32> = nix::unistd::getgroups().expect("getgroups").into_iter().map(|gid| gid.as_raw()).collect();
        let mut found = further_groups(nix::unistd::gettid().as_raw() as u32).expect("/proc has this thread");
        found.retain(|gid| own.contains(gid));
        assert_eq!(found.len(), own.len());
    }
}
