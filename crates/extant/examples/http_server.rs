//! Serves the files of an image by HTTP, with std alone.
//!
//! `cargo run --features mkfs --example http_server DISK.img 127.0.0.1:8080`

use extant::{ErrorKind, File, Fs};
use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

/// Answers connections until accepting one fails, each on a thread of its own.
pub fn serve(fs: &Fs, listener: &TcpListener) -> io::Result<()> {
    thread::scope(|scope| {
        for stream in listener.incoming() {
            let stream = stream?;
            scope.spawn(move || {
                if let Err(error) = answer(fs, stream) {
                    eprintln!("{error}");
                }
            });
        }
        Ok(())
    })
}

/// Answers the one request of a connection.
pub fn answer(fs: &Fs, mut stream: TcpStream) -> io::Result<()> {
    // Longer request lines than this are cut, and not found then.
    let mut line = String::new();
    BufReader::new(&stream).take(8192).read_line(&mut line)?;
    let Some(path) = line.strip_prefix("GET ").and_then(|rest| rest.split(' ').next()) else {
        return stream.write_all(b"HTTP/1.0 405 Method Not Allowed\r\n\r\n");
    };
    match fs.metadata(path) {
        Ok(metadata) if metadata.is_dir() => list(fs, path, &mut stream),
        Ok(_) => match fs.open_file(path) {
            Ok(file) => send(file, &mut stream),
            Err(error) => fail(&error, &mut stream),
        },
        Err(error) => fail(&error, &mut stream),
    }
}

fn list(fs: &Fs, path: &str, stream: &mut TcpStream) -> io::Result<()> {
    let mut text = String::new();
    for entry in fs.read_dir(path)? {
        let _ = writeln!(text, "{}", String::from_utf8_lossy(&entry.name));
    }
    write!(stream, "HTTP/1.0 200 OK\r\nContent-Length: {}\r\n\r\n{text}", text.len())
}

fn send(file: File, stream: &mut TcpStream) -> io::Result<()> {
    let len = file.len();
    write!(stream, "HTTP/1.0 200 OK\r\nContent-Length: {len}\r\n\r\n")?;
    io::copy(&mut file.take(len), stream).map(drop)
}

fn fail(error: &extant::Error, stream: &mut TcpStream) -> io::Result<()> {
    let status = match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => "404 Not Found",
        _ => "500 Internal Server Error",
    };
    write!(stream, "HTTP/1.0 {status}\r\n\r\n{error}\n")
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(image), Some(address)) = (args.next(), args.next()) else {
        return Err("usage: http_server DISK.img ADDRESS:PORT".into());
    };
    let fs = Fs::options().read_only().open(image)?;
    serve(&fs, &TcpListener::bind(address)?)?;
    Ok(())
}
