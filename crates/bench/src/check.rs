//! Rows of `extant-bench check`.

use crate::disks;
use crate::program::Program;
use crate::row::{Args, Row, measure};
use extant_measure::scratch::{Scratch, need, run as printed};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Runs a program of e2fsprogs that may find and repair damage. Arguments: its command line.
const REPAIRING: &str = r#""$@" || [ $? -lt 4 ]"#;

/// Damages a file system with directories of 100 files: all bitmaps of blocks are zeroed, some
/// directories cleared, and links of some files are counted wrong. Arguments: image, directories.
const DAMAGE: &str = r#"seq 0 "$2" | while read -r n; do
    echo "clri /dir$n"; for file in 0 1 2 3 4 5 6 7 8 9; do
        echo "sif /dir$((n + $2 + 1))/file$file links_count 7"; done; done > "$1.script"
debugfs -w -f "$1.script" "$1" > /dev/null 2>&1
dumpe2fs "$1" 2> /dev/null | sed -n 's/.*Block bitmap at \([0-9]*\).*/\1/p' |
    while read -r block; do
        dd if=/dev/zero of="$1" bs=4096 count=1 seek="$block" conv=notrunc status=none; done
rm "$1.script""#;

/// Programs and places.
struct Bench {
    extant: PathBuf,
    scratch: Scratch,
    /// Where programs that write find a copy of an image.
    out: PathBuf,
    /// Whether there is less of everything.
    quick: bool,
}

/// Measures checks, repairs and new sizes.
pub fn run(args: &Args) -> io::Result<bool> {
    args.options.refuse(&["threads"])?;
    let scratch = Scratch::new()?;
    let (out, quick) = (scratch.join("out"), args.options.quick);
    let bench = Bench { extant: args.program()?, scratch, out, quick };
    type Part = fn(&Bench) -> io::Result<Row>;
    let parts: [(&str, Part); 8] = [
        ("used", Bench::used),
        ("inodes", Bench::inodes),
        ("unused", Bench::unused),
        ("fragmented", Bench::fragmented),
        ("60T", Bench::huge),
        ("repair", Bench::repair),
        ("shrink", Bench::shrink),
        ("grow", Bench::grow),
    ];
    let wanted = parts.into_iter().filter(|(name, _)| args.options.wants(name));
    let rows = wanted.map(|(name, part)| {
        eprintln!("preparing: {name}");
        part(&bench)
    });
    measure(args, rows.collect::<io::Result<_>>()?)
}

impl Bench {
    fn count(&self, usual: u64) -> u64 {
        if self.quick { usual / 100 } else { usual }
    }

