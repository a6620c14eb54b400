//! Checks that the node ports of Services are free before any pod runs, because `--strict` rejects ports that cannot be served.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};

use agent::objects::ObjectMap;
use agent::services::{Transport, node_ports};

/// A message for each node port that another program uses, in the format of the runtime's own message.
pub(super) fn taken(objects: &ObjectMap) -> Vec<String> {
    let services = objects.all_services();
    let ports = services.iter().flat_map(|service| node_ports(service));
    let taken = ports.filter_map(|(name, transport, port)| {
        let error = bind(transport, port).err()?;
        (error.kind() == ErrorKind::AddrInUse).then(|| {
            let transport = match transport {
                Transport::Tcp => "TCP",
                Transport::Udp => "UDP",
            };
            format!(
                "{name}: the host's {transport} port {port} is in use by another program: choose another port"
            )
        })
    });
    taken.collect()
}

/// Binds the port and closes the socket.
fn bind(transport: Transport, port: u16) -> io::Result<()> {
    let all = (Ipv4Addr::UNSPECIFIED, port);
    match transport {
        Transport::Tcp => TcpListener::bind(all).map(drop),
        Transport::Udp => UdpSocket::bind(all).map(drop),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_ports_of_other_programs_are_taken() {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let service = |protocol: &str| {
            let ports = json!([{"port": 80, "nodePort": port, "protocol": protocol}]);
            let spec = json!({"type": "NodePort", "ports": ports});
            let mut objects = ObjectMap::default();
            let service = json!({"metadata": {"name": "web"}, "spec": spec});
            objects.set_services([serde_json::from_value(service).unwrap()]);
            objects
        };
        let taken_port = format!(
            "service default/web: port 80: the host's TCP port {port} is in use by another program: choose another port"
        );
        assert_eq!(taken(&service("TCP")), [taken_port]);
        drop(listener);
        assert_eq!(taken(&service("TCP")), [""; 0]);
    }
}
