//! Devices and the cache from outside.
#![allow(missing_docs)]

mod cache;
mod direct;
mod image;
mod kernel;
mod models;
mod partitions;
mod recording;
