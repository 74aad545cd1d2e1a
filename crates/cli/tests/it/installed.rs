//! An installation: its files, and that all of them are right where they are.

use crate::args;
use crate::program::{EXTANT, done, json};
use extant_testkit::Scratch;
use extant_testkit::tool::{Printed, run, run_with_env};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// The top of the source tree.
const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Runs `make GOAL` for the program under test, with variables for its Makefile.
fn make(goal: &str, variables: &[String]) -> Printed {
    let program = format!("PROGRAM={EXTANT}");
    let mut args: Vec<&str> = vec!["-s", "-C", SOURCE, goal, &program];
    args.extend(variables.iter().map(String::as_str));
    // A `make` above this test hands its options down otherwise.
    run_with_env("make", &args, &[("MAKEFLAGS", ""), ("MFLAGS", "")]).must_succeed()
}

/// All files and links below a directory, relative to it.
fn files(top: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut pending = vec![top.to_owned()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(dir).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() && !path.is_symlink() {
                pending.push(path);
            } else {
                let name = path.strip_prefix(top).expect("it is below").display();
                found.insert(name.to_string());
            }
        }
    }
    found
}

/// The commands that the help lists, apart from `help` itself.
fn commands() -> Vec<String> {
    let help = done(&args!["--help"]).text();
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = listed
        .take_while(|line| !line.is_empty())
        .map(|line| line.split_whitespace().next().expect("a name").to_owned());
    names.filter(|name| name != "help").collect()
}

/// The options that the help of a command lists, long names before short ones.
fn options(command: &str) -> Vec<String> {
    let help = done(&args!["help", command]).text();
    let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let names = lines.map(|line| {
        let words: Vec<&str> = line.split([' ', ',', '=', '.']).filter(|w| !w.is_empty()).collect();
        let name = words.iter().find(|word| word.starts_with("--")).unwrap_or(&words[0]);
        (*name).to_owned()
    });
    names.filter(|name| name != "-").collect()
}

/// The text of a manual page, which must have no warning.
fn rendered(page: &Path) -> String {
    let args = args!["-man", "-ww", "-Tutf8", "-P-cbou", "-rLL=100n", "-rHY=0", page];
    let printed = run("groff", &args).must_succeed();
    assert!(printed.stderr.is_empty(), "{printed}");
    printed.text()
}

/// An installation below a directory of its own.
struct Installed {
    scratch: Scratch,
    prefix: PathBuf,
}

impl Installed {
    fn new() -> Installed {
        let scratch = Scratch::new();
        let prefix = scratch.join("usr");
        let installed = Installed { scratch, prefix };
        make("install", &installed.variables());
        installed
    }

    fn variables(&self) -> Vec<String> {
        vec![format!("PREFIX={}", self.prefix.display())]
    }

    fn man(&self, page: &str) -> PathBuf {
        self.prefix.join("share/man").join(page)
    }
}

#[test]
fn manual_pages_have_every_command_and_option() {
    let installed = Installed::new();
    let contents = rendered(&installed.man("man1/extant.1"));
    for command in commands() {
        assert!(contents.contains(&format!("extant-{command}(1)")), "{command}: {contents}");
        let text = rendered(&installed.man(&format!("man1/extant-{command}.1")));
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(&format!("NAME extant-{command} - ")), "{text}");
        let starts: Vec<&str> = text.lines().map(str::trim_start).collect();
        for option in options(&command) {
            let has = |line: &&str| {
                line.starts_with('-') && line.split([' ', ',', '=']).any(|word| word == option)
            };
            assert!(starts.iter().any(has), "{command} {option}: {text}");
        }
    }
}

#[test]
fn manual_pages_of_mounts_have_every_mount_option() {
    let installed = Installed::new();
    let help = done(&args!["help", "mount"]).text();
    let lists = help.lines().skip_while(|line| *line != "Options of -o:");
    let names = lists.filter_map(|line| line.strip_prefix("  ").filter(|l| !l.starts_with(' ')));
    let names = names.filter_map(|line| line.split("  ").next()).flat_map(|line| line.split(", "));
    let names: Vec<&str> = names.map(|name| name.trim_end_matches(',')).collect();
    assert!(names.len() > 60, "{names:?}");
    for page in ["man1/extant-mount.1", "man8/mount.fuse.extant.8"] {
        let text = rendered(&installed.man(page));
        let words: BTreeSet<&str> = text.split([' ', '\n', ',']).collect();
        for name in &names {
            assert!(words.contains(name.trim_end_matches(',')), "{page}: {name}: {text}");
        }
    }
}

