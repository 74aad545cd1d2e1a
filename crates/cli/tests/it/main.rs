//! The program from outside: its output, its exit codes, and the verdicts of e2fsck and the kernel
//! about its images.

mod applying;
mod bounds;
mod building;
mod checking;
mod cloning;
mod comparing;
mod contained;
mod copying;
mod counters;
mod damaged;
mod debugging;
mod digests;
mod documents;
mod editing;
#[cfg(feature = "planted-exploit")]
mod exploits;
mod exporting;
mod foreign;
mod fsck;
mod guide;
mod helpers;
mod impostors;
mod installed;
mod layers;
mod manifests;
mod mounting;
mod others;
mod outputs;
mod overlays;
mod program;
mod reading;
mod recovery;
mod repairing;
mod resizing;
mod rival;
mod substitutes;
mod trimming;
mod tuning;
mod unmounting;
mod unprivileged;
mod usage;
mod verity;
