//! Manifests: meaning of lines, and lines that must be refused.

use extant_archive::{Input, Loader};
use extant_image::{EntryKind, FileContent, Tree};
use extant_testkit::Scratch;
use std::fs;
use std::io::Cursor;

/// The digest of no bytes.
const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Reads a manifest; the error is a text.
fn read(text: &[u8]) -> Result<Tree, String> {
    let mut tree = Tree::new();
    let input = Input::Stream(Box::new(Cursor::new(text.to_vec())));
    let added = Loader::new(&mut tree, std::env::temp_dir()).add_mtree("list", input);
    added.map(|()| tree).map_err(|error| error.to_string())
}

/// Paths with modes, owners and kinds.
fn shown(tree: &Tree) -> Vec<String> {
    let entries = tree.walk().map(|entry| {
        let kind = match &entry.kind {
            EntryKind::Directory => "dir".into(),
            EntryKind::Symlink(target) => format!("-> {}", target.escape_ascii()),
            EntryKind::CharDevice(major, minor) => format!("c {major}:{minor}"),
            EntryKind::BlockDevice(major, minor) => format!("b {major}:{minor}"),
            EntryKind::Fifo => "fifo".into(),
            EntryKind::Socket => "socket".into(),
            EntryKind::File(FileContent::Zeroes { size }) => format!("{size} bytes"),
            EntryKind::File(FileContent::Whole { size, .. }) => format!("{size} bytes"),
            other => format!("{other:?}"),
        };
        let (path, a) = (entry.path.escape_ascii(), &entry.attributes);
        format!("{path} {:o} {}:{} {} {kind}", a.mode, a.uid, a.gid, a.mtime.sec)
    });
    entries.collect()
}

#[test]
fn lines_have_the_meaning_of_mtree() {
    let scratch = Scratch::new();
    let content = scratch.join("a file");
    fs::write(&content, "12345").unwrap();
    std::os::unix::fs::symlink(&content, scratch.join("link")).unwrap();
    let encoded = content.display().to_string().replace(' ', "\\040");
    let link = scratch.join("link").display().to_string();
    let text = format!(
        "#mtree\n# comment\n\n/set type=file uid=5 gid=6 mode=0640 nlink=1 time=7.0\n\
         . type=dir mode=755\n  etc type=dir mode=0755\n    hosts size=0 sha256digest={EMPTY}\n\
         \tname\\040with\\040blanks contents={encoded} \\\n   uid=0 size=5\n    ..\n..\n\
         /unset uid\n./dev/null type=char device=native,1,3 mode=666 gid=0\n\
         dev/disk type=block device=linux,8,1\nrun/p type=fifo\nrun/s type=socket\n\
         bin/sh type=link link=..//a\\134b mode=777\n./bin/x contents={link} nlink=2 inode=9\n\
         bin/y nlink=2 inode=9\nbin/z nlink=2 inode=9 resdevice=4 size=0\n\
         gone/optional contents=/nonexistent/x optional\n./\\303\\244 size=0 time=-2.5\n"
    );
    let tree = read(text.as_bytes()).unwrap();
    let expected = [
        "bin 755 0:0 0 dir",
        "bin/sh 777 0:6 7 -> ..//a\\\\b",
        "bin/x 640 0:6 7 5 bytes",
        "bin/y 640 0:6 7 5 bytes",
        "bin/z 640 0:6 7 0 bytes",
        "dev 755 0:0 0 dir",
        "dev/disk 640 0:6 7 b 8:1",
        "dev/null 666 0:0 7 c 1:3",
        "etc 755 5:6 7 dir",
        "etc/hosts 640 5:6 7 0 bytes",
        "etc/name with blanks 640 0:6 7 5 bytes",
        "run 755 0:0 0 dir",
        "run/p 640 0:6 7 fifo",
        "run/s 640 0:6 7 socket",
        "\\xc3\\xa4 640 0:6 -2 0 bytes",
    ];
    let mut found = shown(&tree);
    found.sort();
    let mut expected = expected.map(String::from).to_vec();
    expected.sort();
    assert_eq!(found, expected);
    assert_eq!(tree.entry(b"bin/x").unwrap().links, 2);
    assert_eq!(tree.entry(b"").unwrap().attributes.gid, 6);
}

#[test]
fn attributes_are_those_of_go_mtree() {
    let tree = read(b"./f size=0 xattr.user.a\\040b=AAH/ xattrs.user.empty=\n").unwrap();
    let xattrs = tree.entry(b"f").unwrap().attributes.xattrs;
    assert!(xattrs.contains(&(b"user.a b".to_vec(), vec![0, 1, 255])), "{xattrs:?}");
    assert!(xattrs.contains(&(b"user.empty".to_vec(), vec![])), "{xattrs:?}");
}

