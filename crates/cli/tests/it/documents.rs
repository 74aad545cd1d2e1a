//! `--json`: one document on standard output, whatever comes of the command.

use crate::args;
use crate::program::{Server, extant, is_mount};
use extant_testkit::tool::{Printed, run};
use extant_testkit::{FeatureSet, Image, Scratch, debugfs};
use serde_json::Value;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// A name that is no UTF-8, in the image and of all files of the machine.
const NAME: &[u8] = b"n\xff";

/// The commands by the program's own list, but for `help`.
fn commands() -> Vec<String> {
    let help = extant(&args!["--help"]).must_succeed().text();
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = list.take_while(|line| !line.is_empty()).filter_map(|line| {
        // Texts of several lines are further to the right.
        let name = line.strip_prefix("  ")?.split(' ').next().filter(|name| !name.is_empty());
        name.map(String::from)
    });
    let names: Vec<String> = names.filter(|name| name != "help").collect();
    assert!(names.len() > 20, "{help}");
    names
}

macro_rules! list {
    ($($arg:expr),* $(,)?) => { args![$($arg),*].to_vec() };
}

/// Files of a test.
struct Stage {
    scratch: Scratch,
    image: PathBuf,
    file: OsString,
    /// A manifest of one job.
    jobs: PathBuf,
    mounted: Server,
    /// Its image, which must outlive it.
    _mounted_image: Image,
}

impl Stage {
    fn new() -> Stage {
        let scratch = Scratch::new();
        let image = scratch.join(OsStr::from_bytes(b"image\xff"));
        let made = FeatureSet::named("default").make_sized(16 << 20);
        std::fs::copy(made.path(), &image).unwrap();
        let source = scratch.join(OsStr::from_bytes(NAME));
        std::fs::write(&source, "text").unwrap();
        let file = OsStr::from_bytes(&[b"/", NAME].concat()).to_owned();
        extant(&args!["put", &image, &source, &file]).must_succeed();
        let jobs = scratch.join(OsStr::from_bytes(b"jobs\xff"));
        std::fs::write(&jobs, "mounts").unwrap();
        let mounted = Server::start(made.path(), "rw");
        for name in [&b"image\xff"[..], b"new\xff"] {
            scratch.leave_unjudged(OsStr::from_bytes(name), "others judge the same changes");
        }
        made.leave_unjudged("its server is killed");
        Stage { scratch, image, file, jobs, mounted, _mounted_image: made }
    }

