//! Tests of the proxy, on loopback addresses that no other process uses.
#![allow(clippy::unwrap_used)]

use std::{
    io::ErrorKind,
    net::{SocketAddr, SocketAddrV4},
    sync::atomic::{AtomicU8, Ordering},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::*;
use table::Balancer;

const PORT: u16 = 18_080;

/// An address of this process alone.
fn own_address() -> Ipv4Addr {
    static NUMBER: AtomicU8 = AtomicU8::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, high, low, NUMBER.fetch_add(1, Ordering::Relaxed))
}

fn ports() -> Ports {
    Ports { host: Handle::current(), running: BTreeMap::new(), pools: Pools::below(96) }
}

fn table(transport: Transport, address: Ipv4Addr, backends: &[SocketAddr]) -> Table {
    let v4 = |address: &SocketAddr| match address {
        SocketAddr::V4(address) => *address,
        SocketAddr::V6(address) => panic!("{address} is no IPv4 address"),
    };
    let frontend = Frontend { transport, address: Some(address), port: PORT };
    let backends =
        Backends { list: backends.iter().map(v4).collect::<Vec<SocketAddrV4>>(), affinity: None };
    Table { balancers: vec![Balancer { frontend, backends }], ..Table::default() }
}

/// A server that sends its number to each client and closes the connection.
async fn server(number: u8) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            client.write_all(&[number]).await.unwrap();
        }
    });
    address
}

/// The bytes that a client reads until the end.
async fn read(address: Ipv4Addr) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut stream = TcpStream::connect((address, PORT)).await?;
    stream.read_to_end(&mut bytes).await?;
    Ok(bytes)
}

#[tokio::test]
async fn connections_rotate_over_backends_of_current_table() {
    let (mut ports, address) = (ports(), own_address());
    let [one, two] = [server(1).await, server(2).await];
    let apply = ports.apply(table(Transport::Tcp, address, &[one, two])).await;
    assert_eq!(apply, [""; 0]);
    let mut seen = Vec::new();
    for _ in 0..4 {
        seen.extend(read(address).await.unwrap());
    }
    assert_eq!(seen, [1, 2, 1, 2]);
    ports.apply(table(Transport::Tcp, address, &[two])).await;
    assert_eq!(read(address).await.unwrap(), [2]);
    // Without backends, the listener is closed immediately.
    ports.apply(table(Transport::Tcp, address, &[])).await;
    let refused = read(address).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    ports.apply(table(Transport::Tcp, address, &[one])).await;
    assert_eq!(read(address).await.unwrap(), [1]);
}

#[tokio::test]
async fn next_backend_is_tried_and_client_of_none_is_reset() {
    let (mut ports, address) = (ports(), own_address());
    let closed = SocketAddr::from((own_address(), PORT));
    let two = server(2).await;
    ports.apply(table(Transport::Tcp, address, &[closed, two])).await;
    for _ in 0..3 {
        assert_eq!(read(address).await.unwrap(), [2]);
    }
    ports.apply(table(Transport::Tcp, address, &[closed])).await;
    let reset = read(address).await.unwrap_err();
    assert_eq!(reset.kind(), ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn connection_outlives_its_backend_in_the_table() {
    let (mut ports, address) = (ports(), own_address());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let backend = listener.local_addr().unwrap();
    ports.apply(table(Transport::Tcp, address, &[backend])).await;
    let mut client = TcpStream::connect((address, PORT)).await.unwrap();
    let (mut accepted, _) = listener.accept().await.unwrap();
    ports.apply(Table::default()).await;
    client.write_all(b"question").await.unwrap();
    client.shutdown().await.unwrap();
    let mut text = String::new();
    accepted.read_to_string(&mut text).await.unwrap();
    accepted.write_all(b", answer").await.unwrap();
    drop(accepted);
    client.read_to_string(&mut text).await.unwrap();
    assert_eq!(text, "question, answer");
}

#[tokio::test]
async fn port_in_use_is_reported_and_others_are_served() {
    let (mut ports, [taken, free]) = (ports(), [own_address(), own_address()]);
    let _holder = TcpListener::bind((taken, PORT)).await.unwrap();
    let one = server(1).await;
    let mut both = table(Transport::Tcp, taken, &[one]);
    both.balancers.extend(table(Transport::Tcp, free, &[one]).balancers);
    let problems = ports.apply(both).await;
    let sentence =
        format!("TCP port {PORT} of {taken} is in use by another program: choose another port");
    assert_eq!(problems, [sentence]);
    assert_eq!(read(free).await.unwrap(), [1]);
}

#[tokio::test]
async fn datagrams_of_a_client_go_to_one_backend_and_replies_come_back() {
    let (mut ports, address) = (ports(), own_address());
    let mut servers = Vec::new();
    for _ in 0..2 {
        servers.push(UdpSocket::bind("127.0.0.1:0").await.unwrap());
    }
    let backends: Vec<SocketAddr> = servers.iter().map(|s| s.local_addr().unwrap()).collect();
    ports.apply(table(Transport::Udp, address, &backends)).await;
    let clients = [
        UdpSocket::bind("127.0.0.1:0").await.unwrap(),
        UdpSocket::bind("127.0.0.1:0").await.unwrap(),
    ];
    let mut buffer = [0; 9];
    for round in 0..3u8 {
        // Each client has the backend of its number.
        for (number, client) in (0u8..).zip(&clients) {
            client.send_to(&[number, round], (address, PORT)).await.unwrap();
            let server = &servers[usize::from(number)];
            let (length, from) = server.recv_from(&mut buffer).await.unwrap();
            assert_eq!(buffer[..length], [number, round]);
            server.send_to(&[round], from).await.unwrap();
            let (length, from) = client.recv_from(&mut buffer).await.unwrap();
            assert_eq!((&buffer[..length], from), (&[round][..], (address, PORT).into()));
        }
    }
    // A client whose backend is no longer ready gets another one.
    ports.apply(table(Transport::Udp, address, &backends[1..])).await;
    clients[0].send_to(&[7], (address, PORT)).await.unwrap();
    let (length, _) = servers[1].recv_from(&mut buffer).await.unwrap();
    assert_eq!(buffer[..length], [7]);
}
