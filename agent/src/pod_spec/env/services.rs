//! ◆ The environment variables with the addresses of services.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/envvars/envvars.go and kubelet_pods.go getServiceEnvVarMap.

use std::collections::BTreeMap;
use std::sync::Arc;

use compact::Map;
use k8s_openapi::api::core::v1::Service;

use crate::objects::ObjectMap;

/// The service of the API server, in the namespace `default`: every pod gets its variables.
const API_SERVER: &str = "kubernetes";

/// The variables of a pod in this namespace: of the API server's service, and with `links` of the namespace's services.
pub(super) fn variables(
    objects: &ObjectMap,
    namespace: &str,
    links: bool,
) -> BTreeMap<String, String> {
    let named = |service: Arc<Service>| {
        let name = service.metadata.name.clone().unwrap_or_default();
        (name, service)
    };
    let api_server = objects.services("default").into_iter().map(named);
    let mut services: Map<String, Arc<Service>> =
        api_server.filter(|(name, service)| name == API_SERVER && has_address(service)).collect();
    if links {
        // A service of the namespace takes precedence over the API server's.
        let own = objects.services(namespace).into_iter().map(named);
        services.extend(own.filter(|(_, service)| has_address(service)));
    }
    services.iter().flat_map(|(name, service)| of_service(name, service)).collect()
}

fn cluster_ip(service: &Service) -> Option<&str> {
    let ip = service.spec.as_ref()?.cluster_ip.as_deref()?;
    (!ip.is_empty() && ip != "None").then_some(ip)
}

/// Whether a service has an address, that is, is not headless.
fn has_address(service: &Service) -> bool {
    cluster_ip(service).is_some()
}

/// A name in the form of variable names.
fn upper(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

fn of_service(name: &str, service: &Service) -> Vec<(String, String)> {
    let prefix = upper(name);
    let ip = cluster_ip(service).unwrap_or_default();
    let mut variables = vec![(format!("{prefix}_SERVICE_HOST"), ip.to_owned())];
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_ref());
    for (at, port) in ports.into_iter().flatten().enumerate() {
        let number = port.port.to_string();
        if at == 0 {
            variables.push((format!("{prefix}_SERVICE_PORT"), number.clone()));
        }
        if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            let name = format!("{prefix}_SERVICE_PORT_{}", upper(name));
            variables.push((name, number.clone()));
        }
        // The names that Docker gave to linked containers.
        let protocol = match port.protocol.as_deref() {
            None | Some("") => "TCP",
            Some(protocol) => protocol,
        };
        let (lower, upper) = (protocol.to_lowercase(), protocol.to_uppercase());
        let host = if ip.contains(':') { format!("[{ip}]") } else { ip.to_owned() };
        let url = format!("{lower}://{host}:{number}");
        if at == 0 {
            variables.push((format!("{prefix}_PORT"), url.clone()));
        }
        let prefix = format!("{prefix}_PORT_{number}_{upper}");
        variables.push((format!("{prefix}_PROTO"), lower));
        variables.push((format!("{prefix}_PORT"), number));
        variables.push((format!("{prefix}_ADDR"), ip.to_owned()));
        variables.push((prefix, url));
    }
    variables
}
