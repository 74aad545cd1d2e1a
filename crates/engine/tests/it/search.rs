//! Permission to search directories: the kernel's answers for the same image.

use extant_engine::{
    Caller, Error, Follow, Fs, NodeKind, OpenOptions, RenameFlags, SetAttr, XattrMode,
};
use extant_testkit::kernel::Mount;
use extant_testkit::tool::run;
use extant_testkit::{FeatureSet, Image};
use std::ffi::OsString;
use std::fmt::Write;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

const ACCESS: &[u8] = b"system.posix_acl_access";

/// A user, a main group, further groups.
const fn caller(uid: u32, gid: u32, groups: &'static [u32]) -> Caller<'static> {
    Caller { uid, gid, groups, umask: 0 }
}

const WHO: [Caller<'static>; 7] = [
    caller(0, 0, &[]),
    caller(1000, 1000, &[]),
    caller(1000, 2000, &[]),
    caller(1001, 1001, &[2000]),
    caller(1001, 3000, &[1001, 7]),
    caller(1002, 1002, &[]),
    caller(1003, 2000, &[3000]),
];

/// Prints the number of the error of lstat(2) of each path, for each user. Users are separated by
/// `--`, first comes the directory.
const SCRIPT: &str = r#"
chdir(shift @ARGV) or die "chdir: $!";
my @paths;
push @paths, shift @ARGV while $ARGV[0] ne "--";
shift @ARGV;
for my $who (@ARGV) {
    my ($uid, $gid, @groups) = split / /, $who;
    $) = join(" ", $gid, $gid, @groups);
    $> = $uid;
    for my $path (@paths) { print "$who: $path: ", lstat($path) ? 0 : $! + 0, "\n"; }
    $> = 0;
    $) = "0 0";
}
"#;

fn name(who: &Caller<'_>) -> String {
    let groups: String = who.groups.iter().map(|group| format!(" {group}")).collect();
    format!("{} {}{groups}", who.uid, who.gid)
}

fn kernel_says(mount: &Path, paths: &[String]) -> String {
    let mut args: Vec<OsString> = vec!["-e".into(), SCRIPT.into(), mount.into()];
    args.extend(paths.iter().map(OsString::from));
    args.push("--".into());
    args.extend(WHO.iter().map(|who| OsString::from(name(who))));
    run("perl", &args).must_succeed().text()
}

fn errno(result: Result<(), Error>) -> i32 {
    result.map_or_else(|e| e.errno(), |()| 0)
}

/// Returns Extant's answers, by all of its walks.
fn extant_says(fs: &Fs, paths: &[String]) -> String {
    let mut said = String::new();
    for who in &WHO {
        for path in paths {
            let absolute = format!("/{path}");
            let first = errno(fs.stat_as(who, &absolute, Follow::No).map(drop));
            let again = errno(fs.stat_as(who, &absolute, Follow::No).map(drop));
            let resolved = errno(fs.resolve_as(who, &absolute, Follow::No).map(drop));
            assert_eq!((again, resolved), (first, first), "{}: {path}", name(who));
            if !path.ends_with(['.', '/']) {
                let found = fs.resolve_parent_as(who, absolute.as_bytes());
                let found = found.and_then(|(dir, last)| fs.lookup_as(who, &dir, last));
                assert_eq!(errno(found.map(drop)), first, "{}: {path} by its parent", name(who));
            }
            writeln!(said, "{}: {path}: {first}", name(who)).unwrap();
        }
    }
    said
}

fn make_dir(at: &Path, mode: u32, owner: (u32, u32)) {
    fs::create_dir(at).unwrap();
    fs::write(at.join("f"), b"content").unwrap();
    fs::create_dir(at.join("sub")).unwrap();
    fs::write(at.join("sub/f"), b"content").unwrap();
    chown(at, Some(owner.0), Some(owner.1)).unwrap();
    fs::set_permissions(at, Permissions::from_mode(mode)).unwrap();
}

