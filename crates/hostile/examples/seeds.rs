//! Writes seed inputs for fuzzing into a folder. `parsers` gets structures of valid images, and of
//! damaged images from the folder in `EXTANT_IMAGES`, `archive` small archives of many forms; the
//! other targets get random choices. With `E2FSPROGS_FAKE_TIME` the files are reproducible.

use extant_format::mmp::MMP_MAGIC;
use extant_hostile::archives::{DOCKER, LAYER, MANIFEST, OCI, SEALED, TAR};
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

fn main() {
    let to = PathBuf::from(std::env::args().nth(1).expect("a folder to write to"));
    let names = ["parsers", "journal", "image", "archive"];
    let [parsers, journal, image, archive] = names.map(|name| to.join(name));
    for dir in [&parsers, &journal, &image, &archive] {
        std::fs::create_dir_all(dir).expect("a folder");
    }
    write_archives(&archive);
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
