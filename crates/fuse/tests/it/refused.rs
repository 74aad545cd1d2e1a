//! System calls that the server may not use: io_uring, or forced unmounts. Replies of a server that
//! the kernel refuses.

use crate::served::make;
use crate::watchdog::{Watchdog, unmount_unused};
use extant_engine::{FileType, Fs, NodeKind, OpenOptions, Timestamp, Usage};
use extant_fuse::bare::{
    self, Answer, Change, CreateMode, Credentials, Data, Entry, ErrorCode, FileAttr, Handler,
    Listed, NodeId, Wants, WriteRequest,
};
use extant_fuse::{MountOptions, Transport, mount};
use extant_testkit::kernel::enable_rings;
use nix::libc;
use std::fs;
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// Makes a system call fail with EPERM for this thread and all threads that it starts.
#[expect(unsafe_code, reason = "a system call that no crate in use offers")]
fn refuse(call: libc::c_long) {
    let step = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut steps = [
        // The number of the call is the first field of the filter's input.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the kernel copies the program, whose length is in `len`.
    let failed = unsafe {
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program, 0, 0)
    };
    assert_eq!(failed, 0, "{}", io::Error::last_os_error());
}

/// Runs `work` on a thread for which a system call fails.
fn without<T: Send>(call: libc::c_long, work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            refuse(call);
            work()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn a_mount_without_io_uring_is_served_through_the_device() {
    enable_rings();
    for transport in [Transport::IoUring, Transport::Auto] {
        let image = make("default");
        let dir = image.scratch().dir("mnt");
        without(libc::SYS_io_uring_setup, || {
            let fs = Fs::open(image.path(), &OpenOptions::new()).expect("open");
            let mounted = mount(fs, &dir, &MountOptions { transport, ..MountOptions::default() })
                .expect("mount");
            let watchdog = Watchdog::over(&dir);
            let why = mounted.instead().map(String::from);
            fs::write(dir.join("file"), b"content").expect("write");
            assert_eq!(fs::read(dir.join("file")).expect("read"), b"content");
            mounted.unmount().expect("unmount");
            watchdog.rest();
            match transport {
                Transport::Auto => assert_eq!(why, None),
                _ => assert!(
                    why.as_ref().is_some_and(|why| why.contains("kernel.io_uring_disabled")),
                    "{why:?}"
                ),
            }
        });
        image.assert_clean();
    }
}

/// A root directory in which every lookup succeeds. A listing has one entry, which the kernel
/// refuses for its size.
struct Odd {
    /// Receives each inode that is forgotten, with its lookups. If this is `None`, forgetting
    /// panics.
    forgotten: Option<Sender<(NodeId, u64)>>,
}

fn attr(ino: NodeId, kind: FileType) -> FileAttr {
    FileAttr {
        ino,
        size: 4096,
        blocks: 0,
        atime: Timestamp::default(),
        mtime: Timestamp::default(),
        ctime: Timestamp::default(),
        kind,
        perm: 0o777,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
    }
}

impl Handler for Odd {
    fn wants(&self) -> Wants {
        Wants { writeback: false, acl: false, id_maps: false }
    }

    fn time_to_live(&self) -> Duration {
        Duration::ZERO
    }

    fn lookup(&self, _parent: NodeId, _name: &[u8]) -> Answer<Option<Entry>> {
        Ok(Some(Entry { attr: attr(NodeId(5), FileType::Regular), generation: 0 }))
    }

    fn forget(&self, ino: NodeId, lookups: u64) {
        let forgotten = self.forgotten.as_ref().expect("planted");
        // The test may have ended.
        let _ = forgotten.send((ino, lookups));
    }

    fn attr(&self, ino: NodeId, _open: bool) -> Answer<FileAttr> {
        Ok(attr(ino, if ino == NodeId::ROOT { FileType::Directory } else { FileType::Regular }))
    }

    fn set_attr(
        &self,
        _who: Credentials,
        _ino: NodeId,
        _change: Change,
    ) -> Answer<(FileAttr, Duration)> {
        Err(ErrorCode::ENOSYS)
    }

    fn read_link(&self, _ino: NodeId) -> Answer<Vec<u8>> {
        Err(ErrorCode::ENOSYS)
    }

    fn make(
        &self,
        _who: Credentials,
        _at: (NodeId, &[u8]),
        _mode: CreateMode,
        _what: NodeKind<'_>,
    ) -> Answer<Entry> {
        Err(ErrorCode::ENOSYS)
    }

    fn create(
        &self,
        _who: Credentials,
        _at: (NodeId, &[u8]),
        _mode: CreateMode,
        _flags: i32,
    ) -> Answer<Entry> {
        Err(ErrorCode::ENOSYS)
    }

    fn unlink(&self, _parent: NodeId, _name: &[u8]) -> Answer<()> {
        Ok(())
    }

    fn rmdir(&self, _parent: NodeId, _name: &[u8]) -> Answer<()> {
        Ok(())
    }

    fn rename(
        &self,
        _who: Credentials,
        _from: (NodeId, &[u8]),
        _to: (NodeId, &[u8]),
        _flags: u32,
    ) -> Answer<()> {
        Ok(())
    }

    fn open(&self, _ino: NodeId, _flags: i32) -> Answer<()> {
        Ok(())
    }

    fn release(&self, _ino: NodeId, _descriptor: u64, _flags: i32) -> Answer<()> {
        Ok(())
    }

    fn read(&self, _ino: NodeId, _offset: u64, _buf: &mut [u8]) -> Answer<Data> {
        panic!("planted");
    }

    fn write(&self, _: Credentials, _: NodeId, write: WriteRequest<'_>) -> Answer<usize> {
        Ok(write.data.len())
    }

    fn fsync(&self, _ino: NodeId, _descriptor: u64, _datasync: bool) -> Answer<()> {
        Ok(())
    }

    fn list(
        &self,
        _ino: NodeId,
        _from: u64,
        _each: &mut dyn FnMut(Listed<'_>) -> bool,
    ) -> Answer<()> {
        Ok(())
    }

    fn list_plus(
        &self,
        _ino: NodeId,
        from: u64,
        each: &mut dyn FnMut(Listed<'_>, Option<&Entry>) -> bool,
    ) -> Answer<()> {
        if from == 0 {
            let (ino, kind) = (NodeId(7), FileType::Regular);
            let refused =
                Entry { attr: FileAttr { size: u64::MAX, ..attr(ino, kind) }, generation: 0 };
            each(Listed { ino, next: 1, kind, name: b"refused" }, Some(&refused));
        }
        Ok(())
    }

    fn usage(&self) -> Usage {
        Usage::default()
    }
}

/// The kernel sends FORGET as a usual request for an entry of a listing that it refuses, so it
/// comes through rings, too.
#[test]
fn an_entry_that_the_kernel_refuses_is_forgotten_through_each_transport() {
    enable_rings();
    for transport in [Transport::Device, Transport::IoUring] {
        let scratch = extant_testkit::scratch::Scratch::new();
        let dir = scratch.dir("mnt");
        let (forgotten, told) = channel();
        let options = MountOptions { transport, ..MountOptions::default() };
        let serving =
            bare::mount(Odd { forgotten: Some(forgotten) }, &dir, &options, false).expect("mount");
        let watchdog = Watchdog::over(&dir);
        let names: Vec<_> =
            fs::read_dir(&dir).expect("list").map(|e| e.expect("an entry").file_name()).collect();
        assert_eq!(names, ["refused"]);
        assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok((NodeId(7), 1)), "{transport:?}");
        unmount_unused(|| Ok(nix::mount::umount(&dir)?));
        serving.join().expect("the threads are joined").expect("the mount ends well");
        watchdog.rest();
    }
}

/// If forced unmounts are forbidden, as for users other than root, a mount ends with its first
/// thread.
#[test]
fn a_thread_of_rings_that_dies_ends_the_mount() {
    enable_rings();
    let scratch = extant_testkit::scratch::Scratch::new();
    let dir = scratch.dir("mnt");
    let options = MountOptions { transport: Transport::IoUring, ..MountOptions::default() };
    let serving = without(libc::SYS_umount2, || {
        bare::mount(Odd { forgotten: None }, &dir, &options, false).expect("mount")
    });
    let watchdog = Watchdog::over(&dir);
    // A request whose handler panics gets a reply.
    let failed = fs::read(dir.join("file")).expect_err("it cannot be read");
    assert_eq!(failed.raw_os_error(), Some(libc::EIO), "{failed}");
    // The removal makes the kernel forget the inode.
    let _ = fs::remove_file(dir.join("file"));
    let ended = serving.join().expect("the threads are joined");
    assert!(ended.is_err(), "a thread died");
    let failed = fs::metadata(dir.join("other")).expect_err("no thread serves");
    assert!(
        matches!(
            failed.raw_os_error(),
            Some(libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED)
        ),
        "{failed}"
    );
    nix::mount::umount2(&dir, nix::mount::MntFlags::MNT_DETACH).expect("unmount");
    watchdog.rest();
}
