//! Text form of the counts.

use super::count::Counted;
use crate::sheet::Sheet;
use extant_sync::contention::Line;

/// Everything, with at most so many places and lines.
pub fn text(counted: &Counted, most: usize) -> String {
    let tables = [levels(counted), sites(counted, most), lines(counted, most)];
    let mut out = head(counted) + &tables.map(|sheet| sheet.text()).join("\n");
    for verdict in counted.verdicts() {
        let word = if verdict.passed { "reached" } else { "MISSED" };
        out += &format!("{word}: {}: {}: {}\n", counted.kind.word, verdict.rule, verdict.found);
    }
    out + "\n"
}

fn head(counted: &Counted) -> String {
    let (report, each) = (&counted.report, |count| format!("{:.2}", counted.each(count)));
    let mut out = format!(
        "{}: {} threads, {} operations; for each of them {} locks taken, {} writes by locks and \
         atomics, {} of them to lines that several threads write, {:.3} failed exchanges\n",
        counted.kind.name,
        counted.threads,
        counted.ops(),
        each(report.locks()),
        each(report.writes()),
        each(report.shared_writes()),
        counted.each(report.failed()),
    );
    let events = report.events.iter();
    events.for_each(|(name, count)| out += &format!("{:.3} {name}\n", counted.each(*count)));
    out
}

fn levels(counted: &Counted) -> Sheet {
    let time = counted.done.elapsed.as_secs_f64() * counted.threads as f64;
    let share =
        |part: std::time::Duration| format!("{:.2}%", 100.0 * part.as_secs_f64() / time.max(1e-9));
    let head = ["level", "taken", "waited for", "held", "waiting"];
    let mut sheet = Sheet::new("locks", head);
    for level in &counted.report.levels {
        let [taken, waited] = [level.taken, level.contended].map(|count| counted.each(count));
        let counts = [format!("{:?}", level.level), format!("{taken:.3}"), format!("{waited:.4}")];
        sheet.row(counts.into_iter().chain([share(level.held), share(level.waited)]));
    }
    sheet
}

fn sites(counted: &Counted, most: usize) -> Sheet {
    let head = ["place", "lock or atomic", "all", "shared", "failed"];
    let mut sheet = Sheet::new("writes", head);
    for site in counted.report.sites.iter().take(most) {
        let kind = site.level.map_or("atomic".into(), |level| format!("{level:?}"));
        let counts = [site.writes, site.shared, site.failed];
        let counts = counts.map(|count| format!("{:.3}", counted.each(count)));
        sheet.row([site.place.to_string(), kind].into_iter().chain(counts));
    }
    sheet
}

fn lines(counted: &Counted, most: usize) -> Sheet {
    let shared: Vec<&Line> = counted.report.lines.iter().filter(|line| line.is_shared()).collect();
    let title = format!(
        "{} lines that several threads write; {} by every thread all the time",
        shared.len(),
        counted.common().len()
    );
    let mut sheet = Sheet::new(title, ["writes", "threads", "in the background", "places"]);
    for line in shared.iter().take(most) {
        let places: Vec<&str> =
            line.places.iter().take(3).map(|(place, _)| place.as_str()).collect();
        let counts = [line.workers.to_string(), line.others.to_string(), places.join(", ")];
        sheet.row([format!("{:.3}", counted.each(line.writes))].into_iter().chain(counts));
    }
    sheet
}
