//! Hashes of names against those that debugfs computes.

use crate::fixture::tool;
use extant_format::htree::{HashVersion, dirhash};
use std::fs::File;
use std::path::Path;

const SEED_TEXT: &str = "01020304-0506-0708-090a-0b0c0d0e0f10";
const SEED: [u32; 4] = [0x0403_0201, 0x0807_0605, 0x0C0B_0A09, 0x100F_0E0D];

fn names() -> Vec<String> {
    let mut names: Vec<String> =
        ["a", "ab", "abc", "abcd", "hello", "größe", "日本語のファイル名", "ÿÿÿÿÿ"]
            .map(String::from)
            .to_vec();
    names.extend((1..60).map(|len| "x1y2z3".chars().cycle().take(len * 4 + len % 4).collect()));
    names
}

fn empty_image(dir: &Path) -> String {
    let path = dir.join("image");
    File::create(&path).and_then(|file| file.set_len(1 << 20)).expect("an image");
    let path = path.to_string_lossy().into_owned();
    tool("mke2fs", &["-q", "-F", &path], &[0]);
    path
}

/// Returns hash and minor hash of every name, as debugfs computes them.
fn expected(image: &str, dir: &Path, version: &str, seed: Option<&str>) -> Vec<(u32, u32)> {
    let seed = seed.map_or(String::new(), |seed| format!("-s {seed}"));
    let lines: String =
        names().iter().map(|name| format!("dx_hash -h {version} {seed} {name}\n")).collect();
    let script = dir.join("script");
    std::fs::write(&script, lines).expect("a script");
    let text = tool("debugfs", &["-f", &script.to_string_lossy(), image], &[0]);
    text.lines().filter(|line| line.starts_with("Hash of")).map(parse_line).collect()
}

fn parse_line(line: &str) -> (u32, u32) {
    let mut numbers = line.split("0x").skip(1).map(|part| {
        let digits: String = part.chars().take_while(char::is_ascii_hexdigit).collect();
        u32::from_str_radix(&digits, 16).expect("a hash")
    });
    (numbers.next().expect("a hash"), numbers.next().expect("a minor hash"))
}

#[test]
fn hashes_are_those_of_debugfs() {
    let dir = tempfile::TempDir::new().expect("a temporary directory");
    let image = empty_image(dir.path());
    let versions = [
        ("legacy", HashVersion::Legacy, false),
        ("half_md4", HashVersion::HalfMd4, false),
        ("tea", HashVersion::Tea, false),
        ("3", HashVersion::Legacy, true),
        ("4", HashVersion::HalfMd4, true),
        ("5", HashVersion::Tea, true),
    ];
    for (name, version, unsigned) in versions {
        for (seed_text, seed) in [(None, [0; 4]), (Some(SEED_TEXT), SEED)] {
            let expected = expected(&image, dir.path(), name, seed_text);
            let found: Vec<_> =
                names().iter().map(|n| dirhash(version, unsigned, &seed, n.as_bytes())).collect();
            assert_eq!(found, expected, "version {name}, seed {seed_text:?}");
        }
    }
}
