//! Content of files: large ones in order, pieces at random places, appends that must be durable.

use super::{Stage, filler};
use crate::target::{How, OpenFile};
use extant_measure::timing::{Limit, run_threads};
use extant_sync::SplitMix64;
use std::io;
use std::time::Instant;

/// Bytes of one write or read of the large file.
const CHUNK: usize = 1 << 20;

/// Bytes of one read or append of the others.
const PIECE: usize = 4096;

const LARGE: &[u8] = b"large";

/// All rows.
pub fn run(stage: &mut Stage<'_>) -> io::Result<()> {
    write(stage)?;
    stage.running.cold()?;
    read(stage)?;
    for threads in [1, 16] {
        stage.running.cold()?;
        read_pieces(stage, threads)?;
    }
    [1, 16].into_iter().try_for_each(|threads| append(stage, threads))
}

fn write(stage: &mut Stage<'_>) -> io::Result<()> {
    let data = filler(CHUNK);
    let target = stage.target();
    target.create(LARGE)?;
    target.sync()?;
    let start = Instant::now();
    let file = target.open(LARGE, How::Write)?;
    (0..stage.scale.large).step_by(CHUNK).try_for_each(|at| file.write_at(at, &data))?;
    file.fsync()?;
    drop(file);
    let time = start.elapsed();
    stage.add_bytes("sequential write and fsync", stage.scale.large, time);
    Ok(())
}

fn read(stage: &mut Stage<'_>) -> io::Result<()> {
    let mut buf = vec![0; CHUNK];
    let start = Instant::now();
    let file = stage.target().open(LARGE, How::Read)?;
    let mut at = 0;
    loop {
        match file.read_at(at, &mut buf)? {
            0 => break,
            n => at += n as u64,
        }
    }
    drop(file);
    let time = start.elapsed();
    if at != stage.scale.large {
        return Err(io::Error::other("the large file has another size"));
    }
    stage.add_bytes("sequential read, cold", at, time);
    Ok(())
}

fn read_pieces(stage: &mut Stage<'_>, threads: usize) -> io::Result<()> {
    let file = stage.target().open(LARGE, How::Read)?;
    let pieces = stage.scale.large / PIECE as u64;
    let done = run_threads(threads, Limit::time(stage.scale.size.window), |thread, n| {
        let place = SplitMix64::new(n ^ (thread as u64) << 40).below(pieces);
        let mut buf = [0; PIECE];
        file.read_at(place * PIECE as u64, &mut buf).map(drop)
    })?;
    drop(file);
    stage.add("random 4 KiB read, cold", threads, &done);
    Ok(())
}

fn append(stage: &mut Stage<'_>, threads: usize) -> io::Result<()> {
    let data = filler(PIECE);
    let target = stage.target();
    let mut files: Vec<Box<dyn OpenFile>> = Vec::new();
    for thread in 0..threads {
        let path = format!("append{threads}-{thread}").into_bytes();
        target.create(&path)?;
        files.push(target.open(&path, How::Append)?);
    }
    target.sync()?;
    let done = run_threads(threads, Limit::time(stage.scale.size.window), |thread, n| {
        files[thread].write_at(n * PIECE as u64, &data)?;
        files[thread].fsync()
    })?;
    drop(files);
    stage.add("append 4 KiB and fsync", threads, &done);
    Ok(())
}
