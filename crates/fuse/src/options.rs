//! Options of a mount, for the modules that mount and those that serve.

use crate::transport::ring;
use extant_engine::AccessTimes;
use std::ffi::OsString;
use std::str::FromStr;
use std::time::Duration;

/// The way of requests from the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Reading `/dev/fuse`: available everywhere.
    Device,
    /// io_uring: fewer system calls and switches of threads. Needs Linux 6.14 and must be enabled
    /// by an administrator. If it is unavailable, `/dev/fuse` serves, and
    /// [`Mounted::instead`](crate::Mounted::instead) returns the reason.
    IoUring,
    /// io_uring where it is available, else `/dev/fuse`.
    #[default]
    Auto,
}

impl Transport {
    /// Returns the reason why the transport is unavailable here; `None` if it is available.
    pub fn missing(self) -> Option<String> {
        match self {
            Transport::IoUring => ring::missing(),
            Transport::Device | Transport::Auto => None,
        }
    }
}

impl FromStr for Transport {
    type Err = ();

    fn from_str(name: &str) -> Result<Transport, ()> {
        match name {
            "dev" => Ok(Transport::Device),
            "uring" => Ok(Transport::IoUring),
            "auto" => Ok(Transport::Auto),
            _ => Err(()),
        }
    }
}

/// Owners and modes that a mount shows in place of those of the image, which stay as they are.
/// POSIX ACLs are off if this is not the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// Owner of every file.
    pub uid: Option<u32>,
    /// Group of every file.
    pub gid: Option<u32>,
    /// Permissions that no file shows.
    pub umask: u16,
    /// All users of the mount act as root: no permission is checked, and new files belong
    /// to root in the image.
    pub as_root: bool,
}

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Source in the table of mounts.
    pub source: OsString,
    /// Users other than the mounter may use the mount.
    pub allow_other: bool,
    /// Options passed to the kernel: `nosuid`, `nodev`, `noexec`, `noatime`, …
    pub kernel: Vec<String>,
    /// Number of threads that receive requests; 0 means two per CPU.
    pub threads: usize,
    /// Time for which the kernel may cache names and attributes. It is long by default, since only
    /// the server changes the image.
    pub time_to_live: Duration,
    /// The kernel caches writes.
    pub writeback_cache: bool,
    /// The kernel opens files without a request, if it can
    /// ([`missing_for_fast_opens`](crate::missing_for_fast_opens)); `None`: if the file system is
    /// open for reading only. For writing, the mount fails if an inode is immutable, append-only,
    /// verified or encrypted; `docs/cli.md` has the differences from other mounts.
    pub fast_opens: Option<bool>,
    /// The kernel enforces POSIX ACLs.
    pub acl: bool,
    /// Further mounts of the file system may map ids (idmapped mounts, Linux 6.12). Requests other
    /// than creations then carry no ids, and the server reads those that it needs from `/proc`:
    /// direct writes cost more.
    pub id_maps: bool,
    /// Policy for access times, which opens for reading and reads of directories and symlinks set;
    /// `None`: they are never set. The kernel reports no reads from its cache.
    pub access_times: Option<AccessTimes>,
    /// Reads of directories set access times, too.
    pub directory_access_times: bool,
    /// Subtype: the type of the mount shows as `fuse.SUBTYPE`.
    pub subtype: String,
    /// Transport of requests.
    pub transport: Transport,
    /// Owners and modes as users see them.
    pub view: View,
    /// The user that made the mount, and may ask for its counters as root may; `None`: the user of
    /// this process.
    pub owner: Option<u32>,
    /// Options as the user gave them, for display with the counters.
    pub shown_options: String,
    /// Parts of the sandbox of the process with their states, for display with the counters.
    pub containment: Vec<(&'static str, String)>,
}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            source: "extant".into(),
            allow_other: rustix::process::geteuid().is_root(),
            kernel: Vec::new(),
            threads: 0,
            time_to_live: Duration::from_secs(86_400),
            writeback_cache: true,
            fast_opens: None,
            acl: true,
            id_maps: false,
            access_times: None,
            directory_access_times: true,
            subtype: "extant".into(),
            transport: Transport::default(),
            view: View::default(),
            owner: None,
            shown_options: String::new(),
            containment: Vec::new(),
        }
    }
}

impl MountOptions {
    /// Returns the name of the mount option by which the kernel checks permissions, if it does.
    pub(crate) fn permissions(&self) -> Option<&'static str> {
        (!self.view.as_root).then_some("default_permissions")
    }

    pub(crate) fn thread_count(&self) -> usize {
        match self.threads {
            0 => 2 * std::thread::available_parallelism().map_or(2, usize::from),
            n => n,
        }
    }
}
