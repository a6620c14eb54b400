//! The names of the host in pods of `crib run`.

use std::net::Ipv4Addr;

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, UdpSocket};

use crate::command::*;
use crate::runs::run::pod;

/// Responds over TCP and UDP on one port of all of the host's addresses.
async fn serve() -> u16 {
    let tcp = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).await.unwrap();
    let port = tcp.local_addr().unwrap().port();
    let udp = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)).await.unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = tcp.accept().await {
            client.write_all(b"host over tcp\n").await.unwrap();
        }
    });
    tokio::spawn(async move {
        let mut requested = [0; 64];
        while let Ok((_, client)) = udp.recv_from(&mut requested).await {
            udp.send_to(b"host over udp\n", client).await.unwrap();
        }
    });
    port
}

#[rstest]
#[tokio::test]
async fn services_of_host_are_reached_by_its_names(#[values("root", "rootless")] isolation: &str) {
    harness::needs!(..needs_of(isolation));
    let place = Place::new();
    let port = serve().await;
    let script = format!(
        "for name in host.containers.internal host.docker.internal; do \
         exec 3<>/dev/tcp/$name/{port} && echo $name: $(head -n 1 <&3); \
         exec 3<>/dev/udp/$name/{port} && echo asked >&3 && echo $name: $(head -n 1 <&3); done"
    );
    let manifest = place.file("p.yaml", &pod("p", &script));
    let ended = place.run_isolated(isolation, &[], &manifest).await.exits(0);
    let lines: Vec<&str> = ended.out.lines().collect();
    let expected = [
        "p/main | host.containers.internal: host over tcp",
        "p/main | host.containers.internal: host over udp",
        "p/main | host.docker.internal: host over tcp",
        "p/main | host.docker.internal: host over udp",
    ];
    assert_eq!(lines, expected, "{}", ended.err);
}
