//! The program from outside: what it prints, how it ends, and what e2fsck and the kernel say of what it did.

mod copying;
mod damaged;
mod editing;
mod helpers;
mod mounting;
mod program;
mod reading;
mod recovery;
mod unprivileged;
mod usage;
