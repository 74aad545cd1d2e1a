//! Options of a mount, as `-o` has them.

use crate::copy::owner::parse_id;
use crate::format::parse_backing;
use crate::image::{MAX_MEMORY, MEMORY, parse_memory};
use crate::remote;
use extant_engine::AccessTimes;
use extant_engine::device::{BackingSpec, ImageFormat, image_spec, is_in_store};
use extant_engine::format::ErrorPolicy;
use extant_fuse::{Transport, View};
use rustix::mount::MountFlags;
use std::ops::RangeInclusive;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How an image is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Nothing is changed.
    pub read_only: bool,
    /// The journal is not replayed, not even in memory.
    pub no_recovery: bool,
    /// Change an existing mount.
    pub remount: bool,
    /// POSIX ACLs are honoured.
    pub acl: bool,
    /// The kernel may map ids at other places where it is shown.
    pub id_maps: bool,
    /// Other users may use the mount; by default if root mounts.
    pub allow_other: Option<bool>,
    /// File data goes through the journal too.
    pub log_data: bool,
    /// Freed space is discarded.
    pub discard: bool,
    /// Unused parts of inode tables are zeroed in the background.
    pub zero_tables: bool,
    /// How long a change may stay in memory.
    pub commit: Option<Duration>,
    /// Policy after a corruption of the file system's structures, instead of the superblock's.
    pub errors: Option<ErrorPolicy>,
    /// Bound on all caches together, in bytes.
    pub memory: Option<u64>,
    /// The image is accessed past the page cache.
    pub direct_io: bool,
    /// The kernel collects writes; if nothing is said, on all but small file systems.
    pub writeback_cache: Option<bool>,
    /// The kernel opens files without a request, where it can; if nothing is said, those of mounts
    /// for reading.
    pub fast_opens: Option<bool>,
    /// Threads that serve; 0: by the number of CPUs.
    pub threads: usize,
    /// Shards of the structures that threads share; 0: by the number of CPUs.
    pub shards: usize,
    /// The kernel holds a block device for the mount, as it does for its own file systems.
    pub block_device: bool,
    /// How requests come from the kernel.
    pub transport: Transport,
    /// Where the external journal is, for a file system that has one.
    pub journal: Option<PathBuf>,
    /// Format of the image.
    pub format: ImageFormat,
    /// Its backing file, then the one of that, and so on.
    pub backing: Vec<BackingSpec>,
    /// Bound on the memory of free-space trees, in bytes.
    pub tree_memory: Option<u64>,
    /// Work of a request to learn about more free space, 0 to 3.
    pub aggression: Option<u8>,
    /// Block bitmaps are scanned in the background.
    pub prefetch: bool,
    /// Owners and modes as users of the mount see them.
    pub view: View,
    /// Place of the copy of the superblock to take, in KiB.
    pub superblock: Option<u64>,
    /// The serving process gives up the power that it does not need.
    pub sandbox: bool,
    /// A server that is killed is started again.
    pub restart: bool,
    /// Socket of a service whose server serves the mount.
    pub service: Option<PathBuf>,
    /// The image is a disk, whose programs and devices have their power.
    pub is_disk: bool,
    /// Flags that the kernel keeps for the mount.
    pub flags: MountFlags,
    /// Flags that an option sets or clears.
    named: MountFlags,
}

/// Flags that protect the machine from the files of an image.
const PROTECTION: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

impl Default for Options {
    fn default() -> Self {
        Options {
            read_only: false,
            no_recovery: false,
            remount: false,
            acl: true,
            id_maps: false,
            allow_other: None,
            log_data: false,
            discard: false,
            zero_tables: true,
            commit: None,
            errors: None,
            memory: None,
            direct_io: false,
            writeback_cache: None,
            fast_opens: None,
            threads: 0,
            shards: 0,
            block_device: true,
            transport: Transport::default(),
            journal: None,
            format: ImageFormat::Raw,
            backing: Vec::new(),
            tree_memory: None,
            aggression: None,
            prefetch: true,
            view: View::default(),
            superblock: None,
            sandbox: true,
            restart: false,
            service: None,
            is_disk: false,
            flags: MountFlags::empty(),
            named: MountFlags::empty(),
        }
    }
}

