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
//! A URL is valid for one request, successful or not. Every runtime supports [`Transport::Spdy`]; over a WebSocket, containerd and
//! CRI-O cannot half-close standard input.

mod command;
mod forward;

use std::io;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
pub use stream::{Inlet, Outlet, StreamClosed};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;

pub use command::{Command, CommandError, Sizes, Streams, command, text};
pub use forward::{ForwardError, Ports, port_forward};

/// The time limit for a server's response.
const WAIT_LIMIT: Duration = Duration::from_secs(30);
/// The maximum length of a response that is read.
const LONGEST: usize = 16 << 10;

/// The transport of the streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transport {
    /// SPDY/3.1.
    #[default]
    Spdy,
    /// A WebSocket.
    WebSocket,
}

/// Why a stream URL cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The URL's scheme or form is not supported. The message omits the token in its path.
    #[error(
        "the stream URL that begins with {0:?} cannot be used: only http://HOST:PORT/PATH is spoken here"
    )]
    Url(String),
    /// The server did not respond, or closed the connection.
    #[error("failed to communicate with the stream server at {host}")]
    Io {
        /// The server's address.
        host: String,
        /// The cause.
        source: io::Error,
    },
    /// The server refused the request.
    #[error("the stream server at {host} refused with {answer}")]
    Refused {
        /// The server's address.
        host: String,
        /// The status, and the message in the body.
        answer: String,
    },
}

/// A connection, and the protocol that the server selected.
struct Dialled<T> {
    io: T,
    protocol: String,
}

/// Upgrades to SPDY.
async fn spdy(url: &str, offered: &[&str]) -> Result<Dialled<TcpStream>, DialError> {
    let mut headers = "Upgrade: SPDY/3.1\r\n".to_owned();
    for protocol in offered {
        headers += &format!("X-Stream-Protocol-Version: {protocol}\r\n");
    }
    let (io, head) = upgrade(url, "POST", &headers).await?;
    let protocol = header(&head, "x-stream-protocol-version");
    let protocol = protocol.unwrap_or_default().to_owned();
    Ok(Dialled { io, protocol })
}

/// Upgrades to a WebSocket.
async fn websocket(
    url: &str,
    offered: &[&str],
) -> Result<Dialled<WebSocketStream<TcpStream>>, DialError> {
    let mut nonce = [0; 16];
    // The nonce only matches a response to this request, so a short random one suffices.
    let _ = rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty());
    let key = BASE64_STANDARD.encode(nonce);
    let headers = format!(
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Protocol: {}\r\n",
        offered.join(", ")
    );
    let (io, head) = upgrade(url, "GET", &headers).await?;
    if header(&head, "sec-websocket-accept") != Some(&derive_accept_key(key.as_bytes())) {
        let host = parts(url)?.0.to_owned();
        let answer = "an answer to another WebSocket's key".to_owned();
        return Err(DialError::Refused { host, answer });
    }
    let protocol = header(&head, "sec-websocket-protocol");
    let protocol = protocol.unwrap_or_default().to_owned();
    let config = Some(stream::websocket_config());
    let io = WebSocketStream::from_raw_socket(io, Role::Client, config).await;
    Ok(Dialled { io, protocol })
}

/// Host and path.
fn parts(url: &str) -> Result<(&str, &str), DialError> {
    let problem = || DialError::Url(origin(url).to_owned());
    let rest = url.strip_prefix("http://").ok_or_else(problem)?;
    let slash = rest.find('/').ok_or_else(problem)?;
    let (host, path) = rest.split_at(slash);
    if host.is_empty() || url.contains(|c: char| c.is_ascii_control() || c == ' ') {
        return Err(problem());
    }
    Ok((host, path))
}

/// A URL without its path, which contains a secret.
fn origin(url: &str) -> &str {
    let host = url.find("://").map_or(0, |at| at + 3);
    let rest = url.get(host..).unwrap_or_default();
    let end = rest.find(['/', '?', '#']).map_or(url.len(), |at| host + at);
    url.get(..end).unwrap_or(url)
}

async fn upgrade(url: &str, method: &str, headers: &str) -> Result<(TcpStream, String), DialError> {
    let (host, path) = parts(url)?;
    let failed = |source| DialError::Io { host: host.to_owned(), source };
    let exchange = async {
        let mut io = TcpStream::connect(host).await?;
        io.set_nodelay(true)?;
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\n{headers}\r\n"
        );
        io.write_all(request.as_bytes()).await?;
        let mut head = Vec::new();
        // Byte by byte: the data after the headers is not HTTP.
        while !head.ends_with(b"\r\n\r\n") && head.len() < LONGEST {
            head.push(io.read_u8().await?);
        }
        let mut head = String::from_utf8_lossy(&head).into_owned();
        if status(&head) != "101" {
            let length = header(&head, "content-length").and_then(|length| length.parse().ok());
            let length: usize = length.unwrap_or(0);
            let mut body = vec![0; length.min(LONGEST)];
            io.read_exact(&mut body).await?;
            head += &String::from_utf8_lossy(&body);
        }
        Ok((io, head))
    };
    let late = |_| Err(io::ErrorKind::TimedOut.into());
    let outcome = tokio::time::timeout(WAIT_LIMIT, exchange).await;
    let (io, head) = outcome.unwrap_or_else(late).map_err(failed)?;
    if status(&head) == "101" {
        return Ok((io, head));
    }
    let (first, rest) = head.split_once("\r\n").unwrap_or((&head, ""));
    let body = rest.split_once("\r\n\r\n").map_or("", |(_, body)| body.trim());
    let first = first.strip_prefix("HTTP/1.1 ").unwrap_or(first).trim();
    let answer = if body.is_empty() { first.to_owned() } else { format!("{first}: {body}") };
    let host = host.to_owned();
    Err(DialError::Refused { host, answer })
}

fn status(head: &str) -> &str {
    head.split(' ').nth(1).unwrap_or_default()
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = head.lines().skip(1).take_while(|line| !line.is_empty());
    lines.find_map(|line| {
        let (have, value) = line.split_once(':')?;
        have.eq_ignore_ascii_case(name).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::not_spoken("https://127.0.0.1:1/exec/secret", "https://127.0.0.1:1")]
    #[case::no_host("http:///exec/secret", "http://")]
    #[case::no_path("http://[::1]:1?secret", "http://[::1]:1")]
    #[case::two_lines("http://127.0.0.1:1/exec/secret\r\nX-Other: x", "http://127.0.0.1:1")]
    #[case::no_url("/exec/secret", "")]
    fn invalid_url_error_omits_token(#[case] url: &str, #[case] expected: &str) {
        let error = parts(url).err().map(|error| error.to_string());
        let error = error.unwrap_or_default();
        assert!(error.contains(&format!("with {expected:?} cannot")), "{error}");
        assert!(!error.contains("secret"), "{error}");
    }
}
