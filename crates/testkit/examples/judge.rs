//! Judges images as a test judges those that it leaves, for scripts: `judge IMAGE…` prints what is
//! wrong with them.

use extant_testkit::judge::judge;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut wrong = false;
    for image in std::env::args_os().skip(1) {
        let verdict = judge(Path::new(&image));
        if !verdict.is_clean() {
            eprintln!("{}: {verdict}", Path::new(&image).display());
            wrong = true;
        }
    }
    ExitCode::from(u8::from(wrong))
}
