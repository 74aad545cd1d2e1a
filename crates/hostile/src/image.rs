//! Whole images: a good one of a few, damaged as the input says, and then used in every way.

use crate::drive::{Depth, use_up};
use crate::mutate::mutate_once;
use crate::seeds::Seed;
use extant_blocks::{BlockDevice, MemDevice};
use extant_testkit::image::FeatureSet;
use extant_testkit::rng::Rng;
use std::sync::{Arc, Mutex, OnceLock};

/// The images by their feature sets, and whether they are as after a power cut. What an input means depends on their order.
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

/// Places that are damaged at most.
const MOST: usize = 16;

/// An image, and a device to try its damaged copies on.
struct Base {
    seed: Seed,
    damaged: Mutex<(Vec<u8>, Arc<MemDevice>)>,
}

fn base(nr: usize) -> &'static Base {
    static MADE: [OnceLock<Base>; BASES.len()] = [const { OnceLock::new() }; BASES.len()];
    MADE[nr].get_or_init(|| {
        let (set, crashed) = BASES[nr];
        let seed = Seed::make(FeatureSet::named(set), crashed);
        let damaged = Mutex::new((seed.bytes.clone(), Arc::new(MemDevice::from_bytes(&seed.bytes))));
        Base { seed, damaged }
    })
}

/// The first byte says which image; of the next, a quarter how it is used; the rest, the damage.
///
/// # Panics
/// If a damaged image did harm.
pub fn run(input: &[u8]) {
    let [which, how, damage @ ..] = input else { return };
    let base = base(usize::from(*which) % BASES.len());
    let (image, device) = &mut *base.damaged.lock().unwrap_or_else(|e| e.into_inner());
    image.copy_from_slice(&base.seed.bytes);
    let rng = &mut Rng::laid_down(damage);
    let mut what = Vec::new();
    while rng.left() > 0 && what.len() < MOST {
        what.push(mutate_once(image, &base.seed.atlas, rng));
    }
    device.set_len(image.len() as u64).and_then(|()| device.write_at(image, 0)).expect("memory takes writes");
    let used = use_up(device, &mut Rng::new((*how).into()), Depth::Write);
    used.unwrap_or_else(|why| panic!("{}: {why}\n    {}", base.seed.name, what.join("\n    ")));
}
