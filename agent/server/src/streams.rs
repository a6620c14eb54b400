//! Which process or sandbox a stream is for.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/server/server.go getExec, getAttach, getPortForward; pkg/kubelet/kubelet_pods.go.

use agent::cri::{Code, Cri, CriError, ListedContainer};
use api::pod::PodUid;
use http::{HeaderMap, StatusCode};
use k8s_openapi::api::core::v1::Pod;

use super::answer::Refusal;
use super::exposed::Exposed;
use super::pods;
use super::query::Query;
use super::route::Target;
use super::tunnel::{is_tunnel, is_upgrade, is_websocket};

/// What the stream is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A new command.
    Exec,
    /// The container's own process.
    Attach,
    /// Ports of the pod.
    PortForward,
}

/// The runtime's URL for a stream of a pod.
pub(crate) async fn url(
    exposed: &Exposed,
    kind: Kind,
    pod: Option<Pod>,
    target: &Target,
    query: &Query,
    headers: &HeaderMap,
) -> Result<String, Refusal> {
    let bad_query = |error: super::query::BadQuery| Refusal::bad_request(error.to_string());
    let streams = match kind {
        Kind::Exec | Kind::Attach => query.streams().map_err(bad_query)?,
        Kind::PortForward => agent::cri::StreamOptions::default(),
    };
    let ports = match kind {
        // SPDY, also within a WebSocket, names its ports by streams.
        Kind::PortForward if is_websocket(headers) && !is_tunnel(headers) => {
            query.ports().map_err(bad_query)?
        }
        Kind::PortForward | Kind::Exec | Kind::Attach => Vec::new(),
    };
    let (pod, uid) = pods::named(exposed, pod, target.uid.as_deref())?;
    // Before the runtime makes a URL, and perhaps a process, that nothing would use.
    if !is_upgrade(headers) {
        return Err(Refusal::bad_request("Upgrade request required"));
    }
    let cri = exposed.cri.as_ref();
    let url = match kind {
        Kind::Exec => {
            let container = running(cri, &uid, &target.container).await?;
            let none = || format!("container not found ({:?})", target.container);
            let container = container.ok_or_else(|| Refusal::internal(none()))?;
            cri.exec(&container.id, &query.all("command"), streams).await
        }
        Kind::Attach => {
            let container = running(cri, &uid, &target.container).await?;
            let Target { namespace, pod: name, container: wanted, .. } = target;
            let none = || format!("container {wanted} not found in pod {name}_{namespace}");
            let container = container.ok_or_else(|| Refusal::internal(none()))?;
            // A process has a terminal from its start, or has none.
            let tty = pods::has_terminal(&pod, wanted);
            let streams =
                agent::cri::StreamOptions { tty, stderr: streams.stderr && !tty, ..streams };
            cri.attach(&container.id, streams).await
        }
        Kind::PortForward => {
            let sandboxes = cri.list_sandboxes(Some(&uid)).await.map_err(of_runtime)?;
            let ready = sandboxes.into_iter().filter(|sandbox| sandbox.ready);
            let newest = ready.max_by_key(|sandbox| sandbox.created_at);
            let none = || format!("pod not found (\"{}_{}\")", target.pod, target.namespace);
            let newest = newest.ok_or_else(|| Refusal::internal(none()))?;
            cri.port_forward(&newest.id, &ports).await
        }
    };
    url.map_err(of_runtime)
}

async fn running(
    cri: &dyn Cri,
    uid: &PodUid,
    name: &str,
) -> Result<Option<ListedContainer>, Refusal> {
    pods::running(cri, uid, name).await.map_err(of_runtime)
}

fn of_runtime(error: CriError) -> Refusal {
    let status = if error.is_not_found() {
        StatusCode::NOT_FOUND
    } else if error.code == Code::ResourceExhausted {
        StatusCode::TOO_MANY_REQUESTS
    } else {
        StatusCode::INTERNAL_SERVER_ERROR
    };
    Refusal::new(status, error.to_string())
}
