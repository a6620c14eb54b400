//! Clients for the stream URLs of Exec, Attach and PortForward, of any runtime.
//!
//! ```no_run
//! # async fn example(url: &str) -> Result<(), Box<dyn std::error::Error>> {
//! use harness::streaming::{self, Streams, Transport};
//!
//! // The streams are those of the call that gave the URL.
//! let wanted = Streams { stdin: true, stdout: true, ..Streams::default() };
//! let mut command = streaming::command(url, wanted, Transport::Spdy).await?;
//! command.write(b"hello").await?;
//! command.end_stdin().await;
//! let text = streaming::text(&mut command.stdout).await;
//! let exit_code = command.ended().await?;
//!
//! let ports = streaming::port_forward(url, Transport::Spdy).await?;
//! let (client, _) = tokio::net::TcpListener::bind("127.0.0.1:8080").await?.accept().await?;
//! ports.carry(80, client).await?;
//! # Ok(())
//! # }
//! ```
//!
//! A URL is valid for one request, successful or not. Every runtime speaks [`Transport::Spdy`]; over a WebSocket,
//! containerd and CRI-O have no way to half-close standard input.

mod command;
mod dial;
mod forward;

pub use command::{Command, CommandError, Sizes, Streams, command, text};
pub use dial::{DialError, Transport};
pub use forward::{ForwardError, Ports, port_forward};
pub use stream::{Gone, Inlet, Outlet};
