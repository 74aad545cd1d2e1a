//! The clients of this process, by their addresses.
//!
//! Devices of one address share a client: their claims exclude each other, and a server that serves
//! one client after another, or ends with the last one, sees one.

use crate::address::Address;
use crate::client::Client;
use crate::connect::Connect;
use crate::session::Way;
use crate::trouble::Trouble;
use extant_sync::{Arc, LazyLock, Level, Mutex, Weak};
use std::collections::HashMap;
use std::io;

static OPEN: LazyLock<Mutex<HashMap<Address, Weak<Client>>>> =
    LazyLock::new(|| Mutex::new(Level::Leaf, HashMap::new()));

/// The way to an address for this process, with the client that took it, which stays.
#[derive(Debug)]
struct Only {
    way: Way,
    client: Option<Arc<Client>>,
}

static WAYS: LazyLock<Mutex<HashMap<Address, Only>>> =
    LazyLock::new(|| Mutex::new(Level::Leaf, HashMap::new()));

/// Returns the client of an address, which is made if there is none, or if it has failed.
pub fn client(address: &Address, connect: Arc<dyn Connect>) -> io::Result<Arc<Client>> {
    // Another thread may connect meanwhile, as no lock is held during I/O: the later client is that
    // of devices to come.
    let found = OPEN.lock().get(address).and_then(Weak::upgrade);
    if let Some(client) = found.filter(|client| !client.has_failed()) {
        return Ok(client);
    }
    let only = WAYS.lock().get(address).map(|only| only.way.clone());
    let way = match only {
        Some(way) => way,
        None => Way::new(address, connect)?,
    };
    let made = Client::open(address, way);
    let client = made.map_err(|trouble| named(address, trouble))?;
    let mut open = OPEN.lock();
    open.retain(|_, client| client.strong_count() > 0);
    open.insert(address.clone(), Arc::downgrade(&client));
    drop(open);
    // The former one is dropped without a lock, which it may take.
    let former = WAYS.lock().get_mut(address).and_then(|only| only.client.replace(client.clone()));
    drop(former);
    Ok(client)
}

fn named(address: &Address, trouble: Trouble) -> io::Error {
    let error = io::Error::from(trouble);
    io::Error::new(error.kind(), format!("{address}: {error}"))
}

/// Makes all later devices of an address use connections that `connect` makes, and certificates as
/// they are in files now. The first device connects, and its connections stay until the process
/// ends. For a process that gives up the right to connect and to open files by itself.
///
/// # Errors
/// Those of the certificates.
pub fn connect_by(address: &Address, connect: Arc<dyn Connect>) -> io::Result<()> {
    let way = Way::new(address, connect)?;
    let former = WAYS.lock().insert(address.clone(), Only { way, client: None });
    drop(former);
    Ok(())
}
