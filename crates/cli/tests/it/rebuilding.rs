//! The same source, built again and again in other environments, gives the same bytes.

use crate::args;
use crate::building::tree;
use crate::program::{EXTANT, extant};
use extant_testkit::Scratch;
use extant_testkit::rng::Rng;
use extant_testkit::tool::{need, run};
use extant_testkit::tree::Manifest;
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Rebuilds, unless EXTANT_REBUILDS has another number.
const REBUILDS: u64 = 40;

/// A user without privileges, whom no list of the tree names.
const USER: u32 = 54_321;

/// Gives a random entry of a copy another place in its directory, where the file system keeps names
/// in the order of their creation.
fn shuffle(top: &Path, rng: &mut Rng) {
    let names: Vec<PathBuf> = fs::read_dir(top).unwrap().map(|e| e.unwrap().path()).collect();
    let stamp = fs::metadata(top).unwrap().modified().unwrap();
    for _ in 0..3 {
        let path = rng.pick(&names);
        let aside = top.join("aside");
        fs::rename(path, &aside).unwrap();
        fs::rename(&aside, path).unwrap();
    }
    fs::File::open(top).unwrap().set_modified(stamp).unwrap();
}

/// Removes the attributes that only root sees.
fn without_trusted(path: &Path) {
    let mut names = vec![0; 4096];
    let len = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let names = names[..len].split(|byte| *byte == 0);
    for name in names.filter(|name| name.starts_with(b"trusted.")) {
        rustix::fs::lremovexattr(path, name).unwrap();
    }
}

/// Returns a script that builds in a random environment, to standard output or to a file.
fn script(top: &Path, out: &Path, rng: &mut Rng) -> String {
    let threads = rng.between(1, 9);
    let zone = rng.pick(&["UTC", "Asia/Tokyo", "America/St_Johns", ":/nowhere", ""]);
    let locale = rng.pick(&["C", "C.UTF-8", "tr_TR.UTF-8", "nonsense", ""]);
    let umask = rng.pick(&["000", "022", "027", "077"]);
    let home = rng.pick(&["/", "/root", "/nowhere"]);
    let temporary = rng.pick(&["/tmp", "/dev/shm", "/var/tmp"]);
    let files = rng.pick(&["64", "256", "1024"]);
    let (base, name) = (top.parent().unwrap().display(), top.file_name().unwrap().display());
    let source = if rng.one_in(2) { format!("./{name}") } else { top.display().to_string() };
    let host = rng.below(1000);
    let user = if rng.one_in(3) { USER } else { 0 };
    let to = if rng.one_in(3) {
        format!("- {source} > {}", out.display())
    } else {
        format!("{} {source}", out.display())
    };
    format!(
        "cd {base}; hostname host{host}; umask {umask}; ulimit -n {files}
        exec {} --reuid={user} --regid={user} --clear-groups env -i TZ={zone} LC_ALL={locale} \
         HOME={home} TMPDIR={temporary} PATH=$PATH USER=u{host} \
         {} build --free 1M --threads {threads} {to}",
        need("setpriv").display(),
        rng.pick(&["/run/program/extant", "./extant"]),
    )
}

#[test]
fn rebuilds_in_other_environments_have_one_digest() {
    let rebuilds = std::env::var("EXTANT_REBUILDS").map_or(REBUILDS, |n| n.parse().unwrap());
    let scratch = Scratch::new();
    let top = tree(&scratch, 44);
    let disk = Scratch::on_disk();
    let mut rng = Rng::new(45);
    // Another user can read all of it.
    run("chmod", &["-R".as_ref(), "a+rX".as_ref(), top.as_os_str()]).must_succeed();
    let paths = Manifest::walk(&top).nodes.into_keys();
    paths.for_each(|path| without_trusted(&top.join(OsStr::from_bytes(&path))));
    let mut tops = Vec::new();
    for base in [scratch.path(), disk.path()] {
        let copy = base.join("copy");
        run("cp", &["-aT".as_ref(), top.as_os_str(), copy.as_os_str()]).must_succeed();
        extant_testkit::tool::install(EXTANT.as_ref(), &base.join("extant"));
        run("chmod", &["a+rx".as_ref(), base.as_os_str()]).must_succeed();
        tops.push(copy);
    }
    let outs = scratch.dir("outs");
    run("chmod", &["1777".as_ref(), outs.as_os_str()]).must_succeed();
    let mut first = None;
    for n in 0..rebuilds {
        let copy = rng.pick(&tops).clone();
        shuffle(&copy, &mut rng);
        let out = outs.join(format!("{n}.img"));
        let build = script(&copy, &out, &mut rng);
        // A program in a place of its own, a name of the machine, and no other processes.
        let all = format!(
            "mkdir -p /run/program; mount -t tmpfs none /run/program
            install {EXTANT} /run/program/extant; {build}"
        );
        let words = ["--mount", "--uts", "--pid", "--fork", "bash", "-euc", &all];
        run("unshare", &words).must_succeed();
        let digest = Sha256::digest(fs::read(&out).unwrap());
        if *first.get_or_insert(digest) != digest {
            let differences = extant(&args!["diff", outs.join("0.img"), &out]);
            panic!("rebuild {n}: {build}\n{differences}");
        }
        if n > 0 {
            fs::remove_file(&out).unwrap();
        }
    }
}
