//! Races of two threads for one inode or block, repeated: in either order both succeed, and the
//! image is sound.

use extant_engine::{Caller, Errno, Fs, Node, NodeKind, OpenOptions, Result, XattrMode};
use extant_testkit::FeatureSet;
use std::sync::Barrier;

const ROUNDS: u32 = 200;

fn create(fs: &Fs, dir: &Node, name: &str) -> Node {
    fs.create(dir, name.as_bytes(), 0o644, NodeKind::File).expect(name)
}

/// Runs both at the same time and returns the results.
fn at_once<A: Send, B: Send>(a: impl FnOnce() -> A + Send, b: impl FnOnce() -> B + Send) -> (A, B) {
    let barrier = Barrier::new(2);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            barrier.wait();
            a()
        });
        barrier.wait();
        let b = b();
        (first.join().expect("no panic"), b)
    })
}

/// A nameless file gets its first name while its last hold is released.
#[test]
fn a_link_comes_before_the_freeing_or_not_at_all() {
    for set in ["orphan_file", "ext3_1k"] {
        let image = FeatureSet::named(set).make_sized(32 << 20);
        let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
        let root = fs.root().unwrap();
        for i in 0..ROUNDS {
            let node = fs.create_nameless(&Caller::default(), &root, 0o600).unwrap();
            fs.write_direct(&node, 0, &[7; 5000], false).unwrap();
            let name = format!("name{i}");
            let (linked, ()) = at_once(
                || fs.link(&node, &root, name.as_bytes()),
                || {
                    fs.release(&node, 1);
                    // Threads without space wait for the reaper.
                    let _ = fs.sync();
                },
            );
            let found = fs.lookup(&root, name.as_bytes());
            match linked {
                Ok(()) => assert_eq!(found.unwrap().attr().nlink, 1, "{set}, round {i}"),
                Err(e) => {
                    assert!(
                        found.is_err() && (e.is(Errno::NoEnt) || e.is(Errno::Stale)),
                        "{set}, round {i}: {e}"
                    )
                }
            }
        }
        fs.unmount().unwrap();
        image.assert_clean();
    }
}

/// One file drops an attribute block, which is freed with its last user, while another one begins
/// to share it.
#[test]
fn a_shared_attribute_block_is_not_freed_under_its_next_user() {
    for set in ["1k", "no_csum"] {
        let image = FeatureSet::named(set).make_sized(32 << 20);
        let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
        let root = fs.root().unwrap();
        let (a, b) = (create(&fs, &root, "a"), create(&fs, &root, "b"));
        for i in 0..ROUNDS {
            let value = vec![i as u8; 600];
            fs.set_xattr(&a, b"user.shared", &value, XattrMode::Any).unwrap();
            let (removed, set_too): (Result<()>, Result<()>) = at_once(
                || fs.remove_xattr(&a, b"user.shared"),
                || fs.set_xattr(&b, b"user.shared", &value, XattrMode::Any),
            );
            removed.and(set_too).unwrap();
            assert!(fs.get_xattr(&a, b"user.shared").is_err_and(|e| e.is(Errno::NoData)));
            assert_eq!(fs.get_xattr(&b, b"user.shared").unwrap(), value);
            if i % 10 == 0 {
                fs.sync().unwrap();
            }
        }
        drop((a, b, root));
        fs.unmount().unwrap();
        image.assert_clean();
        let fs = Fs::open(image.path(), &OpenOptions::new()).unwrap();
        let b = fs.resolve("/b", extant_engine::Follow::No).unwrap();
        assert_eq!(fs.get_xattr(&b, b"user.shared").unwrap(), vec![(ROUNDS - 1) as u8; 600]);
    }
}
