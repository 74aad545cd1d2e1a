//! The ioctls that the kernel passes to a FUSE server: flags of chattr(1), trimming, labels,
//! growth, shutdown.

use super::Server;
use super::credentials::{Capability, is_capable};
use crate::control::{ControlRefusal, IdentityRequest};
use crate::handler::Credentials;
use crate::types::NodeId;
use crate::{control, stats};
use extant_engine::{Errno, Error, Node, Operations};
use std::sync::atomic::Ordering;

/// FS_IOC_GETFLAGS.
const GET_FLAGS: u32 = 0x8008_6601;
/// FS_IOC_SETFLAGS.
const SET_FLAGS: u32 = 0x4008_6602;
/// FS_IOC_FSGETXATTR.
const GET_XATTR: u32 = 0x801c_581f;
/// FS_IOC_FSSETXATTR.
const SET_XATTR: u32 = 0x401c_5820;
/// FS_IOC_GETVERSION.
const GET_VERSION: u32 = 0x8008_7601;

/// FS_IOC_MEASURE_VERITY: the algorithm and the size of the buffer for the measure, 16 bits each,
/// followed by the measure.
const MEASURE_VERITY: u32 = 0xc004_6686;

/// FITRIM.
const TRIM: u32 = 0xc018_5879;

/// FS_IOC_SHUTDOWN. The mode of the shutdown does not arrive: by the ioctl's number the kernel
/// writes to the caller only, so it does not pass the argument.
const SHUTDOWN: u32 = 0x8004_587d;

/// FS_IOC_GETFSLABEL and FS_IOC_SETFSLABEL.
const GET_LABEL: u32 = 0x8100_9431;
const SET_LABEL: u32 = 0x4100_9432;

/// EXT4_IOC_RESIZE_FS, a number of blocks.
const RESIZE: u32 = 0x4008_6610;

/// Length of a label in these ioctls, in bytes.
const LABEL_BYTES: usize = 256;

/// Inode flag: the journal logs content.
const LOGGED_CONTENT: u32 = 0x4000;

/// Inode flag: the inode is immutable.
pub const IMMUTABLE: u32 = 0x10;

/// Inode flag: the file is append-only.
pub const APPEND_ONLY: u32 = 0x20;

/// Bytes of `struct fsxattr`.
const FSXATTR_BYTES: usize = 28;

/// Offset of the project id in `struct fsxattr`.
const PROJECT_AT: usize = 12;

/// Flags of `struct fsxattr` and the inode flags that they stand for.
const XFLAGS: [(u32, u32); 7] = [
    (0x0000_0008, IMMUTABLE),
    (0x0000_0010, APPEND_ONLY),
    (0x0000_0020, 0x08),        // sync
    (0x0000_0040, 0x80),        // noatime
    (0x0000_0080, 0x40),        // nodump
    (0x0000_0200, 0x2000_0000), // project inherit
    (0x0000_8000, 0x0200_0000), // mapped from the device
];

impl Server {
    /// Answers an ioctl: those of [`control`] on the root directory, or one of the numbers above on
    /// any inode. *Ioctls* in `docs/design/fuse.md` tells how to add one.
    pub(super) fn dispatch_ioctl(
        &self,
        credentials: Credentials,
        ino: NodeId,
        cmd: u32,
        input: &[u8],
    ) -> Result<Vec<u8>, Error> {
        match cmd {
            control::STATS => self.stats_page(credentials, ino, input),
            control::SET => self.set_tunable(credentials, ino, input),
            control::GROW => self.grow(credentials, ino, input),
            control::IDENTIFY => self.identify(credentials, ino, input),
            RESIZE => self.grow_to_blocks(credentials, input),
            // Opens that the server does not see cannot be refused.
            _ if self.misses_opens() && forbids_writes(cmd, input) => Err(Errno::OpNotSupp.into()),
            _ => {
                let node = self.node(ino)?;
                let out = answer(&self.ops, credentials, &node, cmd, input);
                // A call that failed may have changed a part.
                if changes_flags(cmd) {
                    self.flags_changed(ino, &node);
                }
                out
            }
        }
    }

    /// Returns a page of the counters. Root directory only, for administrators and the mounter.
    fn stats_page(
        &self,
        credentials: Credentials,
        ino: NodeId,
        input: &[u8],
    ) -> Result<Vec<u8>, Error> {
        self.may_control(credentials, ino)?;
        self.stats
            .page(input, || stats::document(&self.ops, &self.options, &self.about))
            .ok_or(Errno::Inval.into())
    }

