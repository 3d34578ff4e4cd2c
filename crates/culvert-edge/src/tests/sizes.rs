//! What a connection costs while it is idle.

use std::sync::Arc;

use super::harness::*;
use crate::connection::conn_state::ConnState;
use crate::connection::downstream::Downstream;
use crate::connection::socket::Carrier;
use crate::http1::server::Http1Server;

/// The whole of an idle connection: its task, what it is known by, and its timer. Protocol buffers
/// are freed by then.
const IDLE_BYTES_MAX: usize = 20 << 10;

#[tokio::test]
async fn an_idle_connection_is_small() {
    let rig = Rig::start().await;
    let shared = rig.edge.shared();
    let address = rig.edge.http_addr().unwrap();
    let client = tokio::net::TcpStream::connect(address).await.unwrap();
    let down = Downstream::new(shared, address, address, None);
    let socket =
        crate::connection::socket::CountedSocket::new(Carrier::Tcp(client), Arc::clone(&down.conn));
    let task = crate::http::server::http1(
        crate::connection::socket::Wire::Plain(socket),
        Arc::clone(&down),
    );
    let bytes =
        size_of_val(&task) + size_of::<Downstream>() + size_of::<ConnState>() + Http1Server::SIZE;
    // The rest is for the runtime's part of task, socket and timer, and for a TLS session.
    assert!(bytes < IDLE_BYTES_MAX / 8, "{bytes}");
}
