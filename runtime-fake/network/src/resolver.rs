//! Forwards queries to the host's name servers, from the network namespace of the thread.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UdpSocket},
    time::timeout,
};

/// The host's configuration, read for each query, because a laptop may change its network.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The resolver's limit (resolv.conf(5)).
const SERVERS: usize = 3;
const PORT: u16 = 53;
/// Timeout for an answer of one name server: the resolver's own (resolv.conf(5)).
const ANSWER: Duration = Duration::from_secs(5);
/// The largest message.
const MESSAGE: usize = 65_535;

/// Returns the first answer of a name server, in their order.
pub async fn resolve(query: Vec<u8>, over_tcp: bool) -> Option<Vec<u8>> {
    for server in name_servers() {
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
    loop {
        // The buffer is allocated only when an answer has arrived.
        socket.readable().await?;
        let mut answer = vec![0; MESSAGE];
        match socket.try_recv(&mut answer) {
            // Skip answers with another query's id: they are forged or late.
            Ok(length) if answer.get(..2) == query.get(..2) => {
                answer.truncate(length);
                return Ok(answer);
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

async fn ask_stream(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    write_message(&mut stream, query).await?;
    read_message(&mut stream).await
}

/// Reads a message with a length prefix (RFC 1035, 4.2.2). The buffer grows as data arrives.
pub async fn read_message(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let length = stream.read_u16().await?;
    let mut message = Vec::new();
    stream.take(length.into()).read_to_end(&mut message).await?;
    match message.len() == usize::from(length) {
        true => Ok(message),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Writes a message with a length prefix.
pub async fn write_message(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let length = u16::try_from(message.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes()[..], message].concat()).await
}

/// The host's name servers.
fn name_servers() -> Vec<SocketAddr> {
    servers_of(&fs::read_to_string(RESOLV_CONF).unwrap_or_default())
}

/// The name servers of a resolv.conf; without any, the local one (resolv.conf(5)).
fn servers_of(conf: &str) -> Vec<SocketAddr> {
    let named = conf.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let address = (words.next()? == "nameserver").then(|| words.next())??;
        address.parse::<IpAddr>().ok()
    });
    let mut servers: Vec<IpAddr> = named.take(SERVERS).collect();
    if servers.is_empty() {
        servers.push(Ipv4Addr::LOCALHOST.into());
    }
    servers.into_iter().map(|ip| SocketAddr::new(ip, PORT)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::stub("# made\nnameserver 127.0.0.53\noptions edns0\n", &["127.0.0.53:53"])]
    #[case::both_families("nameserver 10.0.0.1\nnameserver fd00::1\n", &["10.0.0.1:53", "[fd00::1]:53"])]
    #[case::first_three(
        "nameserver 1.0.0.1\nnameserver x\nnameserver 1.0.0.2\nnameserver 1.0.0.3\nnameserver 1.0.0.4\n",
        &["1.0.0.1:53", "1.0.0.2:53", "1.0.0.3:53"]
    )]
    #[case::none("search example.org\nnameserver\n", &["127.0.0.1:53"])]
    fn name_servers_are_those_of_the_resolver(#[case] conf: &str, #[case] expected: &[&str]) {
        let servers: Vec<String> = servers_of(conf).iter().map(ToString::to_string).collect();
        assert_eq!(servers, expected);
    }
}
