//! `extant stats`: counters of a live mount.

use crate::context::Context;
use crate::failure::{At, Failure, Result};
use serde_json::Value;
use std::io::{BufWriter, Write};
use std::path::PathBuf;

/// Show the counters of a live mount
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Where it is mounted
    dir: PathBuf,
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    let text = extant_fuse::control::stats(&args.dir).map_err(|e| refused(args, &e))?;
    let document: Value = serde_json::from_slice(&text).at(format_args!("{}: counters", args.dir.display()))?;
    if context.json {
        return context.document(&document);
    }
    let mut out = BufWriter::new(std::io::stdout().lock());
    print(&mut out, "", &document)?;
    Ok(out.flush()?)
}

fn refused(args: &Args, error: &std::io::Error) -> Failure {
    let dir = args.dir.display();
    match error.kind() {
        std::io::ErrorKind::PermissionDenied => {
            Failure::new(format_args!("{dir}: counters are for root and for the one who mounted it"))
        }
        _ if error.raw_os_error() == Some(rustix::io::Errno::NOTTY.raw_os_error()) => {
            Failure::new(format_args!("{dir}: nothing that extant serves is mounted there"))
        }
        _ => Failure::new(format_args!("{dir}: {error}")),
    }
}

/// One line for each number, `room.counter value`.
fn print(out: &mut impl Write, prefix: &str, value: &Value) -> std::io::Result<()> {
    match value {
        Value::Object(map) => map.iter().try_for_each(|(key, value)| {
            let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
            print(out, &name, value)
        }),
        Value::String(text) => writeln!(out, "{prefix:<32} {text}"),
        other => writeln!(out, "{prefix:<32} {other}"),
    }
}