/// Flags of the kernel by the options that set and clear them.
const FLAGS: [(&str, &str, MountFlags); 8] = [
    ("nosuid", "suid", MountFlags::NOSUID),
    ("nodev", "dev", MountFlags::NODEV),
    ("noexec", "exec", MountFlags::NOEXEC),
    ("noatime", "atime", MountFlags::NOATIME),
    ("nodiratime", "diratime", MountFlags::NODIRATIME),
    ("relatime", "norelatime", MountFlags::RELATIME),
    ("strictatime", "nostrictatime", MountFlags::STRICTATIME),
    ("sync", "async", MountFlags::SYNCHRONOUS),
];

/// The longest time that a change may stay in memory, in seconds.
const MAX_COMMIT: u64 = 86_400;

/// Values of `errors`.
const POLICIES: &str = "continue, remount-ro or panic";

/// Values of `commit`.
const COMMIT: &str = "0 to 86400 seconds, 0 for the default";

/// Threads at most.
const MAX_THREADS: usize = 1024;

/// Shards at most, as of [`extant_engine::OpenOptions::shards`].
const MAX_SHARDS: usize = 128;

fn within<T: PartialOrd>(number: Option<T>, range: RangeInclusive<T>) -> Option<T> {
    number.filter(|number| range.contains(number))
}

/// Options without effect: they name default behavior, are for programs other than the file system,
/// or tune the kernel's ext4. A value after `=` is as good as none.
const WITHOUT_EFFECT: &str = "\
  defaults, auto, noauto, user, nouser, users, owner, group, _netdev, nofail, silent, loud, nomand,
  lazytime, nolazytime, iversion, noiversion, i_version, user_xattr, default_permissions, barrier,
  nobarrier, bsddf, minixdf, block_validity, noblock_validity, auto_da_alloc,
  noauto_da_alloc, journal_checksum, nojournal_checksum, journal_async_commit, journal_ioprio,
  dioread_lock, dioread_nolock, mblk_io_submit, nomblk_io_submit, nombcache, no_mbcache, nouid32,
  grpid, nogrpid, bsdgroups, sysvgroups, resuid, resgid, quota, noquota, usrquota, grpquota,
  prjquota, usrjquota, grpjquota, jqfmt, oldalloc, orlov, bh, nobh, extents, debug, fast_commit,
  stripe, min_batch_time, max_batch_time, inode_readahead_blks, mb_optimize_scan, max_dir_size_kb,
  data_err, user_id, group_id, max_read, blksize, rootmode, comment";

/// Returns every option, for people.
pub fn help() -> String {
    format!("{OPTIONS}\n{WITHOUT_EFFECT}, x-*")
}

