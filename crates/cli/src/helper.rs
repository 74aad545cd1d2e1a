//! The program under other names: the helpers that mount(8), umount(8) and mkfs(8) run for a type
//! of file system, e2fsck(8) and fsck.ext4(8), debugfs(8), dumpe2fs(8), tune2fs(8), resize2fs(8),
//! e2label(8), e2image(8), fuse2fs(1) and fuse4fs(1).
//!
//! - `mount.TYPE`, `mount.fuse.TYPE`: `SOURCE DIR [-fnsv] [-o OPTIONS] [-t TYPE] [-N NAMESPACE]`.
//!   Silent on success; 32 if it could not be mounted, 1 for wrong usage. It waits for an image
//!   whose last server is about to finish.
//! - `extant IMAGE DIR [-o OPTIONS]`, as mount.fuse(8) calls it, is `mount.fuse.extant`.
//! - `umount.TYPE`, `umount.fuse.TYPE`, `umount.fuse`: `DIR [-flnrv]`. Returns when the server has
//!   written everything. umount(8) looks for the last name if it gets a directory; under it, mounts
//!   of other servers are unmounted without a wait.
//! - `mke2fs`, `mkfs.TYPE`: as `extant mkfs`, with a size in blocks where it has no unit;
//!   [`crate::mke2fs`].
//! - `e2fsck`, `fsck.ext4`: [`crate::fsck`].
//! - `debugfs`: [`crate::debugfs`].
//! - `dumpe2fs`: [`crate::dumpe2fs`].
//! - `tune2fs`: as `extant tune`, for the options that it has. `e2label IMAGE [LABEL]`: prints or
//!   sets the label.
//! - `e2image -r`, `e2image -Q`: as `extant debug IMAGE metadata`; [`crate::e2image`].
//! - `resize2fs`: as `extant resize`, with a size in blocks where it has no unit.
//! - `fuse2fs`, `fuse4fs`: `[-fds] [-o OPTIONS] IMAGE DIR`, as `extant mount`, with `offset=BYTES`
//!   and other options of theirs.

use crate::arguments::{Argument, arguments};
use crate::context::{Context, complain};
use crate::failure::{At, Failure, Result};
use crate::mounting::options::Options;
use crate::mounting::{Patience, Plan, Remounted, anew, place, remount, served_options, spawn};
use crate::owner_names::OwnerNames;
use crate::remote;
use crate::table::{self, HeldMount};
use extant_engine::device::{image_spec, is_write_protected};
use extant_fuse::View;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use std::ffi::{OsStr, OsString};
use std::fs::DirBuilder;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Exit code of a mount that failed.
const NOT_MOUNTED: u8 = 32;

/// Exit code of wrong usage.
const USAGE: u8 = 1;

/// A helper by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Helper {
    /// Mounts; the type shows as `fuse.` (`fuseblk.` of a block device) and this.
    Mount(String),
    /// Unmounts; the type that it was called for.
    Unmount(String),
    /// Makes file systems, of this type unless told otherwise.
    Mkfs(&'static str),
    /// Checks and repairs.
    Fsck,
    /// Shows structures of an image.
    Debugfs,
    /// Shows the superblock.
    Dumpe2fs,
    /// Changes values of the superblock.
    Tune,
    /// Makes file systems larger.
    Resize,
    /// Prints or sets the label.
    Label,
    /// Makes images of metadata.
    Metadata,
    /// Mounts, with the options of another server.
    Fuse2fs,
}

/// Returns the helper that a call is for: by the program's own name, or by the form in which
/// mount.fuse(8) calls the program for the source `extant#IMAGE`.
pub fn called(args: &[OsString]) -> Option<Helper> {
    named(args.first()).or_else(|| is_from_mount_fuse(args).then(|| Helper::Mount("extant".into())))
}

/// Returns whether a call is `extant IMAGE DIR [-o OPTIONS]`. No command has a slash in its name.
fn is_from_mount_fuse(args: &[OsString]) -> bool {
    let [_, image, dir, rest @ ..] = args else { return false };
    let flag = |pair: &[OsString]| pair.len() == 2 && pair[0] == "-o";
    image.as_bytes().contains(&b'/')
        && !image.as_bytes().starts_with(b"-")
        && Path::new(dir).is_dir()
        && rest.chunks(2).all(flag)
}

