//! Text and JSON form of the results.

use crate::bars::Verdict;
use crate::bench::Plan;
use crate::huge::Huge;
use crate::measure::{Record, Unit};
use crate::side::Side;
use std::fmt::Write as _;
use std::io::{self, Write as _};

/// Everything for people.
pub fn text(record: &Record, huge: Option<&Huge>, all: &[Verdict], plan: &Plan) -> String {
    let mut parts = Vec::new();
    if !record.rows().is_empty() {
        let theirs = [Side::Ext4, Side::Fuse2fs, Side::Null, Side::Tmpfs];
        parts.push(medians(record, &plan.sides));
        parts.push(ratios(record, Side::Engine, &theirs[..1]));
        parts.push(ratios(record, Side::ExtantFuse, &theirs));
        parts.push(ratios(
            record,
            Side::ExtantRings,
            &[Side::ExtantFuse, Side::Fuse2fs, Side::NullRings],
        ));
        parts.push(ratios(record, Side::NullRings, &[Side::Null]));
    }
    parts.extend(huge.map(large));
    parts.push(verdicts(all));
    parts.retain(|part| !part.is_empty());
    parts.join("\n")
}

fn large(huge: &Huge) -> String {
    format!(
        "mounting 60 TiB: {} s and {:.0} MB in a process of its own; on the sparse device {:.3} \
        s\n",
        huge.seconds,
        huge.process_bytes as f64 / 1e6,
        huge.sparse_seconds,
    )
}

/// Returns the table of medians.
fn medians(record: &Record, sides: &[Side]) -> String {
    let mut out = format!("{:<36} {:>3} {:<6}", "median rates", "thr", "unit");
    for side in sides {
        let _ = write!(out, " {:>12}", side.name());
    }
    out.push('\n');
    for (row, values) in record.rows() {
        let _ = write!(out, "{:<36} {:>3} {:<6}", row.workload, row.threads, unit(values.unit));
        for side in sides {
            let shown = record.median(row, side.name()).map_or("-".into(), figure);
            let _ = write!(out, " {shown:>12}");
        }
        out.push('\n');
    }
    out
}

/// Returns the table of ratios of each of `ours` to each of `theirs`, with least and greatest of
/// the runs.
fn ratios(record: &Record, ours: Side, theirs: &[Side]) -> String {
    let measured =
        |side: &Side| record.rows().iter().any(|(_, v)| v.sides.contains_key(side.name()));
    let theirs: Vec<Side> = theirs.iter().copied().filter(|s| *s != ours && measured(s)).collect();
    if theirs.is_empty() || !measured(&ours) {
        return String::new();
    }
    let mut out = format!("{:<40} {:>3}", format!("ratios of {} to", ours.name()), "thr");
    for side in &theirs {
        let _ = write!(out, "  {:<22}", side.name());
    }
    out.push('\n');
    for (row, _) in record.rows() {
        let _ = write!(out, "{:<40} {:>3}", row.workload, row.threads);
        for side in &theirs {
            let shown =
                record.ratio(row, ours.name(), side.name()).map_or("-".into(), |s| s.to_string());
            let _ = write!(out, "  {shown:<22}");
        }
        out.push('\n');
    }
    out
}

/// Returns the bars, one line each.
fn verdicts(verdicts: &[Verdict]) -> String {
    let mut out = String::new();
    for v in verdicts {
        let word = if v.reached { "reached" } else { "MISSED" };
        let _ = writeln!(out, "{word:<8} {}: {}", v.bar, v.found);
    }
    let missed = verdicts.iter().filter(|v| !v.reached).count();
    let _ = writeln!(out, "{} of {} bars reached", verdicts.len() - missed, verdicts.len());
    out
}

/// Everything as one JSON document.
pub fn json(record: &Record, huge: Option<&Huge>, verdicts: &[Verdict]) -> String {
    let rows: Vec<_> =
        record.rows().iter().map(|(r, v)| serde_json::json!({ "row": r, "values": v })).collect();
    serde_json::json!({ "rows": rows, "huge": huge, "bars": verdicts }).to_string()
}

fn unit(unit: Unit) -> &'static str {
    match unit {
        Unit::Ops => "ops/s",
        Unit::Megabytes => "MB/s",
    }
}

/// Returns a rate in three digits or so.
pub fn figure(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.2}M", v / 1e6),
        v if v >= 1e4 => format!("{:.0}k", v / 1e3),
        v if v >= 1e3 => format!("{:.1}k", v / 1e3),
        v => format!("{v:.0}"),
    }
}

/// Writes to standard output.
///
/// # Errors
/// Those of writing; a reader that has gone away is one of them.
pub fn say(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
