//! Images made by mke2fs and debugfs.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tempfile::TempDir;

/// Names of this length fill blocks with few files, so that trees get two levels.
const LONG_NAME: usize = 100;
const MANY_FILES: usize = 1400;
const STRIPES: u64 = 400;
const STRIPE_STEP: u64 = 128 << 10;

/// Runs a tool of e2fsprogs and gives its standard output; fails if the tool is missing or fails
/// otherwise than `allowed`.
pub fn tool(name: &str, args: &[&str], allowed: &[i32]) -> String {
    let output = Command::new(name).args(args).output().unwrap_or_else(|error| {
        panic!("{name} cannot be run ({error}): install the package e2fsprogs")
    });
    let code = output.status.code().unwrap_or(-1);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(allowed.contains(&code), "{name} {args:?} ended with {code}:\n{text}{errors}");
    text
}

/// Runs debugfs commands on an image and returns their output.
pub fn debugfs(image: &Path, commands: &str) -> String {
    let mut script = tempfile::NamedTempFile::new().expect("a temporary file");
    script.write_all(commands.as_bytes()).expect("a script");
    let script = script.path().to_string_lossy().into_owned();
    tool("debugfs", &["-w", "-f", &script, &image.to_string_lossy()], &[0])
}

/// The tree of files that every image holds.
fn source() -> &'static Path {
    static TREE: OnceLock<TempDir> = OnceLock::new();
    TREE.get_or_init(|| {
        let dir = TempDir::new().expect("a temporary directory");
        make_tree(dir.path());
        dir
    })
    .path()
}

fn make_tree(root: &Path) {
    let many = root.join("many");
    fs::create_dir(&many).expect("a directory");
    for n in 0..MANY_FILES {
        File::create(many.join(format!("{n:0>LONG_NAME$}"))).expect("a file");
    }
    fs::create_dir_all(root.join("few/empty")).expect("a directory");
    fs::write(root.join("few/small"), b"small").expect("a file");
    fs::write(root.join("few/größe"), vec![7; 100_000]).expect("a file");
    fs::write(root.join("few/medium"), vec![9; 130]).expect("a file");
    symlink("short", root.join("few/fast")).expect("a link");
    symlink("x/".repeat(60), root.join("few/slow")).expect("a link");
    let stripes = File::create(root.join("stripes")).expect("a file");
    for n in 0..STRIPES {
        stripes.write_all_at(&[n as u8 | 1; 4096], n * STRIPE_STEP).expect("a stripe");
    }
}

/// An image file that is removed at the end.
pub struct Fixture {
    _dir: TempDir,
    pub path: PathBuf,
}

/// Makes an image with these options of mke2fs, fills it, and lets e2fsck build hash trees.
pub fn make(options: &[&str]) -> Fixture {
    let dir = TempDir::new().expect("a temporary directory");
    let path = dir.path().join("image");
    File::create(&path).and_then(|file| file.set_len(128 << 20)).expect("an image");
    let name = path.to_string_lossy().into_owned();
    let tree = source().to_string_lossy().into_owned();
    let mut args = vec!["-q", "-F", "-N", "4096", "-d", &tree];
    args.extend_from_slice(options);
    args.push(&name);
    tool("mke2fs", &args, &[0]);
    debugfs(&path, &decorate(dir.path()));
    tool("e2fsck", &["-fyD", &name], &[0, 1]);
    Fixture { _dir: dir, path }
}

/// Returns commands that add objects missing from the tree of files: attributes of all sizes (the
/// largest only if it fits), devices.
fn decorate(dir: &Path) -> String {
    let large = dir.join("value");
    fs::write(&large, vec![b'v'; 700]).expect("a value");
    let huge = dir.join("huge");
    fs::write(&huge, vec![b'h'; 3000]).expect("a value");
    let (large, huge) = (large.display(), huge.display());
    format!(
        "ea_set /few/small user.one 1\nea_set /few/small user.two 22\nea_set /few/small trusted.t \
        abcde\n\
         ea_set -f {large} /few/medium user.large\nea_set /few/medium security.s sss\n\
         ea_set -f {large} /few user.large\nea_set -f {huge} /few/empty user.huge\ncd few\nmknod \
         pipe p\nmknod disk b 8 1\nmknod tape c 300 70000\n"
    )
}
