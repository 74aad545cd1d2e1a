//! Notices to the kernel through a connection. The kernel identifies a notice by a reply without a
//! request (`unique` 0) whose error field holds the code of the notice.

use crate::handler::{Invalidation, Tell};
use crate::protocol::abi::{InvalInode, NOTIFY_INVAL_INODE, NOTIFY_PRUNE, OutHeader, Prune};
use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use zerocopy::IntoBytes;

/// Returns the function that sends invalidations through a connection.
pub fn teller(fuse: Arc<File>) -> Tell {
    let send = move |code, body: &[u8]| {
        let bytes = size_of::<OutHeader>() + body.len();
        let head = OutHeader { len: bytes as u32, error: code, unique: 0 };
        (&*fuse).write_all(&[head.as_bytes(), body].concat())
    };
    Box::new(move |old| match old {
        Invalidation::Pages(ino, off, len) => {
            send(NOTIFY_INVAL_INODE, InvalInode { ino: ino.0, off, len }.as_bytes())
        }
        Invalidation::Inode(ino) => {
            send(NOTIFY_PRUNE, Prune { count: 1, padding: 0, spare: 0, ino: ino.0 }.as_bytes())
        }
    })
}
