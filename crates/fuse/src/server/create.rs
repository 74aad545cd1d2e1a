//! New inodes, and opens.

use super::credentials::UNTOLD;
use super::*;

/// The mode bits of a program that runs with the rights of its group.
const GROUP_PROGRAM: u32 = 0o2010;

/// The owner of a whiteout. On a mount that allows mapped ids a rename does not carry the ids of
/// its sender.
pub(super) fn whiteout_owner(credentials: Credentials) -> Caller {
    let credentials = told_or_looked_up(credentials);
    match credentials.uid {
        UNTOLD => Caller::default(),
        _ => Caller { uid: credentials.uid, gid: credentials.gid, umask: 0 },
    }
}

/// The engine's caller for a new file in `dir`. In a set-group-id directory the file has the
/// directory's group, whatever the caller's is. So that stands for the caller's own where the
/// caller may make programs of it: as a member by another group, or by a capability.
fn caller(credentials: Credentials, dir: &Node, mode: u32, umask: u32) -> Caller {
    let dir = dir.attr();
    let asked = mode & GROUP_PROGRAM == GROUP_PROGRAM && dir.mode & SET_GROUP != 0;
    let gid = if asked && keeps_group(credentials, dir.gid) { dir.gid } else { credentials.gid };
    Caller { uid: credentials.uid, gid, umask: umask as u16 }
}

impl Server {
    /// Makes and opens a file without a name, with owner and flags as in the directory `dir`.
    #[expect(clippy::too_many_arguments, reason = "the fields of a request")]
    pub(super) fn make_nameless(
        &self,
        credentials: Credentials,
        dir: NodeId,
        mode: u32,
        umask: u32,
        flags: i32,
    ) -> Result<Entry, Error> {
        let dir = self.node(dir)?;
        // The engine's own hold is the kernel's lookup.
        let node = self.ops.create_nameless(
            &caller(credentials, &dir, mode, umask),
            &dir,
            (mode & 0o7777) as u16,
        )?;
        // The kernel knows it by its number alone.
        self.ops.make_findable(&node)?;
        let made = self.entry_of(&node);
        if writes(flags) {
            self.writers.open(made.attr.ino, flags & APPEND != 0);
            self.ops.open_hint(&node);
        }
        Ok(made)
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of a request")]
    pub(super) fn new_node(
        &self,
        credentials: Credentials,
        (parent, name): (NodeId, &[u8]),
        mode: u32,
        umask: u32,
        what: New<'_>,
    ) -> Result<Node, Error> {
        let dir = self.node(parent)?;
        self.ops.create(
            &caller(credentials, &dir, mode, umask),
            &dir,
            name,
            (mode & 0o7777) as u16,
            what,
        )
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of a request")]
    pub(super) fn make_node(
        &self,
        credentials: Credentials,
        at: (NodeId, &[u8]),
        mode: u32,
        umask: u32,
        what: New<'_>,
    ) -> Result<Entry, Error> {
        self.entry(&self.new_node(credentials, at, mode, umask, what)?)
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of a request")]
    pub(super) fn create_or_open(
        &self,
        credentials: Credentials,
        at: (NodeId, &[u8]),
        mode: u32,
        umask: u32,
        flags: i32,
    ) -> Result<(Node, Entry), Error> {
        let node = match self.new_node(credentials, at, mode, umask, New::File) {
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
