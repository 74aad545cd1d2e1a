//! `extant stats`: counters of a live mount, and its tunables.

use crate::context::Context;
use crate::failure::{At, Failure, Result};
use crate::text::shown;
use serde_json::Value;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

/// Show the state, errors, options and counters of a live mount, or change a tunable of it
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Where it is mounted
    dir: PathBuf,
    /// Set a tunable instead: mb_frsp_max_mem (a size, 0 for none), frsp_cache_aggression (0 to 3),
    /// prefetch_block_bitmaps (0 or 1), pa (0 or 1), lg (0 to 2)
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    if !args.set.is_empty() {
        return set(args, context);
    }
    let text = extant_fuse::control::stats(&args.dir).map_err(|e| refused(args, &e))?;
    let document: Value =
        serde_json::from_slice(&text).at(format_args!("{}: counters", args.dir.display()))?;
    show(&document, context)
}

fn show(document: &Value, context: &Context) -> Result {
    if context.json {
        return context.document(document);
    }
    let mut out = BufWriter::new(std::io::stdout().lock());
    print(&mut out, "", document)?;
    Ok(out.flush()?)
}

/// Sets tunables and tells the values that hold then.
fn set(args: &Args, context: &Context) -> Result {
    let mut holds = serde_json::Map::new();
    for setting in &args.set {
        let wrong = || {
            Failure::usage(format_args!("{setting}: not NAME=VALUE with a number or size as VALUE"))
        };
        let (name, value) = setting.split_once('=').ok_or_else(wrong)?;
        let value = extant_engine::mkfs::parse_size(value).map_err(|_| wrong())?;
        let now = extant_fuse::control::set(&args.dir, name, value)
            .map_err(|e| not_set(args, setting, &e))?;
        holds.insert(name.into(), now.into());
    }
    show(&Value::Object(holds), context)
}

fn not_set(args: &Args, setting: &str, error: &std::io::Error) -> Failure {
    match error.kind() {
        std::io::ErrorKind::NotFound => Failure::new(format_args!(
            "{setting}: there is no such tunable; `extant help stats` lists them"
        )),
        std::io::ErrorKind::InvalidInput => Failure::new(format_args!(
            "{setting}: the tunable cannot have this value; `extant help stats` has the ranges"
        )),
        _ => refused(args, error),
    }
}

fn refused(args: &Args, error: &std::io::Error) -> Failure {
    let dir = args.dir.display();
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            Failure::new(format_args!("{dir}: counters are for root and for the user of the mount"))
        }
        _ if error.raw_os_error() == Some(rustix::io::Errno::NOTTY.raw_os_error()) => {
            Failure::new(format_args!("{dir}: nothing that extant serves is mounted there"))
        }
        _ => Failure::new(format_args!("{dir}: {error}")),
    }
}

/// Prints one line for each number, `module.counter value`.
fn print(out: &mut impl Write, prefix: &str, value: &Value) -> std::io::Result<()> {
    match value {
        Value::Object(map) => map.iter().try_for_each(|(key, value)| {
            let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
            print(out, &name, value)
        }),
        Value::String(text) => writeln!(out, "{prefix:<32} {}", shown(text.as_bytes())),
        Value::Null => writeln!(out, "{prefix:<32} none"),
        other => writeln!(out, "{prefix:<32} {other}"),
    }
}
