//! New inodes, and opens.

use super::credentials::UNTOLD;
use super::*;

/// The mode bits of a program that runs with the rights of its group.
const GROUP_PROGRAM: u32 = 0o2010;

/// Returns the owner of a whiteout. On a mount that allows mapped ids a rename does not carry the
/// ids of its sender, which are then read from `/proc`.
pub(super) fn whiteout_owner(credentials: Credentials) -> Caller<'static> {
    let credentials = told_or_looked_up(credentials);
    match credentials.uid {
        UNTOLD => Caller::default(),
        _ => Caller { uid: credentials.uid, gid: credentials.gid, ..Caller::default() },
    }
}

/// Returns the permissions of a new inode, for the engine.
fn permissions(mode: CreateMode) -> u16 {
    (mode.bits & 0o7777) as u16
}

/// Returns the engine's caller for a new file in `dir`. In a set-group-id directory the file gets
/// the directory's group. A caller that may create set-group-id programs of that group, as a member
/// by a supplementary group or by a capability, gets that group as its own; otherwise the engine
/// would remove the bit.
fn caller(credentials: Credentials, dir: &Node, mode: CreateMode) -> Caller<'static> {
    let dir = dir.attr();
    let asked = mode.bits & GROUP_PROGRAM == GROUP_PROGRAM && dir.mode & SET_GROUP != 0;
    let gid = if asked && keeps_group(credentials, dir.gid) { dir.gid } else { credentials.gid };
    Caller { uid: credentials.uid, gid, umask: mode.umask as u16, ..Caller::default() }
}

impl Server {
    /// Makes and opens a file without a name, with owner and flags as in the directory `dir`.
    pub(super) fn make_nameless(
        &self,
        credentials: Credentials,
        dir: NodeId,
        mode: CreateMode,
        flags: i32,
    ) -> Result<Entry, Error> {
        let dir = self.node(dir)?;
        // The hold that the engine returns counts as the kernel's lookup.
        let caller = caller(credentials, &dir, mode);
        let node = self.ops.create_nameless(&caller, &dir, permissions(mode))?;
        // The kernel names the file by its number only, so the inode cache must contain it.
        self.ops.make_findable(&node)?;
        let made = self.entry_of(&node);
        self.note_open(made.attr.ino, &node, flags);
        Ok(made)
    }

    pub(super) fn new_node(
        &self,
        credentials: Credentials,
        (parent, name): (NodeId, &[u8]),
        mode: CreateMode,
        what: NodeKind<'_>,
    ) -> Result<Node, Error> {
        let dir = self.node(parent)?;
        let caller = caller(credentials, &dir, mode);
        self.ops.create_as(&caller, (&dir, name), permissions(mode), what)
    }

    pub(super) fn make_node(
        &self,
        credentials: Credentials,
        at: (NodeId, &[u8]),
        mode: CreateMode,
        what: NodeKind<'_>,
    ) -> Result<Entry, Error> {
        self.entry(&self.new_node(credentials, at, mode, what)?)
    }

    pub(super) fn create_or_open(
        &self,
        credentials: Credentials,
        at: (NodeId, &[u8]),
        mode: CreateMode,
        flags: i32,
    ) -> Result<(Node, Entry), Error> {
        let node = match self.new_node(credentials, at, mode, NodeKind::File) {
            Err(e) if e.is(Errno::Exist) && flags & EXCLUSIVE == 0 => {
                let node = self.ops.lookup(&self.node(at.0)?, at.1)?;
                self.check_open(&node, flags)?;
                node
            }
            other => other?,
        };
        let entry = self.entry(&node)?;
        Ok((node, entry))
    }

    pub(super) fn check_open(&self, node: &Node, flags: i32) -> Result<(), Error> {
        if !writes(flags) {
            return Ok(());
        }
        let how = Open {
            write: true,
            append: flags & APPEND != 0,
            direct: true,
            truncate: flags & TRUNCATE != 0,
        };
        self.ops.check_open(node, how)
    }
}
