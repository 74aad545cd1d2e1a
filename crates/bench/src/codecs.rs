//! The codecs of archives: the crates that Extant uses beside the programs in C.
//!
//! All sides have the same bytes in memory: an archive of files of the machine. The crates run in
//! this process, with one thread, as Extant calls them; programs get a file in memory, and their
//! output is discarded. Programs begin a process, which is milliseconds of each second.

use crate::program::Program;
use bzip2::bufread::MultiBzDecoder;
use extant_measure::grid::Grid;
use extant_measure::options::Options;
use extant_measure::scratch::{Scratch, need};
use extant_measure::stored::Results;
use flate2::bufread::MultiGzDecoder;
use flate2::{Compression, GzBuilder};
use lzma_rust2::XzReader;
use ruzstd::decoding::StreamingDecoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Instant;

/// Bytes of the archive, and of a quick one.
const BYTES: [usize; 2] = [64 << 20, 2 << 20];

/// Bytes of a block that is compressed by itself, as Extant's archives have them.
const BLOCK: usize = 1 << 20;

const MIB: f64 = (1 << 20) as f64;

/// Columns: the crates, and the programs.
const SIDES: [&str; 2] = ["crate", "program"];

/// Compresses a block.
type Encode = fn(&[u8]) -> io::Result<Vec<u8>>;

/// A way to compress: its name, the crate, the program with its options, and the decoder.
struct Codec {
    name: &'static str,
    program: [&'static str; 2],
    decode: fn(&[u8]) -> io::Result<u64>,
    /// For those that Extant writes.
    encode: Option<Encode>,
}

const CODECS: [Codec; 4] = [
    Codec {
        name: "gzip: flate2 with zlib-rs, gzip -6",
        program: ["gzip", "-6"],
        decode: |bytes| drain(MultiGzDecoder::new(bytes)),
        encode: Some(gzip),
    },
    Codec {
        name: "zstd: ruzstd, zstd -1",
        program: ["zstd", "-1"],
        decode: |bytes| drain(StreamingDecoder::new(bytes).map_err(io::Error::other)?),
        encode: Some(|block| Ok(compress_to_vec(block, CompressionLevel::Fastest))),
    },
    Codec {
        name: "xz: lzma-rust2, xz -6",
        program: ["xz", "-6"],
        decode: |bytes| drain(XzReader::new(bytes, true)),
        encode: None,
    },
    Codec {
        name: "bzip2: bzip2 with libbz2-rs-sys, bzip2 -9",
        program: ["bzip2", "-9"],
        decode: |bytes| drain(MultiBzDecoder::new(bytes)),
        encode: None,
    },
];

/// Reads a stream to its end, and returns its bytes.
fn drain(mut stream: impl Read) -> io::Result<u64> {
    let mut piece = vec![0; 1 << 16];
    let mut len = 0;
    loop {
        match stream.read(&mut piece)? {
            0 => return Ok(len),
            read => len += read as u64,
        }
    }
}

fn gzip(block: &[u8]) -> io::Result<Vec<u8>> {
    let out = Vec::with_capacity(block.len() / 2);
    let mut gzip = GzBuilder::new().mtime(0).write(out, Compression::new(6));
    gzip.write_all(block)?;
    gzip.finish()
}

/// Measures codecs.
pub fn run(options: &Options) -> io::Result<bool> {
    options.refuse(&["threads", "strict"])?;
    let scratch = Scratch::new()?;
    let bytes = archive(BYTES[usize::from(options.quick)])?;
    let plain = scratch.join("plain");
    fs::write(&plain, &bytes)?;
    let title = "decompression, of the bytes that come out";
    let mut out = Grid::new(title, "MiB/s", &SIDES, 0);
    let title = "compression, of the bytes that go in";
    let mut into = Grid::new(title, "MiB/s", &SIDES, 0);
    let title = "compressed bytes";
    let mut sizes = Grid::new(title, "% of the archive", &SIDES, 0).less();
    for codec in CODECS.iter().filter(|codec| options.wants(codec.name)) {
        let packed = scratch.join("packed");
        codec.program(&plain).writing(&packed).run()?;
        let stored = fs::read(&packed)?;
        for _ in 0..options.runs(5, 1) {
            let begin = Instant::now();
            let len = (codec.decode)(&stored)?;
            out.add(codec.name, 0, rate(&bytes, begin.elapsed().as_secs_f64()));
            if len != bytes.len() as u64 {
                return Err(io::Error::other(format!("{}: {len} bytes came out", codec.name)));
            }
            let [program, _] = codec.program;
            let cost = Program::new([program, "-dc"]).reading(&packed).run()?;
            out.add(codec.name, 1, rate(&bytes, cost.seconds));
            let Some(encode) = codec.encode else { continue };
            let begin = Instant::now();
            let blocks = bytes.chunks(BLOCK).map(encode).collect::<io::Result<Vec<_>>>()?;
            into.add(codec.name, 0, rate(&bytes, begin.elapsed().as_secs_f64()));
            into.add(codec.name, 1, rate(&bytes, codec.program(&plain).run()?.seconds));
            let sum: usize = blocks.iter().map(Vec::len).sum();
            for (column, len) in [sum, stored.len()].into_iter().enumerate() {
                sizes.add(codec.name, column, 100.0 * len as f64 / bytes.len() as f64);
            }
        }
    }
    vec![out, into, sizes].report(options)
}

impl Codec {
    /// Returns the program that compresses a file to its standard output.
    fn program(&self, plain: &Path) -> Program {
        let [program, level] = self.program;
        Program::new([program, level, "-c"]).reading(plain)
    }
}

fn rate(bytes: &[u8], seconds: f64) -> f64 {
    bytes.len() as f64 / MIB / seconds
}

/// Returns the beginning of an archive of programs, libraries and texts of this machine.
fn archive(len: usize) -> io::Result<Vec<u8>> {
    need("tar")?;
    let words = ["--sort=name", "-C", "/usr", "-cf", "-", "bin", "share", "lib"];
    let mut tar = std::process::Command::new("tar");
    let mut tar = tar.args(words).stdout(std::process::Stdio::piped()).spawn()?;
    let mut bytes = Vec::new();
    if let Some(out) = tar.stdout.take() {
        out.take(len as u64).read_to_end(&mut bytes)?;
    }
    // It ends with its pipe.
    tar.wait()?;
    if bytes.len() < len {
        return Err(io::Error::other(format!("/usr has no {len} bytes of files")));
    }
    Ok(bytes)
}
