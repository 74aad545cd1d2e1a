//! Projects: inheritance from directories, and operations between two projects.

use super::{IMMUTABLE, PROJINHERIT, block_limits, create, is_quota, open, small, writer};
use extant_engine::{
    Caller, Errno, Follow, Fs, Node, NodeKind, QuotaKind, QuotaLimits, RenameFlags,
};
use extant_testkit::image::Image;
use extant_testkit::kernel::Mount;

/// A directory of project 42 that hands its project down.
fn project_tree(fs: &Fs) -> Node {
    let tree = fs.create(&fs.root().expect("root"), b"tree", 0o755, NodeKind::Dir).expect("mkdir");
    fs.set_project(&tree, 42).expect("project");
    fs.set_flags(&tree, tree.attr().flags | PROJINHERIT).expect("flag");
    tree
}

#[test]
fn a_file_too_large_for_a_project_stays_where_it_is() {
    let image = small();
    let fs = open(&image);
    let root = fs.root().expect("root");
    let node = create(&fs, 1, &root, "file").expect("create");
    writer(&fs, &node, false).write_at(0, &[1; 1 << 18]).expect("write");
    fs.sync().expect("sync");
    fs.set_quota(QuotaKind::Project, 7, block_limits(64, 0)).expect("limits");
    // Something waits to be freed, which the refused call frees before it tries again.
    let gone = create(&fs, 1, &root, "gone").expect("create");
    let held = writer(&fs, &gone, false);
    fs.unlink(&root, b"gone").expect("unlink");
    drop((held, gone));
    is_quota(fs.set_project(&node, 7));
    assert_eq!(fs.project(&node).ok(), Some(0));
    fs.set_quota(QuotaKind::Project, 7, block_limits(1024, 0)).expect("limits");
    fs.set_project(&node, 7).expect("room for it");
    drop((node, root));
    fs.unmount().expect("unmount");
    image.assert_clean();
}

#[test]
fn projects_are_handed_down_and_kept_apart() {
    let image = small();
    let fs = open(&image);
    let root = fs.root().expect("root");
    let tree = project_tree(&fs);
    fs.set_quota(QuotaKind::Project, 42, block_limits(64, 0)).expect("limits");
    let file = create(&fs, 1, &tree, "inside").expect("create");
    let sub = fs.create(&tree, b"sub", 0o755, NodeKind::Dir).expect("mkdir");
    assert_eq!((fs.project(&file).ok(), fs.project(&sub).ok()), (Some(42), Some(42)));
    assert_eq!(sub.attr().flags & PROJINHERIT, PROJINHERIT);
    let other = fs.create(&root, b"not handed down", 0o755, NodeKind::Dir).expect("mkdir");
    fs.set_project(&other, 43).expect("project");
    assert_eq!(fs.project(&create(&fs, 1, &other, "own").expect("create")).ok(), Some(0));
    fs.set_flags(&other, other.attr().flags | IMMUTABLE).expect("flag");
    assert!(fs.set_project(&other, 44).expect_err("immutable").is(Errno::Perm));
    assert_eq!(fs.project(&other).ok(), Some(43));
    fs.set_flags(&other, other.attr().flags & !IMMUTABLE).expect("flag");
    let inside = writer(&fs, &file, false);
    // Two directories take a block each.
    assert_eq!(inside.write_at(0, &vec![1; 256 << 10]).expect("a part"), 56 << 10);
    is_quota(inside.write_at(56 << 10, &[1; 4096]));
    let outside = create(&fs, 1, &root, "outside").expect("create");
    assert!(fs.link(&outside, &tree, b"link").expect_err("another project").is(Errno::Xdev));
    let moved = fs.rename((&root, b"outside"), (&tree, b"moved"), RenameFlags::empty());
    assert!(moved.expect_err("another project").is(Errno::Xdev));
    // An exchange moves both: neither way is one of another project brought in.
    let exchange = |from: (&Node, &str), to: (&Node, &str)| {
        fs.rename((from.0, from.1.as_bytes()), (to.0, to.1.as_bytes()), RenameFlags::EXCHANGE)
    };
    let (stranger, own) = ((&root, "outside"), (&tree, "inside"));
    for (from, to) in [(stranger, own), (own, stranger)] {
        assert!(exchange(from, to).expect_err("another project").is(Errno::Xdev));
    }
    fs.set_project(&outside, 42).expect("project");
    exchange(own, stranger).expect("the same project");
    exchange(own, stranger).expect("and back");
    fs.rename((&root, b"outside"), (&tree, b"moved"), RenameFlags::empty())
        .expect("the same project");
    fs.unmount().expect("unmount");
    image.assert_clean();
    let without = Image::mke2fs(16 << 20, &["-t", "ext4"]);
    let fs = open(&without);
    assert!(
        fs.set_project(&fs.root().expect("root"), 1).expect_err("no feature").is(Errno::OpNotSupp)
    );
    assert_eq!(
        fs.quota(QuotaKind::User, 0).expect_err("no files").errno(),
        Errno::OpNotSupp as i32
    );
}