fn named(program: Option<&OsString>) -> Option<Helper> {
    let name = Path::new(program?).file_name()?.to_str()?;
    match name {
        "mke2fs" => return Some(Helper::Mkfs("ext2")),
        "e2fsck" => return Some(Helper::Fsck),
        "debugfs" => return Some(Helper::Debugfs),
        "dumpe2fs" => return Some(Helper::Dumpe2fs),
        "tune2fs" => return Some(Helper::Tune),
        "resize2fs" => return Some(Helper::Resize),
        "e2label" => return Some(Helper::Label),
        "e2image" => return Some(Helper::Metadata),
        "fuse2fs" | "fuse4fs" => return Some(Helper::Fuse2fs),
        _ => {}
    }
    let (what, of) = name.split_once('.')?;
    match what {
        "mount" => Some(Helper::Mount(subtype(of).into())),
        "umount" => Some(Helper::Unmount(subtype(of).into())),
        "mkfs" => Some(Helper::Mkfs(match of {
            "ext2" => "ext2",
            "ext3" => "ext3",
            _ => "ext4",
        })),
        "fsck" => Some(Helper::Fsck),
        _ => None,
    }
}

fn subtype(name: &str) -> &str {
    ["fuse.", "fuseblk."].iter().find_map(|class| name.strip_prefix(class)).unwrap_or(name)
}

impl Helper {
    /// Runs the helper of this name.
    pub fn run(self, args: Vec<OsString>) -> ExitCode {
        match self {
            Helper::Mount(subtype) => exit(Call::parse(&args).map(|call| mount(&call, subtype))),
            Helper::Unmount(subtype) => {
                exit(Call::parse(&args).map(|call| unmount(&call, &subtype)))
            }
            Helper::Mkfs(kind) => run_or_refuse(crate::mke2fs::command(&args, kind)),
            Helper::Fsck => crate::fsck::run(&args),
            Helper::Debugfs => crate::debugfs::run(&args),
            Helper::Dumpe2fs => crate::dumpe2fs::run(&args),
            Helper::Tune => run_or_refuse(crate::tune2fs::tune(&args, &OwnerNames::read())),
            Helper::Resize => run_or_refuse(crate::tune2fs::resize(&args)),
            Helper::Label => run_label(&args),
            Helper::Metadata => run_or_refuse(crate::e2image::command(&args)),
            Helper::Fuse2fs => run_or_refuse(fuse2fs(&args)),
        }
    }
}

/// Runs the command of `extant` for a call of another program.
fn run_or_refuse(command: Result<Vec<OsString>, String>) -> ExitCode {
    command.map_or_else(|usage| exit(Err(usage)), crate::cli::run)
}

/// Runs `e2label IMAGE [LABEL]`.
fn run_label(args: &[OsString]) -> ExitCode {
    let (image, option) = match args {
        [_, image] => (image, "--only-label".into()),
        [_, image, label] => {
            let mut option = OsString::from("--label=");
            option.push(label);
            (image, option)
        }
        _ => return exit(Err("e2label takes an image, and a label to set".into())),
    };
    let own = ["extant", "--quiet", "tune"].map(OsString::from);
    crate::cli::run(own.into_iter().chain([option, "--".into(), image.clone()]).collect())
}

/// Options of fuse2fs that have no meaning here.
const FUSE2FS_WITHOUT_EFFECT: [&str; 4] =
    ["fuse2fs_debug", "no_default_opts", "lockfile", "cache_size"];