    /// Arguments with which a command succeeds, if it has a document then, and fails.
    fn cases(&self, command: &str) -> (Option<Vec<OsString>>, Vec<OsString>) {
        let (image, file) = (&self.image, &self.file);
        let missing = OsStr::from_bytes(b"/missing\xff");
        let host = |name: &[u8]| self.scratch.join(OsStr::from_bytes(name));
        let source = host(NAME);
        let read = |path: &OsStr| list![image, path];
        let (done, failed) = match command {
            "mkfs" => (list![host(b"new\xff"), "16M"], list![host(b"new2\xff"), "10k"]),
            "build" => (list![host(b"built\xff"), self.mount_point()], list![host(b"x"), missing]),
            "mount" => (list![image, self.mount_point()], list![image, missing]),
            "info" | "recover" | "check" | "repair" | "resize" | "trim" | "tune" | "verity" => {
                (list![image], list![missing])
            }
            "ls" | "tree" | "stat" | "find" | "du" | "hash" => (read(file), read(missing)),
            "debug" => (list![image, "dir", "/"], list![missing, "dir", "/"]),
            "diff" => (list![image, image, file], list![image, image, missing]),
            "cat" => return (None, read(file)),
            "clone" => (list![image, host(b"clone\xff")], list![missing, host(b"x")]),
            "overlay" => {
                let base = self.scratch.file("base.raw", 1 << 20);
                let create =
                    |name: &[u8], base: &OsStr| list!["create", host(name), "--backing", base];
                (create(b"overlay\xff", base.as_os_str()), create(b"x", OsStr::new("/missing")))
            }
            "push" | "pull" => self.transfers(command),
            "lab" => return (None, list!["bench"]),
            // It needs the socket of a client.
            "serve" => return (None, list![]),
            "serve-nbd" => return (None, list![missing]),
            "serve-vhost" => return (None, list![missing, "--socket", host(b"vhost")]),
            "get" => (list![image, file, host(b"copy\xff")], list![image, missing, "x"]),
            "export" => {
                (list![image, "--oci", host(b"oci\xff")], list![image, missing, "--tar", "x"])
            }
            "put" => (list![image, &source, "/put"], list![image, host(b"missing\xff"), "/x"]),
            "rm" => (list![image, "/put"], read(missing)),
            "mkdir" => (list![image, "/made"], list![image, file]),
            "mv" => (list![image, file, file], list![image, missing, "/x"]),
            "ln" => (list![image, file, "/linked"], list![image, missing, "/x"]),
            "mknod" => (list![image, "/pipe", "p"], list![image, file, "p"]),
            "utimes" => (list![image, "@1.5", file], list![image, "now", missing]),
            "apply" => {
                let script = host(b"script\xff");
                std::fs::write(&script, b"mkdir /applied\nchmod 600 '/n\xff'").unwrap();
                (list![image, &script], list![image, missing])
            }
            "batch" => (list![&self.jobs], list![missing]),
            "chmod" => (list![image, "600", file], list![image, "600", missing]),
            "chown" => (list![image, "1:2", file], list![image, "1:2", missing]),
            "truncate" => (list!["-s", "9", image, file], list!["-s", "9", image, missing]),
            "setfattr" => (
                list!["-n", "user.a", "-V", "b", image, file],
                list!["-n", "user.a", image, missing],
            ),
            "stats" => (list![self.mounted.dir()], list!["/"]),
            "mounts" => (list![], list!["surplus"]),
            "upgrade" => {
                let there = self.mount_point();
                extant(&args!["mount", "-o", "transport=dev", image, &there]).must_succeed();
                (list![there], list!["/"])
            }
            "umount" => {
                extant(&args!["mount", image, self.mount_point()]).must_succeed();
                (list![image], list![missing])
            }
            other => panic!("say with which arguments `{other}` succeeds and fails"),
        };
        (Some(done), failed)
    }

    /// Arguments of the commands of object stores.
    fn transfers(&self, command: &str) -> (Vec<OsString>, Vec<OsString>) {
        let url = |name: &str| format!("file://{}/{name}", self.scratch.path().display());
        let host = |name: &[u8]| self.scratch.join(OsStr::from_bytes(name));
        if command == "push" {
            return (list![&self.image, url("a")], list![host(b"missing\xff"), url("x")]);
        }
        extant(&args!["push", "--force", &self.image, url("b")]).must_succeed();
        (list![url("b"), host(b"got\xff")], list![url("none"), host(b"x")])
    }

