//! The journal from outside: crashes at every write, errors, threads, hostile logs, and other
//! people's recovery.

mod bench;
mod crash;
mod errors;
mod hostile;
mod kernel;
mod life;
mod replay;
mod threads;
