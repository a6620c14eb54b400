//! Asks the host's name servers, from the host's network.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UdpSocket},
    time::timeout,
};

/// Timeout for an answer of one name server: the resolver's own (resolv.conf(5)).
const ANSWER: Duration = Duration::from_secs(5);
/// The largest message.
const MESSAGE: usize = 65_535;

/// The answer of the first name server that gives one. The servers are read for each query: a laptop changes its network.
pub(super) async fn resolve(query: Vec<u8>, over_tcp: bool) -> Option<Vec<u8>> {
    for server in network::name_servers() {
        let answer = async {
            match over_tcp {
                true => ask_stream(server, &query).await,
                false => ask_datagram(server, &query).await,
            }
        };
        match timeout(ANSWER, answer).await {
            Ok(Ok(answer)) => return Some(answer),
            Ok(Err(error)) => tracing::debug!(%server, %error, "name server failed"),
            Err(_) => tracing::debug!(%server, "name server did not answer in time"),
        }
    }
    None
}

async fn ask_datagram(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(query).await?;
    let mut answer = vec![0; MESSAGE];
    loop {
        let length = socket.recv(&mut answer).await?;
        // An answer to another query is forged, or late.
        if answer.get(..2) == query.get(..2) {
            answer.truncate(length);
            return Ok(answer);
        }
    }
}

async fn ask_stream(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    write_message(&mut stream, query).await?;
    read_message(&mut stream).await
}

/// Reads a message with its length in front (RFC 1035, 4.2.2).
pub(super) async fn read_message(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = stream.read_u16().await?;
    let mut message = vec![0; usize::from(length)];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

/// Writes a message with its length in front.
pub(super) async fn write_message(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(io::Error::other)?;
    stream
        .write_all(&[&length.to_be_bytes()[..], message].concat())
        .await
}
