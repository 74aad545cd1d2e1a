//! File content, held against a model, e2fsck and the kernel.

mod alone;
mod behind;
mod cut;
mod cuts;
mod deferred;
mod faults;
mod full;
pub(crate) mod model;
mod moved;
mod parallel;
mod tail;
mod walk;
