//! Writes seed inputs for fuzzing into a folder. `parsers` gets structures of valid images, and of
//! damaged images from the folder in `EXTANT_IMAGES`, `archive` small archives of many forms,
//! `qcow2` small disk images; the other targets get random choices. With `E2FSPROGS_FAKE_TIME` the
//! files are reproducible.

use extant_format::mmp::MMP_MAGIC;
use extant_hostile::archives::{DOCKER, LAYER, MANIFEST, OCI, SEALED, TAR};
use extant_hostile::disks::{BACKED, COUNTED, FULL, READER, STEPS};
use extant_hostile::image::FAST_COMMITS;
use extant_hostile::parsers::of_image;
use extant_hostile::seeds::{Seed, of_others, with_fast_commits};
use extant_testkit::Scratch;
use extant_testkit::image::FeatureSet;
use extant_testkit::rng::Rng;
use extant_testkit::tool::run;
use std::path::{Path, PathBuf};

const SETS: [&str; 6] = ["1k", "ext3_1k", "quota_1k", "mmp", "inline_data", "large_dir"];

fn write(dir: &Path, name: &str, bytes: &[u8]) {
    let path = dir.join(name);
    std::fs::write(&path, bytes).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}

/// A script that makes archives in the current directory.
const ARCHIVES: &str = include_str!("archives.sh");

/// Writes archives with each kind that they can be read as.
fn write_archives(to: &Path) {
    let scratch = Scratch::new();
    let script = format!("cd {}; umask 022; {ARCHIVES}", scratch.path().display());
    run("bash", &["-euc".to_owned(), script]).must_succeed();
    let entries = std::fs::read_dir(scratch.path()).expect("the archives");
    for path in entries.map(|entry| entry.expect("an archive").path()).filter(|p| p.is_file()) {
        let bytes = std::fs::read(&path).expect("an archive");
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let kinds: &[u8] = match &*name {
            "image.oci" => &[OCI],
            "image.docker" => &[DOCKER],
            "list" | "list2" => &[MANIFEST],
            _ => &[TAR, LAYER],
        };
        for kind in kinds {
            // Each choice of the place, and of the form of the image.
            for choice in [SEALED, 1 << 4, 3 << 5] {
                let choices = kind | choice;
                write(to, &format!("{name} {choices}"), &[&[choices][..], &bytes].concat());
            }
        }
    }
}

/// Writes small disk images with each set of choices.
fn write_disks(to: &Path) {
    let scratch = Scratch::new();
    let (raw, image) = (scratch.join("raw"), scratch.join("image"));
    let mut content = vec![0; 40_000];
    content[3000..9000].fill(7);
    content[30_000..30_100].fill(8);
    std::fs::write(&raw, content).expect("a raw image");
    let [raw, path] = [&raw, &image].map(|path| path.to_str().expect("UTF-8").to_owned());
    let convert = ["convert", "-f", "raw", "-O", "qcow2"].map(String::from);
    let create =
        ["create", "-q", "-f", "qcow2", "-u", "-F", "raw", "-b", "/none"].map(String::from);
    let options = |options: &str| ["-o".to_owned(), format!("cluster_size=512,{options}")];
    let with = |begin: &[String], rest: &[&[String]]| [begin, &rest.concat()].concat();
    let files = [raw.clone(), path.clone()];
    let overlay = [path.clone(), "40000".to_owned()];
    for (number, command) in [
        with(&convert, &[&options("refcount_bits=16"), &files]),
        with(&convert, &[&options("refcount_bits=1"), &files]),
        with(&convert, &[&options("refcount_bits=64"), &files]),
        with(&convert, &[&options("compat=0.10"), &files]),
        with(&convert, &[&["-c".to_owned()], &options("compression_type=zstd"), &files]),
        with(&convert, &[&["-c".to_owned()], &options("compression_type=zlib"), &files]),
        with(&create, &[&options("refcount_bits=16"), &overlay]),
        with(&create, &[&options("refcount_bits=64"), &overlay]),
    ]
    .into_iter()
    .enumerate()
    {
        run("qemu-img", &command).must_succeed();
        let bytes = std::fs::read(&image).expect("an image");
        let backed = if number < 6 { 0 } else { BACKED };
        for choices in [READER, 0, COUNTED, COUNTED | FULL] {
            let choices = choices | backed;
            let steps = Rng::new(number as u64).bytes(STEPS);
            write(to, &format!("{number} {choices}"), &[&[choices][..], &steps, &bytes].concat());
        }
        std::fs::remove_file(&image).expect("its end");
    }
}

fn main() {
    let to = PathBuf::from(std::env::args().nth(1).expect("a folder to write to"));
    let names = ["parsers", "journal", "image", "archive", "qcow2"];
    let [parsers, journal, image, archive, qcow2] = names.map(|name| to.join(name));
    for dir in [&parsers, &journal, &image, &archive, &qcow2] {
        std::fs::create_dir_all(dir).expect("a folder");
    }
    write_archives(&archive);
    write_disks(&qcow2);
    for set in SETS {
        let set = FeatureSet::named(set);
        let seed = Seed::make(set, set.journal && set.name != "mmp");
        // The MMP block contains the path of the image, which differs in each run.
        let same = of_image(&seed)
            .into_iter()
            .filter(|input| input.get(2..6) != Some(&MMP_MAGIC.to_le_bytes()[..]));
        for (n, input) in same.enumerate() {
            write(&parsers, &format!("{} {n}", set.name), &input);
        }
    }
    for (n, input) in of_image(&with_fast_commits()).into_iter().enumerate() {
        write(&parsers, &format!("fast commits {n}"), &input);
    }
    for (nr, (path, image)) in of_others().into_iter().enumerate() {
        // The atlas panics on images that are damaged too much.
        let Ok(seed) = std::panic::catch_unwind(|| Seed::of(path, image)) else { continue };
        for (n, input) in of_image(&seed).into_iter().enumerate() {
            write(&parsers, &format!("others {nr} {n}"), &input);
        }
    }
    for n in 0..96 {
        write(&journal, &format!("random {n}"), &Rng::new(n).bytes(40 + 4 * n as usize));
        let choices = Rng::new(n).bytes(8 + n as usize);
        write(&image, &format!("random {n}"), &[&[n as u8, n as u8][..], &choices].concat());
        if n % 6 == 0 {
            write(
                &image,
                &format!("fast commits {n}"),
                &[&[FAST_COMMITS, n as u8][..], &choices].concat(),
            );
        }
    }
}