/// The whiteout that a rename leaves is an inode of its directory's project, as any other that is
/// made there.
#[test]
fn whiteouts_belong_to_the_project_of_their_directory() {
    let image = small();
    let fs = open(&image);
    let root = fs.root().expect("root");
    let tree = project_tree(&fs);
    let sub = fs.create(&tree, b"sub", 0o755, NodeKind::Dir).expect("mkdir");
    create(&fs, 1, &tree, "file").expect("create");
    fs.rename((&tree, b"file"), (&sub, b"moved"), RenameFlags::WHITEOUT).expect("rename");
    let whiteout = fs.lookup(&tree, b"file").expect("a whiteout");
    assert_eq!(fs.project(&whiteout).ok(), Some(42));
    drop(whiteout);
    assert_eq!(fs.quota(QuotaKind::Project, 42).expect("quota").inodes, 4);
    fs.rename((&tree, b"file"), (&sub, b"whiteout"), RenameFlags::empty())
        .expect("a whiteout moves within its project");
    fs.set_quota(QuotaKind::Project, 42, QuotaLimits { inode_hard: 4, ..QuotaLimits::default() })
        .expect("limits");
    is_quota(fs.rename((&sub, b"moved"), (&sub, b"again"), RenameFlags::WHITEOUT));
    assert!(fs.lookup(&sub, b"moved").is_ok() && fs.lookup(&sub, b"again").is_err());
    drop((root, tree, sub));
    fs.unmount().expect("unmount");
    image.assert_clean();
}

/// Group and flags come from the directory, too, as the kernel has it.
#[test]
fn whiteouts_inherit_as_in_the_kernel() {
    const NOATIME: u32 = 0x80;
    let image = Image::mke2fs(32 << 20, &["-t", "ext4", "-b", "4096", "-O", "orphan_file"]);
    let fs = open(&image);
    let root = fs.root().expect("root");
    for name in ["ours", "theirs"] {
        let dir = fs
            .create_as(
                &Caller { uid: 7, gid: 9, ..Caller::default() },
                (&root, name.as_bytes()),
                0o2755,
                NodeKind::Dir,
            )
            .expect("mkdir");
        fs.set_flags(&dir, dir.attr().flags | NOATIME).expect("flag");
        create(&fs, 1, &dir, "file").expect("create");
    }
    fs.rename(
        (&fs.lookup(&root, b"ours").expect("dir"), b"file"),
        (&root, b"moved"),
        RenameFlags::WHITEOUT,
    )
    .expect("rename");
    drop(root);
    fs.unmount().expect("unmount");
    let mount = Mount::new(image.path(), "");
    let (dir, top) = (
        std::fs::File::open(mount.join("theirs")).expect("dir"),
        std::fs::File::open(mount.path()).expect("root"),
    );
    rustix::fs::renameat_with(
        &dir,
        "file",
        &top,
        "by the kernel",
        rustix::fs::RenameFlags::WHITEOUT,
    )
    .expect("rename");
    drop((dir, top));
    mount.unmount();
    image.assert_clean();
    let fs = open(&image);
    let [ours, theirs] =
        ["/ours/file", "/theirs/file"].map(|path| fs.resolve(path, Follow::No).expect(path));
    let facts = |node: &Node| {
        let attr = node.attr();
        (attr.mode, attr.uid, attr.gid, attr.flags, attr.rdev)
    };
    assert_eq!(facts(&ours), facts(&theirs));
    assert_eq!((ours.attr().gid, ours.attr().flags & NOATIME), (9, NOATIME));
    drop((ours, theirs));
    fs.unmount().expect("unmount");
}
