//! Measurements and their tables, for programs that compare.
//!
//! `timing` runs work on threads and times it. `grid` has the values by row and column, `interval`
//! how their ratios stand to bars. `costs` has time and memory of whole programs. `stored` has the
//! form in which results are printed and kept, by `sheet`. `options` has the options of all
//! commands. `scratch` undoes changes of a run to the machine.
#![forbid(unsafe_code)]

pub mod costs;
pub mod grid;
pub mod interval;
pub mod options;
pub mod scratch;
pub mod sheet;
pub mod stored;
pub mod timing;

/// Returns the name of this program, for messages and stored commands.
pub fn program() -> String {
    let path = std::env::current_exe().ok();
    let name = path.as_ref().and_then(|path| path.file_name());
    name.map_or("extant".into(), |name| name.to_string_lossy().into_owned())
}
