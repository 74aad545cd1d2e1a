//! The kernel's ext4 as the oracle: a scenario runs on the mount and on a kernel mount of an equal
//! image, and notes the results of its system calls. Both lists of notes must be equal.

use crate::served::{Served, make};
use extant_testkit::{kernel, tool};
use std::fmt::Debug;
use std::io;
use std::path::Path;

/// The results that a scenario noted.
#[derive(Debug, Default)]
pub struct Notes {
    lines: Vec<String>,
}

impl Notes {
    /// Appends the notes of another one.
    pub fn append(&mut self, other: Notes) {
        self.lines.extend(other.lines);
    }

    /// Notes a value.
    pub fn value(&mut self, what: impl AsRef<str>, value: impl Debug) {
        self.lines.push(format!("{}: {value:?}", what.as_ref()));
    }

    /// Notes the result of a system call: its value or the name of the error.
    pub fn call<T: Debug, E: Into<io::Error>>(
        &mut self,
        what: impl AsRef<str>,
        outcome: Result<T, E>,
    ) {
        match outcome.map_err(Into::into) {
            Ok(value) => self.value(what, value),
            Err(e) => self.lines.push(format!("{}: {}", what.as_ref(), name(&e))),
        }
    }

    /// Notes the output and errors of a program, without the path of the mount.
    pub fn program(&mut self, dir: &Path, program: &str, args: &[&str]) {
        let output = std::process::Command::new(tool::need(program))
            .args(args)
            .current_dir(dir)
            .output()
            .expect("the program runs");
        let text = [output.stdout, output.stderr].concat();
        self.value(
            format!("{program} {args:?} exits {:?}", output.status.code()),
            String::from_utf8_lossy(&text),
        );
    }
}

impl Notes {
    fn compare(&self, set: &str, theirs: &Notes) {
        let pairs = self.lines.iter().zip(&theirs.lines);
        let differences: Vec<_> = pairs
            .filter(|(a, b)| a != b)
            .map(|(a, b)| format!("\n  here   {a}\n  kernel {b}"))
            .collect();
        assert!(
            differences.is_empty(),
            "{set}: other than the kernel's ext4:{}",
            differences.concat()
        );
        assert_eq!(
            self.lines.len(),
            theirs.lines.len(),
            "{set}: {:?} {:?}",
            self.lines.last(),
            theirs.lines.last()
        );
    }
}

fn name(e: &io::Error) -> String {
    e.raw_os_error()
        .map_or_else(|| format!("{e:?}"), |code| format!("{:?}", nix::errno::Errno::from_raw(code)))
}

/// Runs the scenario on both file systems. The notes must be equal and the images clean.
pub fn same_as_kernel(set: &str, scenario: impl Fn(&Path, &mut Notes)) {
    same_after_remount(set, scenario, |_, _| {});
}

/// As [`same_as_kernel`]; then both are remounted, and `look` runs on them.
pub fn same_after_remount(
    set: &str,
    scenario: impl Fn(&Path, &mut Notes),
    look: impl Fn(&Path, &mut Notes),
) {
    same_on([Served::unmounted(make(set))], set, scenario, look);
}

/// As [`same_after_remount`], with and without the writeback cache.
pub fn same_with_each_cache(
    set: &str,
    scenario: impl Fn(&Path, &mut Notes),
    look: impl Fn(&Path, &mut Notes),
) {
    let mounts = [true, false].map(|writeback_cache| {
        let mut served = Served::unmounted(make(set));
        served.options.writeback_cache = writeback_cache;
        served
    });
    same_on(mounts, set, scenario, look);
}

fn same_on(
    mounts: impl IntoIterator<Item = Served>,
    set: &str,
    scenario: impl Fn(&Path, &mut Notes),
    look: impl Fn(&Path, &mut Notes),
) {
    tool::need_root("the kernel's mount is the oracle");
    let image = make(set);
    let mut theirs = Notes::default();
    type Phase<'a> = &'a dyn Fn(&Path, &mut Notes);
    let phases: [Phase<'_>; 2] = [&scenario, &look];
    for phase in phases {
        let mount = kernel::Mount::new(image.path(), "");
        phase(mount.path(), &mut theirs);
        mount.unmount();
    }
    for mut served in mounts {
        let mut ours = Notes::default();
        for phase in phases {
            served.mount();
            phase(served.dir(), &mut ours);
            served.unmount();
        }
        let label = format!("{set}, writeback cache: {}", served.options.writeback_cache);
        ours.compare(&label, &theirs);
    }
}

/// Runs `work` as another user, without capabilities for files and without groups other than `gid`.
pub fn as_user<T: Send>(uid: u32, gid: u32, work: impl FnOnce() -> T + Send) -> T {
    let body = || {
        // Both hold for this thread only.
        nix::unistd::setfsgid(gid.into());
        nix::unistd::setfsuid(uid.into());
        work()
    };
    std::thread::scope(|s| s.spawn(body).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