    /// Sets a tunable. Root directory only, for administrators and the mounter.
    fn set_tunable(
        &self,
        credentials: Credentials,
        ino: NodeId,
        input: &[u8],
    ) -> Result<Vec<u8>, Error> {
        self.may_control(credentials, ino)?;
        let (name, value) = control::setting(input).ok_or(Errno::Inval)?;
        let holds = match name {
            // An image that was opened for reading only cannot become writable.
            control::READ_ONLY if self.read_only && value == 0 => return Err(Errno::RoFs.into()),
            control::READ_ONLY => {
                // Relaxed: a switch that guards nothing.
                self.remounted_read_only.store(value == 1, Ordering::Relaxed);
                if value == 1 {
                    self.ops.sync()?;
                }
                value
            }
            control::UPGRADE => self.begin_upgrade(credentials.pid)?,
            _ => self.ops.set_tunable(name, value)?,
        };
        Ok(control::encode_setting(name, holds).ok_or(Errno::Inval)?.to_vec())
    }

    /// Changes label and UUID. Root directory only, for administrators and the mounter.
    fn identify(
        &self,
        credentials: Credentials,
        ino: NodeId,
        input: &[u8],
    ) -> Result<Vec<u8>, Error> {
        self.may_control(credentials, ino)?;
        let request = IdentityRequest::decode(input).ok_or(Errno::Inval)?;
        let refusal = self.named(request).err().map(|error| ControlRefusal::from(&error));
        Ok(control::encode_reply(refusal.as_ref()).to_vec())
    }

    fn named(&self, request: IdentityRequest) -> Result<(), Error> {
        // Relaxed: a switch that guards nothing.
        if self.remounted_read_only.load(Ordering::Relaxed) {
            return Err(Errno::RoFs.into());
        }
        // The UUID first, as it may be refused.
        if let Some(uuid) = request.uuid {
            self.ops.set_uuid(uuid)?;
        }
        request.label.map_or(Ok(()), |label| self.ops.set_label(text(&label)))
    }

    /// Returns whether a request comes from the user that mounted the file system. Root needs a
    /// capability instead.
    pub(super) fn is_mounter(&self, credentials: Credentials) -> bool {
        self.owner != 0 && credentials.uid == self.owner
    }

    pub(super) fn may_control(&self, credentials: Credentials, ino: NodeId) -> Result<(), Error> {
        if ino != NodeId::ROOT {
            return Err(Errno::NotTy.into());
        }
        if !self.is_mounter(credentials) && !is_capable(credentials, Capability::SysAdmin) {
            return Err(Errno::Acces.into());
        }
        Ok(())
    }
}

/// Answers an ioctl that ext4 has as well; `ENOTTY` if it is unknown. The arms here are for every
/// caller: the kernel has checked permissions, or none are needed. All others are
/// [`administer`]'s.
fn answer(
    fs: &Operations,
    credentials: Credentials,
    node: &Node,
    cmd: u32,
    input: &[u8],
) -> Result<Vec<u8>, Error> {
    match cmd {
        GET_FLAGS => Ok(node.attr().flags.to_le_bytes().to_vec()),
        SET_FLAGS => {
            let flags = word(input, 0)?;
            set_flags(fs, credentials, node, |_| flags)
        }
        GET_VERSION => Ok(node.generation().to_le_bytes().to_vec()),
        MEASURE_VERITY => measure(fs, node, input),
        GET_XATTR => {
            let mut out = vec![0; FSXATTR_BYTES];
            out[..4].copy_from_slice(&to_xflags(node.attr().flags).to_le_bytes());
            out[PROJECT_AT..PROJECT_AT + 4].copy_from_slice(&fs.project(node)?.to_le_bytes());
            Ok(out)
        }
        SET_XATTR => {
            let (own, all) = from_xflags(word(input, 0)?);
            let (project, before) = (word(input, PROJECT_AT)?, fs.project(node)?);
            fs.set_project(node, project)?;
            set_flags(fs, credentials, node, |old| old & !all | own).or_else(|e| {
                fs.set_project(node, before)?;
                Err(e)
            })
        }
        GET_LABEL => Ok(padded(fs.label().as_bytes())),
        _ => administer(fs, credentials, cmd, input),
    }
}

