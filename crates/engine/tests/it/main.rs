//! Integration tests of the engine.
#![expect(clippy::match_bool, reason = "34 places are older than the lint")]
#![expect(clippy::too_many_arguments, reason = "some functions are older than the bound of 5")]

mod accepted;
mod ahead;
mod crash;
mod deep;
mod devices;
mod dir;
mod discards;
mod dying;
mod edges;
mod extents;
mod external_journal;
mod fast_commit;
mod features;
mod file;
mod fold;
mod freeze;
mod fuzz;
mod halfway;
mod held;
mod hostile;
mod life;
mod misuse;
mod mkfs;
mod mounted;
mod nameless;
mod names;
mod nokey;
mod numbers;
mod order;
mod orphans;
mod panics;
mod prealloc;
mod quota;
mod races;
mod reproducible;
mod scarce;
mod search;
mod space;
mod stress;
mod structures;
mod sync;
mod values;
mod verity;
mod xattr;
