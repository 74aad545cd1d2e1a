//! Integration tests of the journal: crashes at every write, errors, threads, hostile logs, and
//! recovery by other programs.

mod bench;
mod crash;
mod errors;
mod full;
mod hostile;
mod kernel;
mod life;
mod offline;
mod replay;
mod threads;
