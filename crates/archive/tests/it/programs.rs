//! Archives of GNU tar, bsdtar and Python: a tree made of one equals its extraction by GNU tar.

use crate::hosts::{Listing, assert_same, of_host, of_tree, run, stored};
use extant_archive::{Input, Loader};
use extant_image::Tree;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Makes a tree with every kind of file and attribute that archives hold.
const SCRIPT: &str = r#"
set -e
mkdir -p source/dir/sub source/empty
mkdir -p "source/$(printf 'n%.0s' $(seq 120))/$(printf 'm%.0s' $(seq 140))"
cd source
printf hello > file; printf x > dir/sub/deep; : > nothing
head -c 700000 /dev/urandom > large
for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do
    printf "part $n" | dd of=sparse bs=1 seek=$((n * 131072)) conv=notrunc status=none
done
truncate -s 9M sparse; truncate -s 3M hole
printf long > "$(printf 'n%.0s' $(seq 120))/$(printf 'm%.0s' $(seq 140))/name"
ln file second; ln file dir/third
ln -s file link; ln -s "$(printf 't%.0s' $(seq 200))" long-link; ln -s ../missing dangling
mkfifo pipe; mknod null c 1 3; mknod disk b 259 70000
chmod 4751 large; chmod 1777 empty; chmod 2750 dir; chmod 0 nothing
chown 1000:100 file; chown -h 7:8 link; chown 3000000:4000000 large
touch -h -d '2001-02-03 04:05:06' link long-link dangling
touch -d '1999-12-31 23:59:59' file dir/sub/deep nothing sparse hole pipe null disk
find . -type d -exec touch -d '2011-11-11 11:11:11' {} +
"#;

/// Attributes that only PAX holds.
const MORE: &str = r#"
set -e
cd source
setfattr -n user.text -v value file; setfattr -n user.empty file
setfattr -n user.binary -v 0x000a3dff00 dir
setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 large
setfattr -n trusted.secret -v yes dir/sub
setfacl -m u:1234:rw-,g:5678:r--,m::rwx large; setfacl -d -m u:1234:r-x dir
printf '\303\244' > "$(printf '\344\n\377')"
touch -d '2002-02-02 02:02:02.123456789' large; touch -d '1960-01-01 00:00:00.5' hole
find . -type d -exec touch -d '2011-11-11 11:11:11.25' {} +
"#;

/// Returns a directory with the tree in `source`, of everything that PAX holds.
pub fn sources() -> TempDir {
    made_by(&[SCRIPT, MORE])
}

fn made_by(scripts: &[&str]) -> TempDir {
    let directory = TempDir::new().unwrap();
    for script in scripts {
        run("sh", &["-c", script], directory.path());
    }
    directory
}

fn load(path: &Path) -> Tree {
    let mut tree = Tree::new();
    let input = Input::of(File::open(path).unwrap()).unwrap();
    let mut loader = Loader::new(&mut tree, std::env::temp_dir());
    loader.add_tar("archive", input).unwrap();
    tree
}

/// Extracts an archive as GNU tar does for root.
fn extracted(directory: &Path, archive: &str) -> Listing {
    let to = TempDir::new_in(directory).unwrap();
    let target = to.path().to_str().unwrap();
    let options = ["--xattrs", "--xattrs-include=*", "--acls", "--numeric-owner", "-p", "-x"];
    run("tar", &[&options[..], &["-f", archive, "-C", target]].concat(), directory);
    of_host(to.path())
}

#[track_caller]
fn assert_equals_extraction(directory: &TempDir, archive: &str, subject: &str) -> Tree {
    let tree = load(&directory.path().join(archive));
    assert_same(&of_tree(&tree), &extracted(directory.path(), archive), subject);
    tree
}

#[test]
fn archives_of_gnu_tar_equal_their_extraction() {
    let directory = made_by(&[SCRIPT]);
    // The format v7 has neither devices nor long names.
    let v7 = [
        "--format=v7",
        "--exclude=n*",
        "--exclude=long-link",
        "--exclude=pipe",
        "--exclude=disk",
        "--exclude=large",
    ];
    let cases: [&[&str]; 5] = [
        &v7,
        &["--format=ustar", "--exclude=n*", "--exclude=large", "--exclude=long-link"],
        &["--format=gnu"],
        &["--format=oldgnu", "--sparse"],
        &["--format=gnu", "--sparse", "--mtime=1960-01-01"],
    ];
    for options in cases {
        let all = [&["-cf", "a.tar", "-C", "source"], options, &["."]].concat();
        run("tar", &all, directory.path());
        let tree = assert_equals_extraction(&directory, "a.tar", &format!("{options:?}"));
        if options.contains(&"--sparse") {
            assert!(stored(&tree, "sparse") < 1 << 20, "{options:?}");
        }
    }
}

