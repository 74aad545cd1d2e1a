//! Plots as SVG: values by threads, and effects beside published ones.

use extant_measure::interval::Interval;
use extant_measure::sheet::figure;
use plotters::coord::Shift;
use plotters::prelude::*;
use std::fmt::Display;
use std::io;
use std::ops::Range;

/// Colors of series, in order.
const COLORS: [RGBColor; 6] = [
    RGBColor(170, 60, 40),
    RGBColor(30, 110, 60),
    RGBColor(40, 90, 170),
    RGBColor(120, 120, 120),
    RGBColor(150, 90, 160),
    RGBColor(190, 130, 20),
];

/// Size of a plot by threads, and the width and the height of a line of effects.
const SIZE: (u32, u32) = (560, 340);
const WIDE: u32 = 860;
const LINE: u32 = 26;

const FONT: (&str, i32) = ("sans-serif", 13);

/// A line: its name, and number of threads, least, median and greatest value of each point.
pub type Series = (String, Vec<(f64, [f64; 3])>);

/// An effect: its row, the published value, and the measured interval.
pub type Effects = (String, Option<f64>, Option<Interval>);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Plots values by threads on logarithmic axes, with their spread.
pub fn lines(unit: &str, key: &str, series: &[Series]) -> io::Result<String> {
    drawn(SIZE, |area| {
        let points = || series.iter().flat_map(|(_, points)| points);
        let xs = around(points().map(|(x, _)| x.log2()));
        let ys = around(points().flat_map(|(_, values)| values.map(f64::log10)));
        // The names of the lines are above them.
        let ys = ys.start..ys.end + (ys.end - ys.start) * 0.3;
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d(xs, ys)
            .map_err(failed)?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc(key).y_desc(unit).label_style(FONT).axis_desc_style(FONT);
        mesh.light_line_style(WHITE).bold_line_style(BLACK.mix(0.12));
        mesh.x_labels(9).x_label_formatter(&|x| whole(x.exp2()));
        mesh.y_label_formatter(&|y| short(10f64.powf(*y)));
        mesh.draw().map_err(failed)?;
        for ((name, points), color) in series.iter().zip(COLORS.iter().cycle()) {
            let medians = points.iter().map(|(x, [_, y, _])| (x.log2(), y.log10()));
            let line = LineSeries::new(medians, color.stroke_width(2));
            let drawn = chart.draw_series(line).map_err(failed)?;
            drawn
                .label(name)
                .legend(|(x, y)| Rectangle::new([(x, y - 4), (x + 14, y + 2)], color.filled()));
            let bars = points.iter().map(|(x, values)| {
                let [low, y, high] = values.map(f64::log10);
                ErrorBar::new_vertical(x.log2(), low, y, high, color.filled(), 6)
            });
            chart.draw_series(bars).map_err(failed)?;
        }
        let mut labels = chart.configure_series_labels();
        labels.position(SeriesLabelPosition::UpperLeft).label_font(FONT);
        labels.background_style(WHITE.mix(0.8)).draw().map_err(failed)
    })
}

