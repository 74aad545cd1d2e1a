//! The system calls that remain in a sandbox.
//!
//! The list has the calls of the standard library, the engine and the server: transfers, memory
//! that cannot be executed, threads, time, waits, and opening of files, which Landlock bounds.
//! There is no way to run a program, to make a socket that reaches others, to trace a process, to
//! mount, or to change credentials. A missing call fails with `EPERM`.

use super::{FileCalls, Sandbox};
use libc::c_long;
use seccompiler::{
    BpfProgram, Error, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, TargetArch, apply_filter,
};
use std::collections::BTreeMap;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Calls with any arguments.
#[rustfmt::skip]
const CALLS: &[c_long] = &[
    // Transfers.
    libc::SYS_read, libc::SYS_write, libc::SYS_readv, libc::SYS_writev, libc::SYS_pread64,
    libc::SYS_pwrite64, libc::SYS_preadv, libc::SYS_pwritev, libc::SYS_preadv2, libc::SYS_pwritev2,
    libc::SYS_lseek, libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_sync_file_range,
    libc::SYS_fallocate, libc::SYS_ftruncate, libc::SYS_copy_file_range, libc::SYS_fadvise64,
    libc::SYS_recvfrom, libc::SYS_recvmsg, libc::SYS_shutdown, libc::SYS_getsockopt,
    // Files and descriptors.
    libc::SYS_openat, libc::SYS_close, libc::SYS_flock, libc::SYS_dup, libc::SYS_dup3,
    libc::SYS_fstat, libc::SYS_fstatfs, libc::SYS_newfstatat, libc::SYS_statx, libc::SYS_faccessat,
    libc::SYS_faccessat2, libc::SYS_readlinkat, libc::SYS_getdents64, libc::SYS_getcwd,
    libc::SYS_pipe2, libc::SYS_eventfd2, libc::SYS_epoll_create1, libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait, libc::SYS_ppoll,
    // Memory.
    libc::SYS_munmap, libc::SYS_mremap, libc::SYS_madvise, libc::SYS_brk, libc::SYS_membarrier,
    // Threads and signals of this process.
    libc::SYS_futex, libc::SYS_set_robust_list, libc::SYS_set_tid_address, libc::SYS_rseq,
    libc::SYS_sched_yield, libc::SYS_getcpu, libc::SYS_rt_sigaction, libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn, libc::SYS_sigaltstack, libc::SYS_restart_syscall, libc::SYS_exit,
    libc::SYS_exit_group, libc::SYS_wait4, libc::SYS_waitid,
    // Time, and identity of this process and machine.
    libc::SYS_nanosleep, libc::SYS_clock_nanosleep, libc::SYS_clock_gettime, libc::SYS_clock_getres,
    libc::SYS_gettimeofday, libc::SYS_getpid, libc::SYS_getppid, libc::SYS_gettid, libc::SYS_getuid,
    libc::SYS_geteuid, libc::SYS_getgid, libc::SYS_getegid, libc::SYS_getgroups,
    libc::SYS_getrandom, libc::SYS_uname, libc::SYS_sysinfo, libc::SYS_capget,
];

/// Calls that make, name and remove files, where Landlock allows it, and change open ones.
#[rustfmt::skip]
const MAKING: &[c_long] = &[
    libc::SYS_openat2, libc::SYS_mkdirat, libc::SYS_unlinkat, libc::SYS_linkat, libc::SYS_symlinkat,
    libc::SYS_mknodat, libc::SYS_renameat2, libc::SYS_fchmod, libc::SYS_fchown, libc::SYS_fsetxattr,
    libc::SYS_fgetxattr, libc::SYS_flistxattr, libc::SYS_fremovexattr, libc::SYS_umask,
];

/// Calls that read attributes, and open files beneath a directory, where Landlock allows it.
#[rustfmt::skip]
const READING: &[c_long] = &[
    libc::SYS_openat2, libc::SYS_fgetxattr, libc::SYS_flistxattr, libc::SYS_getxattr,
    libc::SYS_listxattr, libc::SYS_lgetxattr, libc::SYS_llistxattr,
];

