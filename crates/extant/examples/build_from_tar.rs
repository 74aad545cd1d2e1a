//! Builds an image from a tar archive, without root.
//!
//! `cargo run --features mkfs --example build_from_tar ROOTFS.tar DISK.img BYTES`

use extant::device::FileDeviceOptions;
use extant::{BlockDevice, Dir, Fs, NodeKind, SetMetadata, Timestamp, mkfs};
use std::ffi::OsStr;
use std::io::{self, Read, Seek, Write};
use std::path::{Component, Path};
use std::sync::Arc;

/// Makes a file system on a device from the entries of an archive, and gives their number.
pub fn build(
    archive: impl Read,
    device: Arc<dyn BlockDevice>,
) -> Result<u64, Box<dyn std::error::Error>> {
    let fs = Fs::options().create_on(device, &mkfs::Options::default())?;
    let mut count = 0;
    for entry in tar::Archive::new(archive).entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        // Archives may name `..`: no entry leaves the place that its name has.
        if path.components().any(|part| matches!(part, Component::ParentDir)) {
            return Err(format!("{} leaves the tree", path.display()).into());
        }
        let Some(name) = path.file_name() else { continue };
        add(&fs, &path, name, &mut entry)?;
        count += 1;
    }
    fs.unmount()?;
    Ok(count)
}

fn add(
    fs: &Fs,
    path: &Path,
    name: &OsStr,
    entry: &mut tar::Entry<'_, impl Read>,
) -> Result<(), Box<dyn std::error::Error>> {
    let header = entry.header().clone();
    let owner = (u32::try_from(header.uid()?)?, u32::try_from(header.gid()?)?);
    let mode = (header.mode()? & 0o7777) as u16;
    let parent = fs.create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
    let target = entry.link_name_bytes().map(|target| target.into_owned()).unwrap_or_default();
    let kind = match header.entry_type() {
        tar::EntryType::Directory => NodeKind::Dir,
        tar::EntryType::Symlink => NodeKind::Symlink(&target),
        tar::EntryType::Fifo => NodeKind::Fifo,
        tar::EntryType::Link => return Ok(fs.hard_link(target, path)?),
        tar::EntryType::Regular => NodeKind::File,
        other => return Err(format!("{}: entry of type {other:?}", path.display()).into()),
    };
    let inode = make(&parent, name, kind, mode, owner)?;
    if kind == NodeKind::File {
        let mut file = inode.file(&extant::FileOptions::new().write(true))?;
        copy_sparse(entry, &mut file)?;
    }
    let set = SetMetadata::new().modified(Timestamp::new(i64::try_from(header.mtime()?)?, 0));
    let set = match kind {
        NodeKind::Symlink(_) => set,
        _ => set.permissions(mode),
    };
    inode.set_metadata(&set.owner(owner.0, owner.1))?;
    Ok(())
}

/// A directory may have been made for an entry below it already.
fn make(
    parent: &Dir,
    name: &OsStr,
    kind: NodeKind<'_>,
    mode: u16,
    owner: (u32, u32),
) -> extant::Result<extant::Inode> {
    match parent.create_as(name, kind, mode, owner) {
        Err(error) if error.kind() == extant::ErrorKind::AlreadyExists && kind == NodeKind::Dir => {
            parent.open(name)
        }
        made => made,
    }
}

/// Copies content; zeroes become holes.
fn copy_sparse(from: &mut impl Read, to: &mut extant::File) -> io::Result<()> {
    let (mut buf, mut len) = (vec![0; 1 << 16], 0);
    loop {
        let n = from.read(&mut buf)?;
        if n == 0 {
            return Ok(to.set_len(len)?);
        }
        len += n as u64;
        if buf[..n].iter().all(|&byte| byte == 0) {
            to.seek(io::SeekFrom::Start(len))?;
        } else {
            to.write_all(&buf[..n])?;
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(archive), Some(image), Some(bytes)) = (args.next(), args.next(), args.next()) else {
        return Err("usage: build_from_tar ROOTFS.tar DISK.img BYTES".into());
    };
    std::fs::File::create(&image)?.set_len(bytes.parse()?)?;
    let device = Arc::new(FileDeviceOptions::new(image).open()?);
    println!("{} entries", build(std::fs::File::open(archive)?, device)?);
    Ok(())
}
