//! `extant pages`: the files that an installation has beside the program.

use crate::context::Context;
use crate::failure::{At, Result};
use crate::pages;
use serde_json::json;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Write the manual pages and the completions of bash, zsh and fish
///
/// They go below PREFIX/share, to the places where manual and shells look for them.
#[derive(clap::Args, Debug)]
#[command(hide = true)]
pub struct Args {
    /// Directory of the installation, such as /usr/local
    prefix: PathBuf,
}

/// Runs the command for the program that `command` describes.
pub fn run(args: &Args, command: clap::Command, context: &Context) -> Result {
    let mut written = Vec::new();
    for page in pages::all(command) {
        let path = args.prefix.join("share").join(&page.path);
        let name = path.as_os_str().as_bytes();
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).at_path(name)?;
        }
        std::fs::write(&path, &page.content).at_path(name)?;
        context.detail(path.display());
        written.push(path.display().to_string());
    }
    if context.json { context.document(&json!({ "written": written })) } else { Ok(()) }
}
