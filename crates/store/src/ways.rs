//! The transports of this process, by their addresses.

use crate::address::StoreAddress;
use crate::transport::ObjectTransport;
use extant_sync::{Arc, LazyLock, Level, Mutex};
use std::collections::HashMap;
use std::io;

static WAYS: LazyLock<Mutex<HashMap<StoreAddress, Arc<dyn ObjectTransport>>>> =
    LazyLock::new(|| Mutex::new(Level::Leaf, HashMap::new()));

/// Makes all later uses of an address in this process take a transport: for a process that gives up
/// the right to connect by itself.
pub fn reach_by(address: &StoreAddress, transport: Arc<dyn ObjectTransport>) {
    let former = WAYS.lock().insert(address.clone(), transport);
    drop(former);
}

/// Returns the transport of an address: the one of [`reach_by`], or a new one.
///
/// # Errors
/// `Unsupported` without the feature `network`; those of the configuration in the environment.
pub fn transport_of(address: &StoreAddress) -> io::Result<Arc<dyn ObjectTransport>> {
    let known = WAYS.lock().get(address).cloned();
    known.map_or_else(|| open_transport(address), Ok)
}

/// Makes a transport of an address, with its cache if it names one.
///
/// # Errors
/// As [`transport_of`].
#[cfg(feature = "network")]
pub fn open_transport(address: &StoreAddress) -> io::Result<Arc<dyn ObjectTransport>> {
    let own = Arc::new(crate::network::NetworkTransport::open(address)?);
    Ok(match &address.cache {
        Some(place) => Arc::new(crate::cache::CachedTransport::open(own, place)?),
        None => own,
    })
}

/// Makes a transport of an address.
///
/// # Errors
/// `Unsupported`, in this build.
#[cfg(not(feature = "network"))]
pub fn open_transport(address: &StoreAddress) -> io::Result<Arc<dyn ObjectTransport>> {
    let text = format!("{address}: object stores, in this build");
    Err(io::Error::new(io::ErrorKind::Unsupported, text))
}
