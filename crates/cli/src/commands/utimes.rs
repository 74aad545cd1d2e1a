//! `extant utimes`: times set.

use super::tune::parse_time as parse_date;
use crate::context::Context;
use crate::failure::Result;
use crate::image::{Changes, ImageArgs, change_each};
use extant_engine::{Follow, Fs, SetAttr, TimeSet, Timestamp};
use std::ffi::OsString;

/// Set the times of last access and of the last change of content
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ImageArgs,
    #[command(flatten)]
    edit: Edit,
}

/// The change of times.
#[derive(clap::Args, Debug)]
pub struct Edit {
    /// `now`, @SECONDS since 1970 with an optional fraction, or YYYYMMDD[hh[mm[ss]]] in UTC
    #[arg(value_parser = parse_time)]
    time: Time,
    /// Files or directories; a symlink at the end is not followed
    #[arg(required = true)]
    paths: Vec<OsString>,
    /// Set the time of last access only
    #[arg(short, long)]
    access: bool,
    /// Set the time of the last change of content only
    #[arg(short, long, conflicts_with = "access")]
    modification: bool,
}

/// A time of the command line.
#[derive(Clone, Copy, Debug)]
struct Time(TimeSet);

/// Parses a time.
fn parse_time(text: &str) -> Result<Time, String> {
    let at = |sec, nsec| Ok(Time(TimeSet::At(Timestamp { sec, nsec })));
    let Some(number) = text.strip_prefix('@') else {
        let error = "neither `now` nor @SECONDS nor YYYYMMDD[hh[mm[ss]]]";
        return match text {
            "now" => Ok(Time(TimeSet::Now)),
            _ => at(parse_date(text).ok().and_then(|sec| sec.try_into().ok()).ok_or(error)?, 0),
        };
    };
    let error = || "@SECONDS is a number with at most 9 digits behind its point".to_owned();
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let is_fraction = (1..=9).contains(&fraction.len());
    if !is_fraction || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(error());
    }
    let sec = whole.parse().map_err(|_| error())?;
    at(sec, format!("{fraction:0<9}").parse().map_err(|_| error())?)
}

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    args.image.change(context, |fs, changes| args.edit.make(fs, changes))
}

impl Edit {
    /// Changes an open image.
    pub fn make(&self, fs: &Fs, changes: &mut Changes) -> Result {
        let set = SetAttr {
            atime: (!self.modification).then_some(self.time.0),
            mtime: (!self.access).then_some(self.time.0),
            ..SetAttr::default()
        };
        change_each(fs, changes, (&self.paths, Follow::No), |node| {
            fs.set_attr(node, &set).map(drop)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_nanoseconds() {
        for (text, sec, nsec) in [
            ("@0", 0, 0),
            ("@-5", -5, 0),
            ("@1700000000.5", 1_700_000_000, 500_000_000),
            ("@1.000000001", 1, 1),
            ("20200102030405", 1_577_934_245, 0),
        ] {
            let Ok(Time(TimeSet::At(time))) = parse_time(text) else { panic!("{text}") };
            assert_eq!((time.sec, time.nsec), (sec, nsec), "{text}");
        }
        for bad in ["", "@", "@x", "@1.", "@1.0000000001", "@1.-1", "1700000000", "@99e9"] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
    }
}
