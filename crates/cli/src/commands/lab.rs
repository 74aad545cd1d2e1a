//! `extant lab`: the program of the measurements, which lies beside this one.

use crate::context::Context;
use crate::failure::{At, Failure, Result};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// Its name.
const PROGRAM: &str = "extant-lab";

/// Measure: runs `extant-lab` with the same arguments
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// Arguments of `extant-lab`; `--help` names its commands
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// Runs the command: the other program takes this one's place.
pub fn run(args: &Args, context: &Context) -> Result {
    if context.json {
        return Err(Failure::usage("lab has no JSON form: extant-lab prints its own results"));
    }
    let program = beside()?;
    let error = Command::new(&program).args(&args.args).exec();
    Err(match error.kind() {
        io::ErrorKind::NotFound => Failure::new(format_args!(
            "{}: not found; `cargo build --release -p extant-lab` makes it",
            program.display()
        )),
        _ => Failure::new(format_args!("{}: {error}", program.display())),
    })
}

/// Returns the expected path of `extant-lab`: the directory of this program.
fn beside() -> Result<PathBuf> {
    Ok(std::env::current_exe().at("the place of this program")?.with_file_name(PROGRAM))
}
