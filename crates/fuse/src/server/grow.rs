//! Growth of the served file system, by the ioctl of `extant resize` and by that of resize2fs(8).

use super::Server;
use super::credentials::{Capability, is_capable};
use crate::control::{ControlRefusal, GrowReply, GrowRequest};
use crate::handler::Credentials;
use crate::types::NodeId;
use extant_engine::{Errno, Error, FsSize, GrowTo};
use std::sync::atomic::Ordering;

impl Server {
    /// Answers [`control::GROW`](crate::control::GROW). Root directory only, for administrators and
    /// the mounter.
    pub(super) fn grow(
        &self,
        credentials: Credentials,
        ino: NodeId,
        input: &[u8],
    ) -> Result<Vec<u8>, Error> {
        self.may_control(credentials, ino)?;
        let request = GrowRequest::decode(input).ok_or(Errno::Inval)?;
        let before = self.ops.size();
        let done = self.grown(request);
        let after = *done.as_ref().unwrap_or(&self.ops.size());
        let refusal = done.as_ref().err().map(ControlRefusal::from);
        Ok(GrowReply { before, after, refusal }.encode().to_vec())
    }

    /// Answers EXT4_IOC_RESIZE_FS: `input` is a number of blocks. On any inode, for administrators
    /// and the mounter.
    pub(super) fn grow_to_blocks(
        &self,
        credentials: Credentials,
        input: &[u8],
    ) -> Result<Vec<u8>, Error> {
        if !self.is_mounter(credentials) && !is_capable(credentials, Capability::SysAdmin) {
            return Err(Errno::Perm.into());
        }
        let to = GrowTo::Blocks(super::ioctl::long(input, 0)?);
        self.grown(GrowRequest { to, dry_run: false }).map(|_| Vec::new())
    }

    /// Makes the file system larger, unless a dry run is wanted, and returns the size.
    fn grown(&self, request: GrowRequest) -> Result<FsSize, Error> {
        // Relaxed: a switch that guards nothing.
        if self.remounted_read_only.load(Ordering::Relaxed) {
            return Err(Errno::RoFs.into());
        }
        if request.dry_run {
            return self.ops.planned_size(request.to);
        }
        let before = self.ops.size();
        let grown = self.ops.grow_to(request.to);
        let after = self.ops.size();
        if after != before {
            let (before, after) = (before.bytes(), after.bytes());
            tracing::info!("the file system grew from {before} to {after} bytes");
        }
        grown.map(|_| after)
    }
}
