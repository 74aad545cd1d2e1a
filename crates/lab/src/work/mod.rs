//! Real work on mounts: programs beside the kernel's ext4 and fuse2fs, and the requests that
//! operations and programs cost a server of FUSE.

mod programs;
mod requests;
mod trace;

use crate::side::Side;
use extant_measure::grid::Grid;
use extant_measure::interval::{Verdict, judged};
use extant_measure::options::{Options, invalid};
use extant_measure::sheet::Sheet;
use extant_measure::stored::Results;
use extant_measure::timing::Awake;
use programs::{Inputs, PROGRAMS, Program};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use std::time::Instant;

pub use requests::run as requests;

/// Arguments of `extant-lab work`, and of `extant-lab requests`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    options: Options,
    /// Sides, divided by commas, in place of the usual ones.
    #[arg(long, value_delimiter = ',')]
    sides: Vec<Side>,
}

/// Sides that are measured unless others are asked for. The null server has no content, so that no
/// program works on it.
const USUAL: [Side; 3] = [Side::Ext4, Side::ExtantFuse, Side::Fuse2fs];

/// How many times faster than fuse2fs.
const BESIDE_FUSE2FS: f64 = 5.0;

/// Programs that mostly make, look at and remove names.
const OF_NAMES: [&str; 5] = ["tar -x", "git clone", "git status", "git checkout", "rm -rf"];

/// Files of the tree.
fn files(options: &Options) -> usize {
    if options.quick { 1000 } else { 20_000 }
}

/// Returns the wanted programs.
fn wanted(options: &Options) -> Vec<(String, &'static Program)> {
    let wanted = PROGRAMS.iter().filter(|program| options.wants(program.name));
    wanted.map(|program| (program.name.to_owned(), program)).collect()
}

/// Times of programs.
pub fn run(args: &Args) -> io::Result<bool> {
    let options = &args.options;
    options.refuse(&["threads"])?;
    let sides = if args.sides.is_empty() { &USUAL[..] } else { &args.sides };
    let programs = wanted(options);
    if programs.is_empty() {
        return Err(invalid("`--only` names no program"));
    }
    let (_awake, inputs) = (Awake::hold(), Inputs::new(files(options))?);
    let names: Vec<_> = sides.iter().map(|side| side.name()).collect();
    let mut times = Grid::new("programs", "s", &names, 0).less().plain();
    let all = [("all".to_owned(), ())];
    options.measure(options.runs(5, 2), &all, &names, |_, (), column| {
        let running = sides[column].start()?;
        let dir = root(&running)?;
        for (name, program) in &programs {
            match program.play(&dir, &inputs, timed) {
                Ok(seconds) => times.add(name, column, seconds),
                Err(why) => eprintln!("{name} on {}: {why}", names[column]),
            }
        }
        running.stop()
    })?;
    Work { times }.report(options)
}

fn root(running: &crate::side::Running) -> io::Result<PathBuf> {
    running.target().root().ok_or_else(|| invalid("programs need a mounted side"))
}

/// Runs a program. Seconds until it ends, without those of writing its changes back.
fn timed(program: &dyn Fn() -> io::Result<()>) -> io::Result<f64> {
    let start = Instant::now();
    program()?;
    Ok(start.elapsed().as_secs_f64())
}

/// Results of `extant-lab work`.
#[derive(Debug, Deserialize, Serialize)]
pub struct Work {
    /// By program and side. A program that failed on a side has no value there.
    times: Grid,
}

impl Results for Work {
    fn sheets(&self) -> Vec<Sheet> {
        let mut sheets = self.times.sheets();
        let own = self.times.column(&Side::ExtantFuse.name());
        let others = || (0..self.times.columns.len()).filter(|column| Some(*column) != own);
        sheets.extend(own.map(|own| self.times.gains(own, others())));
        sheets.push(judged(&self.verdicts()));
        sheets
    }

    fn verdicts(&self) -> Vec<Verdict> {
        let times = &self.times;
        let column = |side: Side| times.column(&side.name());
        let Some(own) = column(Side::ExtantFuse) else { return Vec::new() };
        let bars = |program: &Program| {
            let beside_ext4 = program.bar.map(|bar| (Side::Ext4, 1.0 / bar));
            let names = OF_NAMES.contains(&program.name);
            [beside_ext4, names.then_some((Side::Fuse2fs, BESIDE_FUSE2FS))]
        };
        let all = PROGRAMS.iter().flat_map(|p| bars(p).map(|bar| (p, bar)));
        all.filter_map(|(program, bar)| {
            let (side, bar) = bar?;
            let gain = times.gain_of(times.row(program.name)?, own, column(side)?)?;
            let what = format!("{}: {bar} times the rate of {}", program.name, side.name());
            Some(Verdict::of(what, gain, bar))
        })
        .collect()
    }

    fn grids(self) -> Vec<Grid> {
        vec![self.times]
    }
}
