//! Images in object stores. `scripts/store.sh` has those in a server of S3.

use crate::args;
use crate::contained::{of_threads, process};
use crate::program::{Server, await_that, done, extant, json, refused};
use extant_testkit::tool::{need, run};
use extant_testkit::{Scratch, e2fsck};
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A directory with an image, and its store.
struct Stage {
    scratch: Scratch,
    image: PathBuf,
    url: String,
}

impl Stage {
    fn new() -> Stage {
        let scratch = Scratch::new();
        let top = scratch.dir("top");
        fs::write(top.join("file"), "of the tree").unwrap();
        fs::create_dir(top.join("dir")).unwrap();
        fs::write(top.join("dir/large"), vec![7; 3 << 20]).unwrap();
        let noise: Vec<u8> = (0..3_000_000_u32).map(|n| (n.wrapping_mul(n) >> 9) as u8).collect();
        fs::write(top.join("dir/noise"), noise).unwrap();
        let image = scratch.join("image");
        done(&args!["build", &image, &top, "--free", "16M"]);
        let url = format!("file://{}/images/one", scratch.path().display());
        Stage { scratch, image, url }
    }

    fn pushed() -> Stage {
        let stage = Stage::new();
        done(&args!["push", &stage.image, &stage.url]);
        stage
    }

    fn hash(&self, image: &str) -> String {
        done(&args!["hash", image]).text()
    }
}

#[test]
fn images_are_stored_and_fetched() {
    let stage = Stage::new();
    let own = stage.hash(stage.image.to_str().unwrap());
    let first = json(&args!["push", &stage.image, &stage.url]);
    assert_eq!(first["bytes"], fs::metadata(&stage.image).unwrap().len());
    assert!(first["sent_chunks"].as_u64().unwrap() < first["chunks"].as_u64().unwrap());
    assert!(first["manifest"].as_str().unwrap().starts_with("sha256:"), "{first}");
    refused(&args!["push", &stage.image, &stage.url], 1, "--force replaces it");
    let again = json(&args!["push", "--force", &stage.image, &stage.url]);
    assert_eq!((&again["sent_chunks"], &again["manifest"]), (&0.into(), &first["manifest"]));
    let again = json(&args!["push", "--force", "--verify", &stage.image, &stage.url]);
    assert_eq!(again["sent_chunks"], 0);
    let copy = stage.scratch.join("copy");
    let pulled = json(&args!["pull", &stage.url, &copy]);
    assert_eq!((&pulled["chunks"], &pulled["manifest"]), (&first["chunks"], &first["manifest"]));
    assert_eq!(stage.hash(copy.to_str().unwrap()), own);
    e2fsck::check(&copy).assert_clean();
    let found = fs::metadata(&copy).unwrap();
    assert!(found.blocks() * 512 < found.len() / 2, "{} of {}", found.blocks() * 512, found.len());
    refused(&args!["pull", &stage.url, &copy], 1, "--force replaces it");
    let pinned = format!("{}@{}", stage.url, first["manifest"].as_str().unwrap());
    done(&args!["--no-sandbox", "pull", "-f", &pinned, &copy]);
    let other = format!("{}@sha256:{}", stage.url, "0".repeat(64));
    refused(&args!["pull", other, stage.scratch.join("none")], 1, "the image was replaced");
    assert!(!stage.scratch.join("none").exists());
}

#[test]
fn commands_read_an_image_in_a_store() {
    let stage = Stage::pushed();
    let (at, scratch) = (&stage.url, &stage.scratch);
    assert_eq!(done(&args!["cat", at, "/file"]).text(), "of the tree");
    assert_eq!(done(&args!["--no-sandbox", "cat", at, "/file"]).text(), "of the tree");
    assert_eq!(stage.hash(at), stage.hash(stage.image.to_str().unwrap()));
    for command in ["info", "ls", "tree", "check", "du"] {
        done(&args![command, at]);
    }
    done(&args!["find", at, "/dir"]);
    done(&args!["recover", "--dry-run", at]);
    done(&args!["resize", "--estimate", at]);
    done(&args!["get", at, "/file", scratch.join("got")]);
    done(&args!["export", at, "--tar", scratch.join("all.tar")]);
    done(&args!["clone", at, scratch.join("clone.img")]);
    done(&args!["debug", at, "dir", "/"]);
    done(&args!["build", scratch.join("built.img"), format!("ext4:{at}")]);
    assert_eq!(extant(&args!["diff", at, scratch.join("clone.img")]).code, 0);
    let cached = format!("{at}?cache={}&cache-size=8M", scratch.join("cache").display());
    assert_eq!(stage.hash(&cached), stage.hash(at));
    assert!(fs::read_dir(scratch.join("cache")).unwrap().count() > 4);
}

