//! File systems made by `mke2fs`, one for each feature set that matters.

use crate::scratch::Scratch;
use crate::tool::{arg, run};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::ffi::OsString;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const MIB: u64 = 1 << 20;

/// A named way to call `mke2fs`.
#[derive(Debug, Clone, Copy)]
pub struct FeatureSet {
    /// Short name, unique in [`FEATURE_SETS`].
    pub name: &'static str,
    /// Arguments to `mke2fs` before the device.
    pub args: &'static [&'static str],
    /// Default size of the image in bytes.
    pub bytes: u64,
    /// Block size in bytes.
    pub block_size: u32,
    /// Whether it has a journal.
    pub journal: bool,
    /// Whether a kernel with 4 KiB pages and without quotas mounts it read-write.
    pub kernel_mountable: bool,
}

const fn set(name: &'static str, block_size: u32, args: &'static [&'static str]) -> FeatureSet {
    FeatureSet { name, args, bytes: 64 * MIB, block_size, journal: true, kernel_mountable: true }
}

const fn without_journal(mut set: FeatureSet) -> FeatureSet {
    set.journal = false;
    set
}

/// All feature sets of test images. The first is the default of `mke2fs -t ext4`.
pub const FEATURE_SETS: &[FeatureSet] = &[
    set("default", 4096, &["-t", "ext4", "-b", "4096"]),
    set("orphan_file", 4096, &["-t", "ext4", "-b", "4096", "-O", "orphan_file,metadata_csum_seed"]),
    set("1k", 1024, &["-t", "ext4", "-b", "1024", "-O", "orphan_file"]),
    set("2k", 2048, &["-t", "ext4", "-b", "2048", "-O", "orphan_file"]),
    FeatureSet {
        bytes: 256 * MIB,
        kernel_mountable: false,
        ..set("64k", 65536, &["-t", "ext4", "-b", "65536", "-O", "orphan_file"])
    },
    without_journal(set("ext2", 4096, &["-t", "ext2", "-b", "4096"])),
    without_journal(set("ext2_1k", 1024, &["-t", "ext2", "-b", "1024", "-I", "128"])),
    set("ext3", 4096, &["-t", "ext3", "-b", "4096"]),
    set("ext3_1k", 1024, &["-t", "ext3", "-b", "1024"]),
    without_journal(set("no_journal", 4096, &["-t", "ext4", "-b", "4096", "-O", "^has_journal"])),
    FeatureSet {
        bytes: 256 * MIB,
        ..set(
            "bigalloc",
            4096,
            &["-t", "ext4", "-b", "4096", "-O", "bigalloc,orphan_file", "-C", "65536"],
        )
    },
    set(
        "bigalloc_1k",
        1024,
        &["-t", "ext4", "-b", "1024", "-O", "bigalloc,orphan_file", "-C", "16384"],
    ),
    set("inline_data", 4096, &["-t", "ext4", "-b", "4096", "-O", "inline_data,orphan_file"]),
    set("meta_bg", 1024, &["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode"]),
    set("ea_inode", 4096, &["-t", "ext4", "-b", "4096", "-O", "ea_inode,orphan_file"]),
    set("large_dir", 1024, &["-t", "ext4", "-b", "1024", "-O", "large_dir,orphan_file"]),
    set("sparse_super2", 1024, &["-t", "ext4", "-b", "1024", "-O", "sparse_super2,^resize_inode"]),
    set("mmp", 4096, &["-t", "ext4", "-b", "4096", "-O", "mmp"]),
    set("uninit_bg", 4096, &["-t", "ext4", "-b", "4096", "-O", "uninit_bg,^metadata_csum"]),
    set("no_csum", 4096, &["-t", "ext4", "-b", "4096", "-O", "^metadata_csum,orphan_file"]),
    set("no_64bit", 4096, &["-t", "ext4", "-b", "4096", "-O", "^64bit,orphan_file"]),
    set("inode_128", 4096, &["-t", "ext4", "-b", "4096", "-I", "128"]),
    set("inode_1024", 4096, &["-t", "ext4", "-b", "4096", "-I", "1024", "-O", "inline_data"]),
    set("no_flex_bg", 1024, &["-t", "ext4", "-b", "1024", "-O", "^flex_bg"]),
    set("no_dir_index", 4096, &["-t", "ext4", "-b", "4096", "-O", "^dir_index"]),
    set(
        "fast_commit",
        4096,
        &["-t", "ext4", "-b", "4096", "-O", "fast_commit,orphan_file", "-J", "size=16"],
    ),
    FeatureSet {
        kernel_mountable: false,
        ..set("quota", 4096, &["-t", "ext4", "-b", "4096", "-O", "quota,project,orphan_file"])
    },
    FeatureSet {
        kernel_mountable: false,
        ..set("quota_1k", 1024, &["-t", "ext4", "-b", "1024", "-O", "quota,project,ea_inode"])
    },
];

impl FeatureSet {
    /// Returns the set of this name.
    ///
    /// # Panics
    /// If there is none.
    pub fn named(name: &str) -> &'static FeatureSet {
        FEATURE_SETS
            .iter()
            .find(|set| set.name == name)
            .unwrap_or_else(|| panic!("no feature set `{name}`"))
    }

    /// Makes an image of the default size.
    pub fn make(&self) -> Image {
        self.make_sized(self.bytes)
    }

    /// Makes an image of `bytes` bytes.
    pub fn make_sized(&self, bytes: u64) -> Image {
        Image::mke2fs(bytes, self.args)
    }
}