fn setfacl(at: &Path, entries: &str) {
    run("setfacl", &["-m".into(), OsString::from(entries), at.into()]).must_succeed();
}

/// Directories of all kinds of modes and ACLs, and names below them.
fn build(mount: &Path) -> Vec<String> {
    fs::set_permissions(mount, Permissions::from_mode(0o755)).unwrap();
    let mut dirs = Vec::new();
    for mode in [0o000, 0o001, 0o010, 0o100, 0o755, 0o707, 0o677, 0o766, 0o710] {
        for owner in [(0, 0), (1000, 2000), (1001, 1001)] {
            let dir = format!("m{mode:o}-{}", owner.0);
            make_dir(&mount.join(&dir), mode, owner);
            dirs.push(dir);
        }
    }
    let acls = [
        "u:1000:x",
        "u:1000:-",
        "u:1000:rw,g:2000:x",
        "g:2000:x",
        "g:2000:x,g:3000:-",
        "g:3000:rw,g:1001:x",
        "u:1002:x,m::-",
        "u:1002:rwx,m::rw",
        "u:1000:-,g:2000:-,o::x",
        "u::-,u:1001:x",
        "g::x,u:1002:r",
    ];
    for (n, acl) in acls.iter().enumerate() {
        for (mode, owner) in [(0o700, (0, 0)), (0o755, (1000, 2000)), (0o711, (1001, 3000))] {
            let dir = format!("a{n}-{}", owner.0);
            make_dir(&mount.join(&dir), mode, owner);
            setfacl(&mount.join(&dir), acl);
            dirs.push(dir);
        }
    }
    // Attributes, and no ACL among them.
    let plain = mount.join("attributes");
    make_dir(&plain, 0o710, (0, 2000));
    let value = "v".repeat(300);
    run(
        "setfattr",
        &["-n".into(), "user.a".into(), "-v".into(), OsString::from(value), plain.into()],
    )
    .must_succeed();
    dirs.push("attributes".into());
    symlink("m100-1000/sub", mount.join("into")).unwrap();
    symlink("m755-0/f", mount.join("file")).unwrap();
    let below = |dir: &String| {
        ["", "/f", "/none", "/sub/f", "/f/x", "/.", "/sub/..", "/./f"]
            .map(|end| format!("{dir}{end}"))
    };
    let mut paths: Vec<String> = dirs.iter().flat_map(below).collect();
    paths.extend(
        ["into", "into/", "into/f", "into/.", "into/..", "file/", "file/.", "file/x", "m755-0/f/."]
            .map(String::from),
    );
    paths
}

/// Changes of modes, owners and ACLs apply to the next walk, although the old ones were cached.
fn change(fs: &Fs) {
    let node = |path: &str| fs.resolve(path, Follow::No).unwrap();
    let mode = |mode| SetAttr { mode: Some(mode), ..Default::default() };
    fs.set_attr(&node("/m755-0"), &mode(0o600)).unwrap();
    fs.set_attr(&node("/m0-1000"), &mode(0o111)).unwrap();
    fs.set_attr(&node("/m710-0"), &SetAttr { gid: Some(3000), ..Default::default() }).unwrap();
    fs.set_attr(&node("/a0-1000"), &mode(0o700)).unwrap();
    fs.remove_xattr(&node("/a1-0"), ACCESS).unwrap();
    let acl = fs.get_xattr(&node("/a3-1001"), ACCESS).unwrap();
    fs.set_xattr(&node("/a2-0"), ACCESS, &acl, XattrMode::Any).unwrap();
    fs.set_xattr(&node("/attributes"), ACCESS, &acl, XattrMode::Any).unwrap();
    // A directory is renamed, and a directory that only its owner may search takes its place.
    let root = fs.root().unwrap();
    fs.rename((&root, b"a4-0"), (&root, b"moved"), RenameFlags::empty()).unwrap();
    let who = Caller { umask: 0o077, ..caller(1002, 1002, &[]) };
    let taken = fs.create_as(&who, (&root, b"a4-0"), 0o777, NodeKind::Dir).unwrap();
    fs.create_as(&who, (&taken, b"f"), 0o777, NodeKind::File).unwrap();
}