#[test]
fn partitions_and_formats_in_a_store_are_opened() {
    let stage = Stage::new();
    let disk = stage.scratch.join("disk");
    fs::write(&disk, [vec![0; 1 << 20], fs::read(&stage.image).unwrap()].concat()).unwrap();
    let printed = done(&args!["push", &disk, &stage.url]);
    assert!(printed.errors().contains("free blocks are stored, too"), "{printed}");
    let part = format!("{}@1M", stage.url);
    assert_eq!(done(&args!["cat", &part, "/file"]).text(), "of the tree");
    let inner = format!("{}-part", stage.url);
    done(&args!["push", format!("{}@1M", disk.display()), &inner]);
    assert_eq!(done(&args!["cat", &inner, "/file"]).text(), "of the tree");
}

/// No command changes an image in a store, and each says the remedy.
#[test]
fn changes_are_refused() {
    let stage = Stage::pushed();
    let (at, file) = (&stage.url, stage.scratch.join("top/file"));
    let tree = || fs::read_dir(stage.scratch.join("images")).unwrap().count();
    let before = (tree(), fs::read(stage.scratch.join("images/one")).unwrap());
    let remedy = "extant overlay create";
    for line in [
        args!["put", at, &file, "/file"].to_vec(),
        args!["rm", at, "/file"].to_vec(),
        args!["mkdir", at, "/x"].to_vec(),
        args!["recover", at].to_vec(),
        args!["trim", at].to_vec(),
        args!["resize", at, "64M"].to_vec(),
        args!["tune", at, "--label", "x"].to_vec(),
        args!["mkfs", "-F", at, "64M"].to_vec(),
        args!["build", "-F", at, stage.scratch.join("top")].to_vec(),
        args!["serve-nbd", at].to_vec(),
        args!["--no-sandbox", "rm", at, "/file"].to_vec(),
    ] {
        refused(&line, 1, remedy);
    }
    let repair = extant(&args!["repair", at]);
    assert!(repair.code == 8 && repair.errors().contains(remedy), "{repair}");
    assert_eq!((tree(), fs::read(stage.scratch.join("images/one")).unwrap()), before);
}

#[test]
fn addresses_that_are_none_are_told() {
    let stage = Stage::pushed();
    let image = &stage.image;
    refused(&args!["ls", format!("{}x", stage.url)], 1, "there is no such object");
    refused(&args!["push", image, "http://host/x"], 2, "for reading only");
    refused(&args!["push", image, format!("{}2@sha256:{}", stage.url, "0".repeat(64))], 2, "leave");
    refused(&args!["push", image, "disk"], 2, "it has no scheme");
    refused(&args!["push", image, format!("{}@p1", stage.url)], 2, "part of an image");
    refused(&args!["push", "--chunk", "3", image, &stage.url], 2, "power of two");
    refused(&args!["ls", "s3://"], 1, "names no image");
    let secret = extant(&args!["ls", "https://me:secret@host/x"]);
    assert!(secret.code == 1 && secret.errors().contains("names a user"), "{secret}");
    refused(&args!["pull", &stage.url, stage.scratch.path()], 1, "no regular file");
    refused(&args!["info", "http://127.0.0.1:1/x?timeout=1"], 1, "127.0.0.1:1/x");
    let mount = extant(&args!["mount", format!("{}x", stage.url), stage.scratch.dir("mnt")]);
    assert!(mount.code == 1 && mount.errors().contains("no such object"), "{mount}");
}

