//! `extant stats`: counters of a live mount, and its tunables.

use crate::context::Context;
use crate::failure::{At, Failure, Result};
use crate::text::shown;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::time::Duration;

/// Show the state, errors, options and counters of a live mount, or change a tunable of it
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Where it is mounted
    dir: PathBuf,
    /// Set a tunable instead: mb_frsp_max_mem (a size, 0 for none), frsp_cache_aggression (0 to 3),
    /// prefetch_block_bitmaps (0 or 1), pa (0 or 1), lg (0 to 2)
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Show the counters again every so many seconds: those that changed, with their changes
    #[arg(long, value_name = "SECONDS", value_parser = seconds, conflicts_with = "set")]
    watch: Option<Duration>,
    /// With --watch: end after so many times
    #[arg(long, value_name = "N", requires = "watch")]
    count: Option<u64>,
    /// Print the numbers in the text format of Prometheus
    #[arg(long, conflicts_with_all = ["set", "watch", "json"])]
    prometheus: bool,
}

/// Parses a time of a millisecond to a day.
fn seconds(text: &str) -> std::result::Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.001..=86_400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "not 0.001 to 86400 seconds".into())
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    if !args.set.is_empty() {
        return set(args, context);
    }
    if let Some(interval) = args.watch {
        return watch(args, interval, context);
    }
    let document = read(args)?;
    if args.prometheus {
        let mut out = BufWriter::new(std::io::stdout().lock());
        prometheus(&mut out, &args.dir.display().to_string(), &document)?;
        return Ok(out.flush()?);
    }
    show(&document, context)
}

fn read(args: &Args) -> Result<Value> {
    let text = extant_fuse::control::stats(&args.dir).map_err(|e| refused(args, &e))?;
    serde_json::from_slice(&text).at(format_args!("{}: counters", args.dir.display()))
}

/// Shows the counters, and again at each interval those that changed; as a JSON array of whole
/// documents.
fn watch(args: &Args, interval: Duration, context: &Context) -> Result {
    let mut documents = context.json.then(|| context.array(std::io::stdout().lock()));
    let mut before = BTreeMap::new();
    for round in 0.. {
        if args.count.is_some_and(|count| round >= count) {
            break;
        }
        if round > 0 {
            std::thread::sleep(interval);
        }
        let document = read(args)?;
        match &mut documents {
            Some(documents) => {
                documents.push(&document)?;
                std::io::stdout().flush()?;
            }
            None => {
                let now = values(&document);
                let mut out = BufWriter::new(std::io::stdout().lock());
                if round > 0 {
                    writeln!(out)?;
                }
                changes(&mut out, &before, &now)?;
                out.flush()?;
                before = now;
            }
        }
    }
    Ok(documents.map_or(Ok(()), crate::json::Array::finish)?)
}

/// Returns all values by their names.
fn values(document: &Value) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    let mut keep = |name: &str, value: &Value| {
        all.insert(name.into(), value.clone());
        Ok(())
    };
    // Nothing is written that could fail.
    each(&mut keep, "", document).unwrap_or_default();
    all
}

/// Prints the values that changed, and numbers with their change.
fn changes(
    out: &mut impl Write,
    before: &BTreeMap<String, Value>,
    now: &BTreeMap<String, Value>,
) -> std::io::Result<()> {
    for (name, value) in now.iter().filter(|(name, value)| before.get(*name) != Some(value)) {
        match (before.get(name).and_then(Value::as_i64), value.as_i64()) {
            (Some(old), Some(new)) => writeln!(out, "{name:<32} {new} ({:+})", new - old)?,
            _ => line(out, name, value)?,
        }
    }
    Ok(())
}

/// Prints the document in the text format of Prometheus: a sample of each number, with the elements
/// of a list under the label `index`, and of each text with the text as label.
fn prometheus(out: &mut impl Write, dir: &str, document: &Value) -> std::io::Result<()> {
    let quoted = |text: &str| shown(text.as_bytes()).replace('\\', "\\\\").replace('"', "\\\"");
    let dir = quoted(dir);
    let mut print = |name: &str, value: &Value| {
        let name = format!("extant_{}", name.replace('.', "_"));
        let samples: Vec<(String, String)> = match value {
            Value::Bool(is) => vec![(String::new(), u8::from(*is).to_string())],
            Value::Number(number) => vec![(String::new(), number.to_string())],
            Value::String(text) => vec![(format!(",value=\"{}\"", quoted(text)), "1".into())],
            Value::Array(all) => {
                let sample =
                    |(at, value): (usize, &Value)| (format!(",index=\"{at}\""), value.to_string());
                all.iter().enumerate().map(sample).collect()
            }
            _ => Vec::new(),
        };
        if !samples.is_empty() {
            writeln!(out, "# TYPE {name} untyped")?;
        }
        samples
            .iter()
            .try_for_each(|(label, value)| writeln!(out, "{name}{{dir=\"{dir}\"{label}}} {value}"))
    };
    each(&mut print, "", document)
}

fn show(document: &Value, context: &Context) -> Result {
    if context.json {
        return context.document(document);
    }
    let mut out = BufWriter::new(std::io::stdout().lock());
    print(&mut out, document)?;
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

/// Prints one line for each value, `module.counter value`.
fn print(out: &mut impl Write, document: &Value) -> std::io::Result<()> {
    each(&mut |name, value| line(out, name, value), "", document)
}

fn line(out: &mut impl Write, name: &str, value: &Value) -> std::io::Result<()> {
    match value {
        Value::String(text) => writeln!(out, "{name:<32} {}", shown(text.as_bytes())),
        Value::Null => writeln!(out, "{name:<32} none"),
        other => writeln!(out, "{name:<32} {other}"),
    }
}

/// Calls `work` for each value with its name, `module.counter`.
fn each(
    work: &mut impl FnMut(&str, &Value) -> std::io::Result<()>,
    prefix: &str,
    value: &Value,
) -> std::io::Result<()> {
    match value {
        Value::Object(map) => map.iter().try_for_each(|(key, value)| {
            let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
            each(work, &name, value)
        }),
        other => work(prefix, other),
    }
}