/// A file system image in a temporary directory; dropping it judges the image and removes both (see
/// [`Scratch`]).
#[derive(Debug)]
pub struct Image {
    scratch: Scratch,
    path: PathBuf,
}

impl Image {
    /// An image file of `bytes` zero bytes (sparse).
    pub fn blank(bytes: u64) -> Self {
        let scratch = Scratch::new();
        let path = scratch.file("image", bytes);
        Self { scratch, path }
    }

    /// Makes an image file of these bytes, such as the content of a device in memory. Zeroes become
    /// holes.
    pub fn holding(bytes: &[u8]) -> Self {
        const PIECE: usize = 64 << 10;
        static ZEROES: [u8; PIECE] = [0; PIECE];
        let image = Self::blank(bytes.len() as u64);
        let file = std::fs::File::options().write(true).open(&image.path);
        let write = |file: std::fs::File| {
            let pieces = bytes.chunks(PIECE).enumerate();
            let mut pieces = pieces.filter(|(_, piece)| **piece != ZEROES[..piece.len()]);
            pieces.try_for_each(|(n, piece)| file.write_all_at(piece, (n * PIECE) as u64))
        };
        file.and_then(write).unwrap_or_else(|e| panic!("{}: {e}", image.path.display()));
        image
    }

    /// Makes a sparse file of `bytes` bytes and runs `mke2fs -q -F ARGS FILE` on it. The UUID and
    /// the directory hash seed are fixed unless `args` set them, so that equal calls give
    /// comparable images.
    pub fn mke2fs(bytes: u64, args: &[&str]) -> Self {
        let image = Self::blank(bytes);
        mke2fs(&image.path, args, &[]);
        image.scratch.is_fine(&image.path);
        image
    }

    /// As [`Image::mke2fs`], filled with the tree at `source` (`mke2fs -d`).
    pub fn mke2fs_from(bytes: u64, args: &[&str], source: &Path) -> Self {
        let image = Self::blank(bytes);
        mke2fs(&image.path, args, &["-d".into(), arg(source)]);
        image
    }

    /// Returns the image file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the directory that the image lies in, for further files of the test.
    pub fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// Returns a sparse copy of the current bytes, for instance of an image in use, as after a
    /// crash.
    pub fn copy(&self) -> Self {
        Self::copy_of(&self.path)
    }

