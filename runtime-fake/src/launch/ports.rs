//! ◆ Converts a pod's port mappings to host ports and rejects conflicts. Pure.

use cri::v1::{PortMapping, Protocol};
use keeper::contract::plan::{HostPort, Transport};

use crate::launch::{Invalid, invalid};

/// The host ports of `mappings`. A mapping without a host port is ignored (CRI v1, PortMapping; as in containerd
/// and CRI-O).
pub(crate) fn host_ports(mappings: &[PortMapping]) -> Result<Vec<HostPort>, Invalid> {
    let mut wanted: Vec<HostPort> = Vec::new();
    for mapping in mappings.iter().filter(|mapping| mapping.host_port != 0) {
        let port = host_port(mapping)?;
        if let Some(other) = wanted.iter().find(|other| other.overlaps(&port)) {
            return invalid(format!(
                "port_mappings asks twice for the host port {port}: for the pod's ports {} and {}",
                other.pod_port, port.pod_port
            ));
        }
        wanted.push(port);
    }
    Ok(wanted)
}

fn host_port(mapping: &PortMapping) -> Result<HostPort, Invalid> {
    let port = |field: &str, value: i32| {
        u16::try_from(value).ok().filter(|port| *port != 0).ok_or_else(|| {
            Invalid(format!("port_mappings.{field} {value} is not a port: 1 to 65535"))
        })
    };
    let host = match mapping.host_ip.as_str() {
        "" => None,
        text => Some(text.parse().map_err(|_| {
            Invalid(format!(
                "port_mappings.host_ip {text:?} is not an address; leave it out for all of the host's"
            ))
        })?),
    };
    Ok(HostPort {
        transport: match Protocol::try_from(mapping.protocol) {
            Ok(Protocol::Tcp) => Transport::Tcp,
            Ok(Protocol::Udp) => Transport::Udp,
            Ok(Protocol::Sctp) => Transport::Sctp,
            Err(_) => {
                return invalid(format!(
                    "port_mappings.protocol {} is none of TCP, UDP and SCTP",
                    mapping.protocol
                ));
            }
        },
        host,
        host_port: port("host_port", mapping.host_port)?,
        pod_port: port("container_port", mapping.container_port)?,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn mapping(protocol: i32, host_ip: &str, host_port: i32, container_port: i32) -> PortMapping {
        PortMapping { protocol, container_port, host_port, host_ip: host_ip.to_owned() }
    }

    #[rstest]
    #[case(0, "", 80, 8080, "80/TCP")]
    #[case(1, "127.0.0.1", 53, 53, "127.0.0.1:53/UDP")]
    #[case(2, "::1", 65535, 1, "[::1]:65535/SCTP")]
    fn port_mapping_becomes_host_port(
        #[case] protocol: i32,
        #[case] host: &str,
        #[case] host_port: i32,
        #[case] pod_port: i32,
        #[case] expected: &str,
    ) {
        let ports = host_ports(&[mapping(protocol, host, host_port, pod_port)]).unwrap();
        assert_eq!(ports[0].to_string(), expected);
        assert_eq!(i32::from(ports[0].pod_port), pod_port);
    }

    #[rstest]
    #[case(0, "", -1, 80, "host_port -1 is not a port")]
    #[case(0, "", 65536, 80, "host_port 65536 is not a port")]
    #[case(0, "", 80, 0, "container_port 0 is not a port")]
    #[case(7, "", 80, 80, "protocol 7 is none of")]
    #[case(0, "localhost", 80, 80, "host_ip \"localhost\" is not an address")]
    fn invalid_port_mapping_is_refused(
        #[case] protocol: i32,
        #[case] host: &str,
        #[case] host_port: i32,
        #[case] pod_port: i32,
        #[case] part: &str,
    ) {
        let error = host_ports(&[mapping(protocol, host, host_port, pod_port)]).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }

    #[test]
    fn port_mapping_without_host_port_is_ignored() {
        assert_eq!(host_ports(&[mapping(0, "", 0, 80)]).unwrap(), []);
    }

    #[rstest]
    #[case((0, "", 80), (0, "", 80), true)]
    #[case((0, "", 80), (1, "", 80), false)]
    #[case((0, "", 80), (0, "", 81), false)]
    #[case((0, "", 80), (0, "::1", 80), true)]
    #[case((0, "0.0.0.0", 80), (0, "127.0.0.1", 80), true)]
    #[case((0, "0.0.0.0", 80), (0, "::", 80), false)]
    #[case((0, "127.0.0.1", 80), (0, "127.0.0.2", 80), false)]
    fn overlapping_host_ports_are_refused(
        #[case] one: (i32, &str, i32),
        #[case] two: (i32, &str, i32),
        #[case] expected: bool,
    ) {
        let both = [one, two].map(|(protocol, ip, port)| mapping(protocol, ip, port, 80));
        assert_eq!(host_ports(&both).is_err(), expected);
    }
}
