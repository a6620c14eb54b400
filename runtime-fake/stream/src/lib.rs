//! **stream**: multiplexes streams over one connection, for clients and servers: SPDY/3.1, and WebSocket
//! channels. It also reads HTTP/2 of gRPC clients on unix sockets, for servers.
//!
//! | module | contents |
//! |---|---|
//! | `pipe` | the two ends of one stream, for both protocols |
//! | `frame` ◆ | SPDY frames |
//! | `headers` ◆ | compressed SPDY headers |
//! | `spdy` | a SPDY connection: flow control, and limits on the peer |
//! | `channels` | WebSocket messages that begin with a channel number |
//! | `tunnel` | WebSocket messages as one byte stream, for SPDY inside it |
//! | `hpack` ◆ | compressed HTTP/2 headers |
//! | `authority` ◆ | requests with an authority that h2 accepts |
//! | `requests` | a gRPC client's connection, in a form that hyper can read |
//!
//! Read in the order of the table. This package depends on no other package; the runtime's servers, the sockets and the
//! server of a node and the harness's clients depend on it.
//!
//! No function here spawns a task: a connection is a future that its owner drives, and dropping it drops everything. Memory is
//! bounded: a slow reader makes the peer wait, by the connection's own flow control.

mod authority;
mod channels;
mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod headers;
mod hpack;
mod pipe;
mod requests;
mod spdy;
mod tunnel;

pub use channels::{Channels, Codec};
pub use headers::Headers;
pub use pipe::{Inlet, Outlet, StreamClosed, pump_in, pump_out};
pub use requests::ClientStream;
pub use spdy::{Connection, ConnectionError, Driver, Role, Stream, connect};
pub use tunnel::Tunnel;

use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

/// Limit on a WebSocket message: clients send at most 32 KiB per message (client-go 0.36).
pub const MAX_MESSAGE: usize = 1 << 20;

/// The WebSocket configuration at both ends: small messages and buffers.
#[must_use]
pub fn websocket_config() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(16 << 10)
        .write_buffer_size(0)
        .max_write_buffer_size(2 * MAX_MESSAGE)
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE))
}
