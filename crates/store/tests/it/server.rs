//! A web server of a directory, with faults.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// An answer other than the file.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// A status without a file.
    Status(u16),
    /// The connection ends in the middle of the file.
    Cut,
    /// A pause in the middle of the file.
    Slow(Duration),
    /// Other bytes of the same length.
    Wrong,
    /// A file of zeroes of this size, and not the one that is there.
    Zeroes(u64),
    /// A file of more bytes than the answer says, without an end.
    Endless,
}

#[derive(Debug, Default)]
struct Plan {
    /// Parts of paths with their faults, and how often they come.
    faults: Vec<(String, Fault, u64)>,
}

/// A server, which ends with the test.
#[derive(Debug)]
pub struct Server {
    port: u16,
    plan: Arc<Mutex<Plan>>,
    requests: Arc<AtomicU64>,
}

impl Server {
    pub fn of(dir: &Path) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = Server { port, plan: Arc::default(), requests: Arc::default() };
        let (plan, requests, dir) = (server.plan.clone(), server.requests.clone(), dir.to_owned());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (plan, dir) = (plan.clone(), dir.clone());
                requests.fetch_add(1, Ordering::Relaxed);
                thread::spawn(move || answer(stream, &dir, &plan));
            }
        });
        server
    }

    /// Gives the next `times` answers for paths with `part` a fault.
    pub fn fails(&self, part: &str, fault: Fault, times: u64) {
        self.plan.lock().unwrap().faults.push((part.into(), fault, times));
    }

    /// Answers without faults from now on.
    pub fn recovers(&self) {
        self.plan.lock().unwrap().faults.clear();
    }

    pub fn address(&self, name: &str) -> String {
        format!("http://127.0.0.1:{}/{name}", self.port)
    }

    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

fn fault_of(plan: &Mutex<Plan>, path: &str) -> Option<Fault> {
    let mut plan = plan.lock().unwrap();
    let (_, fault, times) =
        plan.faults.iter_mut().find(|(part, _, times)| *times > 0 && path.contains(&**part))?;
    *times -= 1;
    Some(*fault)
}

fn answer(mut stream: TcpStream, dir: &Path, plan: &Mutex<Plan>) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
    let request = lines.next()?.ok()?;
    while !lines.next()?.ok()?.is_empty() {}
    let mut words = request.split(' ');
    let (method, path) = (words.next()?, words.next()?);
    let file: PathBuf = dir.join(path.trim_start_matches('/'));
    let fault = fault_of(plan, path);
    let mut data = std::fs::read(file).ok();
    let mut send = |status: &str, len: u64| {
        write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n")
            .ok()
    };
    match fault {
        Some(Fault::Status(status)) => {
            send(&format!("{status} Fault\r\nLocation: http://127.0.0.1:1/x"), 0)?;
            return Some(());
        }
        Some(Fault::Zeroes(len)) => {
            send("200 OK", len)?;
            let zeroes = vec![0; 1 << 16];
            let mut rest = len;
            while rest > 0 {
                let part = rest.min(zeroes.len() as u64);
                stream.write_all(&zeroes[..part as usize]).ok()?;
                rest -= part;
            }
            return Some(());
        }
        Some(Fault::Endless) => {
            write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n").ok()?;
            while stream.write_all(&[7; 1 << 16]).is_ok() {}
            return Some(());
        }
        Some(Fault::Wrong) => {
            data.iter_mut().flatten().for_each(|byte| *byte ^= 0x5a);
        }
        _ => {}
    }
    let Some(data) = data else { return send("404 Not Found", 0) };
    send("200 OK", data.len() as u64)?;
    if method == "HEAD" {
        return Some(());
    }
    let (first, second) = data.split_at(data.len() / 2);
    stream.write_all(first).ok()?;
    match fault {
        Some(Fault::Cut) => return Some(()),
        Some(Fault::Slow(pause)) => {
            stream.flush().ok()?;
            thread::sleep(pause);
        }
        _ => {}
    }
    stream.write_all(second).ok()
}
