//! Images with maps and indexes of several levels are valid.

use extant_hostile::deep::{DIR, FILES, Layout};
use extant_testkit::{Image, debugfs};

const EXT4: &[&str] = &["-t", "ext4", "-b", "1024", "-O", "large_dir,orphan_file", "-J", "size=1"];
const BIGALLOC: &[&str] =
    &["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "4096", "-J", "size=1"];
const WITHOUT_CHECKSUMS: &[&str] =
    &["-t", "ext4", "-b", "1024", "-O", "large_dir,^metadata_csum", "-J", "size=1"];

#[test]
fn planted_images_are_clean_and_as_deep_as_told() {
    let indexed = Layout { levels: 2, ..Layout::sparse(3) };
    let sparse = (1..=3).map(|depth| (EXT4, Layout::sparse(depth)));
    let full = (1..=3).map(|depth| (EXT4, Layout::full(depth)));
    let others = [
        (EXT4, indexed),
        (WITHOUT_CHECKSUMS, indexed),
        (BIGALLOC, Layout::sparse(2)),
        (BIGALLOC, Layout::full(1)),
    ];
    for (args, layout) in sparse.chain(full).chain(others) {
        let image = Image::holding(&layout.plant(&Image::mke2fs(24 << 20, args).bytes()));
        image.assert_clean();
        let last = format!("dump_extents {DIR}/file{}", FILES - 1);
        let dump = debugfs::read(image.path(), &last);
        assert!(dump.contains(&format!(" 0/ {} ", layout.depth)), "{layout:?}: {dump}");
        if args == WITHOUT_CHECKSUMS {
            // debugfs 1.47.0 expects checksums there nevertheless.
            continue;
        }
        let index = debugfs::read(image.path(), &format!("htree_dump {DIR}/dir"));
        assert!(index.contains(&format!("Indirect levels: {}", layout.levels)), "{layout:?}");
    }
}
