//! Tables of workloads in rows, with a side or a design in each column.

pub mod aim7;
#[cfg(feature = "designs")]
pub mod designs;

pub use extant_measure::grid::Grid;

/// Commands that compare designs under the engine.
pub const DESIGNS: [&str; 5] = ["dref", "inodes", "orphan", "preallocs", "sync"];
