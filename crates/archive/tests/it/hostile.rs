//! Archives that are made to do harm.

use crate::bundle::{archive, paths};
use extant_archive::{Input, Loader};
use extant_image::Tree;
use std::io::{self, Cursor, Read};

fn load(bytes: impl Read + Send + 'static) -> Result<Tree, String> {
    let mut tree = Tree::new();
    let mut loader = Loader::new(&mut tree, std::env::temp_dir());
    let added = loader.add_tar("archive", Input::Stream(Box::new(bytes)));
    added.map(|()| tree).map_err(|error| error.to_string())
}

fn compressed(program: &str, bytes: impl Read + Send + 'static) -> impl Read + Send + 'static {
    use std::process::{Command, Stdio};
    extant_testkit::need(program);
    let mut child = Command::new(program)
        .arg("-c")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut input, mut bytes) = (child.stdin.take().unwrap(), bytes);
    let output = child.stdout.take().unwrap();
    std::thread::spawn(move || {
        // The reader of the output may end before the input does.
        let _ = io::copy(&mut bytes, &mut input);
        drop(input);
        child.wait()
    });
    output
}

#[test]
fn members_that_lead_elsewhere_are_refused() {
    for (members, cause) in [
        (&[('f', "a/../b", "x")][..], "archive: a/../b: at byte 0: "),
        (&[('f', "ok", ""), ('h', "l", "gone")], "archive: l: at byte 512: "),
        (&[('d', "d", ""), ('h', "l", "d")], "a directory"),
        (&[('f', "f", ""), ('f', "f/below", "")], "no directory"),
    ] {
        let error = load(Cursor::new(archive(members))).unwrap_err();
        assert!(error.contains(cause), "{members:?}: {error}");
    }
}

#[test]
fn absolute_names_are_inside_and_the_last_member_counts() {
    let members = [
        ('f', "/etc/a", "1"),
        ('h', "b", "/etc/a"),
        ('f', "etc/a", "2"),
        ('l', "link", "/etc"),
        ('f', "link/c", "3"),
    ];
    let tree = load(Cursor::new(archive(&members))).unwrap();
    assert_eq!(paths(&tree), ["b=1", "etc", "etc/a=2", "etc/c=3", "link->/etc"]);
}

#[test]
fn an_archive_of_an_image_asks_for_its_kind() {
    let archive = archive(&[('f', "./oci-layout", "{}"), ('f', "index.json", "{}")]);
    let mut tree = Tree::new();
    let mut loader = Loader::new(&mut tree, std::env::temp_dir());
    let input = Input::Stream(Box::new(Cursor::new(archive)));
    let error = loader.add_recognized_tar("x.tar", input).unwrap_err().to_string();
    assert!(error.contains("`oci:x.tar`") && error.contains("`tar:x.tar`"), "{error}");
}

#[test]
fn bombs_of_entries_are_refused() {
    let member = archive(&[('f', "name", "")]);
    let header = member[..512].to_vec();
    let endless = (0..8_u64 << 20).flat_map(move |_| header.clone());
    let error = load(compressed("zstd", Bytes(endless))).unwrap_err();
    assert!(error.contains("more than 32 times as much memory"), "{error}");
}

#[test]
fn bombs_of_content_are_refused() {
    let mut header = [0; 512];
    header.copy_from_slice(&archive(&[('f', "name", "")])[..512]);
    let mut header = tar::Header::from_byte_slice(&header).clone();
    header.set_size(6 << 30);
    header.set_cksum();
    let content = io::repeat(0).take(6 << 30);
    let bomb = Cursor::new(header.as_bytes().to_vec()).chain(content);
    let error = load(compressed("zstd", bomb)).unwrap_err();
    assert!(error.contains("expands to more than 1000 times its size"), "{error}");
}

/// A reader of an iterator.
struct Bytes<I>(I);

impl<I: Iterator<Item = u8>> Read for Bytes<I> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut read = 0;
        for (to, byte) in buf.iter_mut().zip(&mut self.0) {
            (*to, read) = (byte, read + 1);
        }
        Ok(read)
    }
}
