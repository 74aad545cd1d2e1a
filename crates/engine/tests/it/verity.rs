//! Files with hash trees (fs-verity): read and verified, never written. Trees and measures are
//! those of fsverity-utils.

use extant_blocks::MemDevice;
use extant_engine::{Errno, Falloc, Fs, Node, OpenFlags, OpenOptions, SetAttr};
use extant_testkit::debugfs;
use extant_testkit::image::Image;
use extant_testkit::rng::Rng;
use extant_testkit::verity::{Wanted, make};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const SALT: &str = "--salt=00112233445566778899aabbccddeeff0123456789";

fn random(len: usize) -> Vec<u8> {
    Rng::new(len as u64 + 1).bytes(len)
}

fn open(image: &Image) -> Fs {
    let fs = Fs::open(image.path(), &OpenOptions::new()).expect("the image opens");
    assert!(!fs.is_read_only());
    fs
}

fn node(fs: &Fs, name: &str) -> Node {
    fs.lookup(&fs.root().expect("root"), name.as_bytes()).expect(name)
}

fn read(
    fs: &Fs,
    name: &str,
    direct: bool,
    offset: u64,
    len: usize,
) -> extant_engine::Result<Vec<u8>> {
    let file = fs.open_file(&node(fs, name), OpenFlags { direct, ..OpenFlags::default() })?;
    let mut data = vec![0xee; len];
    let len = file.read_at(offset, &mut data)?;
    data.truncate(len);
    Ok(data)
}

fn measure(fs: &Fs, name: &str) -> String {
    let (algorithm, digest) = fs.measure_verity(&node(fs, name)).expect("measure");
    let digits: String = digest.iter().map(|b| format!("{b:02x}")).collect();
    format!("{}:{digits}", ["", "sha256", "sha512"][usize::from(algorithm)])
}

/// Whole, in pieces, forwards and at random, through pages and past them.
fn assert_reads(fs: &Fs, name: &str, content: &[u8]) {
    let mut rng = Rng::new(7);
    for direct in [true, false] {
        for _ in 0..6 {
            let offset = rng.below(content.len() as u64 + 1) as usize;
            let len = rng.between(1, 300_000) as usize;
            let wanted = &content[offset..(offset + len).min(content.len())];
            assert!(
                read(fs, name, direct, offset as u64, len).expect(name) == wanted,
                "{name} at {offset}"
            );
        }
        assert!(read(fs, name, direct, 0, content.len() + 1).expect(name) == content, "{name}");
    }
}

#[test]
fn content_is_read_and_measured_as_by_fsverity_utils() {
    let kinds: [(u64, &str, &[&str]); 6] = [
        (4096, "plain", &[]),
        (4096, "salted", &[SALT]),
        (4096, "long", &["--hash-alg=sha512", SALT]),
        (4096, "small", &["--block-size=1024"]),
        (4096, "narrow", &["--block-size=1024", "--hash-alg=sha512"]),
        (1024, "in1k", &["--block-size=1024", SALT]),
    ];
    let sizes = [0, 1, 1024, 4096, 4097, 65_536, 70_001, 2_500_000];
    for block in [4096, 1024] {
        let contents: Vec<Vec<u8>> = sizes.iter().map(|len| random(*len)).collect();
        let of_block = || kinds.iter().filter(|kind| kind.0 == block);
        let names: Vec<String> = of_block()
            .flat_map(|kind| sizes.iter().map(|len| format!("{}{len}", kind.1)))
            .collect();
        let each = of_block().flat_map(|kind| contents.iter().map(|content| (kind.2, content)));
        let wanted: Vec<Wanted<'_>> = names
            .iter()
            .zip(each)
            .map(|(name, (args, content))| Wanted { name, content, args })
            .collect();
        let (image, measures) = make(64 << 20, block, &wanted);
        let fs = open(&image);
        for (wanted, measured) in wanted.iter().zip(&measures) {
            assert_reads(&fs, wanted.name, wanted.content);
            assert_eq!(measure(&fs, wanted.name), *measured, "{}", wanted.name);
        }
        fs.unmount().expect("unmount");
        image.assert_clean();
    }
}

