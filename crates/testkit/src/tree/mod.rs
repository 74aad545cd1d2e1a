//! Trees of files: seeded random ones to make ([`Plan`]), and manifests to compare the content of
//! two file systems.
//!
//! A test makes a plan, applies it to a file system in one way, reads it back in another and
//! compares manifests: `Manifest::walk(a).assert_same(&Manifest::walk(b))`.

mod apply;
mod generate;
mod manifest;
mod plan;
mod read;
mod walk;

pub use generate::Shape;
pub use manifest::{Kind, Manifest, Node, content_hash};
pub use plan::{Content, Entry, Plan, What, posix_acl};
pub use read::kind_of;
