//! State of the kernel's cache as far as the server knows it, and the notices that correct it.

pub mod notices;
mod unseen;
pub mod writers;
mod writers_table;