    fn extant<A: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = A>) -> Program {
        let words = words.into_iter().map(|word| word.as_ref().to_owned());
        Program::new(
            [self.extant.as_os_str().to_owned(), "--quiet".into()].into_iter().chain(words),
        )
    }

    /// A row of checks of an image.
    fn checks(&self, name: String, image: &Path) -> Row {
        Row::new(name, &[])
            .with("extant", self.extant(["check".as_ref(), image.as_os_str()]))
            .with("e2fsprogs", Program::new(["e2fsck".as_ref(), "-fn".as_ref(), image.as_os_str()]))
            .transfers()
    }

    /// A row of work on a copy of an image. The image is sparse, and so is the copy.
    fn copies(&self, name: String, image: &Path, outputs: &[&Path]) -> Row {
        let (from, to) = (image.to_path_buf(), self.out.clone());
        Row::new(name, &[&[self.out.as_path()], outputs].concat()).transfers().after(move || {
            let words = ["--sparse=always".as_ref(), from.as_os_str(), to.as_os_str()];
            printed("cp", &words).map(drop)
        })
    }

    fn used(&self) -> io::Result<Row> {
        let (count, image) = (self.count(1_000_000), self.scratch.join("used"));
        disks::used(&image, count)?;
        Ok(self.checks(format!("check of {count} used files"), &image).rate(count, 1.2e6))
    }

    /// Inodes without use, whose tables the descriptors call initialized or not.
    fn tables(&self, name: &str, features: &str) -> io::Result<(u64, PathBuf)> {
        let (count, image) = (self.count(10_000_000), self.scratch.join(name));
        File::create(&image)?.set_len(self.count(20 << 30))?;
        let inodes = count.to_string();
        let words = ["-q", "-F", "-t", "ext4", "-b", "4096", "-O", features, "-N", &inodes];
        let words = words.iter().map(OsStr::new).chain([image.as_os_str()]);
        printed("mke2fs", &words.collect::<Vec<_>>())?;
        Ok((count, image))
    }

    fn inodes(&self) -> io::Result<Row> {
        let (count, image) = self.tables("inodes", "^metadata_csum,^uninit_bg")?;
        let name = format!("check of {count} unused inodes in initialized tables");
        Ok(self.checks(name, &image).rate(count, 1e7))
    }

    fn unused(&self) -> io::Result<Row> {
        let (count, image) = self.tables("unused", "metadata_csum")?;
        let name = format!("check of {count} inodes in tables without use");
        Ok(self.checks(name, &image).reads(8_000_000))
    }

    fn fragmented(&self) -> io::Result<Row> {
        let (count, image) = (self.count(2_000_000), self.scratch.join("fragmented"));
        disks::fragmented(&image, count)?;
        Ok(self.checks(format!("check of {count} extents"), &image).within(0.5, "e2fsprogs"))
    }

    fn huge(&self) -> io::Result<Row> {
        let (image, size) = (self.scratch.join("huge"), if self.quick { "600G" } else { "60T" });
        self.extant(["mkfs".as_ref(), image.as_os_str(), size.as_ref()]).run()?;
        let row = self.checks(format!("check of an empty file system of {size}"), &image);
        Ok(row.seconds(5.0).bytes(256_000_000))
    }

    fn repair(&self) -> io::Result<Row> {
        let (count, image) = (self.count(200_000), self.scratch.join("damaged"));
        disks::used(&image, count)?;
        need("debugfs")?;
        let dirs = (count / 10_000).to_string();
        Program::script(DAMAGE, [image.as_os_str(), dirs.as_ref()]).run()?;
        let extant = ["repair", "--level=lossy"].map(OsStr::new);
        let extant = [self.extant.as_os_str(), "--quiet".as_ref(), extant[0], extant[1]];
        let out = self.out.as_os_str();
        let row = self.copies(format!("repair of {count} files"), &image, &[]);
        Ok(row
            .with("extant", Program::script(REPAIRING, extant.into_iter().chain([out])))
            .with("e2fsprogs", Program::script(REPAIRING, ["e2fsck".as_ref(), "-fy".as_ref(), out]))
            .within(1.0, "e2fsprogs"))
    }

    fn shrink(&self) -> io::Result<Row> {
        let (image, moved) = (self.scratch.join("large"), self.scratch.join("moved"));
        let copy = self.scratch.join("copy");
        let size = self.count(8 << 30).next_multiple_of(128 << 20).max(256 << 20);
        let used = size / 8 * 3;
        let behind = disks::spread(&image, size, used)?;
        crate::inputs::large(&moved, behind)?;
        let half = (size / 2).to_string();
        let blocks = (size / 2 / 4096).to_string();
        let mib = |bytes: u64| bytes >> 20;
        let what = format!(
            "{} MiB with {} MiB used to {} MiB, {} MiB moved",
            mib(size),
            mib(used),
            mib(size / 2),
            mib(behind)
        );
        let out = self.out.as_os_str();
        let e2fs = ["resize2fs".as_ref(), "-f".as_ref(), out, blocks.as_ref()];
        Ok(self
            .copies(what, &image, &[&copy])
            .with("extant", self.extant(["resize".as_ref(), out, half.as_ref()]))
            .with("e2fsprogs", Program::new(e2fs))
            .with("cp", Program::new(["cp".as_ref(), moved.as_os_str(), copy.as_os_str()]))
            .within(1.0 / 0.7, "cp")
            .writes(behind / 100 * 105))
    }

    fn grow(&self) -> io::Result<Row> {
        let (count, image) = (self.count(100_000), self.scratch.join("small"));
        disks::used(&image, count)?;
        let size = if self.quick { "10G" } else { "500G" };
        let out = self.out.as_os_str();
        let e2fs = ["resize2fs".as_ref(), "-f".as_ref(), out, size.as_ref()];
        Ok(self
            .copies(format!("{count} files of a block grown to {size}"), &image, &[])
            .with("extant", self.extant(["resize".as_ref(), out, size.as_ref()]))
            .with("e2fsprogs", Program::new(e2fs))
            .within(0.2, "e2fsprogs"))
    }
}
