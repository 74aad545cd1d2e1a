//! The program `extant-lab`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    extant_lab::cli::main()
}
