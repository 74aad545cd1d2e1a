//! Real FUSE mounts.

mod control;
mod directories;
mod disks;
mod handles;
mod idmaps;
mod interrupts;
mod mix;
mod mounts;
mod nameless;
mod names;
mod oracle;
mod panics;
mod permissions;
mod privileges;
mod quota;
mod ranges;
mod real;
mod refused;
mod remembered;
mod resources;
mod rings;
mod sealed;
mod served;
mod times;
mod verity;
mod watchdog;