/// Returns the call of `extant mount` for a call of fuse2fs.
fn fuse2fs(args: &[OsString]) -> Result<Vec<OsString>, String> {
    let call = Call::parse(args)?;
    let [image, dir] = call.places.as_slice() else {
        return Err("fuse2fs takes an image and a directory".into());
    };
    let mut image = image.clone().into_os_string();
    // The defaults of fuse2fs.
    let asks_as_kernel =
        call.options.iter().flat_map(|list| list.split(',')).any(|word| word == "kernel");
    let mut words = if asks_as_kernel {
        vec!["suid", "dev", "allow_other"]
    } else {
        vec!["nosuid", "nodev", "no_allow_other"]
    };
    for word in call.options.iter().flat_map(|list| list.split(',')) {
        match word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value))) {
            ("offset", Some(offset)) => {
                image.push("@");
                image.push(offset);
            }
            ("kernel", None) => {}
            ("directio", None) => words.push("io=direct"),
            (name, _) if FUSE2FS_WITHOUT_EFFECT.contains(&name) => {}
            _ => words.push(word),
        }
    }
    let mut command: Vec<OsString> = ["extant", "mount"].map(OsString::from).into();
    command.extend(call.foreground.then(|| "--foreground".into()));
    command.extend(["-o".into(), words.join(",").into(), "--".into(), image, dir.into()]);
    Ok(command)
}

fn exit(done: Result<Result, String>) -> ExitCode {
    match done {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(failure)) => {
            complain(failure.message().unwrap_or("failed"));
            ExitCode::from(NOT_MOUNTED)
        }
        Err(usage) => {
            complain(usage);
            ExitCode::from(USAGE)
        }
    }
}

/// The arguments of a helper.
#[derive(Debug, Default, PartialEq, Eq)]
struct Call {
    places: Vec<PathBuf>,
    options: Vec<String>,
    /// Flags to pass on to umount(8).
    flags: Vec<OsString>,
    fake: bool,
    /// The meaning of `-f` and `-d` for servers.
    foreground: bool,
    lazy: bool,
    verbose: bool,
}

impl Call {
    fn parse(args: &[OsString]) -> Result<Call, String> {
        let mut call = Call::default();
        for argument in arguments(args, b"otN")? {
            match argument {
                Argument::Place(place) => call.places.push(place),
                Argument::Letter(b'o', Some(list)) => {
                    call.options.push(list.to_string_lossy().into_owned());
                }
                Argument::Letter(_, Some(_)) => {}
                Argument::Letter(letter, None) => call.letter(letter)?,
            }
        }
        Ok(call)
    }

    fn letter(&mut self, letter: u8) -> Result<(), String> {
        match letter {
            b'f' => (self.fake, self.foreground) = (true, true),
            b'd' => self.foreground = true,
            b'l' => self.lazy = true,
            b'v' => self.verbose = true,
            b'n' | b'r' | b's' => {}
            other => return Err(format!("unknown option -{}", other as char)),
        }
        if b"flnrv".contains(&letter) {
            self.flags.push(OsStr::from_bytes(&[b'-', letter]).into());
        }
        Ok(())
    }
}

fn mount(call: &Call, subtype: String) -> Result {
    let [image, dir] = call.places.as_slice() else {
        return Err(Failure::new("a mount helper takes a source and a directory"));
    };
    let options = Options::parse(call.options.iter().map(String::as_str)).map_err(Failure::new)?;
    let options = options.for_image(image).with_absolute_paths()?;
    let image = remote::absolute(image)?;
    let (dir, replaces) = place(dir, &image, &options, &subtype)?;
    let mut plan = Plan {
        lacks_files: false,
        image,
        dir,
        options,
        lists: call.options.clone(),
        subtype,
        log: None,
        traces: Vec::new(),
        syslog: crate::log::SYSLOG.into(),
        patience: Patience::Helper,
        verbose: 0,
        replaces,
        succeeds: false,
        adopts: None,
        kept: false,
        image_file: None,
        owner: None,
    };
    plan.check()?;
    if call.fake {
        return Ok(());
    }
    if plan.options.remount {
        return match remount(&mut plan)? {
            Remounted::Done => Ok(()),
            Remounted::OpenedForReading => anew::mount(&plan, &Context::helper(call.verbose)),
        };
    }
    if let Some(there) = shown_already(&plan) {
        let theirs = served_options(&there).and_then(|list| Options::parse([&*list]).ok());
        let view = theirs.map_or(View::default(), |options| options.view);
        if plan.options.view != view || plan.options.superblock.is_some() {
            let (image, dir) = (plan.image.display(), there.mount().dir.display());
            return Err(Failure::new(format_args!(
                "{image} is mounted at {dir}, with other owners and modes, which a second place \
                 would show, too; unmount it there first"
            )));
        }
        return show_again(&there, &plan).at_path(plan.dir.as_os_str().as_bytes());
    }
    spawn::start(&plan, &call.options, &Context::helper(call.verbose))?;
    if !asks_read_only(&call.options) && is_write_protected(&image_spec(&plan.image).path) {
        // As mount(8) does for file systems of the kernel.
        complain(format_args!(
            "mount: {}: WARNING: source write-protected, mounted read-only",
            plan.dir.display()
        ));
    }
    Ok(())
}

