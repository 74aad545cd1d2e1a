//! The program from outside: what it prints, how it ends, and what e2fsck and the kernel say of
//! what it did.

mod bounds;
mod copying;
mod damaged;
mod documents;
mod editing;
mod foreign;
mod guide;
mod helpers;
mod impostors;
mod installed;
mod mounting;
mod program;
mod reading;
mod recovery;
mod rival;
mod unprivileged;
mod usage;
