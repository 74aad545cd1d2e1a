//! Keepers in threads, and their servers.

use super::super::acts::HEAD;
use super::*;
use extant_testkit::Scratch;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

fn pair() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .expect("sockets")
}

fn keep() -> Keep {
    Keep {
        dir: "/proc".into(),
        read_only: false,
        options: MountOptions::default(),
        disk: None,
        claim: None,
        replaces: None,
        adopts: None,
        set_flags: Box::new(|| Ok(())),
    }
}

#[test]
fn another_process_acts_for_its_own_mount_only() {
    let (acts, quick) = (pair(), pair());
    let served = std::thread::spawn(move || Keeper::own(keep()).serve(acts.1, quick.1));
    let keeper = Keeper::other(Path::new("/proc"), acts.0, quick.0);
    assert!(!keeper.claim(false).expect("no disk"));
    assert!(keeper.shares_user_namespace(std::process::id()));
    assert!(!keeper.shares_user_namespace(0));
    // It has mounted nothing, so /proc stays.
    for refused in [keeper.unmount(), keeper.detach(), keeper.abort(), keeper.set_flags()] {
        assert_eq!(refused.expect_err("not its mount").kind(), ErrorKind::InvalidInput);
    }
    assert!(!keeper.is_lost());
    keeper.end();
    let refused = keeper.claim(false).expect_err("it has ended");
    assert!(refused.to_string().contains("`umount /proc` ends the mount"), "{refused}");
    assert!(!keeper.is_lost(), "it was asked to end");
    served.join().expect("the keeper").expect("its end");
}

#[test]
fn a_keeper_that_was_ended_is_known() {
    let (acts, quick) = (pair(), pair());
    let keeper = Keeper::other(Path::new("/proc"), acts.0, quick.0);
    drop((acts.1, quick.1));
    assert!(keeper.is_lost());
    for refused in [keeper.unmount(), keeper.abort()] {
        let refused = refused.expect_err("it has ended");
        assert!(refused.to_string().contains("`umount /proc` ends the mount"), "{refused}");
    }
}

#[test]
fn a_keeper_that_does_not_answer_holds_up_nothing() {
    let (acts, quick) = (pair(), pair());
    let patience = Duration::from_millis(50);
    let keeper = Keeper::patient(Path::new("/proc"), [acts.0, quick.0], patience);
    let begin = Instant::now();
    assert!(!keeper.shares_user_namespace(std::process::id()));
    let mounted = keeper.mount(false).expect_err("no answer");
    assert!(mounted.to_string().contains("does not answer"), "{mounted}");
    // The answer comes too late, and is none to the next request.
    let _ = send_message(&acts.1, &[0; HEAD], &[]);
    assert!(keeper.claim(false).is_err() && keeper.unmount().is_err());
    let (acts, quick) = (pair(), pair());
    let keeper = Keeper::other(Path::new("/proc"), acts.0, quick.0);
    let unmounting = keeper.clone();
    let unmount = std::thread::spawn(move || unmounting.unmount());
    let mut buf = [0; MESSAGE];
    receive_message(&acts.1, &mut buf).expect("a request");
    keeper.end();
    assert!(unmount.join().expect("a thread").is_err());
    assert!(begin.elapsed() < PATIENCE / 4, "{:?}", begin.elapsed());
}

/// The other process has the same ends of the sockets, and can fill them.
#[test]
fn requests_that_find_no_space_hold_up_nothing() {
    let (acts, quick) = (pair(), pair());
    for socket in [&acts.0, &quick.0] {
        let flags = QUIETLY | SendFlags::DONTWAIT;
        while rustix::net::send(socket, &[0; MESSAGE], flags).is_ok() {}
    }
    let keeper = Keeper::other(Path::new("/proc"), acts.0, quick.0);
    keeper.dismiss();
    assert!(!keeper.shares_user_namespace(std::process::id()));
    assert!(keeper.mount(false).is_err());
    keeper.end();
}

/// Replies to a mount with their descriptors, none of which stays open.
#[test]
fn lies_of_a_keeper_are_errors() {
    let scratch = Scratch::new();
    let path = scratch.file("file", 1);
    let done = || encode(Ok((true, None))).0;
    let denied = encode(Err(Errno::PERM.into())).0;
    for (reply, open, cause) in [
        (done(), None, "gave no connection"),
        (done(), Some(&*path), "gave no connection"),
        (done(), Some(Path::new("/dev/null")), "gave no connection"),
        (done(), Some(scratch.path()), "gave no connection"),
        (vec![0; HEAD - 1], Some(&path), ""),
        (vec![1], None, ""),
        (vec![0xff; MESSAGE * 2], Some(&path), ""),
        (denied, Some(&path), "not permitted"),
    ] {
        let (acts, quick) = (pair(), pair());
        let keeper = Keeper::other(Path::new("/proc"), acts.0, quick.0);
        let file = open.map(|path| std::fs::File::open(path).expect("a file"));
        let descriptor = file.as_ref().map(AsFd::as_fd);
        send_message(&acts.1, &reply, descriptor.as_slice()).expect("sent");
        drop(file);
        let mounted = keeper.mount(false).expect_err("a lie");
        assert!(mounted.to_string().contains(cause), "{mounted}");
        let all = std::fs::read_dir("/proc/self/fd").expect("descriptors").flatten();
        let mut all = all.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        assert!(!all.any(|open| open.starts_with(scratch.path())), "{reply:?}");
    }
}