#[test]
fn the_kernel_lets_the_same_users_search() {
    let image: Image = FeatureSet::named("default").make();
    let mount = Mount::new(image.path(), "acl");
    let mut paths = build(mount.path());
    let before = kernel_says(mount.path(), &paths);
    mount.unmount();
    let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
    assert_eq!(extant_says(&fs, &paths), before);
    change(&fs);
    paths.push("moved/f".into());
    let after = extant_says(&fs, &paths);
    fs.unmount().unwrap();
    image.assert_clean();
    let mount = Mount::new(image.path(), "acl");
    assert_eq!(after, kernel_says(mount.path(), &paths));
    assert!(after.lines().any(|line| line.ends_with(": 13")) && after != before);
    mount.unmount();
}

/// Returns an ACL that denies everything to one user, and equals mode 0755 for all others.
fn acl_against(uid: u32) -> Vec<u8> {
    let entries = [(1u16, 7u16, u32::MAX), (2, 0, uid), (4, 5, u32::MAX), (16, 5, 0), (32, 5, 0)];
    let entry = |(tag, permissions, id): (u16, u16, u32)| {
        [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    [2u32.to_le_bytes().to_vec(), entries.map(entry).concat()].concat()
}

/// Walks note directories that everyone may search. Each way to restrict one ends that.
#[test]
fn a_directory_that_everyone_could_search_is_restricted_at_once() {
    let image: Image = FeatureSet::named("default").make();
    let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
    let root = fs.root().unwrap();
    let (owner, who) = (caller(0, 0, &[]), caller(1002, 1002, &[]));
    let mode = |mode| SetAttr { mode: Some(mode), ..Default::default() };
    fs.set_attr(&root, &mode(0o755)).unwrap();
    let make = |name: &[u8], mode: u16| {
        let dir = fs.create_as(&owner, (&root, name), mode, NodeKind::Dir).unwrap();
        fs.create_as(&owner, (&dir, b"f"), 0o644, NodeKind::File).unwrap();
        dir
    };
    let allows = |name: &str| {
        let path = format!("/{name}/f");
        // The second walk uses the notes of the first one.
        [(); 3].map(|()| errno(fs.stat_as(&who, &path, Follow::No).map(drop)))
    };
    let restrict = |name: &str, how: &dyn Fn(&extant_engine::Node)| {
        let dir = make(name.as_bytes(), 0o755);
        assert_eq!(allows(name), [0; 3], "{name}");
        how(&dir);
        assert_eq!(allows(name), [13; 3], "{name}");
        // Others are noted again.
        assert_eq!(allows("other"), [0; 3], "after {name}");
    };
    make(b"other", 0o755);
    make(b"private", 0o700);
    let set = |dir: &extant_engine::Node, name: &[u8], value: &[u8]| {
        fs.set_xattr(dir, name, value, XattrMode::Any).unwrap();
    };
    restrict("chmod", &|dir| {
        fs.set_attr(dir, &mode(0o750)).unwrap();
    });
    restrict("acl", &|dir| set(dir, ACCESS, &acl_against(1002)));
    restrict("attributes", &|dir| {
        set(dir, b"user.a", &[7; 300]);
        assert_eq!(allows("attributes"), [0; 3], "memory knows that there is no ACL");
        set(dir, ACCESS, &acl_against(1002));
    });
    restrict("replaced", &|_| {
        let moved = RenameFlags::EXCHANGE;
        fs.rename((&root, b"replaced"), (&root, b"private"), moved).unwrap();
    });
    restrict("again", &|dir| {
        fs.unlink(dir, b"f").unwrap();
        fs.rmdir(&root, b"again").unwrap();
        make(b"again", 0o700);
    });
    fs.unmount().unwrap();
    image.assert_clean();
}
