//! Extended attributes.

use super::*;

/// Name of the attribute with the access ACL.
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

/// The namespace of attributes that only administrators see.
const TRUSTED: &[u8] = b"trusted.";

impl Server {
    /// Sets an attribute, with the flags of setxattr(2). An access ACL changes the mode: if the
    /// caller is outside the file's group, it removes the set-group-id bit, as chmod(2) does.
    pub(super) fn set_attribute(
        &self,
        credentials: Credentials,
        ino: NodeId,
        request: &SetXattrRequest<'_>,
    ) -> Result<(), Error> {
        let &SetXattrRequest { name, value, flags } = request;
        let node = self.node(ino)?;
        let mode = match flags & 3 {
            1 => XattrMode::Create,
            // Both together allow neither a new one nor an old one.
            3 if self.ops.get_xattr(&node, name).is_ok() => XattrMode::Create,
            2 | 3 => XattrMode::Replace,
            _ => XattrMode::Any,
        };
        self.ops.set_xattr(&node, name, value, mode)?;
        if name == ACCESS_ACL && node.attr().mode & SET_GROUP != 0 {
            let kept =
                |mode, gid| if keeps_group(credentials, gid) { mode } else { mode & !SET_GROUP };
            self.ops.change_mode(&node, kept)?;
        }
        Ok(())
    }

    /// Returns the names of attributes, each followed by a zero byte. Trusted attributes are listed
    /// for administrators only.
    pub(super) fn listed_attributes(
        &self,
        credentials: Credentials,
        ino: NodeId,
    ) -> Result<Vec<u8>, Error> {
        let mut names = self.ops.list_xattrs(&self.node(ino)?)?;
        let is_trusted = |name: &Vec<u8>| name.starts_with(TRUSTED);
        if names.iter().any(is_trusted) && !is_capable(credentials, Capability::SysAdmin) {
            names.retain(|name| !is_trusted(name));
        }
        Ok(names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect())
    }
}