/// Numbers of devices are used again, and another place of the same file system has the same.
#[test]
fn a_mount_of_the_same_device_is_not_its_own() {
    let scratch = Scratch::new();
    let (dir, other) = (scratch.dir("mnt"), scratch.dir("other"));
    let keeper = Keeper::own(Keep { dir: dir.clone(), ..keep() });
    let _connection = keeper.mount(false).expect("a mount");
    rustix::mount::mount_bind(&dir, &other).expect("a second place");
    rustix::mount::unmount(&dir, UnmountFlags::DETACH).expect("the first place");
    rustix::mount::mount_bind(&other, &dir).expect("another mount");
    let acts = [Keeper::unmount, Keeper::detach, Keeper::abort, Keeper::set_flags];
    let refused = acts.map(|act| act(&keeper).map_err(|error| error.kind()));
    let ended = [&dir, &other].map(|dir| rustix::mount::unmount(dir, UnmountFlags::DETACH));
    assert_eq!(refused, [Err(ErrorKind::InvalidInput); 4]);
    assert_eq!(ended, [Ok(()), Ok(())]);
}

/// Mounts by a keeper that serves as another process would, and returns how its server ended.
fn end_of(keep: Keep, end: impl FnOnce(&Keeper)) -> (io::Result<OwnedFd>, io::Result<ServerEnd>) {
    let (acts, quick, dir) = (pair(), pair(), keep.dir.clone());
    let served = std::thread::spawn(move || Keeper::own(keep).serve(acts.1, quick.1));
    let server = Keeper::other(&dir, acts.0, quick.0);
    let connection = server.mount(false);
    end(&server);
    drop(server);
    (connection, served.join().expect("the keeper"))
}

#[test]
fn a_dead_mount_stays_until_the_next_one_takes_its_place() {
    let scratch = Scratch::new();
    let dir = scratch.dir("mnt");
    let keep = |replaces| Keep { dir: dir.clone(), replaces, ..keep() };
    let (connection, end) = end_of(keep(None), |_| ());
    drop(connection.expect("a mount"));
    let Ok(ServerEnd::Lost { mount: dead, served: Some(_) }) = end else { panic!("{end:?}") };
    assert_eq!(MountIdentity::at(&dir).expect("a mount"), dead);
    // A server that ends before it mounts changes nothing.
    let (acts, quick) = (pair(), pair());
    drop((acts.0, quick.0));
    let end = Keeper::own(keep(Some(dead))).serve(acts.1, quick.1).expect("its end");
    assert_eq!(end, ServerEnd::Lost { mount: dead, served: None });
    let (connection, end) = end_of(keep(Some(dead)), Keeper::end);
    drop(connection.expect("a mount"));
    assert_eq!(end.expect("its end"), ServerEnd::InOrder, "it was dismissed");
    let there = MountIdentity::at(&dir).expect("a mount");
    assert_ne!(there, dead);
    // It is another mount by now, which stays.
    let (refused, _) = end_of(keep(Some(dead)), |_| ());
    assert_eq!(refused.expect_err("refused").kind(), ErrorKind::InvalidInput);
    assert_eq!(MountIdentity::at(&dir).expect("a mount"), there);
    rustix::mount::unmount(&dir, UnmountFlags::DETACH).expect("an unmount");
    assert_ne!(MountIdentity::at(&dir).expect("a directory"), there, "no mount lies below");
}

#[test]
fn nonsense_is_refused() {
    let (acts, quick) = (pair(), pair());
    let served = std::thread::spawn(move || Keeper::own(keep()).serve(acts.1, quick.1));
    let namespace = [Act::Namespace as u8, 0, 0, 0, 0];
    for nonsense in [&[99, 0, 0, 0, 0][..], &[1], &[1, 0, 0, 0, 0, 0], &namespace] {
        send_message(&acts.0, nonsense, &[]).expect("sent");
        let mut buf = [0; MESSAGE];
        let (len, _) = receive_message(&acts.0, &mut buf).expect("a reply");
        let refused = decode_reply(&buf[..len]).expect_err("refused");
        assert_eq!(refused.raw_os_error(), Some(Errno::INVAL.raw_os_error()));
    }
    assert!(decode_reply(&[]).is_err() && decode_reply(&[0; HEAD - 1]).is_err());
    drop((acts.0, quick.0));
    served.join().expect("the keeper").expect("its end");
}