/// Calls that change attributes by a name, which Landlock does not bound.
#[rustfmt::skip]
const NAMING: &[c_long] = &[
    libc::SYS_fchmodat, libc::SYS_fchownat, libc::SYS_utimensat, libc::SYS_setxattr,
    libc::SYS_getxattr, libc::SYS_listxattr, libc::SYS_removexattr,
];

/// Calls that choose the mode of a file, with the number of that argument.
const MODES: &[(c_long, u8)] =
    &[(libc::SYS_openat, 3), (libc::SYS_mkdirat, 2), (libc::SYS_mknodat, 2), (libc::SYS_fchmod, 1)];
#[cfg(target_arch = "x86_64")]
const OLD_MODES: &[(c_long, u8)] = &[(libc::SYS_open, 2), (libc::SYS_mkdir, 1)];
#[cfg(not(target_arch = "x86_64"))]
const OLD_MODES: &[(c_long, u8)] = &[];

/// The bits of a mode by which a program runs as the owner or the group of its file.
const SET_ID: u64 = 0o6000;

/// Older forms of some of them.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const OLD_MAKING: &[c_long] = &[
    libc::SYS_mkdir, libc::SYS_unlink, libc::SYS_rmdir, libc::SYS_rename, libc::SYS_link,
    libc::SYS_renameat,
];
#[cfg(target_arch = "x86_64")]
const OLD_NAMING: &[c_long] = &[libc::SYS_chmod];
#[cfg(target_arch = "aarch64")]
const OLD_MAKING: &[c_long] = &[libc::SYS_renameat];
#[cfg(target_arch = "riscv64")]
const OLD_MAKING: &[c_long] = &[];
#[cfg(not(target_arch = "x86_64"))]
const OLD_NAMING: &[c_long] = &[];

/// Older forms of calls with any arguments.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const OLD_CALLS: &[c_long] = &[
    libc::SYS_open, libc::SYS_stat, libc::SYS_lstat, libc::SYS_access, libc::SYS_readlink,
    libc::SYS_poll, libc::SYS_dup2, libc::SYS_pipe, libc::SYS_epoll_wait, libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD_CALLS: &[c_long] = &[];

/// IORING_REGISTER_ENABLE_RINGS, which starts a ring.
const START_RING: u64 = 12;

/// Flags of clone(2) that make a thread; a process of its own lacks them.
const THREAD: u64 = (libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND) as u64;

/// Requests of ioctl(2) that put text into the input of a terminal (TIOCSTI, TIOCLINUX), choose the
/// receiver of signals (FIOSETOWN, SIOCSPGRP), give a loop device another file or part (LOOP_*),
/// change a disk for all programs (BLKROSET, BLKRRPART, BLKRASET, BLKFRASET, BLKPG), freeze or stop
/// a file system (FIFREEZE, FITHAW, EXT4_IOC_SHUTDOWN), or change the discipline of a terminal
/// (TIOCSETD).
const REFUSED_IOCTLS: [u64; 23] = [
    0x5412,
    0x541c,
    0x5423,
    0x8901,
    0x8902,
    0x4c00,
    0x4c01,
    0x4c02,
    0x4c04,
    0x4c06,
    0x4c07,
    0x4c08,
    0x4c09,
    0x4c0a,
    0x4c0b,
    0x125d,
    0x125f,
    0x1262,
    0x1264,
    0x1269,
    0xc004_5877,
    0xc004_5878,
    0x8004_587d,
];

/// Requests of ioctl(2) of a copy with all attributes, out of an image or into one, which keeps
/// CAP_SYS_ADMIN: whether a file is a terminal, and its size (TCGETS, TIOCGWINSZ).
const TERMINAL_IOCTLS: [u64; 2] = [0x5401, 0x5413];

/// Commands of fcntl(2) that choose the receiver and the number of a signal (F_SETOWN, F_SETSIG,
/// F_SETOWN_EX), or make other programs wait or be told (F_SETLEASE, F_NOTIFY).
const REFUSED_COMMANDS: [u64; 5] = [8, 10, 15, 1024, 1026];

