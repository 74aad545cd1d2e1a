//! Judges images for scripts, as tests judge their images at the end: `judge IMAGE…` prints all
//! findings.

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
