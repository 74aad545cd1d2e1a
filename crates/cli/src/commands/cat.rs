//! `extant cat`: content of files on standard output.

use crate::context::Context;
use crate::failure::{At, Failure, Result};
use crate::image::{ReadArgs, inside};
use crate::text::shown;
use extant_engine::{Follow, Fs, Node, OpenFlags};
use std::ffi::OsString;
use std::io::Write;

/// Write the content of files to standard output
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    image: ReadArgs,
    /// Files
    #[arg(required = true)]
    paths: Vec<OsString>,
}

/// Bytes read at a time.
const PIECE: usize = 1 << 20;

/// Runs the command.
pub fn run(args: &Args, context: &Context) -> Result {
    if context.json {
        return Err(Failure::usage("cat has no JSON form: content is bytes"));
    }
    let fs = args.image.read(context)?;
    args.paths.iter().try_for_each(|path| {
        let path = inside(path);
        print(&fs, &fs.resolve(path, Follow::Yes).at_path(path)?, path)
    })
}

/// Writes the content of a file, which `path` leads to, to standard output.
pub fn print(fs: &Fs, node: &Node, path: &[u8]) -> Result {
    let file =
        fs.open_file(node, OpenFlags { direct: true, ..OpenFlags::default() }).at_path(path)?;
    // A small image may hold more data than its device has blocks.
    file.check_map().at_path(path)?;
    let mut out = std::io::stdout().lock();
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    loop {
        let len = file.read_at(at, &mut piece).at(format_args!("{} at byte {at}", shown(path)))?;
        if len == 0 {
            return Ok(out.flush()?);
        }
        out.write_all(&piece[..len])?;
        at += len as u64;
    }
}
