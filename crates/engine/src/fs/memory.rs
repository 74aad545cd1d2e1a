//! How much memory a file system takes by default: a quarter of the memory that this process may
//! have.
//!
//! That is the machine's, or less where a control group limits it: version 2 (`memory.max`,
//! `memory.high`) or 1 (`memory.limit_in_bytes`). A group is bound by all groups above it, so each
//! of them is looked at.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// The least that the engine works with.
pub(super) const MIN_MEMORY: u64 = 64 << 20;

/// Share of the memory that is taken.
const SHARE: u64 = 4;

/// Returns the share of the memory that this process may have, at least [`MIN_MEMORY`].
pub(super) fn default_memory() -> u64 {
    let available = [machine(Path::new("/")), limit(Path::new("/"))].into_iter().flatten().min();
    (available.unwrap_or(0) / SHARE).max(MIN_MEMORY)
}

/// Bytes of the machine's memory.
fn machine(root: &Path) -> Option<u64> {
    let text = read_to_string(root.join("proc/meminfo")).ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The least limit of this process's control groups. `root` is the root directory, but for tests.
fn limit(root: &Path) -> Option<u64> {
    let groups = read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mounts = read_to_string(root.join("proc/self/mountinfo")).ok()?;
    groups.lines().filter_map(|line| limit_of_group(root, line, &mounts)).min()
}

/// The least limit along one line of `/proc/self/cgroup`: `ID:CONTROLLERS:PATH`.
fn limit_of_group(root: &Path, line: &str, mounts: &str) -> Option<u64> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, group) = (fields.next()?, fields.next()?);
    let (kind, files): (_, &[&str]) = if controllers.is_empty() {
        ("cgroup2", &["memory.max", "memory.high"])
    } else if controllers.split(',').any(|name| name == "memory") {
        ("cgroup", &["memory.limit_in_bytes"])
    } else {
        return None;
    };
    mounts
        .lines()
        .filter_map(|mount| directory(mount, kind, group))
        .filter_map(|found| along(root, &found, files))
        .min()
}

/// A mounted control group, and the way from the mount point to it.
struct Found {
    mount_point: PathBuf,
    below: PathBuf,
}

/// Where a group is found at a mount, which is a line of `/proc/self/mountinfo`.
fn directory(mount: &str, kind: &str, group: &str) -> Option<Found> {
    let (fields, filesystem) = mount.split_once(" - ")?;
    let mut fields = fields.split(' ').skip(3);
    let (mounted_root, mount_point) = (fields.next()?, fields.next()?);
    let mut filesystem = filesystem.split(' ');
    let has_memory = || filesystem.clone().nth(2)?.split(',').find(|option| *option == "memory");
    if filesystem.clone().next() != Some(kind) || kind == "cgroup" && has_memory().is_none() {
        return None;
    }
    filesystem.next();
    // A group outside the mounted hierarchy, as a container may see it, has at least the limits of
    // the mounted groups.
    let below = Path::new(group).strip_prefix(mounted_root).unwrap_or(Path::new(""));
    let inside = below.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    let below = if inside { below.into() } else { PathBuf::new() };
    Some(Found { mount_point: PathBuf::from(mount_point), below })
}

/// The least limit of a group and of all that it is in, up to the mount point.
fn along(root: &Path, found: &Found, files: &[&str]) -> Option<u64> {
    let top = root.join(found.mount_point.strip_prefix("/").ok()?);
    let read = |dir: &Path, file: &str| {
        read_to_string(top.join(dir).join(file)).ok()?.trim().parse::<u64>().ok()
    };
    found
        .below
        .ancestors()
        .flat_map(|dir| files.iter().filter_map(move |file| read(dir, file)))
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A root directory with these files.
    fn root(files: &[(&str, &str)]) -> extant_testkit::Scratch {
        let root = extant_testkit::Scratch::new();
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    const V2: &str =
        "24 1 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1: &str = "31 24 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
                      32 24 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";

    fn found(files: &[(&str, &str)]) -> Option<u64> {
        let root = root(files);
        limit(&root.join(""))
    }

    #[test]
    fn the_least_limit_of_all_groups_above_holds() {
        let files = [
            ("proc/self/cgroup", "0::/a/b/c\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/a/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/b/memory.high", "536870912\n"),
            ("sys/fs/cgroup/a/b/c/memory.max", "2147483648\n"),
            ("sys/fs/cgroup/a/other/memory.max", "1\n"),
        ];
        assert_eq!(found(&files), Some(512 * MIB));
        assert_eq!(found(&files[..3]), Some(1024 * MIB));
        assert_eq!(found(&files[..2]), None);
    }

    #[test]
    fn limits_of_version_1_hold() {
        let files = [
            ("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/id/sub\n0::/x\n"),
            ("proc/self/mountinfo", V1),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "268435456\n"),
            ("sys/fs/cgroup/memory/docker/id/sub/memory.limit_in_bytes", "1073741824\n"),
            ("sys/fs/cgroup/cpu/x/memory.limit_in_bytes", "1\n"),
        ];
        assert_eq!(found(&files), Some(256 * MIB));
    }

    #[test]
    fn a_container_sees_its_own_groups() {
        let bound = "24 1 0:22 /pod/id /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let limit = ("sys/fs/cgroup/memory.max", "100\n");
        assert_eq!(
            found(&[("proc/self/cgroup", "0::/pod/id\n"), ("proc/self/mountinfo", bound), limit]),
            Some(100)
        );
        assert_eq!(
            found(&[("proc/self/cgroup", "0::/../..\n"), ("proc/self/mountinfo", V2), limit]),
            Some(100)
        );
        let below = ("sys/fs/cgroup/sub/memory.max", "50\n");
        let files = [
            ("proc/self/cgroup", "0::/pod/id/sub\n"),
            ("proc/self/mountinfo", bound),
            limit,
            below,
        ];
        assert_eq!(found(&files), Some(50));
    }

    #[test]
    fn nonsense_limits_nothing() {
        for (groups, mounts) in
            [("", ""), ("0:", "x"), ("a:b", V2), ("0::", "1 2 - cgroup2"), ("::::", V1)]
        {
            assert_eq!(
                found(&[("proc/self/cgroup", groups), ("proc/self/mountinfo", mounts)]),
                None
            );
        }
        assert!(default_memory() >= MIN_MEMORY);
        assert_eq!(machine(&root(&[("proc/meminfo", "MemTotal:  1024 kB\n")]).join("")), Some(MIB));
    }
}