/// Options of sockets of clients, as levels and names: SO_KEEPALIVE, SO_RCVTIMEO, SO_SNDTIMEO;
/// TCP_NODELAY, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT.
const SOCKET_OPTIONS: [(u64, u64); 7] = [
    (libc::SOL_SOCKET as u64, libc::SO_KEEPALIVE as u64),
    (libc::SOL_SOCKET as u64, libc::SO_RCVTIMEO as u64),
    (libc::SOL_SOCKET as u64, libc::SO_SNDTIMEO as u64),
    (libc::IPPROTO_TCP as u64, libc::TCP_NODELAY as u64),
    (libc::IPPROTO_TCP as u64, libc::TCP_KEEPIDLE as u64),
    (libc::IPPROTO_TCP as u64, libc::TCP_KEEPINTVL as u64),
    (libc::IPPROTO_TCP as u64, libc::TCP_KEEPCNT as u64),
];

/// PR_GET_AUXV.
const PR_GET_AUXV: u64 = 0x4155_5856;

/// Controls of prctl(2): names of threads and of memory, signals of the parent's end,
/// no_new_privs, properties of the processor, and a process that may trace this one (an upgrade
/// takes its descriptors).
const CONTROLS: [u64; 8] = [
    libc::PR_SET_NAME as u64,
    libc::PR_GET_NAME as u64,
    libc::PR_SET_PDEATHSIG as u64,
    libc::PR_SET_NO_NEW_PRIVS as u64,
    libc::PR_GET_NO_NEW_PRIVS as u64,
    libc::PR_SET_VMA as u64,
    PR_GET_AUXV,
    libc::PR_SET_PTRACER as u64,
];

/// A condition on the lower half of an argument.
fn low(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompCondition, Error> {
    Ok(SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)?)
}

/// A condition that an argument is no pointer.
fn no_pointer(argument: u8) -> Result<SeccompCondition, Error> {
    Ok(SeccompCondition::new(argument, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0)?)
}

fn rule(conditions: Vec<SeccompCondition>) -> Result<SeccompRule, Error> {
    Ok(SeccompRule::new(conditions)?)
}

/// Returns the calls that depend on their arguments.
fn conditional() -> Result<Rules, Error> {
    use SeccompCmpOp::{Eq, MaskedEq, Ne};
    let executable = libc::PROT_EXEC as u64;
    let is = |argument, value| low(argument, Eq, value);
    let not_executed = || rule(vec![low(2, MaskedEq(executable), 0)?]);
    let own = u64::from(std::process::id());
    let refused = REFUSED_IOCTLS.iter().map(|request| low(1, Ne, *request));
    let commands = REFUSED_COMMANDS.iter().map(|command| low(1, Ne, *command));
    let controls = CONTROLS.iter().map(|control| rule(vec![is(0, *control)?]));
    Ok([
        (libc::SYS_mmap, vec![not_executed()?]),
        (libc::SYS_mprotect, vec![not_executed()?]),
        (libc::SYS_clone, vec![rule(vec![low(0, MaskedEq(THREAD), THREAD)?])?]),
        // By its pointer the flags cannot be read: `restrict` makes it fail with ENOSYS.
        (libc::SYS_clone3, Vec::new()),
        (libc::SYS_prctl, controls.collect::<Result<_, _>>()?),
        (libc::SYS_tgkill, vec![rule(vec![is(0, own)?])?]),
        // Of this thread, here and below.
        (libc::SYS_sched_getaffinity, vec![rule(vec![is(0, 0)?])?]),
        (libc::SYS_sched_setaffinity, vec![rule(vec![is(0, 0)?])?]),
        // Jobs in the background yield to others.
        (libc::SYS_getpriority, vec![rule(vec![is(0, 0)?, is(1, 0)?])?]),
        (libc::SYS_setpriority, vec![rule(vec![is(0, 0)?, is(1, 0)?])?]),
        // Limits are read only.
        (libc::SYS_prlimit64, vec![rule(vec![is(0, 0)?, no_pointer(2)?])?]),
        (libc::SYS_fcntl, vec![rule(commands.collect::<Result<_, _>>()?)?]),
        // Without an address, which could be that of another socket.
        (libc::SYS_sendto, vec![rule(vec![no_pointer(4)?])?]),
        (libc::SYS_socketpair, vec![rule(vec![is(0, libc::AF_UNIX as u64)?])?]),
        (libc::SYS_ioctl, vec![rule(refused.collect::<Result<_, _>>()?)?]),
    ]
    .into())
}

