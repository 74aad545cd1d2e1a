//! Directory listings.

use super::*;

impl Server {
    /// Lists names from the cookie `from` on, until `each` refuses one.
    pub(super) fn list_names(
        &self,
        ino: NodeId,
        from: u64,
        each: &mut dyn FnMut(Listed<'_>) -> bool,
    ) -> Result<(), Error> {
        let dir = self.node(ino)?;
        self.note_listing(ino, &dir, from);
        self.ops.read_dir_from(&dir, from, |e| {
            let ino = protocol_ino(u64::from(e.ino.0));
            each(Listed { ino, next: e.next, kind: e.ftype, name: e.name })
        })
    }

    /// Lists names with their attributes, where these are available. Each entry but the dots counts
    /// one lookup, unless `each` refuses it.
    pub(super) fn list_entries(
        &self,
        ino: NodeId,
        from: u64,
        each: &mut dyn FnMut(Listed<'_>, Option<&Entry>) -> bool,
    ) -> Result<(), Error> {
        let dir = self.node(ino)?;
        self.note_listing(ino, &dir, from);
        self.ops.read_dir_plus(&dir, from, |e, node| {
            let ino = protocol_ino(u64::from(e.ino.0));
            let listed = Listed { ino, next: e.next, kind: e.ftype, name: e.name };
            let dots = e.name == b"." || e.name == b"..";
            let Some(node) = node.filter(|node| dots || node.hold(1).is_ok()) else {
                return each(listed, None);
            };
            let taken = each(listed, Some(&self.entry_of(node)));
            // The dots count no lookup.
            if !taken && !dots {
                self.ops.release(node, 1);
            }
            taken
        })
    }

    /// A listing starts at offset 0, so only that request counts as an access.
    pub(super) fn note_listing(&self, ino: NodeId, dir: &Node, offset: u64) {
        if offset == 0 && self.directory_access_times {
            self.note_access(ino, dir);
        }
    }
}
