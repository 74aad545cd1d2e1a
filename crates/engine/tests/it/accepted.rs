//! Data accepted by writes have reserved blocks for their maps: on full disks, in files of many
//! pieces.

use extant_engine::{
    Errno, Falloc, File, Follow, Fs, NodeKind, OpenFlags, OpenOptions, Result, XattrMode,
};
use extant_testkit::Image;
use std::sync::Barrier;

const MIB: u64 = 1 << 20;

/// Nothing is written back before the test asks for it.
fn lazy() -> OpenOptions {
    OpenOptions::new().memory(2048 * MIB).commit_interval(std::time::Duration::from_secs(3600))
}

fn create(fs: &Fs, name: &str) -> Result<File> {
    let node = fs.create(&fs.root()?, name.as_bytes(), 0o644, NodeKind::File)?;
    fs.open_file(&node, OpenFlags { write: true, ..OpenFlags::default() })
}

fn is_full<T: std::fmt::Debug>(result: &Result<T>) -> bool {
    match result {
        Ok(_) => false,
        Err(error) if error.is(Errno::NoSpc) => true,
        Err(error) => panic!("{error}"),
    }
}

/// The bytes of a piece.
fn content(file: usize, piece: u64, len: usize) -> Vec<u8> {
    vec![(file as u64 * 7 + piece * 3) as u8 | 1; len]
}

/// A piece: the number of its file, its own, its offset, and the number of bytes.
type Piece = (usize, u64, u64, usize);

/// Accepted pieces.
type Accepted = Vec<Piece>;

/// Writes a piece. Returns false if the disk is full.
fn put(file: &File, (nr, piece, offset, len): Piece, accepted: &mut Accepted) -> bool {
    let written = file.write_at(offset, &content(nr, piece, len));
    if is_full(&written) {
        return false;
    }
    let written = written.unwrap();
    accepted.push((nr, piece, offset, written));
    written == len
}

/// Verifies that all accepted pieces are there, now and after the image is opened again.
fn assert_kept(image: &Image, fs: Fs, accepted: &Accepted) {
    fs.sync().expect("accepted data are kept");
    fs.unmount().expect("unmount");
    let fs = Fs::open(image.path(), &OpenOptions::new().read_only(true)).unwrap();
    for (nr, piece, offset, len) in accepted {
        let node = fs.resolve(format!("/{nr}"), Follow::No).unwrap();
        let file = fs.open_file(&node, OpenFlags::default()).unwrap();
        let mut bytes = vec![0; *len];
        assert_eq!(file.read_at(*offset, &mut bytes).unwrap(), *len, "file {nr}, piece {piece}");
        assert!(bytes == content(*nr, *piece, *len), "file {nr}, piece {piece}");
    }
}

/// Fills the disk with files of `pieces` pieces each. Returns the accepted writes.
fn fill(fs: &Fs, pieces: u64, piece_len: usize, apart: u64) -> Accepted {
    let mut accepted = Accepted::new();
    for nr in 0.. {
        let Ok(file) = create(fs, &nr.to_string()) else { break };
        if !(0..pieces)
            .all(|piece| put(&file, (nr, piece, piece * apart, piece_len), &mut accepted))
        {
            break;
        }
    }
    assert!(accepted.len() > 1000, "{} pieces", accepted.len());
    accepted
}

#[test]
fn files_of_many_extents_that_fill_a_disk_keep_accepted_data() {
    let image = Image::mke2fs(64 * MIB, &["-t", "ext4", "-b", "4096", "-N", "4096"]);
    let fs = Fs::open(image.path(), &lazy()).unwrap();
    let accepted = fill(&fs, 5, 4096, 20 * 1024);
    assert_kept(&image, fs, &accepted);
}