#[test]
fn bad_lines_are_refused_by_number() {
    let scratch = Scratch::new();
    let fifo = scratch.join("fifo");
    extant_testkit::tool::run("mkfifo", &[&fifo]).must_succeed();
    let of = |content: &str| format!("./f contents={content}");
    for (line, words) in [
        ("..", "out of the root"),
        ("./../x type=dir", "`..`"),
        ("./a/../../x type=dir", "`..`"),
        ("./a\\000b type=dir", "NUL"),
        ("./a\\057..\\057..\\057b type=dir", "`..`"),
        ("./f type=pipe", "`pipe`"),
        ("./f mode=99", "octal"),
        ("./f mode=10000", "octal"),
        ("./f mode=+7", "octal"),
        ("./f uid=-1", "number"),
        ("./f uid=+1", "number"),
        ("./f uid=4294967296", "number"),
        ("./f uid", "number"),
        ("./f time=x", "number"),
        ("./f time=1.1000000000", "nanoseconds"),
        ("./f time=9223372036854775808", "number"),
        ("./f size=", "number"),
        ("./f owner=root", "no known keyword"),
        ("./f size=0 uname=root", "uid="),
        ("./f type=link", "link=TARGET"),
        ("./f type=char", "device=native"),
        ("./f type=char device=259", "device=native"),
        ("./f type=char device=native,1", "device=native"),
        ("./f type=char device=native,1,2,3", "device=native"),
        ("./f size=0 xattr.user.a=?", "base64"),
        ("./f size=0 xattr.nonsense.a=AA==", "nonsense"),
        ("./f\\q size=0", "escape"),
        ("./f type=link link=\\", "target"),
        ("/set link=x", "cannot be set"),
        ("/set xattr.user.a=AA==", "cannot be set"),
        ("/unset size", "no keyword of /set"),
        ("f/ size=0 type=file\n./f/g size=0", "f"),
        ("./g size=0 nlink=2 inode=1\n./g type=dir\n./h nlink=2 inode=1", "a directory"),
        (&of("/nonexistent"), "No such file"),
        (&of("/"), "no regular file"),
        (&of("/dev/null"), "no regular file"),
        (&of(&fifo.display().to_string()), "no regular file"),
        (&of("/etc/passwd size=1"), "as the manifest says"),
        (&of("\\000"), "NUL"),
    ] {
        let error = read(format!("# first\n{line}\n").as_bytes()).err().unwrap_or_default();
        assert!(error.starts_with("list: line "), "{line}: {error}");
        assert!(error.to_lowercase().contains(&words.to_lowercase()), "{line}: {error}");
    }
    let long = [b"./f size=0 ".to_vec(), vec![b' '; 2 << 20]].concat();
    assert!(read(&long).err().unwrap().contains("longer"));
    let folded = b"./f \\\n".repeat(300_000);
    assert!(read(&folded).err().unwrap().contains("longer"));
    let deep = "d type=dir\n".repeat(3000);
    assert!(read(deep.as_bytes()).err().unwrap().contains("line 2049: "));
    // Bytes of any kind are an error or a tree.
    let mut state = 9u32;
    for len in 0..3000 {
        let words: &[&[u8]] =
            &[b"/set ", b"a ", b"./b/c ", b"type=dir", b"\\", b"\n", b"..", b"=", b" size=0", b"#"];
        let text = (0..len % 60).flat_map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let word = words.get((state >> 16) as usize % (words.len() + 1));
            word.map_or_else(|| vec![(state >> 8) as u8], |word| word.to_vec())
        });
        let _ = read(&text.collect::<Vec<u8>>());
    }
}

#[test]
fn digests_are_those_of_the_content() {
    let text = |line: &str| read(format!("{line}\n").as_bytes());
    let zeroes = "0".repeat(64);
    assert!(text(&format!("./f size=0 sha256={}", EMPTY.to_uppercase())).is_ok());
    for (line, words) in [
        ("./f size=0 sha256=00", "64 hexadecimal digits"),
        (&format!("./f size=0 sha256={zeroes}"), "the content has the digest"),
        (&format!("./f contents=/etc/passwd sha256digest={EMPTY}"), "the content has the digest"),
    ] {
        let error = text(line).err().unwrap_or_default();
        assert!(error.starts_with("list: line 1: ") && error.contains(words), "{line}: {error}");
    }
}

/// Names of linked files are kept, and a short line may stand for a long path.
#[test]
fn short_lines_with_long_paths_are_bounded() {
    let mut text = "/set nlink=2 type=dir\n".to_owned();
    text.push_str(&format!("{}\n", "d".repeat(250)).repeat(16));
    text.push_str("/set type=file\n");
    (0..90_000).for_each(|n| text.push_str(&format!("{n} size=0 inode={n}\n")));
    let error = read(text.as_bytes()).err().unwrap();
    assert!(error.contains("32 times"), "{error}");
}