/// Answers an ioctl for administrators; `ENOTTY` if it is unknown. The engine checks no caller, so
/// the arms only name the operation: it runs after the check.
fn administer(
    fs: &Operations,
    credentials: Credentials,
    cmd: u32,
    input: &[u8],
) -> Result<Vec<u8>, Error> {
    let operation: fn(&Operations, &[u8]) -> Result<Vec<u8>, Error> = match cmd {
        TRIM => trim,
        SHUTDOWN => |fs, _| fs.shut_down().map(|()| Vec::new()),
        SET_LABEL => |fs, input| fs.set_label(text(input)).map(|()| Vec::new()),
        _ => return Err(Errno::NotTy.into()),
    };
    if !is_capable(credentials, Capability::SysAdmin) {
        return Err(Errno::Perm.into());
    }
    operation(fs, input)
}

/// Sets flags. The kernel has checked permissions, except for the flag that it does not know:
/// journaled content.
fn set_flags(
    fs: &Operations,
    credentials: Credentials,
    node: &Node,
    new: impl FnOnce(u32) -> u32,
) -> Result<Vec<u8>, Error> {
    fs.change_flags(node, |old| {
        let flags = new(old);
        if (old ^ flags) & LOGGED_CONTENT != 0 && !is_capable(credentials, Capability::SysResource)
        {
            Err(Errno::Perm.into())
        } else {
            Ok(flags)
        }
    })?;
    Ok(Vec::new())
}

/// Returns whether an ioctl changes flags.
fn changes_flags(cmd: u32) -> bool {
    matches!(cmd, SET_FLAGS | SET_XATTR)
}

/// Returns whether an ioctl may forbid writes.
pub fn forbids_writes(cmd: u32, input: &[u8]) -> bool {
    let flags = match cmd {
        SET_FLAGS => word(input, 0).unwrap_or(0),
        SET_XATTR => word(input, 0).map_or(0, |xflags| from_xflags(xflags).0),
        _ => 0,
    };
    flags & (IMMUTABLE | APPEND_ONLY) != 0
}

/// Trims the range of a `struct fstrim_range`: start, length, shortest run, all in bytes. Returns
/// the structure with the number of trimmed bytes as its length.
fn trim(fs: &Operations, input: &[u8]) -> Result<Vec<u8>, Error> {
    let (start, len, min) = (long(input, 0)?, long(input, 8)?, long(input, 16)?);
    let trimmed = fs.trim_bytes(start, len, min)?;
    let mut out = input.to_vec();
    out[8..16].copy_from_slice(&trimmed.to_le_bytes());
    Ok(out)
}

fn measure(fs: &Operations, node: &Node, input: &[u8]) -> Result<Vec<u8>, Error> {
    let room = word(input, 0)? >> 16;
    let (algorithm, measure) = fs.measure_verity(node)?;
    if measure.len() > room as usize {
        return Err(Errno::Overflow.into());
    }
    let head = u32::from(algorithm) | (measure.len() as u32) << 16;
    Ok([&head.to_le_bytes(), measure.as_slice()].concat())
}

fn padded(label: &[u8]) -> Vec<u8> {
    let mut out = label.to_vec();
    out.resize(LABEL_BYTES, 0);
    out
}

/// Returns the bytes before the first zero.
fn text(input: &[u8]) -> &[u8] {
    input.split(|b| *b == 0).next().unwrap_or_default()
}

pub(super) fn long(input: &[u8], at: usize) -> Result<u64, Error> {
    let bytes = input.get(at..at + 8).and_then(|b| b.try_into().ok()).ok_or(Errno::Inval)?;
    Ok(u64::from_le_bytes(bytes))
}

fn word(input: &[u8], at: usize) -> Result<u32, Error> {
    let bytes = input.get(at..at + 4).and_then(|b| b.try_into().ok()).ok_or(Errno::Inval)?;
    Ok(u32::from_le_bytes(bytes))
}

fn to_xflags(flags: u32) -> u32 {
    XFLAGS.iter().filter(|(_, own)| flags & own != 0).fold(0, |all, (x, _)| all | x)
}

/// Returns the inode flags of `xflags`, and the mask of all flags that `xflags` can express.
fn from_xflags(xflags: u32) -> (u32, u32) {
    XFLAGS.iter().fold((0, 0), |(own, all), (x, flag)| {
        (own | if xflags & x != 0 { *flag } else { 0 }, all | flag)
    })
}
