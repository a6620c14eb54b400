//! More host ports than one message to the keeper can carry as descriptors.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};

use super::{TCP, UDP, mapping, send_request, serve, with_ports};
use crate::support::*;

/// Below the kernel's ephemeral ports, so that only a test with the same address could take one.
const FIRST: u16 = 20_000;

#[rstest]
#[case::few("127.76.0.6", 6)]
#[case::more_than_old_message("127.76.0.60", 60)]
#[case::more_than_any_message("127.76.1.44", 300)]
#[tokio::test]
async fn every_host_port_forwards_to_pod(#[case] host: &str, #[case] count: u16) {
    harness::needs!(Namespaces);
    let runtime = Runtime::start().await.unwrap();
    let protocols = [v1::Protocol::Tcp, v1::Protocol::Udp];
    let ports = (FIRST..FIRST + count)
        .flat_map(|port| protocols.map(|protocol| mapping(protocol, host, port)))
        .collect();
    let run = Pod::run(&runtime.client, with_ports(&runtime, "many", ports));
    let pod = tokio::time::timeout(PATIENCE, run).await.unwrap().unwrap();
    serve(&pod, TCP).await;
    pod.start_ready(pod.script("udp", UDP)).await.unwrap();

    let address = |port: u16| SocketAddr::new(host.parse().unwrap(), port);
    for port in FIRST..FIRST + count {
        let answer = send_request(address(port), &format!("{port}\n")).await;
        assert_eq!(answer.unwrap(), format!("tcp: {port}\n"));
    }
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answers = BTreeSet::new();
    for port in FIRST..FIRST + count {
        let (text, mut buffer) = (format!("{port}"), [0; 100]);
        client.send_to(text.as_bytes(), address(port)).unwrap();
        let (length, from) = client.recv_from(&mut buffer).unwrap();
        assert_eq!(from, address(port));
        answers.insert(String::from_utf8_lossy(&buffer[..length]).into_owned());
    }
    assert_eq!(answers.len(), usize::from(count));
    runtime.client.remove_pod(&pod.id).await.unwrap();
}
