//! Fuzz target for whole images: damages one of a few valid images as the input determines, and
//! runs all operations on it.

use crate::bombs::share;
use crate::deep::Layout;
use crate::drive::{Depth, use_up};
use crate::mutate::mutate_once;
use crate::seeds::{Seed, with_fast_commits};
use extant_blocks::{BlockDevice, MemDevice};
use extant_testkit::image::FeatureSet;
use extant_testkit::rng::Rng;
use std::sync::{Arc, Mutex, OnceLock};

/// The images by feature set, and whether a power cut left a log to replay. The meaning of inputs
/// depends on order and number of the entries, so later images must take first bytes of their own,
/// as [`FAST_COMMITS`] did.
const BASES: [(&str, bool); 16] = [
    ("orphan_file", true),
    ("1k", true),
    ("ext2_1k", false),
    ("ext3_1k", true),
    ("bigalloc_1k", true),
    ("inline_data", true),
    ("inode_1024", false),
    ("ea_inode", true),
    ("quota_1k", true),
    ("meta_bg", false),
    ("no_csum", true),
    ("uninit_bg", true),
    ("no_64bit", false),
    ("large_dir", true),
    ("inode_128", true),
    ("sparse_super2", false),
];

/// First bytes from this value on select the image with fast commits, which was added later.
pub const FAST_COMMITS: u8 = 224;

/// First bytes that select the image with maps and an index of several levels. No older kept input
/// begins with them.
const DEEP: std::ops::Range<u8> = 208..FAST_COMMITS;

/// Second bytes that also apply a bomb. No older kept input has them.
const SHARED: std::ops::Range<u8> = 192..255;

/// Maximum number of damaged places.
const MOST: usize = 16;

/// An image, and a device for its damaged copies.
struct Base {
    seed: Seed,
    damaged: Mutex<(Vec<u8>, Arc<MemDevice>)>,
}

/// Returns the image that the first byte of an input selects.
fn base(which: u8) -> &'static Base {
    static MADE: [OnceLock<Base>; BASES.len() + 2] = [const { OnceLock::new() }; BASES.len() + 2];
    let nr = match which {
        FAST_COMMITS.. => BASES.len(),
        which if DEEP.contains(&which) => BASES.len() + 1,
        which => usize::from(which) % BASES.len(),
    };
    MADE[nr].get_or_init(|| {
        let of_set = |(set, crashed): &(&str, bool)| Seed::make(FeatureSet::named(set), *crashed);
        let seed = match BASES.get(nr) {
            Some(base) => of_set(base),
            None if nr == BASES.len() => with_fast_commits(),
            None => Seed::deep(Layout { levels: 2, ..Layout::sparse(3) }),
        };
        let damaged =
            Mutex::new((seed.bytes.clone(), Arc::new(MemDevice::from_bytes(&seed.bytes))));
        Base { seed, damaged }
    })
}

/// Runs an input. The first byte selects the image, a quarter of the second the kind of use; the
/// rest determines the damage.
///
/// # Panics
/// If a damaged image causes a panic, a hang, or a forbidden write.
pub fn run(input: &[u8]) {
    let [which, how, damage @ ..] = input else { return };
    let base = base(*which);
    let (image, device) = &mut *base.damaged.lock().unwrap_or_else(|e| e.into_inner());
    image.copy_from_slice(&base.seed.bytes);
    let rng = &mut Rng::laid_down(damage);
    let mut what = Vec::new();
    if SHARED.contains(how) {
        what.push(share(image, &base.seed.atlas, rng));
    }
    while rng.left() > 0 && what.len() < MOST {
        what.push(mutate_once(image, &base.seed.atlas, rng));
    }
    device
        .set_len(image.len() as u64)
        .and_then(|()| device.write_all_at(image, 0))
        .expect("memory takes writes");
    let used = use_up(device, &mut Rng::new((*how).into()), Depth::Write);
    used.unwrap_or_else(|why| panic!("{}: {why}\n    {}", base.seed.name, what.join("\n    ")));
}
