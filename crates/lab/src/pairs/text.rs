//! Text form of the results.

use super::interval::{Interval, Standing};
use super::{Row, Verdict};
use crate::measure::median;
use crate::report::figure;
use std::fmt::Write;

/// Everything for people.
pub fn text(rows: &[Row], verdicts: &[Verdict], instructions: bool) -> String {
    let mut out = format!(
        "{:<30} {:>4} {:>9} {:>9}  {:<24} {:>5} {:<8} {:>8} {:>8} {:>8} {:>8}\n",
        "operations per second",
        "thr",
        "engine",
        "ext4",
        "ratio [95%]",
        "bar",
        "",
        "cpu us",
        "ext4",
        "instr",
        "ext4"
    );
    rows.iter().for_each(|row| line(row, &mut out));
    if !instructions {
        out.push_str("instructions: this machine does not count them\n");
    }
    for verdict in verdicts.iter().filter(|v| v.standing != Standing::Reached) {
        let _ = writeln!(out, "{:<8} {}: {}", verdict.standing.word(), verdict.bar, verdict.found);
    }
    let reached = verdicts.iter().filter(|v| v.standing == Standing::Reached).count();
    let _ = writeln!(out, "{reached} of {} bars reached", verdicts.len());
    out
}

fn line(row: &Row, out: &mut String) {
    let mid = |values: &[f64], show: fn(f64) -> String| median(values).map_or("-".into(), show);
    let micros = |v: f64| format!("{v:.2}");
    let ratio = row.ratio();
    let standing = ratio.zip(row.bar).map_or("", |(ratio, bar)| ratio.beside(bar).word());
    let [ours, theirs] = &row.sides;
    let _ = writeln!(
        out,
        "{:<30} {:>4} {:>9} {:>9}  {:<24} {:>5} {:<8} {:>8} {:>8} {:>8} {:>8}",
        row.name,
        row.threads,
        mid(&ours.rate, figure),
        mid(&theirs.rate, figure),
        ratio.map_or("-".into(), |r: Interval| r.to_string()),
        row.bar.map_or("-".into(), |bar| bar.to_string()),
        standing,
        mid(&ours.cpu, micros),
        mid(&theirs.cpu, micros),
        mid(&ours.instructions, figure),
        mid(&theirs.instructions, figure),
    );
}
