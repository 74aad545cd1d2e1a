//! Integration tests of the devices and the cache.
#![allow(missing_docs)]

mod cache;
mod direct;
mod host;
mod image;
mod kernel;
mod models;
mod partitions;
mod recording;
