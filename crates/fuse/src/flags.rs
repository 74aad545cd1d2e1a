//! What is asked of every kernel, whatever the transport.

use crate::service::Wants;
use fuser::{FopenFlags, InitFlags};

/// The largest request, in bytes.
pub const MAX_REQUEST: u32 = 1 << 20;

/// Requests that the kernel may have under way without anybody waiting for them.
pub const MAX_BACKGROUND: u16 = 64;

/// Bytes of a name.
pub const LONGEST_NAME: u32 = 255;

/// What saves requests, and what the semantics need.
pub fn wanted(wants: Wants) -> Vec<InitFlags> {
    let mut wanted = vec![
        InitFlags::FUSE_PARALLEL_DIROPS,
        InitFlags::FUSE_ASYNC_DIO,
        InitFlags::FUSE_DO_READDIRPLUS,
        InitFlags::FUSE_READDIRPLUS_AUTO,
        InitFlags::FUSE_NO_OPENDIR_SUPPORT,
        InitFlags::FUSE_HANDLE_KILLPRIV_V2,
        InitFlags::FUSE_CACHE_SYMLINKS,
        InitFlags::FUSE_EXPORT_SUPPORT,
        InitFlags::FUSE_EXPLICIT_INVAL_DATA,
        InitFlags::FUSE_HAS_IOCTL_DIR,
        InitFlags::FUSE_DONT_MASK,
    ];
    if wants.writeback {
        wanted.push(InitFlags::FUSE_WRITEBACK_CACHE);
    }
    if wants.acl {
        wanted.push(InitFlags::FUSE_POSIX_ACL);
    }
    if wants.id_maps {
        wanted.push(InitFlags::FUSE_ALLOW_IDMAP);
    }
    wanted
}

/// What every open file is answered with. `past_pages`: its descriptors never reach the kernel's
/// pages, and it refuses shared mappings, as long as FUSE_DIRECT_IO_ALLOW_MMAP is not asked for.
pub fn open(past_pages: bool) -> FopenFlags {
    let always = FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH;
    // The second is for O_DIRECT.
    let other = if past_pages {
        FopenFlags::FOPEN_DIRECT_IO
    } else {
        FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
    };
    always | other
}
