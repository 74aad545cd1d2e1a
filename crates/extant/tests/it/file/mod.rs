//! File content, held against a model, e2fsck and the kernel.

mod alone;
mod full;
mod model;
mod parallel;
mod walk;
