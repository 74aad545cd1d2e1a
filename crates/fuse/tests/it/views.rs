//! Owners and modes as users of a mount see them, and mounts on which everyone acts as root.

use crate::oracle::as_user;
use crate::permissions::{mode, set_mode};
use crate::served::Served;
use extant_fuse::View;
use extant_testkit::kernel;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

/// Owner and group of everything, and everyone's permissions taken away.
const SHOWN: View = View { uid: Some(1000), gid: Some(2000), umask: 0o027, as_root: false };

/// A served image with a file and a directory of root's, unmounted again.
fn with_files_of_root() -> Served {
    let mut served = Served::new("default");
    fs::write(served.path("file"), "of root").unwrap();
    fs::create_dir(served.path("dir")).unwrap();
    set_mode(&served.path("dir"), 0o755).unwrap();
    served.unmount();
    served
}

#[test]
fn a_view_changes_what_is_seen_and_checked_and_not_the_image() {
    let mut served = with_files_of_root();
    served.options.view = SHOWN;
    served.mount();
    let (file, dir) = (served.path("file"), served.path("dir"));
    assert_eq!(mode(&file).unwrap(), "100640 1000 2000");
    assert_eq!(mode(&dir).unwrap(), "40750 1000 2000");
    for entry in fs::read_dir(served.path("")).unwrap().flatten() {
        assert_eq!(entry.metadata().unwrap().uid(), 1000, "{:?}", entry.file_name());
    }
    as_user(1000, 2000, || {
        fs::write(&file, "of the user").unwrap();
        fs::write(dir.join("new"), "new").unwrap();
    });
    let denied = |uid, gid| {
        let read = as_user(uid, gid, || fs::read(&file));
        read.is_err_and(|e| e.kind() == ErrorKind::PermissionDenied)
    };
    assert!(denied(1001, 1001), "umask takes the permission of others away");
    assert!(!denied(1001, 2000), "the group may read");
    served.unmount();
    let mount = kernel::Mount::new(served.image(), "ro");
    assert_eq!(mode(&mount.join("file")).unwrap(), "100644 0 0");
    assert_eq!(mode(&mount.join("dir")).unwrap(), "40755 0 0");
    assert_eq!(fs::metadata(mount.join("dir/new")).unwrap().uid(), 1000);
    assert_eq!(fs::read(mount.join("file")).unwrap(), b"of the user");
}

#[test]
fn everyone_acts_as_root() {
    let mut served = with_files_of_root();
    served.options.view.as_root = true;
    served.mount();
    let (file, dir) = (served.path("file"), served.path("dir"));
    as_user(1000, 1000, || {
        fs::write(&file, "of the user").unwrap();
        chown(&file, Some(7), Some(8)).unwrap();
        set_mode(&file, 0o4600).unwrap();
        fs::create_dir(dir.join("sub")).unwrap();
        set_mode(&dir.join("sub"), 0).unwrap();
        fs::write(dir.join("sub/new"), "new").unwrap();
        fs::rename(dir.join("sub/new"), dir.join("moved")).unwrap();
        assert_eq!(fs::read(dir.join("moved")).unwrap(), b"new");
    });
    served.unmount();
    let mount = kernel::Mount::new(served.image(), "ro");
    assert_eq!(mode(&mount.join("file")).unwrap(), "104600 7 8");
    assert_eq!(mode(&mount.join("dir/sub")).unwrap(), "40000 0 0");
    let moved = fs::metadata(mount.join("dir/moved")).unwrap();
    assert_eq!((moved.uid(), moved.gid(), moved.permissions().mode()), (0, 0, 0o100_644));
}