    /// An image that is a copy of the file `path`, holes kept.
    pub fn copy_of(path: &Path) -> Self {
        Self::copy_to(Scratch::new(), path)
    }

    /// Returns a copy on disk, for images with a swap file. Pages of an image in memory may be
    /// swapped out; if the kernel swaps them to the same image, it waits for itself forever.
    pub fn copy_on_disk(&self) -> Self {
        Self::copy_to(Scratch::on_disk(), &self.path)
    }

    fn copy_to(scratch: Scratch, path: &Path) -> Self {
        let to = scratch.join("image");
        run("cp", &["--sparse=always".into(), arg(path), arg(&to)]).must_succeed();
        Self { scratch, path: to }
    }

    /// Returns the bytes of the whole image. Holes are not read, so that they take no memory.
    pub fn bytes(&self) -> Vec<u8> {
        let read = || -> std::io::Result<Vec<u8>> {
            let file = std::fs::File::open(&self.path)?;
            let mut bytes = vec![0; file.metadata()?.len() as usize];
            let mut at = 0;
            while let Some(data) = next_data(&file, at)? {
                at = data.end;
                let data = data.start as usize..(data.end as usize).min(bytes.len());
                file.read_exact_at(&mut bytes[data.clone()], data.start as u64)?;
            }
            Ok(bytes)
        };
        read().unwrap_or_else(|e| panic!("{}: {e}", self.path.display()))
    }

    /// Asserts that all programs find the image clean: see [`judge`](crate::judge). Later writes
    /// are judged at the end.
    #[track_caller]
    pub fn assert_clean(&self) {
        crate::judge::judge(&self.path).assert_clean();
        self.scratch.is_fine(&self.path);
    }

    /// Replaces all occurrences of a text in the image, such as in names, by another of the same
    /// length. The image is damaged then, and not judged. Use a feature set without checksums of
    /// metadata.
    #[track_caller]
    pub fn replace(&self, text: &[u8], by: &[u8]) {
        assert_eq!(text.len(), by.len(), "lengths");
        let mut bytes = self.bytes();
        let places: Vec<usize> = bytes
            .windows(text.len())
            .enumerate()
            .filter(|(_, at)| *at == text)
            .map(|(at, _)| at)
            .collect();
        assert!(!places.is_empty(), "{} is not in the image", text.escape_ascii());
        for at in places {
            bytes[at..at + text.len()].copy_from_slice(by);
        }
        std::fs::write(&self.path, bytes)
            .unwrap_or_else(|e| panic!("{}: {e}", self.path.display()));
        self.leave_unjudged("a text in it was replaced");
    }

    /// Excludes the image from judgement at the end, for instance since the test damages it; `why`
    /// is the reason, for readers of the test.
    pub fn leave_unjudged(&self, why: &str) {
        self.scratch.leave_unjudged("image", why);
    }
}

/// Returns the next range of a file at or after an offset that is no hole.
fn next_data(file: &std::fs::File, at: u64) -> std::io::Result<Option<Range<u64>>> {
    match seek(file, SeekFrom::Data(at)) {
        Ok(start) => Ok(Some(start..seek(file, SeekFrom::Hole(start))?)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

const UUID: &str = "6f7ae4d6-9c2f-4f0e-8b1c-2d3a5b7c9e10";
const HASH_SEED: &str = "hash_seed=0b7d6a1e-53c2-4e7a-9a41-c6f0d8e2b394";

fn mke2fs(path: &Path, args: &[&str], extra: &[OsString]) {
    let mut all: Vec<OsString> = vec!["-q".into(), "-F".into()];
    if !args.contains(&"-U") {
        all.extend(["-U".into(), UUID.into()]);
    }
    if !args.contains(&"-E") {
        all.extend(["-E".into(), HASH_SEED.into()]);
    }
    all.extend(args.iter().map(Into::into));
    all.extend_from_slice(extra);
    all.push(arg(path));
    run("mke2fs", &all).must_succeed();
}
