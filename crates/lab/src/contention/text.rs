//! Text form of the counts.

use super::count::Counted;
use extant_sync::Level;
use extant_sync::contention::Line;
use std::fmt::Write;

/// Everything, with at most so many places and lines.
pub fn text(counted: &Counted, most: usize) -> String {
    let mut out = head(counted);
    levels(counted, &mut out);
    sites(counted, most, &mut out);
    lines(counted, most, &mut out);
    for verdict in counted.verdicts() {
        let word = if verdict.passed { "reached" } else { "MISSED" };
        let _ =
            writeln!(out, "{word:<8} {}: {}: {}", counted.kind.word, verdict.rule, verdict.found);
    }
    out.push('\n');
    out
}

fn head(counted: &Counted) -> String {
    let report = &counted.report;
    let mut out = format!(
        "{}: {} threads, {} operations; for each of them\n  {:.2} locks taken, {:.2} writes by \
        locks and atomics, {:.2} of them to lines that several threads write, {:.3} failed \
        exchanges\n",
        counted.kind.name,
        counted.threads,
        counted.ops(),
        counted.each(report.locks()),
        counted.each(report.writes()),
        counted.each(report.shared_writes()),
        counted.each(report.failed()),
    );
    for (name, count) in &report.events {
        let _ = writeln!(out, "  {:.3} {name}", counted.each(*count));
    }
    out
}

fn levels(counted: &Counted, out: &mut String) {
    let time = counted.done.elapsed.as_secs_f64() * counted.threads as f64;
    let share = |part: std::time::Duration| 100.0 * part.as_secs_f64() / time.max(1e-9);
    let _ = writeln!(
        out,
        "  {:<18} {:>9} {:>11} {:>9} {:>9}",
        "locks of level", "taken", "waited for", "held", "waiting"
    );
    for level in &counted.report.levels {
        let _ = writeln!(
            out,
            "  {:<18} {:>9.3} {:>11.4} {:>8.2}% {:>8.2}%",
            format!("{:?}", level.level),
            counted.each(level.taken),
            counted.each(level.contended),
            share(level.held),
            share(level.waited),
        );
    }
}

fn kind(level: Option<Level>) -> String {
    level.map_or("atomic".into(), |level| format!("{level:?}"))
}

fn sites(counted: &Counted, most: usize, out: &mut String) {
    let _ = writeln!(
        out,
        "  {:<46} {:<16} {:>9} {:>9} {:>9}",
        "writes from", "lock or atomic", "all", "shared", "failed"
    );
    for site in counted.report.sites.iter().take(most) {
        let _ = writeln!(
            out,
            "  {:<46} {:<16} {:>9.3} {:>9.3} {:>9.4}",
            site.place,
            kind(site.level),
            counted.each(site.writes),
            counted.each(site.shared),
            counted.each(site.failed),
        );
    }
}

fn lines(counted: &Counted, most: usize, out: &mut String) {
    let shared: Vec<&Line> = counted.report.lines.iter().filter(|line| line.is_shared()).collect();
    let _ = writeln!(
        out,
        "  {} lines that several threads write; {} by every thread all the time",
        shared.len(),
        counted.common().len()
    );
    for line in shared.iter().take(most) {
        let places: Vec<&str> =
            line.places.iter().take(3).map(|(place, _)| place.as_str()).collect();
        let _ = writeln!(
            out,
            "  {:>9.3} writes by {} threads and {} in the background: {}",
            counted.each(line.writes),
            line.workers,
            line.others,
            places.join(", "),
        );
    }
}