#[test]
fn attributes_of_pax_equal_their_extraction() {
    let directory = sources();
    let all = ["--xattrs", "--xattrs-include=*", "--acls", "--format=posix"];
    let cases: [&[&str]; 5] = [
        &[],
        &["--sparse", "--sparse-version=0.0"],
        &["--sparse", "--sparse-version=0.1"],
        &["--sparse", "--sparse-version=1.0", "--numeric-owner"],
        &["--pax-option=globexthdr.name=g,mtime=1234.5,comment=x"],
    ];
    for options in cases {
        let all = [&["-cf", "a.tar", "-C", "source"], &all[..], options, &["."]].concat();
        run("tar", &all, directory.path());
        let tree = assert_equals_extraction(&directory, "a.tar", &format!("{options:?}"));
        if options.contains(&"--sparse") {
            assert!(stored(&tree, "sparse") < 1 << 20, "{options:?}");
            assert_eq!(stored(&tree, "hole"), 0, "{options:?}");
        }
    }
}

#[test]
fn archives_of_bsdtar_equal_the_source() {
    // bsdtar writes a wrong fraction for times before 1970.
    let after_1970 = "touch -d '1971-01-01' source/hole; touch -d '2011-11-11' source";
    for (format, scripts) in [("pax", &[SCRIPT, MORE, after_1970][..]), ("gnutar", &[SCRIPT])] {
        let directory = made_by(scripts);
        let option = format!("--format={format}");
        let all = [&option, "-cf", "a.tar", "-C", "source", "."];
        run("bsdtar", &all, directory.path());
        let tree = load(&directory.path().join("a.tar"));
        let mut source = of_host(&directory.path().join("source"));
        if format == "gnutar" {
            // The format has whole seconds.
            source.values_mut().for_each(|seen| seen.mtime.1 = 0);
        }
        assert_same(&of_tree(&tree), &source, format);
    }
}

#[test]
fn archives_of_python_equal_their_extraction() {
    let directory = made_by(&[SCRIPT]);
    for format in ["GNU_FORMAT", "PAX_FORMAT"] {
        let program = format!(
            "import tarfile\n\
             t = tarfile.open('a.tar', 'w', format=tarfile.{format})\n\
             t.add('source', '.')\nt.close()"
        );
        run("python3", &["-c", &program], directory.path());
        assert_equals_extraction(&directory, "a.tar", format);
    }
}

#[test]
fn compressed_archives_and_streams_are_equal() {
    let directory = sources();
    let path = |name: &str| directory.path().join(name);
    let all = ["--xattrs", "--xattrs-include=*", "--acls", "--format=posix", "--sparse"];
    let all = [&["-cf", "a.tar", "-C", "source"], &all[..], &["."]].concat();
    run("tar", &all, directory.path());
    let plain = of_tree(&load(&path("a.tar")));
    for (program, suffix, options) in [
        ("gzip", "gz", &["-kf"][..]),
        ("zstd", "zst", &["-qkf", "--check"]),
        ("xz", "xz", &["-kf", "-1"]),
        ("bzip2", "bz2", &["-kf"]),
    ] {
        run(program, &[options, &["a.tar"]].concat(), directory.path());
        let name = format!("a.tar.{suffix}");
        let tree = load(&path(&name));
        assert_same(&of_tree(&tree), &plain, program);
        assert!(stored(&tree, "sparse") < 1 << 20);

        // Two streams, one after the other, are one archive.
        let whole = std::fs::read(path("a.tar")).unwrap();
        let (one, two) = whole.split_at(whole.len() / 3);
        let mut both = Vec::new();
        for part in [one, two] {
            std::fs::write(path("part"), part).unwrap();
            both.extend(run(program, &["-c", "part"], directory.path()));
        }
        std::fs::write(path(&name), &both).unwrap();
        assert_same(&of_tree(&load(&path(&name))), &plain, program);

        // Each damage is found: the end is missing, or a byte in the middle is another.
        std::fs::write(path(&name), &both[..both.len() - 5]).unwrap();
        assert!(error(&path(&name)).contains("truncated"), "{program}: {}", error(&path(&name)));
        let file = File::options().write(true).open(path(&name)).unwrap();
        file.set_len(0).unwrap();
        let middle = both.len() / 2;
        both[middle] ^= 0x55;
        file.write_all_at(&both, 0).unwrap();
        assert!(!error(&path(&name)).is_empty(), "{program}");
    }
    let mut child = Command::new("cat").arg(path("a.tar")).stdout(Stdio::piped()).spawn().unwrap();
    let mut tree = Tree::new();
    let input = Input::Stream(Box::new(child.stdout.take().unwrap()));
    Loader::new(&mut tree, std::env::temp_dir()).add_tar("-", input).unwrap();
    child.wait().unwrap();
    assert_same(&of_tree(&tree), &plain, "stream");
}

fn error(path: &Path) -> String {
    let input = Input::of(File::open(path).unwrap()).unwrap();
    let mut tree = Tree::new();
    let mut loader = Loader::new(&mut tree, std::env::temp_dir());
    loader.add_tar("archive", input).expect_err("the archive is damaged").to_string()
}

#[test]
fn an_archive_that_changes_is_an_error() {
    let directory = made_by(&["mkdir source; printf 12345 > source/f; tar cf a.tar -C source f"]);
    let path = directory.path().join("a.tar");
    let tree = load(&path);
    assert_eq!(tree.read(b"f").unwrap(), b"12345");
    File::options().append(true).open(&path).unwrap().write_at(b"6", 512).unwrap();
    assert!(tree.read(b"f").unwrap_err().to_string().contains("was changed"));
}
