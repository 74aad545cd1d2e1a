//! Rows of `extant-bench images`.

use crate::inputs;
use crate::overlays;
use crate::program::Program;
use crate::row::{Args, Row, measure};
use extant_blocks::OpenOptions;
use extant_measure::scratch::{Loop, MountGuard, Scratch, need, run as printed};
use extant_mkfs::{Options, make};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Makes an image that the kernel mounts, and fills it. Arguments: image, size, directory of the
/// mount, source.
const THROUGH_KERNEL: &str = r#"truncate -s "$2" "$1"; mke2fs -q -F -t ext4 "$1"
mount -o loop "$1" "$3"; FILL "$3"; umount "$3""#;

/// Another mke2fs than the installed one, which can read archives.
const MKE2FS: &str = "MKE2FS";

/// Programs and places.
struct Bench {
    extant: PathBuf,
    scratch: Scratch,
    /// Where outputs go.
    out: PathBuf,
    /// Whether there is less of everything.
    quick: bool,
}

/// Measures images.
pub fn run(args: &Args) -> io::Result<bool> {
    args.options.refuse(&["threads"])?;
    let scratch = Scratch::new()?;
    let out = scratch.join("out");
    let quick = args.options.quick;
    let bench = Bench { extant: args.program()?, scratch, out, quick };
    type Part = fn(&Bench) -> io::Result<Vec<Row>>;
    let parts: [(&str, Part); 8] = [
        ("tree", Bench::trees),
        ("layer", Bench::layers),
        ("large", Bench::large),
        ("empty", Bench::empty),
        ("clone", Bench::clones),
        ("edits", Bench::edits),
        ("million", Bench::million),
        ("overlay", Bench::overlays),
    ];
    let mut rows = Vec::new();
    let mut reflinks = None;
    for (name, part) in parts.into_iter().filter(|(name, _)| args.options.wants(name)) {
        eprintln!("preparing: {name}");
        if name == "clone" {
            reflinks = Some(bench.reflinks()?);
        }
        rows.extend(part(&bench)?);
    }
    let measured = measure(args, rows);
    drop(reflinks);
    measured
}

impl Bench {
    fn files(&self, usual: usize) -> usize {
        if self.quick { usual / 100 } else { usual }
    }

    fn bytes(&self, usual: u64) -> u64 {
        if self.quick { usual / 100 } else { usual }
    }