/// Plots effects, a line for each, published (hollow) above measured (filled, with the interval).
pub fn effects(rows: &[Effects]) -> io::Result<String> {
    let height = 60 + LINE * rows.len() as u32;
    drawn((WIDE, height), |area| {
        let measured = |found: &Option<Interval>| {
            found.map(|i| if i.high.is_finite() { [i.low, i.mean, i.high] } else { [i.mean; 3] })
        };
        let values = rows.iter().flat_map(|(_, published, found)| {
            published
                .iter()
                .copied()
                .chain(measured(found).into_iter().flatten())
                .collect::<Vec<_>>()
        });
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(36)
            .y_label_area_size(390)
            .build_cartesian_2d(
                around(values.chain([1.0]).map(f64::log10)),
                (0..rows.len() as i32).into_segmented(),
            )
            .map_err(failed)?;
        let name = |at: &SegmentValue<i32>| match at {
            SegmentValue::CenterOf(at) => {
                rows.iter().rev().nth(*at as usize).map_or(String::new(), |row| row.0.clone())
            }
            _ => String::new(),
        };
        let mut mesh = chart.configure_mesh();
        mesh.x_desc("effect").label_style(FONT).axis_desc_style(FONT).y_labels(rows.len());
        mesh.light_line_style(WHITE).bold_line_style(BLACK.mix(0.12));
        mesh.x_label_formatter(&|x| short(10f64.powf(*x))).y_label_formatter(&name);
        mesh.draw().map_err(failed)?;
        let ends = [SegmentValue::Exact(0), SegmentValue::Last].map(|end| (0.0, end));
        chart.draw_series([PathElement::new(ends.to_vec(), BLACK)]).map_err(failed)?;
        for (at, (_, published, found)) in rows.iter().enumerate() {
            let line = SegmentValue::CenterOf((rows.len() - 1 - at) as i32);
            let place = |value: f64| (value.log10(), line.clone());
            if let Some([low, mid, high]) = measured(found) {
                let bar =
                    PathElement::new(vec![place(low), place(high)], COLORS[1].stroke_width(2));
                chart.draw_series([bar]).map_err(failed)?;
                chart
                    .draw_series([Circle::new(place(mid), 5, COLORS[1].filled())])
                    .map_err(failed)?;
            }
            let published =
                published.map(|value| Circle::new(place(value), 6, COLORS[0].stroke_width(2)));
            chart.draw_series(published).map_err(failed)?;
        }
        Ok(())
    })
}

/// Cells in a line of a map, and their width.
const LINE_OF_MAP: i32 = 64;
const CELL: i32 = 8;

/// Draws a map of free space: white is free, and the darker, the more is used.
pub fn map(cells: &str) -> io::Result<String> {
    let lines = (cells.len() as i32 + LINE_OF_MAP - 1) / LINE_OF_MAP;
    drawn(((LINE_OF_MAP * CELL) as u32, (lines * CELL).max(CELL) as u32), |area| {
        for (at, cell) in (0..).zip(cells.chars()) {
            let used = 1.0 - f64::from(cell.to_digit(16).unwrap_or(0)) / 15.0;
            let corner = (at % LINE_OF_MAP * CELL, at / LINE_OF_MAP * CELL);
            let end = (corner.0 + CELL - 1, corner.1 + CELL - 1);
            let cell = Rectangle::new([corner, end], COLORS[2].mix(used).filled());
            area.draw(&cell).map_err(failed)?;
        }
        Ok(())
    })
}

/// Draws on a white page.
fn drawn(size: (u32, u32), draw: impl FnOnce(&Area<'_>) -> io::Result<()>) -> io::Result<String> {
    let mut svg = String::new();
    let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
    area.fill(&WHITE).map_err(failed)?;
    draw(&area)?;
    area.present().map_err(failed)?;
    drop(area);
    Ok(svg)
}

fn failed(error: impl Display) -> io::Error {
    io::Error::other(format!("plot: {error}"))
}

/// Returns a range around logarithms, a little wider on both sides.
fn around(logs: impl Iterator<Item = f64>) -> Range<f64> {
    let known = logs.filter(|log| log.is_finite());
    let (low, high) = known.fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(v), high.max(v)));
    let more = ((high - low) * 0.05).max(0.05);
    if low <= high { low - more..high + more } else { 0.0..1.0 }
}

/// Numbers of threads, without those between two of them.
fn whole(value: f64) -> String {
    if (value - value.round()).abs() < 0.01 { format!("{value:.0}") } else { String::new() }
}

/// Two digits or so, for axes.
fn short(value: f64) -> String {
    match value {
        v if v >= 10.0 => figure(v),
        v if v >= 1.0 => format!("{v:.1}"),
        v => format!("{v:.3}"),
    }
}