#[test]
fn an_installation_is_complete_and_goes_without_a_trace() {
    let installed = Installed::new();
    let root = installed.scratch.path();
    let found = files(&installed.prefix);
    let mut wanted: BTreeSet<String> =
        commands().iter().map(|name| format!("share/man/man1/extant-{name}.1")).collect();
    let helpers = [
        "mount.extant",
        "mount.fuse.extant",
        "mount.fuseblk.extant",
        "umount.fuse.extant",
        "umount.fuse",
        "mkfs.extant",
    ];
    for helper in helpers {
        wanted.insert(format!("sbin/{helper}"));
        wanted.insert(format!("share/man/man8/{helper}.8"));
        let program = fs::canonicalize(installed.prefix.join("sbin").join(helper));
        assert_eq!(
            program.expect("a link"),
            fs::canonicalize(root).unwrap().join("usr/bin/extant")
        );
        let page = fs::read_to_string(installed.man(&format!("man8/{helper}.8"))).expect("a page");
        let refers = page.strip_prefix(".so ").map(|target| installed.man(target.trim()));
        assert!(refers.is_none_or(|target| target.is_file()), "{helper}: {page}");
    }
    wanted.extend(
        [
            "bin/extant",
            "share/man/man1/extant.1",
            "share/bash-completion/completions/extant",
            "share/zsh/site-functions/_extant",
            "share/fish/vendor_completions.d/extant.fish",
            "lib/systemd/system/extant@.service",
            "lib/systemd/system/extant-serve.socket",
            "lib/systemd/system/extant-serve@.service",
        ]
        .map(String::from),
    );
    assert_eq!(found, wanted);
    let image = installed.scratch.join("disk.img");
    let mkfs = installed.prefix.join("sbin/mkfs.extant");
    run(&mkfs.to_string_lossy(), &args!["-q", &image, "16384"]).must_succeed();
    make("uninstall", &installed.variables());
    assert_eq!(files(&installed.prefix), BTreeSet::new());
}

/// As a package is built: files go below DESTDIR, and links lead to where they will be.
#[test]
fn an_installation_below_another_root_refers_to_its_own() {
    let scratch = Scratch::new();
    let destdir = format!("DESTDIR={}", scratch.path().display());
    make("install", &[destdir.clone(), "PREFIX=/usr".into(), "HELPERDIR=/usr/sbin".into()]);
    let link = |path: &str| fs::read_link(scratch.join(path)).expect("a link");
    assert_eq!(link("usr/sbin/mount.fuse.extant"), Path::new("../bin/extant"));
    let unit = fs::read_to_string(scratch.join("usr/lib/systemd/system/extant@.service"));
    assert!(unit.expect("a unit").contains("ExecStart=/usr/bin/extant mount"));

    // A helper of another program stays.
    fs::create_dir(scratch.join("sbin")).expect("a directory");
    fs::write(scratch.join("sbin/umount.fuse"), "another").expect("a file");
    let printed = make("install", std::slice::from_ref(&destdir));
    assert!(printed.errors().contains("belongs to another program"), "{printed}");
    assert_eq!(link("sbin/mount.fuse.extant"), Path::new("/usr/local/bin/extant"));
    make("uninstall", &[destdir]);
    let left = files(&scratch.join("sbin"));
    assert_eq!(left, BTreeSet::from(["umount.fuse".to_owned()]));
}

#[test]
fn systemd_takes_the_units() {
    let installed = Installed::new();
    let units = installed.prefix.join("lib/systemd/system");
    let verify = |units: &[PathBuf]| {
        let args = args!["verify", "--man=no", "--recursive-errors=no"];
        let units: Vec<OsString> = units.iter().map(OsString::from).collect();
        run("systemd-analyze", &[&args[..], &units].concat())
    };
    let copied = |name: &str, instance: &str| {
        let instance = installed.scratch.join(instance);
        fs::copy(units.join(name), &instance).expect("a copy");
        instance
    };
    let instance = copied("extant@.service", "extant@disk.service");
    // The service of a socket with Accept=yes is a template beside it.
    let socket = copied("extant-serve.socket", "extant-serve.socket");
    copied("extant-serve@.service", "extant-serve@.service");
    let service = copied("extant-serve@.service", "extant-serve@1.service");
    for units in [vec![instance.clone()], vec![socket, service]] {
        let printed = verify(&units).must_succeed();
        assert!(printed.stderr.is_empty(), "{printed}");
    }
    let broken = fs::read_to_string(&instance).expect("a unit").replace("Type=forking", "Type=no");
    fs::write(&instance, broken).expect("a unit");
    let printed = verify(&[instance]);
    assert!(printed.code == 1 && printed.errors().contains("service type"), "{printed}");
}

#[test]
fn completions_know_every_command() {
    let installed = Installed::new();
    let share = installed.prefix.join("share");
    let bash = share.join("bash-completion/completions/extant");
    let complete = |words: &[&str]| {
        let script = format!(
            "source {}; COMP_WORDS=({}); COMP_CWORD={}; \
             _extant extant \"${{COMP_WORDS[-1]}}\" \"${{COMP_WORDS[-2]}}\"; \
             echo \"${{COMPREPLY[*]}}\"",
            bash.display(),
            words.join(" "),
            words.len() - 1
        );
        let printed = run("bash", &["-euc", &script]).must_succeed();
        assert!(printed.stderr.is_empty(), "{printed}");
        printed.text().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    for command in commands() {
        assert!(complete(&["extant", &command]).contains(&command), "{command}");
    }
    assert_eq!(complete(&["extant", "get", "--ta"]), ["--tar"]);
    for (shell, path) in
        [("zsh", "zsh/site-functions/_extant"), ("fish", "fish/vendor_completions.d/extant.fish")]
    {
        let text = fs::read_to_string(share.join(path)).expect("completions");
        for command in commands() {
            assert!(text.contains(&command), "{shell}: {command}");
        }
    }
}

#[test]
fn pages_are_told_as_a_document() {
    let scratch = Scratch::new();
    let told = json(&args!["pages", scratch.path()]);
    let written = told["written"].as_array().expect("paths").len();
    assert_eq!(written, files(scratch.path()).len());
}
