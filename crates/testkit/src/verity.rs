//! Files with a hash tree (fs-verity) in an image, on machines whose kernel cannot make them: the
//! kernel writes the content, followed by the tree that `fsverity` (fsverity-utils) computes;
//! `tune2fs` and `debugfs` set the feature and the flag of the inode.

use crate::image::Image;
use crate::kernel::Mount;
use crate::tool::{arg, run};
use crate::{debugfs, e2fsck};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The tree begins at a multiple of this many bytes.
const ALIGN: u64 = 65_536;

/// Flags of the inode: its map is an extent tree, and it has a hash tree.
const FLAGS: &str = "0x180000";

/// A file to be made in the root directory.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its content.
    pub content: &'a [u8],
    /// Arguments of `fsverity digest`: `--hash-alg`, `--block-size`, `--salt`.
    pub args: &'a [&'a str],
}

/// Makes an image of `bytes` bytes with blocks of `block_size` bytes, and the files in it. Returns
/// their measures as `fsverity` prints them (`sha256:…`).
///
/// # Panics
/// If a tool is missing or fails, or e2fsck does not find the image clean.
#[track_caller]
pub fn make(bytes: u64, block_size: u64, files: &[Wanted<'_>]) -> (Image, Vec<String>) {
    let image = Image::mke2fs(bytes, &["-t", "ext4", "-b", &block_size.to_string()]);
    let mount = Mount::new(image.path(), "");
    let measures = files.iter().map(|wanted| write(&image, &mount, block_size, wanted)).collect();
    mount.unmount();
    run("tune2fs", &["-O".into(), "verity".into(), arg(image.path())]).must_succeed();
    for wanted in files {
        debugfs::write(
            image.path(),
            &format!("set_inode_field /{} size {}", wanted.name, wanted.content.len()),
        );
        debugfs::write(image.path(), &format!("set_inode_field /{} flags {FLAGS}", wanted.name));
    }
    e2fsck::check(image.path()).assert_clean();
    (image, measures)
}

fn write(image: &Image, mount: &Mount, block_size: u64, wanted: &Wanted<'_>) -> String {
    let scratch = image.scratch();
    let (plain, tree, descriptor) =
        (scratch.join("plain"), scratch.join("tree"), scratch.join("descriptor"));
    fs::write(&plain, wanted.content).expect("write");
    let mut args = vec!["digest".into(), "--compact".into(), arg(&plain)];
    args.extend(wanted.args.iter().map(Into::into));
    args.push(option("--out-merkle-tree=", &tree));
    args.push(option("--out-descriptor=", &descriptor));
    let printed = run("fsverity", &args).must_succeed();
    let algorithm =
        wanted.args.iter().find_map(|a| a.strip_prefix("--hash-alg=")).unwrap_or("sha256");
    let (tree, descriptor) =
        (fs::read(tree).expect("tree"), fs::read(descriptor).expect("descriptor"));
    let file = fs::File::create(mount.join(wanted.name)).expect("create");
    file.write_all_at(wanted.content, 0).expect("write");
    let start = (wanted.content.len() as u64).next_multiple_of(ALIGN);
    file.write_all_at(&tree, start).expect("write");
    let at = (start + tree.len() as u64).next_multiple_of(block_size);
    file.write_all_at(&descriptor, at).expect("write");
    let end = (at + descriptor.len() as u64 + 4).next_multiple_of(block_size);
    file.write_all_at(&(descriptor.len() as u32).to_le_bytes(), end - 4).expect("write");
    format!("{algorithm}:{}", printed.text().trim())
}

fn option(name: &str, path: &Path) -> std::ffi::OsString {
    let mut option = std::ffi::OsString::from(name);
    option.push(path);
    option
}
