//! Trees of files, archives of them, and container images, the same in each run.

use extant_measure::scratch::{Scratch, run};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Files in a directory.
const IN_DIRECTORY: usize = 100;

/// Numbers without an end that look random: xorshift, always from the same state.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Makes files of `bytes` in sum below `dir`: half of them are short, some have 64 times the
/// length. Half of the content can be compressed.
pub fn tree(dir: &Path, files: usize, bytes: u64) -> io::Result<()> {
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let shares: Vec<u64> = (0..files).map(|_| 1 << (numbers.next() % 7)).collect();
    let share = bytes / shares.iter().sum::<u64>().max(1);
    let longest = share as usize * 64;
    let noise = (0..longest.div_ceil(16)).flat_map(|n| {
        let word = numbers.next().to_le_bytes();
        [word, [n as u8; 8]]
    });
    let content: Vec<u8> = noise.flatten().collect();
    for (n, share_of_file) in shares.iter().enumerate() {
        let below = dir.join(format!("dir{:04}", n / IN_DIRECTORY));
        if n % IN_DIRECTORY == 0 {
            fs::create_dir_all(&below)?;
        }
        let len = (share * share_of_file) as usize;
        fs::write(below.join(format!("file{n:07}")), &content[..len])?;
    }
    Ok(())
}

/// Makes one file of `bytes`.
pub fn large(path: &Path, bytes: u64) -> io::Result<()> {
    let mut numbers = Numbers(7);
    let content: Vec<u8> = (0..1 << 17).flat_map(|_| numbers.next().to_le_bytes()).collect();
    let mut file = File::create(path)?;
    for _ in 0..bytes.div_ceil(content.len() as u64) {
        file.write_all(&content)?;
    }
    file.set_len(bytes)
}

/// Packs a directory.
pub fn tar(dir: &Path, archive: &Path) -> io::Result<()> {
    let words = ["--sort=name", "--numeric-owner", "--format=pax", "-cf"].map(AsRef::as_ref);
    let from = ["-C".as_ref(), dir.as_os_str(), ".".as_ref()];
    run("tar", &[&words[..], &[archive.as_os_str()], &from].concat()).map(drop)
}

/// Makes an OCI layout whose only layer is an archive, compressed by gzip if that is asked for.
/// Returns the path of the layer.
pub fn layout(scratch: &Scratch, name: &str, archive: &Path, gzip: bool) -> io::Result<PathBuf> {
    let root = scratch.dir(name)?;
    let blobs = root.join("blobs/sha256");
    fs::create_dir_all(&blobs)?;
    let plain = digest(archive)?;
    let layer = blobs.join("layer");
    fs::copy(archive, &layer)?;
    if gzip {
        run("gzip", &["-5".as_ref(), layer.as_os_str()])?;
        fs::rename(layer.with_extension("gz"), &layer)?;
    }
    let kind = if gzip { "tar+gzip" } else { "tar" };
    let (layer, described) = put(&blobs, &layer, &format!("layer.v1.{kind}"))?;
    let layers = format!(r#"{{"type":"layers","diff_ids":["sha256:{plain}"]}}"#);
    let config = format!(r#"{{"architecture":"amd64","os":"linux","rootfs":{layers}}}"#);
    let config = text(&blobs, &config, "config.v1+json")?;
    let manifest = format!(r#"{{"schemaVersion":2,"config":{config},"layers":[{described}]}}"#);
    let manifest = text(&blobs, &manifest, "manifest.v1+json")?;
    let index = format!(r#"{{"schemaVersion":2,"manifests":[{manifest}]}}"#);
    fs::write(root.join("index.json"), index)?;
    fs::write(root.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
    Ok(layer)
}

fn text(blobs: &Path, text: &str, kind: &str) -> io::Result<String> {
    let path = blobs.join("text");
    fs::write(&path, text)?;
    Ok(put(blobs, &path, kind)?.1)
}

/// Gives a blob the name of its digest. Returns its path and its description in JSON.
fn put(blobs: &Path, path: &Path, kind: &str) -> io::Result<(PathBuf, String)> {
    let (digest, size) = (digest(path)?, fs::metadata(path)?.len());
    let kind = format!("application/vnd.oci.image.{kind}");
    let named = blobs.join(&digest);
    fs::rename(path, &named)?;
    Ok((named, format!(r#"{{"mediaType":"{kind}","digest":"sha256:{digest}","size":{size}}}"#)))
}

fn digest(path: &Path) -> io::Result<String> {
    let printed = run("sha256sum", &[path])?;
    let digest = printed.split_whitespace().next();
    digest.map(str::to_owned).ok_or_else(|| io::Error::other("sha256sum printed nothing"))
}