/// Builds a filter.
fn program(
    rules: Rules,
    others: SeccompAction,
    listed: SeccompAction,
) -> Result<BpfProgram, Error> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    Ok(SeccompFilter::new(rules, others, listed, arch)?.try_into()?)
}

fn errno(number: i32) -> SeccompAction {
    SeccompAction::Errno(number as u32)
}

fn listed(calls: impl IntoIterator<Item = c_long>) -> Rules {
    calls.into_iter().map(|call| (call, Vec::new())).collect()
}

/// Returns the calls for files beyond those for contents.
fn of_files(files: FileCalls) -> Result<Rules, Error> {
    use SeccompCmpOp::{Eq, MaskedEq};
    let mut rules = Rules::new();
    if matches!(files, FileCalls::Making | FileCalls::Attributes) {
        // Times of open files.
        rules.insert(libc::SYS_utimensat, vec![rule(vec![no_pointer(1)?])?]);
        rules.extend(listed(MAKING.iter().chain(OLD_MAKING).copied()));
    }
    if files == FileCalls::Making {
        for (call, mode) in MODES.iter().chain(OLD_MODES) {
            rules.insert(*call, vec![rule(vec![low(*mode, MaskedEq(SET_ID), 0)?])?]);
        }
    }
    // These keep CAP_SYS_ADMIN.
    if matches!(files, FileCalls::Reading | FileCalls::Attributes) {
        let allowed = TERMINAL_IOCTLS.iter();
        let allowed = allowed.map(|request| rule(vec![low(1, Eq, *request)?]));
        rules.insert(libc::SYS_ioctl, allowed.collect::<Result<_, _>>()?);
    }
    if files == FileCalls::Reading {
        rules.extend(listed(READING.iter().copied()));
    }
    if files == FileCalls::Attributes {
        rules.extend(listed(NAMING.iter().chain(OLD_NAMING).copied()));
    }
    Ok(rules)
}

/// Restricts this thread, and those that it starts, to the listed calls. Returns the state.
pub fn restrict(sandbox: &Sandbox) -> String {
    let Sandbox { rings, .. } = *sandbox;
    let apply = || {
        let mut rules = conditional()?;
        rules.extend(listed(CALLS.iter().chain(OLD_CALLS).copied()));
        rules.extend(of_files(sandbox.files)?);
        if sandbox.files == FileCalls::Making {
            // Its mode lies behind a pointer.
            rules.remove(&libc::SYS_openat2);
        }
        if sandbox.serves {
            rules.extend(listed([libc::SYS_accept4]));
            let options = SOCKET_OPTIONS.iter().map(|(level, name)| {
                let equals = SeccompCmpOp::Eq;
                rule(vec![low(1, equals.clone(), *level)?, low(2, equals, *name)?])
            });
            rules.insert(libc::SYS_setsockopt, options.collect::<Result<_, _>>()?);
        }
        if rings {
            // Those that are there. None can be made, and none gets files, buffers or credentials.
            let start = rule(vec![low(1, SeccompCmpOp::Eq, START_RING)?])?;
            rules.insert(libc::SYS_io_uring_enter, Vec::new());
            rules.insert(libc::SYS_io_uring_register, vec![start]);
        }
        // The C library then makes threads by clone(2), whose flags are seen.
        let others = SeccompAction::Allow;
        apply_filter(&program(listed([libc::SYS_clone3]), others, errno(libc::ENOSYS))?)?;
        apply_filter(&program(rules, errno(libc::EPERM), SeccompAction::Allow)?)
    };
    match apply() {
        Ok(()) if rings => "all, with io_uring".into(),
        Ok(()) => "all".into(),
        Err(error) => format!("none: {error}"),
    }
}
