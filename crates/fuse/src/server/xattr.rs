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
        self.acl_changed(ino, name);
        Ok(())
    }

    /// Removes an attribute.
    pub(super) fn remove_attribute(&self, ino: NodeId, name: &[u8]) -> Result<(), Error> {
        self.ops.remove_xattr(&self.node(ino)?, name)?;
        self.acl_changed(ino, name);
        Ok(())
    }

    /// Sends the pending notice of an inode whose access ACL changed. The kernel requests the
    /// attributes before it next checks a permission, and it drops a reply during which a notice
    /// arrives: it would check the old mode. The call keeps the inode in use, so that the kernel
    /// cannot evict it, and the notice does not wait.
    fn acl_changed(&self, ino: NodeId, name: &[u8]) {
        if name == ACCESS_ACL {
            self.notices.settle(ino);
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::Invalidation;
    use extant_engine::OpenOptions;
    use extant_testkit::image::FeatureSet;
    use extant_testkit::tree::posix_acl;

    /// A notice that came later could make the kernel drop the new mode, which the ACL needs.
    #[test]
    fn a_change_of_an_acl_leaves_no_notice_pending() {
        let image = FeatureSet::named("default").make();
        let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
        let root = fs.root().unwrap();
        fs.create(&root, b"f", 0o600, NodeKind::File).unwrap();
        drop(root);
        let (server, _outcome) = Server::new(fs, &MountOptions::default()).unwrap();
        let told = Arc::new(Mutex::new(Vec::new()));
        let tells = told.clone();
        server.connect(Box::new(move |invalidation| {
            if let Invalidation::Pages(ino, ..) = invalidation {
                tells.lock().unwrap().push(ino);
            }
            Ok(())
        }));
        let ino = server.lookup(NodeId(1), b"f").unwrap().unwrap().attr.ino;
        let caller = Credentials { uid: 0, gid: 0, pid: 0 };
        let value = &posix_acl(0o640, (1000, 4), (1000, 4));
        server.notices.blocks(ino);
        let request = SetXattrRequest { name: ACCESS_ACL, value, flags: 0 };
        server.set_xattr(caller, ino, request).unwrap();
        assert_eq!(*told.lock().unwrap(), [ino]);
        server.notices.blocks(ino);
        server.remove_xattr(ino, ACCESS_ACL).unwrap();
        assert_eq!(*told.lock().unwrap(), [ino; 2]);
        server.forget(ino, 1);
        server.end();
    }
}
