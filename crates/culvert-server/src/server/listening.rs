//! How listeners are bound.

use anyhow::{Context, Result};
use culvert_edge::Inherited;
use tokio::net::TcpListener;

/// A listener at the address of the setting `key`, or the inherited socket with this address.
pub(crate) async fn listen(key: &str, address: &str, inherited: &Inherited) -> Result<TcpListener> {
    let doing = || format!("listening on {address} (setting `{key}`)");
    let found = address.parse().ok().and_then(|at| inherited.take(at));
    match found {
        Some(socket) => {
            let socket = socket.with_context(doing)?;
            socket.set_nonblocking(true).with_context(doing)?;
            TcpListener::from_std(socket).with_context(doing)
        }
        None => TcpListener::bind(address).await.with_context(doing),
    }
}
