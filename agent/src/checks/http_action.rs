//! ◆ The request of an `httpGet` action, as a kubelet makes it for probes and lifecycle hooks. Pure.
//!
//! Source: Kubernetes 1.36, pkg/probe/http/request.go and pkg/probe/util.go.

use compact::Map;
use fetch::{Url, UrlError};
use k8s_openapi::api::core::v1::{ContainerPort, HTTPGetAction, HTTPHeader};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// The version of Kubernetes in the User-Agent header.
pub const KUBERNETES_VERSION: &str = "1.36";

/// The purpose of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A probe.
    Probe,
    /// A lifecycle hook.
    Lifecycle,
}

/// A GET request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpRequest {
    /// The URL.
    pub url: Url,
    /// The Host header, if it differs from the URL's.
    pub host_header: Option<String>,
    /// The values of each header, by canonical name.
    pub headers: Map<String, Vec<String>>,
}

/// Why no request can be built for an action.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HttpActionError {
    /// The port cannot be resolved.
    #[error(transparent)]
    Port(#[from] PortError),
    /// Host and path form no valid URL.
    #[error(transparent)]
    Url(#[from] UrlError),
}

/// Why no port can be resolved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// The container has no port with this name, and the name is not a number.
    #[error("strconv.Atoi: parsing {0:?}: invalid syntax")]
    NotFound(String),
    /// The number does not fit into 64 bits.
    #[error("strconv.Atoi: parsing {0:?}: value out of range")]
    TooLarge(String),
    /// The number is not a valid port.
    #[error("invalid port number: {0}")]
    Invalid(i64),
}

/// Builds the request of an action. It goes to the pod, unless the action names a host.
///
/// # Errors
///
/// If the port cannot be resolved, or host and path form no valid URL.
pub fn http_request(
    action: &HTTPGetAction,
    ports: &[ContainerPort],
    pod_ip: &str,
    purpose: Purpose,
) -> Result<HttpRequest, HttpActionError> {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let host = given(&action.host).unwrap_or_else(|| pod_ip.to_owned());
    let port = resolve_port(&action.port, ports)?;
    let path = action.path.as_deref().unwrap_or_default();
    // A path that is not a URL reference is taken literally.
    let url = Url::parse(path).unwrap_or_else(|_| Url::of_path(path));
    let scheme = given(&action.scheme).unwrap_or_else(|| "http".to_owned()).to_lowercase();
    let url = url.at(scheme, &join_host_port(&host, port));
    let mut headers = headers(action.http_headers.as_deref().unwrap_or_default());
    headers.entry("User-Agent".to_owned()).or_insert_with(|| {
        let name = match purpose {
            Purpose::Probe => "probe",
            Purpose::Lifecycle => "lifecycle",
        };
        vec![format!("kube-{name}/{KUBERNETES_VERSION}")]
    });
    let accepted = headers.entry("Accept".to_owned()).or_insert_with(|| vec!["*/*".to_owned()]);
    if accepted.first().is_some_and(String::is_empty) {
        headers.remove("Accept");
    }
    let host_header = headers
        .get("Host")
        .and_then(|values| values.first())
        .filter(|host| !host.is_empty())
        .cloned();
    Ok(HttpRequest {
        // The kubelet formats the URL and parses it again.
        url: Url::parse(&url.to_string())?,
        host_header,
        headers,
    })
}

/// Resolves a port, given by its number or by its name in the container.
///
/// # Errors
///
/// If the port cannot be resolved.
pub fn resolve_port(port: &IntOrString, ports: &[ContainerPort]) -> Result<u16, PortError> {
    let number = match port {
        IntOrString::Int(number) => i64::from(*number),
        IntOrString::String(name) => {
            let named = ports.iter().find(|port| port.name.as_deref().unwrap_or_default() == name);
            match named {
                Some(port) => i64::from(port.container_port),
                None => number(name)?,
            }
        }
    };
    u16::try_from(number).ok().filter(|number| *number > 0).ok_or(PortError::Invalid(number))
}

fn number(text: &str) -> Result<i64, PortError> {
    use std::num::IntErrorKind::{NegOverflow, PosOverflow};

    text.parse().map_err(|error: std::num::ParseIntError| {
        if matches!(error.kind(), PosOverflow | NegOverflow) {
            PortError::TooLarge(text.to_owned())
        } else {
            PortError::NotFound(text.to_owned())
        }
    })
}

/// `host:port`; an IPv6 address gets brackets.
#[must_use]
pub fn join_host_port(host: &str, port: u16) -> String {
    if host.contains([':', '%']) { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The values of each header, by canonical name.
fn headers(list: &[HTTPHeader]) -> Map<String, Vec<String>> {
    let mut headers: Map<String, Vec<String>> = Map::new();
    for header in list {
        let values = headers.entry(canonical(&header.name)).or_default();
        values.push(header.value.clone());
    }
    headers
}

/// The canonical form of a header's name: the first letter and each letter after a hyphen in upper case, the others in lower case.
/// A string that is not a header name stays unchanged.
fn canonical(name: &str) -> String {
    let of_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    if !name.chars().all(of_token) {
        return name.to_owned();
    }
    let mut starts = true;
    let mut cased = |c: char| {
        let cased = if starts { c.to_ascii_uppercase() } else { c.to_ascii_lowercase() };
        starts = c == '-';
        cased
    };
    name.chars().map(&mut cased).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn request_is_sent_to_the_pod_with_purpose_headers() {
        let action = HTTPGetAction {
            path: Some("/healthz".to_owned()),
            port: IntOrString::String("web".to_owned()),
            http_headers: Some(vec![HTTPHeader { name: "x-a".to_owned(), value: "1".to_owned() }]),
            ..HTTPGetAction::default()
        };
        let ports = [ContainerPort {
            name: Some("web".to_owned()),
            container_port: 8080,
            ..ContainerPort::default()
        }];
        let request = http_request(&action, &ports, "fd00::2", Purpose::Lifecycle).unwrap();
        assert_eq!(request.url.to_string(), "http://[fd00::2]:8080/healthz");
        assert_eq!(request.host_header, None);
        let headers: Vec<_> = request.headers.into_iter().collect();
        let expected = [("Accept", "*/*"), ("User-Agent", "kube-lifecycle/1.36"), ("X-A", "1")];
        assert_eq!(
            headers,
            expected.map(|(name, value)| (name.to_owned(), vec![value.to_owned()]))
        );
    }

    #[test]
    fn port_is_a_name_or_a_number() {
        let name = |name: &str| IntOrString::String(name.to_owned());
        assert_eq!(resolve_port(&name("80"), &[]), Ok(80));
        assert_eq!(resolve_port(&IntOrString::Int(65536), &[]), Err(PortError::Invalid(65536)));
        let error = resolve_port(&name("web"), &[]).unwrap_err();
        assert_eq!(error.to_string(), "strconv.Atoi: parsing \"web\": invalid syntax");
    }
}