    fn extant<A: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = A>) -> Program {
        let words = words.into_iter().map(|word| word.as_ref().to_owned());
        Program::new(
            [self.extant.as_os_str().to_owned(), "--quiet".into()].into_iter().chain(words),
        )
    }

    /// mke2fs with further words, for an ext4 image.
    fn mke2fs(&self, more: &[&OsStr]) -> Program {
        let program = std::env::var_os(MKE2FS).unwrap_or("mke2fs".into());
        let usual = ["-q", "-F", "-t", "ext4"].map(OsStr::new);
        Program::new([&[program.as_os_str()], &usual[..], more].concat())
    }

    fn build(&self, source: &Path) -> Program {
        self.extant(["build".as_ref(), self.out.as_os_str(), source.as_os_str()])
    }

    /// Copies bytes, as the least that a program can do.
    fn cat(&self, path: &Path) -> Program {
        Program::new(["cat"]).reading(path).writing(&self.out)
    }

    fn kernel(&self, fill: &str, size: &str, source: &Path) -> io::Result<Program> {
        let dir = self.scratch.join("mounted");
        std::fs::create_dir_all(&dir)?;
        let text = THROUGH_KERNEL.replace("FILL", fill);
        Ok(Program::script(
            &text,
            [self.out.as_os_str(), size.as_ref(), dir.as_os_str(), source.as_os_str()],
        ))
    }

    fn trees(&self) -> io::Result<Vec<Row>> {
        let (count, bytes) = (self.files(30_000), self.bytes(322_000_000));
        let (dir, archive) = (self.scratch.dir("tree")?, self.scratch.join("tree.tar"));
        inputs::tree(&dir, count, bytes)?;
        inputs::tar(&dir, &archive)?;
        let (out, image) = (self.out.as_path(), self.scratch.join("tree.img"));
        self.extant(["build".as_ref(), image.as_os_str(), dir.as_os_str()]).run()?;
        let what = format!("{count} files of {} MB", bytes / 1_000_000);
        let mut of_tar = Row::new(format!("{what} from tar"), &[out])
            .with("extant", self.build(&archive))
            .with("floor", self.cat(&archive))
            .with("kernel", self.kernel("tar -xf \"$4\" -C", "600M", &archive)?)
            .within(1.5, "floor");
        let find = r#"find "$1" -type f -print0 | xargs -0 cat > /dev/null"#;
        let by_mke2fs = |source: &Path| {
            self.mke2fs(&["-d".as_ref(), source.as_os_str(), out.as_os_str(), "600M".as_ref()])
        };
        if std::env::var_os(MKE2FS).is_some() {
            of_tar = of_tar.with("e2fsprogs", by_mke2fs(&archive));
        }
        let mut of_dir = Row::new(format!("{what} from a directory"), &[out])
            .with("extant", self.build(&dir))
            .with("floor", Program::script(find, [&dir]))
            .with("e2fsprogs", by_mke2fs(&dir))
            .with("kernel", self.kernel("cp -a \"$4\"/.", "600M", &dir)?)
            .within(1.2, "floor");
        if need("genext2fs").is_ok() {
            let words = ["genext2fs", "-B", "4096", "-b", "150000", "-N", "40000", "-d"];
            let words = words.map(OsStr::new).into_iter();
            let words = words.chain([dir.as_os_str(), out.as_os_str()]);
            of_dir = of_dir.with("genext2fs", Program::new(words));
        }
        let to = ["export".as_ref(), image.as_os_str(), "--dir".as_ref(), out.as_os_str()];
        let dump = format!("rdump / {}", out.display());
        let dump = [OsStr::new("-R"), dump.as_ref(), image.as_os_str()];
        let dump = [&[OsStr::new("sh"), "-c".as_ref(), DUMP.as_ref(), "sh".as_ref()], &dump[..]];
        let export = Row::new(format!("{what} exported"), &[out])
            .with("extant", self.extant(to))
            .with("e2fsprogs", Program::new(dump.concat()))
            .within(1.0 / 3.0, "e2fsprogs");
        Ok(vec![of_tar, of_dir, export])
    }

    fn layers(&self) -> io::Result<Vec<Row>> {
        let (count, bytes) = (self.files(113_000), self.bytes(416_000_000));
        let (dir, archive) = (self.scratch.dir("layer")?, self.scratch.join("layer.tar"));
        inputs::tree(&dir, count, bytes)?;
        inputs::tar(&dir, &archive)?;
        std::fs::remove_dir_all(&dir)?;
        let what = format!("{count} entries of {} MB of an OCI layer", bytes / 1_000_000);
        let rows = [("plain", false), ("gzip", true)].map(|(name, gzip)| {
            let layer = inputs::layout(&self.scratch, name, &archive, gzip)?;
            let row = Row::new(format!("{what}, {name}"), &[&self.out])
                .with("extant", self.build(&self.scratch.join(name)));
            let unpack = r#"gzip -dc "$1" | sha256sum"#;
            Ok(if gzip {
                row.with("floor", Program::script(unpack, [&layer])).within(1.3, "floor")
            } else {
                row.with("floor", self.cat(&layer)).seconds(1.0)
            })
        });
        rows.into_iter().collect()
    }

    fn large(&self) -> io::Result<Vec<Row>> {
        let (count, bytes) = (self.files(30_000), self.bytes(2_000_000_000));
        let (dir, one_dir) = (self.scratch.dir("many")?, self.scratch.dir("one")?);
        inputs::tree(&dir, count, bytes)?;
        let copy = ["cp".as_ref(), "-a".as_ref(), dir.as_os_str(), self.out.as_os_str()];
        let many = Row::new(format!("{count} files of {} MB", bytes / 1_000_000), &[&self.out])
            .with("extant", self.build(&dir))
            .with("cp", Program::new(copy))
            .within(1.3, "cp");
        let (file, bytes) = (one_dir.join("file"), self.bytes(4_000_000_000));
        inputs::large(&file, bytes)?;
        let one = Row::new(format!("a file of {} MB", bytes / 1_000_000), &[&self.out])
            .with("extant", self.build(&one_dir))
            .with("floor", self.cat(&file))
            .within(1.25, "floor")
            .bytes(64_000_000);
        let piped = |to: &str| format!("tar -C \"$1\" -cf - . | {to}");
        let build = r#""$3" -q build --size "$4" -N 64 "$2" -"#;
        let size = (bytes + bytes / 50 + (64 << 20)).to_string();
        let words = [one_dir.as_os_str(), self.out.as_os_str()];
        let extant = [words[0], words[1], self.extant.as_os_str(), size.as_ref()];
        let what = format!("a file of {} MB from a stream", bytes / 1_000_000);
        let stream = Row::new(what, &[&self.out])
            .with("extant", Program::script(&piped(build), extant))
            .with("floor", Program::script(&piped(r#"cat > "$2""#), words))
            .within(1.25, "floor")
            .bytes(64_000_000);
        Ok(vec![many, one, stream])
    }

    fn empty(&self) -> io::Result<Vec<Row>> {
        let row = |size: &str, seconds| {
            let out = self.out.as_os_str();
            Row::new(format!("an empty image of {size}"), &[&self.out])
                .with("extant", self.extant(["mkfs".as_ref(), out, size.as_ref()]))
                .with("e2fsprogs", self.mke2fs(&[out, size.as_ref()]))
                .seconds(seconds)
        };
        let path = self.out.clone();
        let here = move || {
            File::create(&path)?.set_len(20 << 30)?;
            let device = OpenOptions::new(&path).open().map_err(io::Error::other)?;
            make(&device, &Options::default()).map(drop).map_err(io::Error::other)
        };
        let here = Row::new("an empty image of 20G, in process", &[&self.out]).here(here);
        Ok(vec![row("20G", 0.008).bytes(8_000_000), here.seconds(0.003), row("1T", 0.015)])
    }

    /// A file system whose files can share blocks.
    fn reflinks(&self) -> io::Result<(MountGuard, Loop)> {
        let (image, dir) = (self.scratch.join("xfs"), self.scratch.dir("reflinks")?);
        File::create(&image)?.set_len(2 << 30)?;
        printed(
            "mkfs.xfs",
            &["-q".as_ref(), "-m".as_ref(), "reflink=1".as_ref(), image.as_os_str()],
        )?;
        let device = Loop::attach(&image)?;
        printed(
            "mount",
            &["-t".as_ref(), "xfs".as_ref(), device.device.as_os_str(), dir.as_os_str()],
        )?;
        Ok((MountGuard::new(&dir), device))
    }

    fn clones(&self) -> io::Result<Vec<Row>> {
        let dir = self.scratch.join("reflinks");
        let (image, copy) = (dir.join("image"), dir.join("copy"));
        let files = self.scratch.dir("forked")?;
        inputs::tree(&files, self.files(10_000), self.bytes(500_000_000))?;
        self.extant([
            "build".as_ref(),
            "--free=64M".as_ref(),
            image.as_os_str(),
            files.as_os_str(),
        ])
        .run()?;
        let paths = [image.as_os_str(), copy.as_os_str()];
        let clone = Row::new("a clone that shares blocks", &[&copy])
            .with("extant", self.extant(["clone".as_ref()].into_iter().chain(paths)))
            .with(
                "cp",
                Program::new(["cp".as_ref(), "--reflink=always".as_ref()].into_iter().chain(paths)),
            )
            .within(1.0 / 0.9, "cp");
        let note = self.scratch.join("note");
        std::fs::write(&note, "a file")?;
        let steps = r#""$1" -q clone "$2" "$3"; "$1" -q recover "$3"; "$1" -q put "$3" "$4" /note"#;
        let fork = [self.extant.as_os_str(), paths[0], paths[1], note.as_os_str()];
        let fork = Row::new("a clone, recovered, with a new file", &[&copy])
            .with("extant", Program::script(steps, fork))
            .seconds(0.010);
        Ok(vec![clone, fork])
    }

    fn overlays(&self) -> io::Result<Vec<Row>> {
        overlays::rows(&self.scratch, &self.out, self.files(16_384) as u64)
    }

    /// Edits that leave no trace, so that each run makes the same.
    fn edits(&self) -> io::Result<Vec<Row>> {
        let (image, script) = (self.scratch.join("edited"), self.scratch.join("script"));
        self.extant(["mkfs".as_ref(), image.as_os_str(), "256M".as_ref()]).run()?;
        let all =
            |command: &str| (0..50).map(|n| format!("{command} /dir{n}\n")).collect::<String>();
        std::fs::write(&script, all("mkdir") + &all("rm -r"))?;
        let row = Row::new("100 edits in one run", &[])
            .with("extant", self.extant(["apply".as_ref(), image.as_os_str(), script.as_os_str()]));
        Ok(vec![row.seconds(0.010)])
    }

    fn million(&self) -> io::Result<Vec<Row>> {
        let count = self.files(1_000_000);
        let (dir, archive) = (self.scratch.dir("million")?, self.scratch.join("million.tar"));
        inputs::tree(&dir, count, 0)?;
        inputs::tar(&dir, &archive)?;
        std::fs::remove_dir_all(&dir)?;
        let row = Row::new(format!("{count} empty files from tar"), &[&self.out])
            .with("extant", self.build(&archive))
            .with("floor", self.cat(&archive))
            .bytes(256_000_000);
        Ok(vec![row])
    }
}

/// Makes the directory that debugfs wants. Arguments: those of debugfs.
const DUMP: &str = r#"mkdir "${2#rdump / }"; exec debugfs "$@""#;
