//! ◆ Services, with their endpoints. Pure.

use crib_base::columns::fields::{field, list, number, or, pairs, text, text_or, texts};
use jiff::Timestamp;
use serde_json::Value;

use super::{UNSET, metadata, names, number_or_unset, scalar};
use crate::commands::runs::describe::lines::{Lines, NONE};

/// The number of endpoints of a port that are shown.
const SHOWN: usize = 3;

/// Adds a Service.
pub(super) fn service(lines: &mut Lines, object: &Value, all: &[Value], _: Timestamp) {
    names(lines, object);
    metadata(lines, object);
    let spec = |name: &str| text(object, &format!("/spec/{name}"));
    let joined = |name: &str| texts(object, &format!("/spec/{name}")).join(",");
    lines.field(0, "Selector", &pairs(object, "/spec/selector"));
    lines.field(0, "Type", &text_or(object, "/spec/type", "ClusterIP"));
    lines.some(0, "IP Family Policy", Some(spec("ipFamilyPolicy")));
    lines.field(0, "IP Families", &or(joined("ipFamilies"), NONE));
    lines.field(0, "IP", spec("clusterIP"));
    lines.field(0, "IPs", &or(joined("clusterIPs"), NONE));
    lines.some(0, "External IPs", Some(&joined("externalIPs")));
    lines.some(0, "Desired LoadBalancer IP", Some(spec("loadBalancerIP")));
    lines.some(0, "External Name", Some(spec("externalName")));
    lines.some(0, "LoadBalancer Ingress", Some(&ingress(object)));
    let slices = slices(object, all);
    for port in list(object, "/spec/ports") {
        self::port(lines, port, &slices);
    }
    lines.field(0, "Session Affinity", &text_or(object, "/spec/sessionAffinity", "None"));
    lines.some(0, "External Traffic Policy", Some(spec("externalTrafficPolicy")));
    lines.some(0, "Internal Traffic Policy", Some(spec("internalTrafficPolicy")));
    if number(object, "/spec/healthCheckNodePort") != 0 {
        let port = number_or_unset(object, "/spec/healthCheckNodePort");
        lines.field(0, "HealthCheck NodePort", &port);
    }
    let ranges = joined("loadBalancerSourceRanges");
    lines.some(0, "LoadBalancer Source Ranges", Some(&ranges));
    lines.some(0, "Traffic Distribution", Some(spec("trafficDistribution")));
}

fn port(lines: &mut Lines, port: &Value, slices: &[&Value]) {
    let name = text(port, "/name");
    let protocol = text_or(port, "/protocol", "TCP");
    let shown_name = if name.is_empty() { UNSET } else { name };
    let row = |key: &str, number: i64| {
        [format!("{key}:"), shown_name.to_owned(), format!("{number}/{protocol}")]
    };
    lines.row(0, row("Port", number(port, "/port")));
    let target = scalar(port, "/targetPort");
    let target = target.unwrap_or_else(|| number(port, "/port").to_string());
    lines.field(0, "TargetPort", &format!("{target}/{protocol}"));
    lines.some(0, "AppProtocol", Some(text(port, "/appProtocol")));
    match number(port, "/nodePort") {
        0 => {}
        number => lines.row(0, row("NodePort", number)),
    }
    lines.field(0, "Endpoints", &endpoints(slices, name));
}

/// The EndpointSlices of a Service.
fn slices<'v>(service: &Value, all: &'v [Value]) -> Vec<&'v Value> {
    let of_service = |slice: &&Value| {
        let label = "/metadata/labels/kubernetes.io~1service-name";
        text(slice, "/kind") == "EndpointSlice"
            && text(slice, "/metadata/namespace") == text(service, "/metadata/namespace")
            && text(slice, label) == text(service, "/metadata/name")
    };
    all.iter().filter(of_service).collect()
}

/// The addresses of the ready endpoints of the port with this name.
fn endpoints(slices: &[&Value], name: &str) -> String {
    if slices.is_empty() {
        return NONE.to_owned();
    }
    let (mut shown, mut count, mut has_more) = (Vec::new(), 0, false);
    for slice in slices {
        let ports: Vec<Option<i64>> = match list(slice, "/ports") {
            [] => vec![None],
            ports => {
                let named = ports.iter().filter(|port| text(port, "/name") == name);
                named.map(|port| Some(number(port, "/port"))).collect()
            }
        };
        for port in ports {
            for endpoint in list(slice, "/endpoints") {
                // As in kubectl, an endpoint after the last shown one counts even if it is not ready.
                has_more |= shown.len() == SHOWN;
                if field(endpoint, "/conditions/ready") == Some(&Value::Bool(false)) {
                    continue;
                }
                count += 1;
                if !has_more {
                    let address = text(endpoint, "/addresses/0");
                    shown.push(with_port(address, port));
                }
            }
        }
    }
    match has_more {
        true => format!("{} + {} more...", shown.join(","), count - SHOWN),
        false => shown.join(","),
    }
}

