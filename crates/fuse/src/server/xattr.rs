//! Extended attributes.

use super::*;

/// The attribute that an access ACL is kept in.
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

/// The namespace of attributes that only administrators see.
const TRUSTED: &[u8] = b"trusted.";

impl Server {
    /// An ACL stands for a mode: set by somebody outside the file's group, it takes set-group-id
    /// away.
    #[expect(clippy::too_many_arguments, reason = "the fields of a request")]
    pub(super) fn set_attribute(
        &self,
        credentials: Credentials,
        ino: NodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Error> {
        let node = self.node(ino)?;
        self.ops.set_xattr(&node, name, value, mode)?;
        if name == ACCESS_ACL && node.attr().mode & SET_GROUP != 0 {
            let kept =
                |mode, gid| if keeps_group(credentials, gid) { mode } else { mode & !SET_GROUP };
            self.ops.change_mode(&node, kept)?;
        }
        Ok(())
    }

    /// Names of attributes, each with a zero behind. The kernel shows those of administrators to no
    /// others.
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