#[test]
fn a_mount_of_a_store_is_read_only() {
    let stage = Stage::pushed();
    let dir = stage.scratch.dir("mnt");
    done(&args!["mount", &stage.url, &dir]);
    assert_eq!(fs::read_to_string(dir.join("file")).unwrap(), "of the tree");
    assert_eq!(fs::read(dir.join("dir/large")).unwrap(), vec![7; 3 << 20]);
    let written = fs::write(dir.join("new"), "x").unwrap_err();
    assert_eq!(written.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    refused(&args!["mount", "-o", "remount,rw", &stage.url, &dir], 1, "write-protected");
    done(&args!["umount", &stage.url]);
}

#[test]
fn an_overlay_takes_changes_of_a_store() {
    let stage = Stage::pushed();
    let overlay = stage.scratch.join("overlay");
    done(&args!["overlay", "create", &overlay, "--backing", &stage.url]);
    let how = ["--format", "qcow2", "--backing", &stage.url];
    let words: Vec<OsString> = how.iter().map(Into::into).collect();
    let server = Server::with(&overlay, "rw", &words);
    fs::write(server.dir().join("file"), "changed").unwrap();
    server.unmount();
    let read = |more: &[&str]| {
        let line = [&["cat"], more].concat();
        done(&line.iter().map(Into::into).collect::<Vec<_>>()).text()
    };
    let path = overlay.to_str().unwrap();
    assert_eq!(read(&[&how[..], &[path, "/file"]].concat()), "changed");
    assert_eq!(read(&[&stage.url, "/file"]), "of the tree");
    let second = format!("{}-2", stage.url);
    let line = [&["push"][..], &how, &[path, &second]].concat();
    done(&line.iter().map(Into::into).collect::<Vec<_>>());
    assert_eq!(read(&[&second, "/file"]), "changed");
}

/// A web server of a directory.
struct Web(Child, String);

impl Web {
    fn of(dir: &Path) -> Web {
        let line = ["-u", "-m", "http.server", "0", "--bind", "127.0.0.1"];
        let mut child = Command::new(need("python3"))
            .args(line)
            .current_dir(dir)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let port = said.split("port ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
        Web(child, format!("http://127.0.0.1:{port}"))
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn any_web_server_is_a_store_for_reading() {
    let stage = Stage::pushed();
    let web = Web::of(stage.scratch.path());
    let at = format!("{}/images/one?timeout=5", web.1);
    assert_eq!(stage.hash(&at), stage.hash(stage.image.to_str().unwrap()));
    done(&args!["pull", &at, stage.scratch.join("copy")]);
    let dir = stage.scratch.dir("mnt");
    done(&args!["mount", &at, &dir]);
    assert_eq!(fs::read_to_string(dir.join("file")).unwrap(), "of the tree");
    // A server that stops is an error of reads that need it, and is overcome.
    run("kill", &["-STOP".to_string(), web.0.id().to_string()]).must_succeed();
    fs::read(dir.join("dir/noise")).unwrap_err();
    run("kill", &["-CONT".to_string(), web.0.id().to_string()]).must_succeed();
    await_that("a read", || {
        fs::read(dir.join("dir/noise")).is_ok_and(|got| got.len() == 3_000_000)
    });
    done(&args!["umount", &dir]);
}

/// The process that parses the image has no socket of the network; the other one has.
#[test]
fn a_sandbox_has_no_connection_of_its_own() {
    let stage = Stage::pushed();
    let web = Web::of(stage.scratch.path());
    let server = Server::start(Path::new(&format!("{}/images/one", web.1)), "ro");
    fs::read(server.dir().join("dir/noise")).unwrap();
    let process = process(server.dir());
    let calls = of_threads(&process, "Seccomp:");
    assert!(calls.len() > 2 && calls.iter().all(|value| value == "2"), "{calls:?}");
    let links = fs::read_dir(process.join("fd")).unwrap();
    let names = links.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
    let sockets: Vec<String> = names
        .filter_map(|name| {
            name.to_str()?.strip_prefix("socket:[")?.strip_suffix(']').map(String::from)
        })
        .collect();
    let tcp = fs::read_to_string("/proc/net/tcp").unwrap();
    assert!(sockets.iter().all(|inode| !tcp.contains(&format!(" {inode} "))), "{tcp}");
    server.unmount();
}