/// Returns whether the last of the options `ro` and `rw` is `ro`.
fn asks_read_only(lists: &[String]) -> bool {
    let mut words = lists.iter().flat_map(|list| list.split(',')).rev();
    words.find(|word| matches!(*word, "ro" | "rw")) == Some("ro")
}

/// Returns a mount of the whole image with a live server. [`table`] argues why its source can be
/// trusted.
fn shown_already(plan: &Plan) -> Option<HeldMount> {
    let there = table::served(&plan.image, &plan.subtype).into_iter().filter(|mount| mount.whole);
    let mut held = there
        .filter_map(|there| HeldMount::of(&there.dir).ok().filter(|held| *held.mount() == there));
    held.find(HeldMount::answers)
}

/// Shows a mounted file system at a second place, as the kernel does for a device that is mounted
/// twice.
///
/// A later mount below one of the two places must not show at the other. The first place may be a
/// shared mount, so the second one is a copy of an intermediate private copy. The intermediate copy
/// gets its flags, and the protection of the first place, before it shows at the second place.
fn show_again(there: &HeldMount, plan: &Plan) -> io::Result<()> {
    let between = make_private_dir(&std::env::temp_dir())?;
    let flags = plan.options.mount_flags() | there.mount().protection;
    let shown = rustix::mount::mount_bind(there.path(), &between).and_then(|()| {
        let shown = rustix::mount::mount_change(&between, MountPropagationFlags::PRIVATE)
            .and_then(|()| rustix::mount::mount_remount(&between, MountFlags::BIND | flags, ""))
            .and_then(|()| rustix::mount::mount_bind(&between, &plan.dir));
        shown.and(rustix::mount::unmount(&between, UnmountFlags::DETACH))
    });
    std::fs::remove_dir(&between)?;
    Ok(shown?)
}

/// Makes a directory that only this user may enter, with a name that cannot be guessed.
fn make_private_dir(parent: &Path) -> io::Result<PathBuf> {
    loop {
        // The keys of a hasher are secret.
        let name = RandomState::new().hash_one(std::process::id());
        let dir = parent.join(format!("extant-mount-{name:016x}"));
        match DirBuilder::new().mode(0o700).create(&dir) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| dir),
        }
    }
}

fn unmount(call: &Call, subtype: &str) -> Result {
    let [place] = call.places.as_slice() else {
        return Err(Failure::new("an unmount helper takes a directory"));
    };
    let source = mount_at(place, subtype).map(|mount| mount.source);
    let status =
        Command::new("umount").arg("-i").args(&call.flags).arg(place).status().at("umount")?;
    if !status.success() {
        return Err(Failure::new(format_args!("{}: umount failed", place.display())));
    }
    match source {
        Some(source) if !call.lazy => anew::await_server(&source, subtype),
        _ => Ok(()),
    }
}

