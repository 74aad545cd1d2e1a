//! `extant mounts`: the mounts that this program serves.

use crate::context::Context;
use crate::failure::Result;
use crate::holders::Process;
use crate::json;
use crate::mounting::users::{self, MountUsers};
use crate::table::{self, HeldMount, Mount};
use crate::text::{age, shown};
use rustix::io::Errno;
use serde_json::{Map, Value, json};
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// How long servers have for their answers.
const PATIENCE: Duration = Duration::from_secs(1);

/// List the mounts of images: state, age, users, and the process that serves
///
/// The state is `writable`, `read-only` or `shut down`; `ended` if the server is gone, and `no
/// answer` if it does not answer within a second. Servers of other users are not asked, and their
/// mounts may claim a wrong image.
#[derive(clap::Args, Debug)]
pub struct Args {}

/// A mount with its users and its server.
#[derive(Debug)]
struct Row {
    mount: Mount,
    answer: Answer,
    server: Option<Process>,
    users: MountUsers,
}

/// Result of the question to a server.
#[derive(Debug)]
enum Answer {
    /// The document of its counters.
    Told(Value),
    /// The server is gone.
    Ended,
    /// None came, or an error.
    Missing,
    /// Another user's server, which may hang or lie.
    NotAsked,
}

impl Answer {
    /// Seconds since the mount began.
    fn age(&self) -> Option<u64> {
        self.server("seconds")
    }

    fn server(&self, name: &str) -> Option<u64> {
        match self {
            Answer::Told(document) => document["server"][name].as_u64(),
            _ => None,
        }
    }
}

impl Row {
    fn state(&self) -> &str {
        match &self.answer {
            // The server of a mount that was remounted could still write.
            Answer::Told(document) => match document["state"]["changes"].as_str() {
                Some("writable") if !self.mount.is_writable() => "read-only",
                told => told.unwrap_or("no answer"),
            },
            Answer::Ended => "ended",
            Answer::Missing => "no answer",
            Answer::NotAsked => "not asked",
        }
    }
}

/// Runs the command.
pub fn run(_args: &Args, context: &Context) -> Result {
    let all = table::mounts().into_iter().filter(|mount| mount.has_own_type("extant"));
    let asked: Vec<_> = all.map(|mount| (ask(&mount), mount)).collect();
    let limit = Instant::now() + PATIENCE;
    let rows: Vec<Row> = asked
        .into_iter()
        .map(|(asked, mount)| {
            let wait = limit.saturating_duration_since(Instant::now());
            let answer = asked.map_or(Answer::NotAsked, |answer| {
                answer.recv_timeout(wait).unwrap_or(Answer::Missing)
            });
            row(mount, answer)
        })
        .collect();
    let mut out = BufWriter::new(std::io::stdout().lock());
    if context.json {
        let mut array = context.array(&mut out);
        rows.iter().try_for_each(|row| array.push(&document(row)))?;
        array.finish()?;
    } else {
        print(&mut out, &rows)?;
    }
    Ok(out.flush()?)
}

/// Asks the server of a mount of this user, through a process: it may never answer, and a process
/// that waits for a server cannot end. `None` for other mounts.
fn ask(mount: &Mount) -> Option<mpsc::Receiver<Answer>> {
    if !mount.is_ours("extant") {
        return None;
    }
    let (sender, answer) = mpsc::channel();
    let mount = mount.clone();
    let body = move || {
        // The receiver is gone if this took too long.
        let _ = sender.send(answer_of(&mount).unwrap_or(Answer::Missing));
    };
    // Without a thread there is no answer.
    let _ = thread::Builder::new().spawn(body);
    Some(answer)
}

fn answer_of(mount: &Mount) -> io::Result<Answer> {
    let held = HeldMount::of(&mount.dir)?;
    // A mount may lie over it.
    if held.mount() != mount {
        return Ok(Answer::Missing);
    }
    let mut stats = Command::new("/proc/self/exe");
    stats.arg0("extant").args(["stats", "--json", "/proc/self/fd/0"]);
    let told = stats.stdin(held.root()?).stderr(Stdio::null()).output()?;
    if told.status.success() {
        return Ok(serde_json::from_slice(&told.stdout).map_or(Answer::Missing, Answer::Told));
    }
    let gone = extant_fuse::control::stats(&held.path()).err();
    let has_ended = gone.and_then(|e| e.raw_os_error()) == Some(Errno::NOTCONN.raw_os_error());
    Ok(if has_ended { Answer::Ended } else { Answer::Missing })
}

fn row(mount: Mount, answer: Answer) -> Row {
    let told = answer.server("process").and_then(|id| u32::try_from(id).ok());
    let server = users::server_of(mount.device).or_else(|| told.map(Process::named));
    let mut found = MountUsers::of(mount.device);
    // A server uses the mounted directory at most when it unmounts.
    found.inside.retain(|user| server.as_ref().is_none_or(|server| server.id != user.id));
    Row { mount, answer, server, users: found }
}

fn document(row: &Row) -> Value {
    let process = |process: &Process| json!({ "id": process.id, "command": process.command });
    let all = |some: &[Process]| some.iter().map(process).collect::<Vec<_>>();
    let mut object = Map::new();
    json::put_bytes(&mut object, "image", row.mount.source.as_os_str().as_bytes());
    json::put_bytes(&mut object, "dir", row.mount.dir.as_os_str().as_bytes());
    object.insert("type".into(), row.mount.shown_type().into());
    object.insert("state".into(), row.state().into());
    object.insert("options".into(), row.mount.options().into());
    object.insert("mounted_by".into(), row.mount.user.into());
    object.insert("age_seconds".into(), row.answer.age().into());
    object.insert("server".into(), row.server.as_ref().map(process).into());
    object.insert("users".into(), all(&row.users.inside).into());
    object.insert("namespaces".into(), all(&row.users.namespaces).into());
    object.into()
}

fn print(out: &mut impl Write, rows: &[Row]) -> std::io::Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let heads = ["STATE", "AGE", "USERS", "PROCESS", "IMAGE", "DIRECTORY"].map(String::from);
    let lines: Vec<[String; 6]> = rows.iter().map(line).collect();
    let all: Vec<&[String; 6]> = [&heads].into_iter().chain(&lines).collect();
    let width = |column: usize| all.iter().map(|line| line[column].chars().count()).max();
    for line in &all {
        let mut text = String::new();
        for (column, cell) in line.iter().enumerate().take(line.len() - 1) {
            let width = width(column).unwrap_or_default();
            text.push_str(&format!("{cell:<width$}  "));
        }
        writeln!(out, "{text}{}", line[line.len() - 1])?;
    }
    Ok(())
}

fn line(row: &Row) -> [String; 6] {
    let unknown = || String::from("-");
    [
        row.state().into(),
        row.answer.age().map_or_else(unknown, age),
        (row.users.inside.len() + row.users.namespaces.len()).to_string(),
        row.server.as_ref().map_or_else(unknown, |server| server.id.to_string()),
        shown(row.mount.source.as_os_str().as_bytes()),
        shown(row.mount.dir.as_os_str().as_bytes()),
    ]
}
