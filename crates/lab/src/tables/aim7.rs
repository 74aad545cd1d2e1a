//! Models of two workloads of AIM7, whose users do rounds of system calls.
//!
//! - `short`: of its tests only getcwd, the look-ups of users and groups, and ttyname walk paths,
//!   and all users walk the same ones. A round looks at a directory of four shared parents, opens
//!   and reads two shared files, and looks at a file of the user's own.
//! - `high_systime`: users make and delete files. In one directory all wait for its lock; in
//!   directories of their own none does, which is the most that a cheaper lock could gain.

use super::Grid;
use crate::jobs::{ensure_dir, ensure_file};
use crate::side::{Setup, Side};
use crate::target::{How, Target};
use extant_measure::options::Options;
use extant_measure::stored::Results;
use extant_measure::timing::{Limit, run_threads};
use std::io;

/// The sides: the kernel, the mount, the engine in process.
const SIDES: [Side; 3] = [Side::Ext4, Side::ExtantFuse, Side::Engine];
const ENGINE: usize = 2;

/// Ranges of users as published, and numbers of users whose rates are averaged.
const RANGES: [(&str, [usize; 4]); 3] = [
    ("10 to 100 users", [10, 40, 70, 100]),
    ("200 to 1000 users", [200, 500, 700, 1000]),
    ("1100 to 2000 users", [1100, 1400, 1700, 2000]),
];

const PARENTS: [&str; 4] = ["home", "home/site", "home/site/group", "home/site/group/users"];
const SHARED: [&[u8]; 2] = [b"home/passwd", b"home/group"];

/// A round of a user.
type Round = fn(&dyn Target, usize) -> io::Result<()>;

const WORKS: [(&str, Round); 3] = [
    ("short", short),
    ("high_systime", |target, user| make(target, &format!("all/f{user}"))),
    ("high_systime, own directories", |target, user| make(target, &format!("own/u{user}/f"))),
];

fn short(target: &dyn Target, user: usize) -> io::Result<()> {
    target.stat(PARENTS[3].as_bytes())?;
    for path in SHARED {
        target.open(path, How::Read)?.read_at(0, &mut [0; 64])?;
    }
    target.stat(format!("own/u{user}/tty").as_bytes()).map(drop)
}

fn make(target: &dyn Target, path: &str) -> io::Result<()> {
    target.creat(path.as_bytes())?;
    target.unlink(path.as_bytes())
}

fn prepare(target: &dyn Target) -> io::Result<()> {
    let [.., (_, [.., most])] = RANGES;
    let dirs = PARENTS.into_iter().chain(["all", "own"]);
    dirs.into_iter().try_for_each(|dir| ensure_dir(target, dir.as_bytes()))?;
    SHARED.into_iter().try_for_each(|path| ensure_file(target, path))?;
    (0..most).try_for_each(|user| {
        ensure_dir(target, format!("own/u{user}").as_bytes())?;
        ensure_file(target, format!("own/u{user}/tty").as_bytes())
    })?;
    target.sync()
}

/// Runs the command.
pub fn run(options: &Options) -> io::Result<bool> {
    options.refuse(&["threads"])?;
    vec![grid(options)?].report(options)
}

/// Measures every workload, range and side: the mean rate of the numbers of users.
fn grid(options: &Options) -> io::Result<Grid> {
    let mut grid = Grid::new("AIM7, models", "rounds/s", &SIDES.map(Side::name), ENGINE);
    // Inodes of many users and directories stay in memory.
    let sides = SIDES.map(|side| side.start_with(&Setup::for_inodes(1 << 16)));
    let sides = sides.into_iter().collect::<io::Result<Vec<_>>>()?;
    sides.iter().try_for_each(|side| prepare(side.target()))?;
    let window = Limit::time(options.window());
    let works = WORKS.iter().filter(|(work, _)| options.wants(work));
    let row = |(work, round): &(&str, Round), (range, users): &(&str, [usize; 4])| {
        let users = if options.quick { users[..1].to_vec() } else { users.to_vec() };
        (format!("{work}, {range}"), (*round, users))
    };
    let rows: Vec<_> =
        works.flat_map(|work| RANGES.iter().map(move |range| row(work, range))).collect();
    options.fill(&mut grid, &rows, |(round, users), column| {
        let target = sides[column].target();
        let rate =
            |&users: &usize| Ok(run_threads(users, window, |user, _| round(target, user))?.rate());
        let rates = users.iter().map(rate).collect::<io::Result<Vec<f64>>>()?;
        Ok(rates.iter().sum::<f64>() / rates.len() as f64)
    })?;
    sides.into_iter().try_for_each(|side| side.stop())?;
    Ok(grid)
}