/// Options with an effect.
const OPTIONS: &str = "\
Options of -o:
  ro, rw                        for reading only; for reading and writing
  noload, norecovery            for reading only, without the changes in the journal
  remount                       change the options of a mount that is there
  acl, noacl                    POSIX ACLs are honored (the default), or not
  no_allow_other                the mounter alone may use the mount; the default for other users
  allow_other                   other users may use the mount; the default for root
  fakeroot                      users of the mount act as root: no permission is checked, new files
                                belong to root; for the mounter alone by default
  uid=N, gid=N, umask=OCTAL     owner and group of every file, and permissions that none has, as
                                shown by the mount; the image keeps its own. These and fakeroot turn
                                ACLs off, and nosuid and nodev on
  allow_idmap                   the kernel may show the mount elsewhere with ids mapped
  commit=SECONDS                how long a change may stay in memory, up to 86400; 0: the default, 5
  errors=continue|remount-ro|panic
                                after an error in the file system's own structures; the superblock
                                says it by default, and panic is as remount-ro
  sb=N                          take the superblock from its copy at N KiB (mke2fs -n lists their
                                blocks); for reading only
  data=ordered|writeback|journal
                                whether file data goes through the journal, too; writeback is as
                                ordered
  discard, nodiscard            whether the disk is told of freed space
  init_itable, noinit_itable    whether unused parts of inode tables are zeroed in the background
  io=buffered|direct            access to the image through the page cache, or past it
  memory=SIZE                   bound on all caches together: 64M to 16T
  threads=N                     threads that serve: 1 to 1024
  shards=N                      parts of the structures that threads share: 1 to 128, rounded up to
                                a power of two; by the number of CPUs by default
  transport=dev|uring|auto      how requests come from the kernel
  open=fast|usual               whether the kernel opens files without a request, from Linux 6.18.3
                                on; by default only with ro. Without ro it is not for images with
                                immutable, append-only, verified or encrypted files
  delalloc, writeback_cache     the kernel collects writes; the default but for small file systems
  nodelalloc, no_writeback_cache
                                each write has its space when it returns
  blkdev, noblkdev              whether the kernel holds a disk for the mount; it does by default
  sandbox, no_sandbox           whether the process that serves gives up privileges, files and
                                system calls that it does not need; it does by default
  restart, no_restart           a server that is killed is started again: it recovers the image and
                                mounts it in the same place, as noblkdev. Files that were open then
                                fail with ENOTCONN. Also takes the place of such a mount that is
                                there. It is not, by default
  service=SOCKET                a mount service (`extant help serve`) serves the mount: it gets the
                                image open, and needs no privileges
  journal_path=PATH             the disk or image of an external journal
  format=raw|qcow2              format of the image, which is never guessed
  backing=FILE[:FORMAT]         backing file of an overlay in the format qcow2; again for the one of
                                that
  mb_frsp_max_mem=SIZE          what free-space trees may take
  frsp_cache_aggression=0..3    what a request for space does to know more free space
  prefetch_block_bitmaps, no_prefetch_block_bitmaps, prefetch_block_bitmaps=0|1
                                whether block bitmaps are scanned in the background
  suid, nosuid, dev, nodev      whether set-user-id programs and devices of the image get their
                                power: those of disks do by default, those of image files do not
Options of every mount:
  exec, noexec, atime, noatime, diratime, nodiratime, relatime,
  norelatime, strictatime, nostrictatime, sync, async, dirsync
Accepted without effect, for lists that are written for mount(8) or for the kernel's ext4:";

