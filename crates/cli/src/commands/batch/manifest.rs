//! Manifests: the commands of a batch.

use super::Parser;
use super::job::Job;
use crate::failure::{Failure, Result};
use crate::script::{ScriptLine, cause_of, parse_script, read_script};
use std::collections::HashMap;
use std::ffi::OsString;
use std::path::Path;

/// Most MiB of a manifest.
const MAX_MANIFEST: u64 = 256;

/// Commands that do not end by themselves, that act for another process, or whose output is no
/// JSON document.
const REFUSED: [&str; 9] =
    ["batch", "cat", "lab", "mount", "pages", "serve", "serve-nbd", "serve-vhost", "upgrade"];

/// A part of the jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    index: usize,
    count: usize,
}

/// Returns a parser of a number of jobs at the same time.
pub fn job_number() -> impl clap::builder::TypedValueParser<Value = u16> {
    clap::value_parser!(u16).range(1..=1024)
}

/// Parses `K/N`.
pub fn parse_shard(text: &str) -> Result<Shard, String> {
    let numbers = text.split_once('/').and_then(|(index, count)| {
        Some(Shard { index: index.parse().ok()?, count: count.parse().ok()? })
    });
    numbers
        .filter(|shard| shard.index < shard.count)
        .ok_or_else(|| "must be K/N with K from 0 to N-1".to_owned())
}

/// Reads a manifest, or a part of it. Each line is known to be a command then.
pub fn read(path: &Path, shard: Option<Shard>, parser: Parser) -> Result<Vec<Job>> {
    let (name, text) = read_script(path, MAX_MANIFEST)?;
    let lines = parse_script(&text)
        .map_err(|bad| Failure::usage(format_args!("{name}:{}: {}", bad.number, bad.why)))?;
    let jobs = lines.into_iter().map(|line| job(line, &name, parser));
    let jobs = jobs.collect::<Result<Vec<_>>>()?;
    check_distinct(&jobs, &name)?;
    Ok(match shard {
        None => jobs,
        Some(Shard { index, count }) => jobs.into_iter().skip(index).step_by(count).collect(),
    })
}

/// Refuses equal jobs: they would work on one image at the same time, and be one in the log.
fn check_distinct(jobs: &[Job], name: &str) -> Result {
    let mut first = HashMap::new();
    for job in jobs {
        if let Some(line) = first.insert(&job.words, job.line) {
            let (number, text) = (job.line, job.text());
            let message = format!("{name}:{number}: {text}: line {line} is the same");
            return Err(Failure::usage(message));
        }
    }
    Ok(())
}

fn job(line: ScriptLine, name: &str, parser: Parser) -> Result<Job> {
    let job = Job { line: line.number, words: line.words };
    let fail =
        |why: &str| Failure::usage(format_args!("{name}:{}: {}: {why}", job.line, job.text()));
    // As it will be called.
    let begin = ["extant", "--json"].map(OsString::from);
    let whole: Vec<_> = begin.into_iter().chain(job.words.iter().cloned()).collect();
    let command = parser(&whole).map_err(|error| fail(&cause_of(&error)))?;
    if REFUSED.contains(&command) {
        return Err(fail("this command cannot be a job"));
    }
    Ok(job)
}