fn with_port(address: &str, port: Option<i64>) -> String {
    match port {
        None => address.to_owned(),
        Some(port) if address.contains(':') => format!("[{address}]:{port}"),
        Some(port) => format!("{address}:{port}"),
    }
}

fn ingress(object: &Value) -> String {
    let all = list(object, "/status/loadBalancer/ingress").iter();
    let all = all.map(|ingress| match (text(ingress, "/ip"), text(ingress, "/ipMode")) {
        ("", _) => text(ingress, "/hostname").to_owned(),
        (ip, "") => ip.to_owned(),
        (ip, mode) => format!("{ip} ({mode})"),
    });
    all.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::super::described;
    use super::*;

    #[test]
    fn service_has_fields_of_kubectl() {
        let object = json!({
            "kind": "Service", "metadata": {"name": "web", "namespace": "shop", "labels": {"a": "b"}},
            "spec": {
                "selector": {"app": "web"}, "type": "NodePort", "ipFamilyPolicy": "SingleStack",
                "ipFamilies": ["IPv4"], "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"],
                "ports": [
                    {"name": "http", "port": 80, "targetPort": "web", "protocol": "TCP", "nodePort": 30080},
                    {"port": 53, "protocol": "UDP"},
                ],
                "sessionAffinity": "None", "internalTrafficPolicy": "Cluster",
            },
        });
        let slice = |namespace: &str, address: &str| {
            json!({
                "kind": "EndpointSlice",
                "metadata": {"namespace": namespace, "labels": {"kubernetes.io/service-name": "web"}},
                "ports": [{"name": "http", "port": 8080}],
                "endpoints": [{"addresses": [address], "conditions": {"ready": true}}],
            })
        };
        let expected = "Name:                     web
Namespace:                shop
Labels:                   a=b
Annotations:              <none>
Selector:                 app=web
Type:                     NodePort
IP Family Policy:         SingleStack
IP Families:              IPv4
IP:                       10.0.0.1
IPs:                      10.0.0.1
Port:                     http  80/TCP
TargetPort:               web/TCP
NodePort:                 http  30080/TCP
Endpoints:                10.1.0.1:8080
Port:                     <unset>  53/UDP
TargetPort:               53/UDP
Endpoints:
Session Affinity:         None
Internal Traffic Policy:  Cluster
Events:                   <none>";
        let all = [slice("shop", "10.1.0.1"), slice("other", "10.1.0.2")];
        assert_eq!(described(&object, &all), expected);
        assert!(described(&object, &[]).contains("Endpoints:                <none>"));
    }

    #[rstest]
    #[case::three("+++", "1:80,2:80,3:80")]
    #[case::not_ready("+-+", "1:80,3:80")]
    #[case::more("+++++", "1:80,2:80,3:80 + 2 more...")]
    #[case::last_is_not_ready("+++-", "1:80,2:80,3:80 + 0 more...")]
    #[case::none("", "")]
    fn ready_endpoints_are_shown(#[case] ready: &str, #[case] expected: &str) {
        let endpoints: Vec<Value> = (1..)
            .zip(ready.chars())
            .map(|(number, ready)| {
                json!({"addresses": [number.to_string()], "conditions": {"ready": ready == '+'}})
            })
            .collect();
        let slice = json!({"ports": [{"name": "", "port": 80}], "endpoints": endpoints});
        assert_eq!(super::endpoints(&[&slice], ""), expected);
    }

    #[test]
    fn headless_service_without_ports_has_addresses_only() {
        let slice = json!({"endpoints": [{"addresses": ["fd00::1"]}]});
        assert_eq!(super::endpoints(&[&slice], ""), "fd00::1");
        assert_eq!(with_port("fd00::1", Some(80)), "[fd00::1]:80");
    }

    #[test]
    fn ingress_has_ip_with_its_mode_or_hostname() {
        let all =
            json!([{"ip": "10.0.0.1", "ipMode": "VIP"}, {"ip": "10.0.0.2"}, {"hostname": "h"}]);
        let object = json!({"status": {"loadBalancer": {"ingress": all}}});
        assert_eq!(ingress(&object), "10.0.0.1 (VIP), 10.0.0.2, h");
    }
}
