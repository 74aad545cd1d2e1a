//! Client and server beside each other, and beside those of others.

mod cuts;
mod hostile;
mod losses;
mod near;
mod programs;
mod servers;
mod serving;
mod tls;
