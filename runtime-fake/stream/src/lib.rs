//! **stream**: many streams over one connection, for either end of it: SPDY/3.1, and the channels of a WebSocket.
//!
//! | file | what it is |
//! |---|---|
//! | `pipe` | the two ends of one stream, whatever it shares a connection with |
//! | `frame` ◆ | SPDY's frames |
//! | `headers` ◆ | the compressed headers in them |
//! | `spdy` | a SPDY connection: who may send when, and what may not be believed |
//! | `channels` | messages of a WebSocket that begin with the number of a channel |
//! | `tunnel` | messages of a WebSocket as one stream of bytes, for SPDY inside it |
//!
//! Read in the order of the table. This package depends on no other package; the runtime's stream server and the harness's
//! clients depend on it.
//!
//! Nothing here spawns a task: a connection is a future that its owner drives, and that takes everything along when it
//! is dropped. Memory is bounded: whoever does not read makes the other side wait, by the connection's own flow control.

mod channels;
mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod headers;
mod pipe;
mod spdy;
mod tunnel;

pub use channels::{Channels, Codec};
pub use headers::Headers;
pub use pipe::{Gone, Inlet, Outlet, pump_in, pump_out};
pub use spdy::{Connection, ConnectionError, Driver, Role, Stream, connect};
pub use tunnel::Tunnel;

use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

/// The longest message of a WebSocket that is taken: clients send 32 KiB at once (client-go 0.36).
pub const MAX_MESSAGE: usize = 1 << 20;

/// How a WebSocket is set up at either end: messages and buffers stay small.
#[must_use]
pub fn websocket_config() -> WebSocketConfig {
    WebSocketConfig::default()
        .read_buffer_size(16 << 10)
        .write_buffer_size(0)
        .max_write_buffer_size(2 * MAX_MESSAGE)
        .max_message_size(Some(MAX_MESSAGE))
        .max_frame_size(Some(MAX_MESSAGE))
}
