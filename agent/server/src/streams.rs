//! Resolves the container or sandbox of a stream.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/server/server.go getExec, getAttach, getPortForward; pkg/kubelet/kubelet_pods.go.

use agent::cri::{Code, Cri, CriError, ListedContainer, StreamOptions};
use api::pod::PodUid;
use http::{HeaderMap, Request, Response, StatusCode};
use hyper::body::Incoming;

use super::node_api::NodeApi;
use super::pods;
use super::query::Query;
use super::response::{Body, ErrorResponse};
use super::route::Target;
use super::tunnel::translate::{Translation, is_tunnel, is_websocket};
use super::tunnel::{self, Tunnel, is_upgrade};

/// The kind of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A new process in a container.
    Exec,
    /// The container's main process.
    Attach,
    /// Ports of the pod.
    PortForward,
}

impl Kind {
    /// The subresource of a pod, as in a kubelet's metrics.
    fn subresource(self) -> &'static str {
        match self {
            Self::Exec => "exec",
            Self::Attach => "attach",
            Self::PortForward => "portforward",
        }
    }
}

/// A stream that a client wants.
pub(crate) struct Stream {
    pub(crate) kind: Kind,
    pub(crate) target: Target,
    /// Whether a WebSocket is translated that the runtime refuses, and may carry SPDY (gate ExtendWebSocketsToKubelet).
    pub(crate) translates: bool,
}

/// The runtime's URL for a stream. It is valid for one request.
struct StreamUrl {
    url: String,
    /// The streams of a command that the runtime serves there.
    options: Option<StreamOptions>,
}

/// Opens a stream: returns the response for the client and, after an upgrade, a tunnel.
pub(crate) async fn open(
    node_api: &NodeApi,
    stream: &Stream,
    query: &Query,
    request: &mut Request<Incoming>,
) -> Result<(Response<Body>, Option<Tunnel>), ErrorResponse> {
    let StreamUrl { url, options } = url(node_api, stream, query, request.headers()).await?;
    let translation = Translation::of(request.headers(), options).filter(|_| stream.translates);
    if translation.is_some() {
        node_api.http.count_websocket(stream.kind.subresource());
    }
    let (answer, tunnel) = tunnel::open(request, &url, None).await?;
    // A server like containerd's refuses v5 and tunnels. A kubelet asks for SPDY at once.
    if tunnel.is_some() || translation.is_none() || !answer.status().is_client_error() {
        return Ok((answer, tunnel));
    }
    let again = self::url(node_api, stream, query, request.headers()).await?;
    tunnel::open(request, &again.url, translation).await
}

/// Whether a port-forward names its ports in its query. SPDY, also within a WebSocket, names them by streams.
fn has_ports(headers: &HeaderMap, translates: bool) -> bool {
    is_websocket(headers) && !(translates && is_tunnel(headers))
}

async fn url(
    node_api: &NodeApi,
    Stream { kind, target, translates }: &Stream,
    query: &Query,
    headers: &HeaderMap,
) -> Result<StreamUrl, ErrorResponse> {
    let bad_query = |error: super::query::BadQuery| ErrorResponse::bad_request(error.to_string());
    let streams = match kind {
        Kind::Exec | Kind::Attach => query.streams().map_err(bad_query)?,
        Kind::PortForward => StreamOptions::default(),
    };
    let ports = match kind {
        Kind::PortForward if has_ports(headers, *translates) => query.ports().map_err(bad_query)?,
        Kind::PortForward | Kind::Exec | Kind::Attach => Vec::new(),
    };
    let pod = node_api.view.pod(&target.namespace, &target.pod);
    let (pod, uid) = pods::named(node_api, pod, target.uid.as_deref())?;
    // Check before the runtime creates a URL, and perhaps a process, in vain.
    if !is_upgrade(headers) {
        return Err(ErrorResponse::bad_request("Upgrade request required"));
    }
    let cri = node_api.cri.as_ref();
    let (url, options) = match kind {
        Kind::Exec => {
            let container = running(cri, &uid, &target.container).await?;
            let none = || format!("container not found ({:?})", target.container);
            let container = container.ok_or_else(|| ErrorResponse::internal(none()))?;
            let url = cri.exec(&container.id, &query.all("command"), streams).await;
            (url, Some(streams))
        }
        Kind::Attach => {
            let container = running(cri, &uid, &target.container).await?;
            let Target { namespace, pod: name, container: container_name, .. } = target;
            let none = || format!("container {container_name} not found in pod {name}_{namespace}");
            let container = container.ok_or_else(|| ErrorResponse::internal(none()))?;
            // Whether a process has a terminal is fixed at its start.
            let tty = pods::has_terminal(&pod, container_name);
            let streams = StreamOptions { tty, stderr: streams.stderr && !tty, ..streams };
            (cri.attach(&container.id, streams).await, Some(streams))
        }
        Kind::PortForward => {
            let sandboxes = cri.list_sandboxes(Some(&uid)).await.map_err(runtime_error)?;
            let ready = sandboxes.into_iter().filter(|sandbox| sandbox.ready);
            let newest = ready.max_by_key(|sandbox| sandbox.created_at);
            let none = || format!("pod not found (\"{}_{}\")", target.pod, target.namespace);
            let newest = newest.ok_or_else(|| ErrorResponse::internal(none()))?;
            (cri.port_forward(&newest.id, &ports).await, None)
        }
    };
    let url = url.map_err(runtime_error)?;
    Ok(StreamUrl { url, options })
}

async fn running(
    cri: &dyn Cri,
    uid: &PodUid,
    name: &str,
) -> Result<Option<ListedContainer>, ErrorResponse> {
    pods::running(cri, uid, name).await.map_err(runtime_error)
}

fn runtime_error(error: CriError) -> ErrorResponse {
    let status = if error.is_not_found() {
        StatusCode::NOT_FOUND
    } else if error.code == Code::ResourceExhausted {
        StatusCode::TOO_MANY_REQUESTS
    } else {
        StatusCode::INTERNAL_SERVER_ERROR
    };
    ErrorResponse::new(status, error.to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use http::header::{SEC_WEBSOCKET_PROTOCOL, UPGRADE};
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::spdy("SPDY/3.1", "", true, false)]
    #[case::websocket("websocket", "v4.channel.k8s.io", true, true)]
    #[case::tunnel("websocket", "SPDY/3.1+portforward.k8s.io", true, false)]
    #[case::tunnel_without_the_gate("websocket", "SPDY/3.1+portforward.k8s.io", false, true)]
    fn port_forward_over_websocket_has_ports_unless_it_carries_spdy(
        #[case] upgrade: &str,
        #[case] protocol: &str,
        #[case] translates: bool,
        #[case] expected: bool,
    ) {
        let mut headers = HeaderMap::new();
        headers.insert(UPGRADE, upgrade.parse().unwrap());
        headers.insert(SEC_WEBSOCKET_PROTOCOL, protocol.parse().unwrap());
        assert_eq!(has_ports(&headers, translates), expected);
    }
}
