//! Runs commands in containers and returns their output; checkpoints containers.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/server/server.go getRun, checkpoint; pkg/kubelet/kubelet.go CheckpointContainer;
//! k8s.io/cri-client, ExecSync and CheckpointContainer.

use std::path::Path;
use std::time::Duration;

use agent::cri::CriError;
use http::Response;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::node_api::NodeApi;
use super::pods;
use super::query::Query;
use super::response::{self, Body, ErrorResponse};
use super::route::Target;

/// The minimum timeout of a checkpoint: the default timeout of CRI calls.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs the query's command in a container. The command is one string, split at spaces.
pub(crate) async fn run(
    node_api: &NodeApi,
    pod: Option<Pod>,
    target: &Target,
    query: &Query,
) -> Result<Response<Body>, ErrorResponse> {
    let (_, uid) = pods::named(node_api, pod, target.uid.as_deref())?;
    let failed = |error: CriError| ErrorResponse::internal(error.go_text());
    let cri = node_api.cri.as_ref();
    let found = pods::running(cri, &uid, &target.container).await.map_err(failed)?;
    let none = || ErrorResponse::internal(format!("container not found ({:?})", target.container));
    let container = found.ok_or_else(none)?;
    let text = query.all("cmd").into_iter().next().unwrap_or_default();
    let command: Vec<String> = text.split(' ').map(str::to_owned).collect();
    // There is no timeout: the call is cancelled when the client disconnects.
    let output = cri.exec_sync(&container.id, &command, None).await.map_err(failed)?;
    if output.exit_code != 0 {
        let (code, stderr) = (output.exit_code, String::from_utf8_lossy(&output.stderr));
        return Err(ErrorResponse::internal(format!(
            "command '{text}' exited with {code}: {stderr}"
        )));
    }
    let bytes = [output.stdout, output.stderr].concat();
    // The kubelet's media type, whatever the output is.
    Ok(response::with_media_type("application/json", response::full_body(bytes)))
}

/// Checkpoints a container to a new file in the agent's directory. Returns the file's path.
pub(crate) async fn checkpoint(
    node_api: &NodeApi,
    pod: Option<Pod>,
    target: &Target,
    query: &Query,
) -> Result<Response<Body>, ErrorResponse> {
    let (pod, uid) = pods::named(node_api, pod, None)?;
    if !pods::has_container(&pod, &target.container) {
        return Err(ErrorResponse::not_found(format!(
            "container {} does not exist",
            target.container
        )));
    }
    let limit = limit(query)?;
    let Target { namespace, pod: name, container, .. } = target;
    let failed = |problem: String| {
        ErrorResponse::internal(format!(
            "checkpointing of {namespace}/{name}/{container} failed ({problem})"
        ))
    };
    let limit = limit.map_err(|problem| failed(problem.to_owned()))?;
    let cri = node_api.cri.as_ref();
    let found = pods::running(cri, &uid, container).await;
    let found = found.map_err(|error| failed(error.go_text()))?;
    let none = || failed(format!("container {container} not found"));
    let found = found.ok_or_else(none)?;
    let directory = node_api.root_dir().join("checkpoints");
    let made = file_tree::private::make(&directory);
    made.map_err(|error| failed(error.to_string()))?;
    // These names come from the pod, so the API has validated them.
    let file = file_name(&pod, container, Timestamp::now());
    let file =
        file.ok_or_else(|| failed("pod or container name is not a valid file name".to_owned()))?;
    let location = directory.join(file);
    let made = cri.checkpoint(&found.id, &location, limit).await;
    made.map_err(|error| failed(error.go_text()))?;
    let items = serde_json::json!({"items": [location.display().to_string()]});
    Ok(response::json(items.to_string()))
}

/// ◆ The timeout of a checkpoint: the query's `timeout` in seconds, but at least [`LIMIT`]. The inner error becomes the error of
/// the checkpoint.
fn limit(query: &Query) -> Result<Result<Duration, &'static str>, ErrorResponse> {
    let Some(text) = query.all("timeout").pop() else {
        return Ok(Ok(LIMIT));
    };
    let parsed = text.parse::<i64>();
    // The kubelet returns 404 for this.
    let seconds =
        parsed.map_err(|_| ErrorResponse::not_found("cannot parse value of timeout parameter"))?;
    Ok(match u64::try_from(seconds) {
        Ok(seconds) => Ok(Duration::from_secs(seconds).max(LIMIT)),
        Err(_) => Err("CheckpointContainer requires the timeout value to be > 0"),
    })
}

/// ◆ The file name of a checkpoint; `None` if a name contains a path separator.
fn file_name(pod: &Pod, container: &str, now: Timestamp) -> Option<String> {
    let metadata = &pod.metadata;
    let (name, namespace) = (metadata.name.as_deref()?, metadata.namespace.as_deref()?);
    let at = now.strftime("%Y-%m-%dT%H:%M:%SZ");
    let file = format!("checkpoint-{name}_{namespace}-{container}-{at}.tar");
    (Path::new(&file).file_name()?.to_str() == Some(&file)).then_some(file)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case("", Ok(Ok(120)))]
    #[case("timeout=10", Ok(Ok(120)))]
    #[case("timeout=10&timeout=300", Ok(Ok(300)))]
    #[case("timeout=-1", Ok(Err("CheckpointContainer requires the timeout value to be > 0")))]
    #[case("timeout=1m", Err("cannot parse value of timeout parameter"))]
    fn timeout_is_in_seconds(
        #[case] query: &str,
        #[case] expected: Result<Result<u64, &'static str>, &str>,
    ) {
        let found = limit(&Query::parse(query)).map_err(|refusal| refusal.message);
        let found = found.map(|limit| limit.map(|limit| limit.as_secs()));
        assert_eq!(found, expected.map_err(str::to_owned));
    }

    #[rstest]
    #[case("web", "app", Some("checkpoint-web_ns-app-2026-11-28T10:00:00Z.tar"))]
    #[case("../web", "app", None)]
    #[case("web", "a/b", None)]
    fn file_has_the_names_of_pod_and_container(
        #[case] name: &str,
        #[case] container: &str,
        #[case] expected: Option<&str>,
    ) {
        let pod = json!({"metadata": {"name": name, "namespace": "ns"}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let now = "2026-11-28T10:00:00.9Z".parse().unwrap();
        assert_eq!(file_name(&pod, container, now).as_deref(), expected);
    }
}
