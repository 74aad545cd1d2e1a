//! Programs that people run, on a mounted directory.
//!
//! Each is a script of sh(1) that begins in the mounted directory. `SRC` is a directory in memory
//! with the inputs of all sides: an archive, a repository with two branches, statements of SQL, the
//! sources of this project, and a root file system.

use crate::target::Directory;
use crate::workload::tree::{Archive, unpack};
use extant_measure::scratch::{Scratch, Undo, contained, need};
use rustix::process::Signal;
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program at work.
pub struct Program {
    /// Its name in tables.
    pub name: &'static str,
    /// How many times the time of the kernel's ext4 it may take.
    pub bar: Option<f64>,
    /// Tools that it needs beside sh(1).
    tool: &'static str,
    /// Scripts before it and after it, which are not measured.
    around: [&'static str; 2],
    run: &'static str,
}

impl Program {
    const fn new(name: &'static str, tool: &'static str, run: &'static str) -> Program {
        Program { name, bar: None, tool, around: [":", ":"], run }
    }

    /// With a bar.
    const fn at_most(self, bar: f64) -> Program {
        Program { bar: Some(bar), ..self }
    }

    const fn between(self, before: &'static str, after: &'static str) -> Program {
        Program { around: [before, after], ..self }
    }

    /// Prepares it, has `measure` run it, and clears up.
    ///
    /// # Errors
    /// A tool is missing, or a script fails; the message has its last words.
    pub fn play<T>(
        &self,
        dir: &Path,
        inputs: &Inputs,
        measure: impl FnOnce(&dyn Fn() -> io::Result<()>) -> io::Result<T>,
    ) -> io::Result<T> {
        need(self.tool)?;
        let [before, after] = self.around;
        let script = |text| inputs.script(dir, text);
        let (mut clear, is_needed) = (inputs.shell(dir, after), after != ":");
        let undo = is_needed.then(|| Undo::new(move || drop(clear.output())));
        script(before).and_then(|()| script("sync -f ."))?;
        let result = measure(&|| script(self.run));
        undo.into_iter().for_each(Undo::cancel);
        script(after)?;
        result
    }
}

/// Begins a script about the database server, which needs a user of its own that may search all
/// directories above.
macro_rules! as_server {
    ($text:literal) => {
        concat!(
            "server() { setpriv --reuid 65534 --regid 65534 --clear-groups ",
            "env HOME=\"$PWD\" LC_ALL=C \"$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)/$@\"; }\n",
            $text
        )
    };
}

/// All, in their order: each finds the files that those before it have left.
pub const PROGRAMS: [Program; 11] = [
    Program::new("tar -x", "tar", "tar -xf $SRC/tree.tar"),
    Program::new("grep -r", "grep", "! grep -rq 'no such words' tree"),
    Program::new("git clone", "git", "git clone -q $SRC/origin repo"),
    // Files that are as new as the index would be read.
    Program::new("git status", "git", "git -C repo status --porcelain")
        .at_most(2.0)
        .between("sleep 1.1 && git -C repo status", ":"),
    Program::new("git checkout", "git", "git -C repo checkout -q other"),
    Program::new("sqlite3", "sqlite3", "sqlite3 database <$SRC/statements").at_most(2.0),
    Program::new("pgbench", "pgbench", "pgbench -h $SRC -U lab -c 4 -t 250 -n postgres")
        .at_most(2.0)
        .between(
            as_server!(
                "chmod 711 .. && mkdir pg && chown 65534:65534 pg $SRC && chmod 711 $SRC/..
                 server initdb -D pg -A trust -U lab --no-sync
                 server pg_ctl -D pg -o \"-k $SRC -c listen_addresses=''\" -w -l pg/log start
                 pgbench -h $SRC -U lab -i -q -s 2 postgres"
            ),
            as_server!("server pg_ctl -D pg -m fast -w stop && rm -r pg"),
        ),
    Program::new(
        "overlayfs",
        "mount",
        "tar -xf $SRC/tree.tar -C merged && find merged -newer $SRC/tree.tar && rm -r merged/tree",
    )
    .between(
        "mkdir upper work merged
         mount -t overlay -o lowerdir=tree,upperdir=upper,workdir=work overlay merged",
        "umount merged && rm -rf upper work merged",
    ),
    Program::new(
        "bwrap",
        "bwrap",
        "bwrap --unshare-all --bind root / --proc /proc --dev /dev sh -ec '
             for i in $(seq 200); do perl -e 1; done
             find /usr -type f -exec md5sum {} + >/sums
             md5sum --quiet -c /sums
             cp -a /usr /copy && rm -r /copy /sums'",
    )
    .between("mkdir root && tar -xf $SRC/root.tar -C root", "rm -r root"),
    Program::new(
        "cargo build",
        "cargo",
        "cargo build -q --offline --manifest-path project/Cargo.toml -p extant-format",
    )
    .at_most(2.0)
    .between("mkdir project && tar -xf $SRC/project.tar -C project", ":"),
    Program::new("rm -rf", "rm", "rm -rf tree repo project"),
];

/// Makes an archive of the essential packages of this machine, a Debian, with their libraries. The
/// directories at the top that are links into `usr` come first; files have their places there.
const ROOT: &str = r"
    dpkg-query -W -f '${Essential} ${Package}\n' | sed -n 's/^yes //p' | xargs dpkg-query -L >files
    grep '/s\?bin/' files | xargs ldd 2>/dev/null | sed -n 's/.*=> \(.*\) (.*/\1/p
        s/^\t\(\/[^ ]*\) (.*/\1/p' | sort -u >libraries
    { cat files libraries; xargs realpath <libraries; } |
        sed 's,^/\(bin\|sbin\|lib\|lib64\)/,/usr/\1/,' | sort -u >names
    tar -C / --no-recursion --ignore-failed-read -cf root.tar bin sbin lib lib64 \
        -T names 2>/dev/null
";

/// Inputs of programs, in memory.
pub struct Inputs {
    dir: PathBuf,
    _scratch: Scratch,
}

impl Inputs {
    /// Makes a tree of so many files, its archive and its repository, statements and sources.
    pub fn new(files: usize) -> io::Result<Inputs> {
        let scratch = Scratch::new()?;
        let inputs = Inputs { dir: scratch.dir("src")?, _scratch: scratch };
        let tree = Archive::new("tree", files);
        unpack(&Directory::new(&inputs.dir)?, &tree)?;
        fs::write(inputs.dir.join("statements"), statements(files / 10))?;
        // Each eleventh file has another content in the other branch.
        let script = format!(
            "tar -cf tree.tar tree
             git init -q -b main origin && mv tree origin && cd origin
             git config user.name lab && git config user.email lab@localhost
             git add -A && git commit -q -m main && git checkout -q -b other
             find . -name 'file*1.dat' -exec sh -c 'echo other >>\"$1\"' - {{}} \\;
             git commit -q -a -m other && git checkout -q main && cd ..
             tar -C {project} --exclude ./target --exclude ./.git -cf project.tar .",
            project = concat!(env!("CARGO_MANIFEST_DIR"), "/../.."),
        );
        inputs.script(&inputs.dir, &script)?;
        inputs.script(&inputs.dir, ROOT)?;
        Ok(inputs)
    }

    /// Runs a script in a directory. A signal ends it with all that it runs.
    fn script(&self, dir: &Path, text: &str) -> io::Result<()> {
        let done = contained(&mut self.shell(dir, text), Signal::TERM)?;
        if done.status.success() {
            return Ok(());
        }
        let words = String::from_utf8_lossy(&done.stderr);
        let last = words.trim().lines().last().unwrap_or_default();
        Err(io::Error::other(format!("`{text}` failed ({}): {last}", done.status)))
    }

    /// Returns a script's command.
    fn shell(&self, dir: &Path, text: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-e", "-c", text]).current_dir(dir).env("SRC", &self.dir);
        // Neither the user's settings nor another repository count.
        shell.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
        shell.env("CARGO_TARGET_DIR", dir.join("project/target"));
        shell.stdin(Stdio::null()).stderr(Stdio::piped());
        shell
    }
}

/// Statements of SQL: so many transactions of one row with an index, then one of many rows, and
/// questions.
fn statements(transactions: usize) -> String {
    let mut text = String::from("PRAGMA journal_mode=WAL;\nCREATE TABLE t(a INTEGER, b TEXT);\n");
    text.push_str("CREATE INDEX i ON t(a);\n");
    for n in 0..transactions {
        let _ = writeln!(text, "INSERT INTO t VALUES({}, 'row {n}');", n * 7919 % 10007);
    }
    let many = transactions * 20;
    let _ = writeln!(
        text,
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT {many})\n\
         INSERT INTO t SELECT x * 31 % 10007, 'more ' || x FROM n;\n\
         SELECT count(*), max(b) FROM t WHERE a BETWEEN 100 AND 5000;\nVACUUM;"
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_that_fails_tells_its_last_words() {
        let scratch = Scratch::new().expect("a directory");
        let dir = scratch.dir("src").expect("a directory");
        let inputs = Inputs { dir: dir.clone(), _scratch: scratch };
        let failed =
            inputs.script(&dir, "echo first >&2; echo last words >&2; false; echo more >&2");
        let told = failed.expect_err("a failure").to_string();
        assert!(told.ends_with(": last words"), "{told}");
    }
}
