//! The commands, one file each.

pub mod cat;
pub mod check;
pub mod chmod;
pub mod chown;
pub mod du;
pub mod export;
pub mod find;
pub mod get;
pub mod hash;
pub mod info;
pub mod lab;
pub mod ln;
pub mod ls;
pub mod mkdir;
pub mod mkfs;
pub mod mount;
pub mod mv;
pub mod pages;
pub mod put;
pub mod recover;
pub mod rm;
pub mod setfattr;
pub mod stat;
pub mod stats;
pub mod tree;
pub mod truncate;
