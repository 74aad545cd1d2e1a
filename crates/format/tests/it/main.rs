//! Every structure of images that the ext4 tools made is read, verified, and written back to the
//! same bytes.

mod fixture;
mod golden;
mod hashes;
mod image;
mod journal;
mod walk;
