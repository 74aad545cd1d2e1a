//! Files made in an image under names that may be taken.
//!
//! A file whose name is free is made under it. Where the name is taken, the new file is made under
//! a name of its own, completed and made durable, and renamed over the old one: after a crash the
//! name leads to the old file or to the whole new one. Files that wait for their rename share one
//! sync.

use super::job::{Copied, Job};
use extant_engine::{Caller, Errno, FileType, Fs, Node, NodeKind, RenameFlags};
use std::hash::{BuildHasher, Hasher, RandomState};

type Result<T = (), E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// Bytes of content that may wait for their rename: the space of as many old bytes is not free
/// before.
const MAX_WAITING_BYTES: u64 = 64 << 20;

/// A file to be made.
pub struct Wanted<'a> {
    /// The directory.
    pub dir: &'a Node,
    /// The name in it.
    pub name: &'a [u8],
    /// Owner of the file.
    pub owner: Caller<'a>,
    /// Permissions.
    pub mode: u16,
    /// The rest.
    pub what: NodeKind<'a>,
}

/// A complete file that is to be renamed.
struct Waiting {
    dir: Node,
    beside: Vec<u8>,
    name: Vec<u8>,
    /// The source, for messages.
    path: Vec<u8>,
    copied: Copied,
}

/// Makes files; those with taken names get them at [`Placer::finish`].
pub struct Placer<'a> {
    fs: &'a Fs,
    job: &'a Job<'a>,
    waiting: Vec<Waiting>,
    waiting_bytes: u64,
}

impl<'a> Placer<'a> {
    /// Makes a placer for one thread.
    pub fn new(fs: &'a Fs, job: &'a Job<'a>) -> Placer<'a> {
        Placer { fs, job, waiting: Vec::new(), waiting_bytes: 0 }
    }

    /// Makes a file, and completes it with `fill`. If `fill` fails, the image is as before. `path`
    /// is the source, for messages.
    pub fn place(
        &mut self,
        wanted: &Wanted<'_>,
        path: &[u8],
        fill: impl FnOnce(&Node) -> Result,
    ) -> Result<Node> {
        let copied =
            if matches!(wanted.what, NodeKind::File) { Copied::File } else { Copied::Other };
        let Wanted { dir, name, .. } = *wanted;
        match self.create(wanted, name) {
            Err(e) if e.is(Errno::Exist) => {}
            other => {
                let node = self.filled(dir, name, other?, fill)?;
                self.job.done(copied, || path.to_vec());
                return Ok(node);
            }
        }
        // The name exists: the new content gets another name, and replaces the old file only after
        // it is complete and durable.
        if self.fs.lookup(dir, name)?.file_type() == FileType::Directory {
            return Err(Errno::IsDir.message().into());
        }
        let (node, beside) = free_name(|beside| self.create(wanted, beside))?;
        let node = self.filled(dir, &beside, node, fill)?;
        self.waiting_bytes = self.waiting_bytes.saturating_add(node.attr().size);
        let (dir, name, path) = (dir.clone(), name.to_vec(), path.to_vec());
        self.waiting.push(Waiting { dir, beside, name, path, copied });
        if self.waiting_bytes > MAX_WAITING_BYTES {
            self.finish();
        }
        Ok(node)
    }

    fn create(&self, wanted: &Wanted<'_>, name: &[u8]) -> extant_engine::Result<Node> {
        self.fs.create_as(&wanted.owner, (wanted.dir, name), wanted.mode, wanted.what)
    }

    /// Completes a new file; takes its name away again if that fails.
    fn filled(
        &self,
        dir: &Node,
        name: &[u8],
        node: Node,
        fill: impl FnOnce(&Node) -> Result,
    ) -> Result<Node> {
        match fill(&node) {
            Ok(()) => Ok(node),
            Err(e) => {
                self.fs.unlink(dir, name)?;
                Err(e)
            }
        }
    }

    /// Makes the waiting files durable and gives them their names. Old files stay where that fails.
    pub fn finish(&mut self) {
        let waiting = std::mem::take(&mut self.waiting);
        self.waiting_bytes = 0;
        if waiting.is_empty() {
            return;
        }
        // A rename may become durable before the content that it leads to: the content comes first.
        let synced = self.fs.sync().map_err(|e| e.to_string());
        for one in waiting {
            let renamed = synced.clone().and_then(|()| {
                let flags = RenameFlags::empty();
                self.fs
                    .rename((&one.dir, &one.beside), (&one.dir, &one.name), flags)
                    .map_err(|e| e.to_string())
            });
            match renamed {
                Ok(()) => self.job.done(one.copied, || one.path),
                Err(error) => {
                    self.job.problem(&one.path, error);
                    self.job.check(|| one.path, self.fs.unlink(&one.dir, &one.beside));
                }
            }
        }
    }
}

/// Makes something under a name that is free, and gives the name with the result of `make`. No file
/// of a source can have such a name on purpose: part of it is random.
pub fn free_name<T>(make: impl Fn(&[u8]) -> extant_engine::Result<T>) -> Result<(T, Vec<u8>)> {
    loop {
        let name =
            format!(".extant-put.{:016x}", RandomState::new().build_hasher().finish()).into_bytes();
        match make(&name) {
            Err(e) if e.is(Errno::Exist) => {}
            other => return Ok((other?, name)),
        }
    }
}