    fn mount_point(&self) -> PathBuf {
        let dir = self.scratch.join(OsStr::from_bytes(b"mnt\xff"));
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    /// Ends the mount that the command `mount` made.
    fn unmount(&self) {
        let dir = self.mount_point();
        if is_mount(&dir) {
            run("umount", &[&dir]).must_succeed();
            extant(&args!["info", "--wait", &self.image]).must_succeed();
        }
    }
}

/// The document of a command, which must be all of standard output.
#[track_caller]
fn document(command: &str, args: &[OsString]) -> (Printed, Value) {
    let all: Vec<OsString> = args!["--json", command].into_iter().chain(args.to_vec()).collect();
    let printed = extant(&all);
    let document =
        serde_json::from_slice(&printed.stdout).unwrap_or_else(|e| panic!("{e}: {printed}"));
    assert_names_and_numbers(&document, command);
    (printed, document)
}

/// Numbers are numbers, and a name that is no UTF-8 has its bytes beside it.
#[track_caller]
fn assert_names_and_numbers(value: &Value, command: &str) {
    match value {
        Value::Object(object) => object.iter().for_each(|(key, value)| {
            if let Value::String(text) = value {
                let is_number = text.parse::<f64>().is_ok() && !key.ends_with("_hex");
                assert!(!is_number, "{command}: {key} is {value}");
                let exact = object.contains_key(&format!("{key}_hex"));
                let is_text = ["message", "label", "last_mounted_on"].contains(&key.as_str());
                let is_exact = is_text || exact == text.contains('\u{fffd}');
                assert!(is_exact, "{command}: {key} is {value}");
            }
            assert_names_and_numbers(value, command);
        }),
        Value::Array(values) => {
            values.iter().for_each(|value| assert_names_and_numbers(value, command))
        }
        _ => {}
    }
}

#[test]
fn every_command_prints_one_document() {
    let stage = Stage::new();
    for command in commands() {
        let (done, failed) = stage.cases(&command);
        if let Some(done) = done {
            let (printed, document) = document(&command, &done);
            assert_eq!(printed.code, 0, "{printed}");
            assert!(document.get("error").is_none(), "{document}");
        }
        stage.unmount();
        let (printed, document) = document(&command, &failed);
        let codes: &[i32] = if ["check", "repair"].contains(&&*command) { &[8] } else { &[1, 2] };
        assert!(codes.contains(&printed.code), "{printed}");
        assert_eq!(document["error"]["exit_code"], printed.code, "{document}");
        assert!(document["error"]["message"].is_string(), "{document}");
    }
}

#[test]
fn names_of_failures_are_exact() {
    let stage = Stage::new();
    let (_, document) = document("stat", &args![&stage.image, OsStr::from_bytes(b"/m\xff")]);
    let error = &document["error"];
    assert_eq!((&error["path"], &error["path_hex"]), (&"/m\u{fffd}".into(), &"2f6dff".into()));
    assert!(error["message"].as_str().unwrap().contains("/m\\xff"), "{error}");
}

/// Unreadable entries end a command that lists with 1; the list is the document.
#[test]
fn an_incomplete_list_is_one_document() {
    let scratch = Scratch::new();
    let top = scratch.dir("top");
    std::fs::write(top.join("up-up-name"), "").unwrap();
    let image = Image::mke2fs(16 << 20, &["-t", "ext4", "-O", "^metadata_csum"]);
    extant(&args!["put", image.path(), &top, "/"]).must_succeed();
    debugfs::write(image.path(), "symlink /escape \u{9b}31m");
    image.replace(b"up-up-name", b"../../name");
    for command in ["ls", "tree", "find", "du"] {
        let (printed, document) = document(command, &args![image.path(), "/"]);
        assert_eq!(printed.code, 1, "{printed}");
        assert!(document.is_array(), "{document}");
        assert!(!printed.text().contains('\u{9b}'), "a terminal obeys it: {printed}");
    }
    let (printed, document) = document("get", &args![image.path(), "/", scratch.join("out")]);
    assert_eq!((printed.code, &document["errors"]), (1, &1.into()), "{printed}");
}

#[test]
fn usage_help_and_mounts_are_documents() {
    for (wrong, code) in [(&args!["ls"][..], 2), (&args!["nonsense"], 2), (&args!["--help"], 0)] {
        let all: Vec<OsString> = args!["--json"].into_iter().chain(wrong.to_vec()).collect();
        let printed = extant(&all);
        assert_eq!(printed.code, code, "{printed}");
        let document: Value = serde_json::from_slice(&printed.stdout).expect("a document");
        assert!(document["error"].is_object() || document["help"].is_string(), "{document}");
    }
    let stage = Stage::new();
    let dir = stage.mount_point();
    document("mount", &args![&stage.image, &dir]);
    for options in ["remount,ro", "remount,rw"] {
        let (printed, document) = document("mount", &args!["-o", options, &stage.image, &dir]);
        assert_eq!((printed.code, document["dir_hex"].is_string()), (0, true), "{printed}");
    }
    stage.unmount();
}