/// Where block `lblk` of a file is on the device.
fn place(image: &Image, name: &str, lblk: u64) -> u64 {
    let printed = debugfs::read(image.path(), &format!("bmap /{name} {lblk}"));
    printed.trim().parse::<u64>().expect("a block") * 4096
}

fn flip(image: &Image, at: u64) {
    let file = std::fs::File::options().read(true).write(true).open(image.path()).expect("open");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("read");
    file.write_all_at(&[byte[0] ^ 1], at).expect("write");
}

/// A file of 300 blocks, the last of them not full, has a tree of a root and three blocks below it,
/// which begin at block 304.
#[test]
fn changed_bytes_of_a_verity_file_are_an_io_error() {
    let content = random(299 * 4096 + 1234);
    let file = Wanted { name: "f", content: &content, args: &[] };
    let (image, _) = make(64 << 20, 4096, &[file]);
    // Where a byte is flipped, and the blocks of data that it concerns.
    let flips =
        [(0, 0..1), (299, 299..300), (304, 0..300), (305, 0..128), (307, 256..300), (308, 0..300)];
    for (lblk, spoilt) in flips {
        flip(&image, place(&image, "f", lblk) + 20);
        let fs = open(&image);
        for direct in [false, true] {
            for block in [0, 1, 127, 128, 255, 256, 299] {
                let at = block * 4096;
                let found = read(&fs, "f", direct, at, 4096);
                if spoilt.contains(&block) {
                    let errno = found.expect_err("spoilt").errno();
                    assert_eq!(errno, Errno::Io as i32, "flip {lblk}, block {block}");
                } else {
                    assert!(found.expect("whole") == block_of(&content, block), "flip {lblk}")
                }
            }
        }
        fs.unmount().expect("unmount");
        flip(&image, place(&image, "f", lblk) + 20);
    }
    let fs = open(&image);
    assert_reads(&fs, "f", &content);
    fs.unmount().expect("unmount");
    image.assert_clean();
}

fn block_of(content: &[u8], block: u64) -> &[u8] {
    let at = block as usize * 4096;
    &content[at..content.len().min(at + 4096)]
}

/// A tree of three levels, in blocks of 1 KiB: 1,172 blocks of data, 37 and 2 of hashes, and the
/// root, which comes first.
#[test]
fn each_level_is_verified_up_to_the_root() {
    let content = random(1_200_000);
    let file = Wanted { name: "f", content: &content, args: &["--block-size=1024"] };
    let (image, _) = make(64 << 20, 4096, &[file]);
    // Which block of the tree a byte is flipped in, and the blocks of data that it concerns.
    for (nth, spoilt) in [(0, 0..1172), (1, 0..1024), (2, 1024..1172), (3, 0..32), (39, 1152..1172)]
    {
        let at = place(&image, "f", 304 + nth / 4) + nth % 4 * 1024 + 20;
        flip(&image, at);
        let fs = open(&image);
        for block in [1u64, 292, 287, 0, 100] {
            let found = read(&fs, "f", true, block * 4096, 4096);
            if spoilt.contains(&(block * 4)) {
                assert_eq!(
                    found.expect_err("spoilt").errno(),
                    Errno::Io as i32,
                    "flip {nth}, block {block}"
                )
            } else {
                assert!(
                    found.expect("whole") == block_of(&content, block),
                    "flip {nth}, block {block}"
                )
            }
        }
        fs.unmount().expect("unmount");
        flip(&image, at);
    }
}

