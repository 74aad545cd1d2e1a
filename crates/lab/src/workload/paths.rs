//! One path, again and again, by all threads.

use super::Stage;
use crate::measure::{Limit, run_threads};
use crate::target::How;
use std::io;

const DIRS: [&[u8]; 5] =
    [b"one", b"one/two", b"one/two/three", b"one/two/three/four", b"one/two/three/four/five"];
const PATH: &[u8] = b"one/two/three/four/five/six";

/// stat(2), and open(2) with close(2), of a path of six components.
pub fn run(stage: &mut Stage<'_>) -> io::Result<()> {
    let target = stage.target();
    DIRS.into_iter().try_for_each(|dir| target.mkdir(dir))?;
    target.create(PATH)?;
    target.sync()?;
    for threads in [1, 2, 16] {
        let window = Limit::time(stage.scale.window);
        let target = stage.target();
        let stat = run_threads(threads, window, |_, _| target.stat(PATH).map(drop))?;
        let open = run_threads(threads, window, |_, _| target.open(PATH, How::Read).map(drop))?;
        stage.add("stat one path of depth 6", threads, &stat);
        stage.add("open and close that path", threads, &open);
    }
    Ok(())
}
