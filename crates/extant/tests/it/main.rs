//! Integration tests of the engine.

mod crash;
mod crash_mix;
mod devices;
mod dir;
mod extents;
mod external_journal;
mod fast_commit;
mod features;
mod file;
mod freeze;
mod fuzz;
mod halfway;
mod hostile;
mod life;
mod mkfs;
mod names;
mod orphans;
mod prealloc;
mod quota;
mod races;
mod review;
mod space;
mod stress;
mod structures;
mod sync;
mod xattr;