impl Options {
    /// Parses the options of several lists; later ones override earlier ones. The error names an
    /// unknown option.
    pub fn parse<'a>(lists: impl IntoIterator<Item = &'a str>) -> Result<Options, String> {
        let mut options = Options::default();
        for word in lists
            .into_iter()
            .flat_map(|list| list.split(','))
            .map(str::trim)
            .filter(|word| !word.is_empty())
        {
            options.apply(word)?;
        }
        if options.no_recovery && !options.remount {
            options.read_only = true;
        }
        if options.restart {
            options.check_restart()?;
            // The kernel would hold the disk for the dead mount while one of its files is open.
            options.block_device = false;
        }
        if options.service.is_some() {
            options.check_service()?;
            options.block_device = false;
        }
        // Files of root may belong to users then.
        if options.view != View::default() {
            options.flags |= PROTECTION;
        }
        if options.superblock.is_some() && !options.read_only {
            return Err(
                "mount option sb is for reading only (-o ro): `extant repair` restores the \
                        superblock from a copy"
                    .into(),
            );
        }
        Ok(options)
    }

    /// Refuses a restart of servers whose files may be exchanged until then: that of the image
    /// itself is compared.
    fn check_restart(&self) -> Result<(), String> {
        if self.journal.is_some() || !self.backing.is_empty() {
            return Err("mount option restart is for images without journal_path= and backing= \
                        files"
                .into());
        }
        Ok(())
    }

    /// Refuses options for which a server would open paths: a service gets the image alone, open.
    pub fn check_service(&self) -> Result<(), String> {
        let refused = [
            ("journal_path", self.journal.is_some()),
            ("backing", !self.backing.is_empty()),
            ("format=qcow2", self.format != ImageFormat::Raw),
            ("io=direct", self.direct_io),
            ("sb", self.superblock.is_some()),
            ("no_sandbox", !self.sandbox),
        ];
        match refused.into_iter().find(|(_, is_set)| *is_set) {
            Some((name, _)) => Err(format!("mount option {name} is not for mounts by a service")),
            None => Ok(()),
        }
    }

    /// Protects the machine from the programs and devices of a new mount of an image file, unless
    /// the options name that. Disks are mounted as by the kernel, and images in stores for reading.
    #[must_use]
    pub fn for_image(mut self, image: &Path) -> Options {
        let path = image_spec(image).path;
        self.read_only |= is_in_store(&path);
        self.is_disk = std::fs::metadata(path).is_ok_and(|f| f.file_type().is_block_device());
        if !self.is_disk && !self.remount {
            self.flags |= PROTECTION - self.named;
        }
        self
    }

    /// Names the backing files by absolute paths: a server leaves its directory.
    ///
    /// # Errors
    /// The directory of this process is not known.
    pub fn with_absolute_paths(mut self) -> crate::failure::Result<Options> {
        for backing in &mut self.backing {
            backing.path = remote::absolute(&backing.path)?;
        }
        if let Some(service) = &mut self.service {
            *service = remote::absolute(service)?;
        }
        Ok(self)
    }

    fn apply(&mut self, word: &str) -> Result<(), String> {
        if let Some((name, value)) = word.split_once('=')
            && self.apply_value(word, name, value)?
        {
            return Ok(());
        }
        match word {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "discard" => self.discard = true,
            "init_itable" => self.zero_tables = true,
            "noinit_itable" => self.zero_tables = false,
            "nodiscard" => self.discard = false,
            "norecovery" | "noload" => self.no_recovery = true,
            "remount" => self.remount = true,
            "acl" => self.acl = true,
            "noacl" => self.acl = false,
            "fakeroot" => self.view.as_root = true,
            "allow_idmap" => self.id_maps = true,
            "allow_other" => self.allow_other = Some(true),
            "no_allow_other" => self.allow_other = Some(false),
            "sandbox" => self.sandbox = true,
            "no_sandbox" => self.sandbox = false,
            "restart" => self.restart = true,
            "no_restart" => self.restart = false,
            "dirsync" => self.flags |= MountFlags::DIRSYNC,
            "prefetch_block_bitmaps" => self.prefetch = true,
            "no_prefetch_block_bitmaps" => self.prefetch = false,
            "blkdev" => self.block_device = true,
            "noblkdev" => self.block_device = false,
            "writeback_cache" | "delalloc" => self.writeback_cache = Some(true),
            "no_writeback_cache" | "nodelalloc" => self.writeback_cache = Some(false),
            _ if self.apply_flag(word) => {}
            _ if has_no_effect(word) => {}
            _ => return Err(format!("unknown mount option {word}; `extant help mount` lists all")),
        }
        Ok(())
    }

    fn apply_flag(&mut self, word: &str) -> bool {
        for (set, clear, flag) in FLAGS {
            if [set, clear].contains(&word) {
                self.named |= flag;
            }
            if word == set {
                self.flags |= flag;
                return true;
            }
            if word == clear {
                self.flags -= flag;
                return true;
            }
        }
        false
    }

    /// Applies an option with a value; returns false for an unknown name.
    fn apply_value(&mut self, word: &str, name: &str, value: &str) -> Result<bool, String> {
        let wrong = |allowed: &str| {
            format!("mount option {word}: the value of {name} must be {allowed}, not `{value}`")
        };
        match (name, value) {
            ("data", "ordered" | "writeback") => self.log_data = false,
            ("data", "journal") => self.log_data = true,
            ("io", "buffered") => self.direct_io = false,
            ("io", "direct") => self.direct_io = true,
            ("commit", seconds) => {
                let seconds: u64 =
                    within(seconds.parse().ok(), 0..=MAX_COMMIT).ok_or_else(|| wrong(COMMIT))?;
                // As with the kernel, 0 stands for the default.
                self.commit = (seconds > 0).then(|| Duration::from_secs(seconds));
            }
            ("memory", size) => {
                self.memory = Some(parse_memory(size).ok_or_else(|| wrong(MEMORY))?);
            }
            ("mb_frsp_max_mem", size) => {
                let bytes = within(extant_engine::mkfs::parse_size(size).ok(), 0..=MAX_MEMORY);
                self.tree_memory =
                    Some(bytes.ok_or_else(|| wrong("a size up to 16T, 0 for none"))?);
            }
            ("frsp_cache_aggression", level) => {
                let level = within(level.parse().ok(), 0..=3);
                self.aggression = Some(level.ok_or_else(|| wrong("0 to 3"))?);
            }
            ("prefetch_block_bitmaps", "0" | "1") => self.prefetch = value == "1",
            ("threads", number) => {
                let number = within(number.parse().ok(), 1..=MAX_THREADS);
                self.threads = number.ok_or_else(|| wrong("1 to 1024"))?;
            }
            ("shards", number) => {
                let number = within(number.parse().ok(), 1..=MAX_SHARDS);
                self.shards = number.ok_or_else(|| wrong("1 to 128"))?;
            }
            ("open", "fast" | "usual") => self.fast_opens = Some(value == "fast"),
            ("transport", name) => {
                self.transport = name.parse().map_err(|()| wrong("dev, uring or auto"))?
            }
            ("uid", id) => self.view.uid = Some(parse_id(id).map_err(|_| wrong("a number"))?),
            ("gid", id) => self.view.gid = Some(parse_id(id).map_err(|_| wrong("a number"))?),
            ("umask", mode) => {
                let mode = within(u16::from_str_radix(mode, 8).ok(), 0..=0o777);
                self.view.umask = mode.ok_or_else(|| wrong("octal, 0 to 777"))?;
            }
            ("sb", place) => {
                let place: u64 = place.parse().map_err(|_| wrong("a number of KiB"))?;
                // As with the kernel, 1 is the place of the primary superblock.
                self.superblock = (place != 1).then_some(place);
            }
            ("service", path) if !path.is_empty() => self.service = Some(path.into()),
            ("journal_path", path) if !path.is_empty() => self.journal = Some(path.into()),
            ("format", name) => {
                self.format = ImageFormat::named(name).ok_or_else(|| wrong("raw or qcow2"))?;
            }
            ("backing", file) => {
                self.backing.push(parse_backing(file).map_err(|_| wrong("a file"))?)
            }
            ("errors", name) => self.errors = Some(policy(name).ok_or_else(|| wrong(POLICIES))?),
            ("data", _) => return Err(wrong("ordered, writeback or journal")),
            ("io", _) => return Err(wrong("buffered or direct")),
            ("open", _) => return Err(wrong("fast or usual")),
            ("prefetch_block_bitmaps", _) => return Err(wrong("0 or 1")),
            ("journal_path" | "service", _) => return Err(wrong("a path")),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Flags that fuser(8) is asked for by name when it mounts.
    pub fn by_name(&self) -> Vec<String> {
        let names = [
            ("nosuid", MountFlags::NOSUID),
            ("nodev", MountFlags::NODEV),
            ("noexec", MountFlags::NOEXEC),
            ("noatime", MountFlags::NOATIME),
            ("sync", MountFlags::SYNCHRONOUS),
            ("dirsync", MountFlags::DIRSYNC),
        ];
        names
            .iter()
            .filter(|(_, flag)| self.flags.contains(*flag))
            .map(|(name, _)| (*name).into())
            .collect()
    }

    /// Which reads set access times.
    pub fn access_times(&self) -> Option<AccessTimes> {
        match self.flags {
            flags if flags.contains(MountFlags::STRICTATIME) => Some(AccessTimes::Always),
            flags if flags.contains(MountFlags::NOATIME) => None,
            _ => Some(AccessTimes::Relative),
        }
    }

    /// Flags of the mount itself, with those that have no name at mounting.
    pub fn mount_flags(&self) -> MountFlags {
        let read_only = if self.read_only { MountFlags::RDONLY } else { MountFlags::empty() };
        (self.flags - MountFlags::SYNCHRONOUS - MountFlags::DIRSYNC) | read_only
    }

    /// Returns whether there are flags that have no name at mounting.
    pub fn needs_more_flags(&self) -> bool {
        self.flags.intersects(MountFlags::NODIRATIME | MountFlags::STRICTATIME)
    }
}

fn policy(name: &str) -> Option<ErrorPolicy> {
    match name {
        "continue" => Some(ErrorPolicy::Continue),
        "remount-ro" => Some(ErrorPolicy::RemountReadOnly),
        "panic" => Some(ErrorPolicy::Panic),
        _ => None,
    }
}

/// Returns whether an option decides which reads set access times.
pub fn is_of_access_times(word: &str) -> bool {
    ["noatime", "atime", "relatime", "norelatime", "strictatime", "nostrictatime"].contains(&word)
}

/// Options about files that a server opens, each with a value.
const FILES: [&str; 3] = ["journal_path=", "format=", "backing="];

/// Returns whether an option decides about the sandbox of a server, its restart, its service, or
/// files that it opens.
pub fn gives_power(word: &str) -> bool {
    ["sandbox", "no_sandbox", "restart", "no_restart"].contains(&word)
        || word.starts_with("service=")
        || names_file(word)
}

/// Returns whether an option names a file besides the image, or says how the image is read.
pub fn names_file(word: &str) -> bool {
    FILES.iter().any(|name| word.starts_with(name))
}

/// Options of a list that hold for a mount until a remount changes them, and that the table of
/// mounts shows.
pub fn is_shown_by_table(word: &str) -> bool {
    let by_flag = FLAGS.iter().filter(|(.., flag)| *flag != MountFlags::SYNCHRONOUS);
    by_flag.flat_map(|(set, clear, _)| [*set, *clear]).any(|known| known == word)
        || ["ro", "rw", "noload", "norecovery", "allow_other", "no_allow_other"].contains(&word)
}

/// Returns whether an option has no effect. Among them are remarks for other programs, and options
/// that the table of mounts shows for a FUSE mount: mount(8) passes them at a remount.
fn has_no_effect(word: &str) -> bool {
    let name = word.split_once('=').map_or(word, |(name, _)| name);
    let mut names = WITHOUT_EFFECT.split(',').map(str::trim);
    names.any(|known| known == name) || ["x-", "X-"].iter().any(|start| word.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_xfstests_are_known() {
        let list =
            "rw,acl,user_xattr,noatime,nodiratime,relatime,strictatime,nosuid,nodev,noexec,suid";
        let options =
            Options::parse([list, "ro,noacl,data=journal,commit=30,allow_idmap"]).unwrap();
        assert!(options.read_only && !options.acl && options.log_data && options.id_maps);
        assert_eq!(options.commit, Some(Duration::from_secs(30)));
        assert_eq!(options.by_name(), ["nodev", "noexec", "noatime"]);
        assert!(options.needs_more_flags());
    }

    #[test]
    fn access_times_are_relative_unless_told() {
        let of = |list| Options::parse([list]).unwrap().access_times();
        assert_eq!(of("rw"), Some(AccessTimes::Relative));
        assert_eq!(of("noatime"), None);
        assert_eq!(of("noatime,strictatime"), Some(AccessTimes::Always));
    }

    #[test]
    fn no_recovery_means_reading_only() {
        assert!(Options::parse(["noload,rw"]).unwrap().read_only);
        assert!(Options::parse(["norecovery"]).unwrap().no_recovery);
    }

    #[test]
    fn free_space_trees_have_their_options() {
        let options = Options::parse(["mb_frsp_max_mem=1G,frsp_cache_aggression=3"]).unwrap();
        assert_eq!(
            (options.tree_memory, options.aggression, options.prefetch),
            (Some(1 << 30), Some(3), true)
        );
        assert!(!Options::parse(["no_prefetch_block_bitmaps"]).unwrap().prefetch);
        assert!(!Options::parse(["prefetch_block_bitmaps=0"]).unwrap().prefetch);
        assert!(
            Options::parse(["prefetch_block_bitmaps=0,prefetch_block_bitmaps"]).unwrap().prefetch
        );
    }

    /// Words are taken from the text of the functions that know them.
    #[test]
    fn the_help_has_every_option() {
        let text = include_str!("options.rs");
        let part = |from: &str, to: &str| {
            let begin = text.find(from).expect("the begin of the functions");
            &text[begin..begin + text[begin..].find(to).expect("their end")]
        };
        let known = part("    fn apply(&mut self", "    /// Flags that fuser(8)");
        let tables = part("const FLAGS:", "/// Returns every option");
        let words: Vec<&str> =
            [known, tables].iter().flat_map(|text| text.split('"').skip(1).step_by(2)).collect();
        let is_option = |word: &&str| {
            word.chars().all(|c| c.is_ascii_lowercase() || "_-=1".contains(c)) && word.len() > 1
        };
        let help = help();
        let listed: Vec<&str> =
            help.split(|c: char| !(c.is_ascii_alphanumeric() || "_-".contains(c))).collect();
        let missing: Vec<&str> = words
            .into_iter()
            .filter(is_option)
            .filter(|word| !listed.contains(&word.split('=').next().unwrap_or(word)))
            .collect();
        assert!(missing.is_empty(), "{missing:?}");
        assert!(listed.contains(&"journal_path") && listed.contains(&"nostrictatime"));
    }

    #[test]
    fn options_that_tune_the_kernels_ext4_are_accepted() {
        let list =
            "nobarrier,barrier=0,auto_da_alloc,journal_checksum,stripe=16,resuid=7,grpid,usrquota";
        assert_eq!(Options::parse([list]).unwrap(), Options::default());
        assert!(Options::parse(["stripes=16"]).is_err());
    }

    #[test]
    fn values_out_of_range_are_told_with_the_range() {
        for (bad, range) in [
            ("threads=0", "1 to 1024"),
            ("threads=1025", "1 to 1024"),
            ("shards=0", "1 to 128"),
            ("shards=129", "1 to 128"),
            ("memory=1k", "64M to 16T"),
            ("memory=17T", "64M to 16T"),
            ("memory=99999999999999999999", "64M to 16T"),
            ("commit=86401", "0 to 86400 seconds"),
            ("umask=0888", "octal, 0 to 777"),
            ("umask=1777", "octal, 0 to 777"),
            ("uid=root", "a number"),
            ("sb=first", "a number of KiB"),
            ("commit=99999999999999999999", "0 to 86400 seconds"),
            ("mb_frsp_max_mem=17T", "up to 16T"),
            ("frsp_cache_aggression=4", "0 to 3"),
            ("transport=pigeon", "dev, uring or auto"),
            ("journal_path=", "a path"),
        ] {
            let message = Options::parse([bad]).unwrap_err();
            let (name, value) = bad.split_once('=').unwrap();
            for part in [name, value, range] {
                assert!(message.contains(part), "{part} in {message}");
            }
        }
        let most = Options::parse(["threads=1024,shards=128,memory=16T,commit=86400"]).unwrap();
        assert_eq!((most.threads, most.shards, most.memory), (1024, 128, Some(16 << 40)));
        assert_eq!(Options::parse(["commit=0"]).unwrap().commit, None);
    }

    #[test]
    fn views_take_permissions_of_programs_away() {
        for list in ["uid=7,suid", "umask=0,gid=7,dev"] {
            let flags = Options::parse([list]).unwrap().flags;
            assert!(flags.contains(MountFlags::NOSUID | MountFlags::NODEV), "{list}");
        }
        let options = Options::parse(["suid,dev,fakeroot,uid=1000,gid=7,umask=022"]).unwrap();
        let view = View { uid: Some(1000), gid: Some(7), umask: 0o022, as_root: true };
        assert_eq!(options.view, view);
        assert!(options.flags.contains(MountFlags::NOSUID | MountFlags::NODEV));
        assert!(Options::parse(["sb=131072"]).unwrap_err().contains("repair"));
        assert_eq!(Options::parse(["sb=131072,ro"]).unwrap().superblock, Some(131_072));
        assert_eq!(Options::parse(["sb=1"]).unwrap().superblock, None);
    }

    #[test]
    fn unknown_options_are_named() {
        for bad in [
            "nonsense",
            // It would say nothing: free space is always in trees.
            "freespace_tree",
            "frsp_cache_aggression=4",
            "mb_frsp_max_mem=much",
            "prefetch_block_bitmaps=2",
            "data=what",
            "commit=soon",
            "threads=-1",
            "transport=pigeon",
            "ro,dax=always",
        ] {
            let message = Options::parse([bad]).unwrap_err();
            assert!(message.contains(bad.rsplit(',').next().unwrap()), "{message}");
        }
        assert!(Options::parse(["", ",", "x-systemd.automount,_netdev"]).is_ok());
        assert!(
            Options::parse([
                "rw,noatime,user_id=0,group_id=0,default_permissions,allow_other,ro,remount"
            ])
            .is_ok()
        );
    }
}