/// Returns the newest mount at a place, if this user made it by this program; else the newest such
/// mount of an image.
fn mount_at(place: &Path, subtype: &str) -> Option<table::Mount> {
    let dir = place.canonicalize().unwrap_or_else(|_| place.into());
    let is_ours = |mount: &table::Mount| mount.is_ours(subtype);
    let mut newest = table::mounts().into_iter().rev();
    newest.find(|mount| mount.dir == dir || mount.source == place && is_ours(mount)).filter(is_ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_helpers() {
        let of = |name: &str| named(Some(&OsString::from(name)));
        assert_eq!(of("/sbin/mount.fuse.extant"), Some(Helper::Mount("extant".into())));
        assert_eq!(of("mount.ext4"), Some(Helper::Mount("ext4".into())));
        assert_eq!(of("/sbin/umount.fuse.ext4"), Some(Helper::Unmount("ext4".into())));
        assert_eq!(of("/sbin/umount.fuse"), Some(Helper::Unmount("fuse".into())));
        assert_eq!(of("/sbin/umount.fuseblk.ext4"), Some(Helper::Unmount("ext4".into())));
        assert_eq!(of("mkfs.extant"), Some(Helper::Mkfs("ext4")));
        assert_eq!(of("/sbin/mkfs.ext3"), Some(Helper::Mkfs("ext3")));
        assert_eq!(of("mke2fs"), Some(Helper::Mkfs("ext2")));
        assert_eq!(of("/sbin/fsck.ext4"), Some(Helper::Fsck));
        assert_eq!(of("/sbin/tune2fs"), Some(Helper::Tune));
        assert_eq!(of("/sbin/debugfs"), Some(Helper::Debugfs));
        assert_eq!(of("resize2fs"), Some(Helper::Resize));
        assert_eq!(of("e2label"), Some(Helper::Label));
        assert_eq!(of("e2image"), Some(Helper::Metadata));
        assert_eq!(of("/usr/bin/extant"), None);
        assert_eq!(of("extant.old"), None);
    }

    #[test]
    fn calls_of_mount_fuse_are_mounts() {
        let is_mount = |args: &[&str]| {
            let args: Vec<OsString> = args.iter().map(OsString::from).collect();
            called(&args) == Some(Helper::Mount("extant".into()))
        };
        assert!(is_mount(&["extant", "/img", "/", "-o", "rw,dev"]));
        assert!(is_mount(&["extant", "./img", "/"]));
        for other in [
            &["extant", "ls", "/"][..],
            &["extant", "/img", "/nowhere"],
            &["extant", "/img", "/", "--json"],
            &["extant", "/img"],
            &["extant", "--log=/x", "/"],
        ] {
            assert!(!is_mount(other), "{other:?}");
        }
    }

    #[test]
    fn calls_of_fuse2fs_are_mounts() {
        let of = |args: &[&str]| {
            fuse2fs(&args.iter().map(OsString::from).collect::<Vec<_>>())
                .map(|command| command.join(OsStr::new(" ")).into_string().unwrap())
        };
        assert_eq!(named(Some(&"/usr/bin/fuse2fs".into())), Some(Helper::Fuse2fs));
        assert_eq!(
            of(&["fuse2fs", "-f", "-o", "offset=4096,ro,uid=7", "a.img", "/mnt"]).unwrap(),
            "extant mount --foreground -o nosuid,nodev,no_allow_other,ro,uid=7 -- a.img@4096 /mnt"
        );
        assert_eq!(
            of(&["fuse4fs", "a", "/mnt", "-s", "-okernel,directio,cache_size=32m"]).unwrap(),
            "extant mount -o suid,dev,allow_other,io=direct -- a /mnt"
        );
        assert!(of(&["fuse2fs", "a.img"]).is_err());
    }

    #[test]
    fn calls_of_mount_are_understood() {
        let args: Vec<OsString> = [
            "mount.extant",
            "/dev/sda",
            "/mnt",
            "-nv",
            "-o",
            "rw,noatime",
            "-t",
            "fuse.extant",
            "-oro",
        ]
        .map(OsString::from)
        .into();
        let call = Call::parse(&args).unwrap();
        assert_eq!(call.places, ["/dev/sda", "/mnt"].map(PathBuf::from));
        assert_eq!(call.options, ["rw,noatime", "ro"]);
        assert!(call.verbose && !call.fake);
        assert!(Call::parse(&["mount.extant", "-Z"].map(OsString::from)).is_err());
        assert!(Call::parse(&["mount.extant", "-o"].map(OsString::from)).is_err());
    }
}