#[test]
fn files_of_many_extents_that_fill_clusters_keep_accepted_data() {
    let image = Image::mke2fs(
        64 * MIB,
        &["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "4096", "-N", "8192"],
    );
    let fs = Fs::open(image.path(), &lazy()).unwrap();
    let accepted = fill(&fs, 5, 4096, 20 * 1024);
    assert_kept(&image, fs, &accepted);
}

#[test]
fn a_sparse_file_on_ext3_keeps_accepted_data() {
    let image = Image::mke2fs(16 * MIB, &["-t", "ext3", "-b", "1024", "-J", "size=1"]);
    let fs = Fs::open(image.path(), &lazy()).unwrap();
    let file = create(&fs, "0").unwrap();
    let mut accepted = Accepted::new();
    // Each page has a pointer block of its own.
    let full =
        !(0..20_000).all(|piece| put(&file, (0, piece, piece * 256 * 1024, 1024), &mut accepted));
    assert!(full && accepted.len() > 4000, "{}", accepted.len());
    drop(file);
    assert_kept(&image, fs, &accepted);
}

#[test]
fn many_sparse_files_on_a_large_disk_keep_accepted_data() {
    let image = Image::mke2fs(2048 * MIB, &["-t", "ext4", "-b", "4096", "-N", "16384", "-m", "0"]);
    let fs = Fs::open(image.path(), &lazy()).unwrap();
    let ballast = create(&fs, "ballast").unwrap();
    let free = fs.usage().available;
    ballast.allocate(Falloc::Allocate, 0, (free - 40_000) * 4096).unwrap();
    let accepted = fill(&fs, 5, 512, 3 * 4096);
    drop(ballast);
    assert_kept(&image, fs, &accepted);
}

#[test]
fn allocated_blocks_that_are_written_one_by_one_on_a_full_disk_keep_their_content() {
    let image = Image::mke2fs(
        16 * MIB,
        &["-t", "ext4", "-b", "1024", "-J", "size=1", "-N", "1024", "-m", "0"],
    );
    let fs = Fs::open(image.path(), &lazy()).unwrap();
    let files: Vec<File> = (0..600).map(|nr| create(&fs, &nr.to_string()).unwrap()).collect();
    files.iter().for_each(|file| file.allocate(Falloc::Allocate, 0, 10 * 1024).unwrap());
    let ballast = create(&fs, "ballast").unwrap();
    for len in [1 << 16, 1 << 10] {
        while ballast.write_at(ballast.len(), &vec![4; len]).is_ok_and(|written| written == len) {}
    }
    let mut accepted = Accepted::new();
    // Every other block: each needs an extent of its own, and so does the one behind it.
    for (nr, file) in files.iter().enumerate() {
        if !(0..5).all(|piece| put(file, (nr, piece, piece * 2048, 1024), &mut accepted)) {
            break;
        }
    }
    assert!(accepted.len() > 100, "{}", accepted.len());
    drop((files, ballast));
    assert_kept(&image, fs, &accepted);
}

/// Lets each of some threads write one long piece at the same time. The reservation of such a piece
/// exceeds its use: it includes map blocks for each page alone, in whole clusters.
fn write_together(threads: usize, len: usize, cluster: u64, how: OpenFlags) {
    let size = cluster.to_string();
    let args = ["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", &size, "-J", "size=4"];
    let image = Image::mke2fs(48 * MIB, &[&args[..], &["-N", "256"]].concat());
    let fs = Fs::open(image.path(), &lazy()).unwrap();
    let free = fs.usage().available * 1024;
    let needed = threads as u64 * (len as u64).next_multiple_of(cluster);
    assert!(needed * 3 < free * 2, "a third of the disk stays free");
    let start = Barrier::new(threads);
    let accepted: Vec<Accepted> = std::thread::scope(|scope| {
        let write = |nr: usize| {
            let (fs, start) = (&fs, &start);
            move || {
                let node = create(fs, &nr.to_string()).unwrap().node().clone();
                let file = fs.open_file(&node, how).unwrap();
                start.wait();
                let written = file.write_at(0, &content(nr, 0, len)).unwrap();
                assert_eq!(written, len, "file {nr}: {:?}", fs.usage());
                vec![(nr, 0, 0, written)]
            }
        };
        let threads: Vec<_> = (0..threads).map(|nr| scope.spawn(write(nr))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_kept(&image, fs, &accepted.concat());
}

#[test]
fn writers_get_unneeded_reservations_of_other_files() {
    let pages = OpenFlags { write: true, ..OpenFlags::default() };
    let direct = OpenFlags { direct: true, ..pages };
    for (threads, len, cluster) in [(64, 300_000, 65_536), (24, 1_000_000, 16_384)] {
        write_together(threads, len, cluster, pages);
        write_together(threads, len, cluster, direct);
    }
}

/// A shortage of something other than blocks must not cause writeback of all pages.
#[test]
fn a_lack_of_inodes_or_of_room_for_an_attribute_writes_no_pages() {
    let args = ["-t", "ext4", "-b", "4096", "-N", "64", "-O", "^ea_inode"];
    let image = Image::mke2fs(64 * MIB, &args);
    let fs = Fs::open(image.path(), &lazy()).unwrap();
    let file = create(&fs, "0").unwrap();
    assert_eq!(file.write_at(0, &content(0, 0, 1 << 20)).unwrap(), 1 << 20);
    let dirty = fs.stats().pages.dirty;
    assert!(dirty >= MIB, "{dirty}");
    let long = fs.set_xattr(file.node(), b"user.long", &[1; 9000], XattrMode::Any);
    assert!(is_full(&long), "{long:?}");
    assert_eq!(fs.stats().pages.dirty, dirty, "an attribute that does not fit");
    assert!((1..64).any(|nr| is_full(&create(&fs, &nr.to_string()).map(drop))));
    assert_eq!((fs.usage().inodes_free, fs.stats().pages.dirty), (0, dirty), "no free inode");
    drop(file);
    assert_kept(&image, fs, &vec![(0, 0, 0, 1 << 20)]);
}