/// Zeroes are verified like other bytes, whether they are on the device or in a hole.
#[test]
fn holes_are_zeroes_and_verified_as_such() {
    let mut content = random(40 * 4096);
    content[10 * 4096..20 * 4096].fill(0);
    let (image, _) = make(16 << 20, 4096, &[Wanted { name: "f", content: &content, args: &[] }]);
    debugfs::write(image.path(), "punch /f 11 17");
    let fs = open(&image);
    assert_reads(&fs, "f", &content);
    fs.unmount().expect("unmount");
    image.assert_clean();
    // One block is wiped, one is lost.
    let disk = std::fs::File::options().write(true).open(image.path()).expect("open");
    disk.write_all_at(&[0; 4096], place(&image, "f", 5)).expect("write");
    drop(disk);
    debugfs::write(image.path(), "punch /f 25 25");
    let fs = open(&image);
    for (block, whole) in [(4, true), (5, false), (12, true), (18, true), (25, false), (26, true)] {
        for direct in [false, true] {
            match read(&fs, "f", direct, block * 4096, 4096) {
                Ok(found) => assert!(whole && found == block_of(&content, block), "block {block}"),
                Err(e) => assert!(!whole && e.errno() == Errno::Io as i32, "block {block}: {e}"),
            }
        }
    }
    fs.unmount().expect("unmount");
}

fn refused<T: std::fmt::Debug>(result: extant_engine::Result<T>) {
    assert!(result.expect_err("refused").is(Errno::Perm));
}

#[test]
fn nothing_is_written_and_all_is_freed() {
    let content = random(200_000);
    let (image, _) = make(64 << 20, 4096, &[Wanted { name: "f", content: &content, args: &[] }]);
    let fs = open(&image);
    let (root, f) = (fs.root().expect("root"), node(&fs, "f"));
    refused(fs.open_file(&f, OpenFlags { write: true, ..OpenFlags::default() }));
    refused(fs.set_attr(&f, &SetAttr { size: Some(0), ..SetAttr::default() }));
    refused(fs.allocate(&f, Falloc::KeepSize, 0, 1 << 20));
    refused(fs.check_write(&f));
    refused(fs.set_flags(&f, f.attr().flags | 0x4000));
    fs.set_attr(&f, &SetAttr { mode: Some(0o400), ..SetAttr::default() }).expect("chmod");
    fs.set_xattr(&f, b"user.a", b"value", extant_engine::XattrMode::Any).expect("an attribute");
    fs.link(&f, &root, b"g").expect("link");
    fs.unlink(&root, b"f").expect("unlink");
    fs.rename((&root, b"g"), (&root, b"f"), extant_engine::RenameFlags::empty()).expect("rename");
    drop(f);
    fs.unmount().expect("unmount");
    image.assert_clean();
    let fs = open(&image);
    assert_reads(&fs, "f", &content);
    let other = fs
        .create(&root_of(&fs), b"other", 0o644, extant_engine::NodeKind::File)
        .expect("others are");
    fs.open_file(&other, OpenFlags { write: true, ..OpenFlags::default() })
        .expect("written as ever");
    assert!(fs.measure_verity(&other).expect_err("it has no tree").is(Errno::NoData));
    let before = fs.usage().free;
    fs.unlink(&root_of(&fs), b"f").expect("unlink");
    fs.sync().expect("sync");
    // Content, tree and descriptor.
    let freed = fs.usage().free - before;
    assert!((51..80).contains(&freed), "{freed} blocks");
    fs.unmount().expect("unmount");
    image.assert_clean();
}

fn root_of(fs: &Fs) -> Node {
    fs.root().expect("root")
}

/// Each byte of the descriptor and its length, changed: an error or the right content, never other
/// content.
#[test]
fn no_descriptor_is_believed() {
    let content = random(9000);
    let (image, _) =
        make(16 << 20, 4096, &[Wanted { name: "f", content: &content, args: &[SALT] }]);
    let at = place(&image, "f", 17) as usize;
    let bytes = image.bytes();
    let mut rng = Rng::new(3);
    for place in (at..at + 256).chain(at + 4092..at + 4096) {
        let mut bad = bytes.clone();
        bad[place] ^= rng.between(1, 255) as u8;
        let fs = Fs::open_device(
            Arc::new(MemDevice::from_bytes(&bad)),
            &OpenOptions::new().read_only(true),
        );
        let fs = fs.expect("the image opens");
        match read(&fs, "f", false, 0, 9000) {
            Ok(found) => assert!(found == content),
            Err(e) => assert!([Errno::Io as i32, Errno::Uclean as i32].contains(&e.errno()), "{e}"),
        }
        fs.unmount().expect("unmount");
    }
}
