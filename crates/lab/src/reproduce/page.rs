//! One page with plots and tables of all works, complete in itself.

use super::plot::{self, Effects, Series};
use crate::published::{Found, Here, Published, Work, number};
use extant_measure::grid::parts;
use extant_measure::sheet::escaped;
use extant_measure::timing::Spread;
use std::io;

/// The page around the works.
const FRAME: &str = include_str!("page.html");

/// Returns the page of works filled from stored runs, and from quick ones of this machine.
pub fn page(stored: &[Work], quick: &[Work]) -> io::Result<String> {
    let mut body = String::new();
    for work in stored {
        let again = quick.iter().find(|other| other.name == work.name);
        body += &section(work, again)?;
    }
    Ok(FRAME.replace("<!-- works -->\n", &body))
}

fn section(work: &Work, quick: Option<&Work>) -> io::Result<String> {
    let Work { name, title, author, date, posting, state, machine, omitted, tables } = work;
    let [title, author, date] = [title, author, date].map(|text| escaped(text));
    let mut out = format!("<section id=\"{name}\">\n<h2>{title}: {author}, {date}</h2>\n");
    for (label, text) in [("Posted", posting), ("State", state), ("Authors' machine", machine)] {
        out += &format!("<p class=\"origin\">{label}: {}.</p>\n", escaped(text));
    }
    for (at, table) in tables.iter().enumerate() {
        out += &format!("<h3>{}</h3>\n", escaped(&table.title));
        out += &published(table)?;
        for (n, here) in table.here.iter().enumerate() {
            let again = quick.and_then(|work| work.tables.get(at)?.here.get(n));
            for (label, here) in [("stored run", Some(here)), ("quick run on this machine", again)]
            {
                if let Some((here, found)) =
                    here.and_then(|here| Some((here, here.found.as_ref()?)))
                {
                    out += &measured(table, (here, found), label)?;
                }
            }
        }
    }
    let items: String =
        omitted.iter().map(|text| format!("<li>{}</li>\n", escaped(text))).collect();
    Ok(out + &format!("<h3>Left out or different here</h3>\n<ul>\n{items}</ul>\n</section>\n"))
}

/// Plots a published table: values by threads, or else effects.
fn published(table: &Published) -> io::Result<String> {
    let compared = |column: &&String| {
        table.effects.iter().any(|e| e.before == **column || e.after == **column)
    };
    let by_threads =
        table.rows.iter().all(|row| row[0].parse::<f64>().is_ok()) && table.rows.len() > 3;
    let plot = if by_threads {
        let points = |column: &String| {
            let point =
                |row: &Vec<String>| Some((number(&row[0])?, [table.cell(&row[0], column)?; 3]));
            (column.clone(), table.rows.iter().filter_map(point).collect())
        };
        let series: Vec<Series> = table
            .columns
            .iter()
            .filter(|column| compared(column) || *column == "no records")
            .map(points)
            .collect();
        figure(&plot::lines("published values", &table.key, &series)?, "published")
    } else {
        let effects = table.effects.iter().flat_map(|effect| {
            let line = |(key, value)| (format!("{key}: {}", effect.after), Some(value), None);
            table.effects(effect).map(line)
        });
        let rows: Vec<Effects> = effects.collect();
        if rows.is_empty() {
            String::new()
        } else {
            figure(&plot::effects(&rows)?, "published effects")
        }
    };
    Ok(plot + &details("published table", &table.sheet().html()))
}

/// Plots measured rows: those of threads by their number, others as effects.
fn measured(table: &Published, (here, found): (&Here, &Found), label: &str) -> io::Result<String> {
    let grid = &found.grid;
    let origin = format!("{label}: {}; {}", found.command, found.machine);
    let mut out = String::new();
    let designs = || [&here.before].into_iter().chain(here.after.iter().map(|(name, _)| name));
    let mut groups: Vec<(&str, Vec<(usize, usize)>)> = Vec::new();
    let mut effects: Vec<Effects> = Vec::new();
    for (at, (name, _)) in grid.rows.iter().enumerate() {
        match parts(name.strip_suffix(", 2 fs").unwrap_or(name)) {
            Some((group, threads))
                if groups.last().is_some_and(|(last, _)| *last == group) || grid.rows.len() > 3 =>
            {
                match groups.iter_mut().find(|(other, _)| *other == group) {
                    Some((_, rows)) => rows.push((threads, at)),
                    None => groups.push((group, vec![(threads, at)])),
                }
            }
            _ => effects.extend(here.after.iter().filter_map(|(after, published)| {
                let gain = grid.gain_of(at, grid.column(after)?, grid.column(&here.before)?)?;
                Some((
                    format!("{name}: {after}"),
                    table.effect_of(published, &here.key(name)?),
                    Some(gain),
                ))
            })),
        }
    }
    for (group, rows) in groups {
        let series = designs().filter_map(|name| {
            let at = grid.column(name)?;
            let point = |(threads, row): &(usize, usize)| {
                let Spread { median, min, max } = Spread::of(&grid.rows[*row].1[at])?;
                Some((*threads as f64, [min, median, max]))
            };
            Some((name.clone(), rows.iter().filter_map(point).collect()))
        });
        let svg = plot::lines(&grid.unit, "threads", &series.collect::<Vec<Series>>())?;
        out += &figure(&svg, &format!("{}; {origin}", group));
    }
    if !effects.is_empty() {
        out += &figure(
            &plot::effects(&effects)?,
            &format!("{}: effect over {}; {origin}", grid.title, here.before),
        );
    }
    for (name, cells) in &found.maps {
        out += &figure(&plot::map(cells)?, &format!("free space after use (white): {name}"));
    }
    Ok(out + &details(&format!("values, {label}"), &table.beside(here, found).html()))
}

fn figure(svg: &str, caption: &str) -> String {
    format!("<figure>\n{svg}<figcaption>{}</figcaption>\n</figure>\n", escaped(caption))
}

fn details(summary: &str, content: &str) -> String {
    format!("<details><summary>{}</summary>\n{content}</details>\n", escaped(summary))
}
