//! Container logs, read from the runtime's files.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/server/server.go getContainerLogs, pkg/kubelet/kubelet_pods.go.

use std::io;
use std::path::Path;
use std::sync::Arc;

use agent::cri::{Cri, ListedContainer, ListedState};
use api::pod::PodUid;
use bytes::Bytes;
use cri_log::follower::{Follower, LogError};
use cri_log::reader::Filter;
use futures_util::stream;
use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};

use super::query::{BadQuery, LogOptions, Query};
use super::response::{Body, ErrorResponse, with_media_type};
use super::route::Target;

/// The log of a container of a pod. With `selects_streams`, the query may name one of its streams.
pub(crate) async fn logs(
    cri: &Arc<dyn Cri>,
    pod: Option<Pod>,
    target: &Target,
    query: &Query,
    selects_streams: bool,
) -> Result<Response<Body>, ErrorResponse> {
    let options = query.log_options(Timestamp::now()).map_err(|error| {
        let status = match error {
            BadQuery::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
            BadQuery::Malformed | BadQuery::NoStreams | BadQuery::NoPort | BadQuery::Port(_) => {
                StatusCode::BAD_REQUEST
            }
        };
        ErrorResponse::new(status, error.to_string())
    })?;
    let (name, container) = (&target.pod, &target.container);
    let pod =
        pod.ok_or_else(|| ErrorResponse::not_found(format!("pod {name:?} does not exist")))?;
    if !super::pods::has_container(&pod, container) {
        let message = format!("container {container:?} not found in pod {name:?}");
        return Err(ErrorResponse::not_found(message));
    }
    if let Some(stream) = options.stream.filter(|_| !selects_streams) {
        return Err(ErrorResponse::bad_request(format!(
            "unable to return the log stream {stream:?} alone: enable the feature gate PodLogsQuerySplitStreams of the agent"
        )));
    }
    let status = pod.status.unwrap_or_default();
    let id = container_id(&status, name, container, options.previous);
    let id = id.map_err(ErrorResponse::bad_request)?;
    let uid = PodUid::new(pod.metadata.uid.unwrap_or_default());
    let listed = cri.list_containers(Some(&uid)).await;
    let listed = listed.map_err(|error| ErrorResponse::internal(error.to_string()))?;
    let missing = || format!("container {container:?} in pod {name:?} no longer exists (id {id})");
    let listed = listed.into_iter().find(|listed| listed.id.as_str() == id);
    let listed = listed.ok_or_else(|| ErrorResponse::bad_request(missing()))?;
    let seen = cri.container_status(&listed).await;
    let seen = seen.map_err(|error| ErrorResponse::bad_request(error.to_string()))?;
    let path = seen.log_path.ok_or_else(|| {
        ErrorResponse::bad_request(format!("container {container:?} in pod {name:?} has no log"))
    })?;
    let log = Log::open(Arc::clone(cri), listed, &path, options).await;
    let log = log.map_err(|error| ErrorResponse::bad_request(error_chain(&error)))?;
    let frames = stream::unfold(log, |log| async move {
        match Box::pin(log.next()).await {
            Ok(Some((bytes, log))) => Some((Ok(Frame::data(bytes)), log)),
            Ok(None) => None,
            Err(error) => {
                // Part of the body is already sent, so the connection is aborted.
                tracing::warn!(error = %error_chain(&error), "failed to read a log");
                None
            }
        }
    });
    Ok(with_media_type("text/plain", StreamBody::new(frames).boxed_unsync()))
}

fn error_chain(error: &LogError) -> String {
    format!("{error}: {}", error.source)
}

/// ◆ The ID of the container whose log is requested, without the runtime's scheme, or the kubelet's error if there is none.
fn container_id(
    status: &PodStatus,
    pod: &str,
    container: &str,
    previous: bool,
) -> Result<String, String> {
    let lists = [
        &status.container_statuses,
        &status.init_container_statuses,
        &status.ephemeral_container_statuses,
    ];
    let mut statuses = lists.into_iter().flatten().flatten();
    let known = statuses.find(|status| status.name == container);
    let it = format!("container {container:?} in pod {pod:?}");
    let known = known.ok_or_else(|| format!("{it} is not available"))?;
    let state = known.state.clone().unwrap_or_default();
    let last = known.last_state.clone().unwrap_or_default().terminated;
    let last_id = last.as_ref().and_then(|last| last.container_id.clone());
    let last_id = last_id.filter(|id| !id.is_empty());
    let terminated = format!("{it} is terminated");
    let id = if previous {
        last_id.ok_or_else(|| format!("previous terminated {it} not found"))
    } else if state.running.is_some() {
        known.container_id.clone().ok_or(terminated)
    } else if let Some(ended) = state.terminated {
        ended.container_id.filter(|id| !id.is_empty()).or(last_id).ok_or(terminated)
    } else if last.is_some() {
        last_id.ok_or(terminated)
    } else {
        let reason = state.waiting.map(|waiting| waiting.reason.unwrap_or_default());
        Err(match reason.as_deref() {
            Some("ErrImagePull") => format!("{it} is waiting to start: image can't be pulled"),
            Some("ImagePullBackOff") => {
                format!("{it} is waiting to start: trying and failing to pull image")
            }
            Some(reason) => format!("{it} is waiting to start: {reason}"),
            None => format!("{it} is waiting to start - no logs yet"),
        })
    }?;
    Ok(id.split_once("://").map_or(id.as_str(), |(_, id)| id).to_owned())
}

/// A log that is being sent. The client's reads set the pace.
struct Log {
    cri: Arc<dyn Cri>,
    container: ListedContainer,
    follower: Follower,
    /// Whether to wait for more output while the container runs.
    follow: bool,
}

impl Log {
    async fn open(
        cri: Arc<dyn Cri>,
        container: ListedContainer,
        path: &Path,
        options: LogOptions,
    ) -> Result<Self, LogError> {
        let filter = Filter {
            prefix: String::new(),
            since: options.since,
            timestamps: options.timestamps,
            limit: options.limit,
            stream: options.stream,
        };
        let (path, follow) = (path.to_owned(), options.follow);
        let failed = path.clone();
        let opening = move || Follower::open(&path, options.tail, filter, follow);
        let follower = blocking(&failed, opening).await?;
        Ok(Self { cri, container, follower, follow })
    }

    /// The next bytes; `None` at the end.
    async fn next(mut self) -> Result<Option<(Bytes, Self)>, LogError> {
        loop {
            let path = self.follower.path().to_owned();
            let mut follower = self.follower;
            let reading = move || follower.read().map(|pieces| (pieces, follower));
            let (pieces, follower) = blocking(&path, reading).await?;
            self.follower = follower;
            if let Some(pieces) = pieces {
                let bytes: Vec<u8> = pieces.into_iter().flat_map(|piece| piece.bytes).collect();
                if !bytes.is_empty() {
                    return Ok(Some((bytes.into(), self)));
                }
            } else if self.follower.is_done() {
                return Ok(None);
            } else if !self.follow {
                let rest = self.follower.finish();
                return Ok(rest.map(|rest| (rest.bytes.into(), self)));
            } else if self.has_ended().await {
                // The container had ended before this check, so all of its output is in the file: read the rest.
                self.follow = false;
            } else {
                self.follower.changed().await?;
            }
        }
    }

    /// Whether the container has ended, so that its log is complete. A missing container has ended. If the runtime does not
    /// answer, the state is unknown, and the result is false.
    async fn has_ended(&self) -> bool {
        let seen = self.cri.list_containers(Some(&self.container.pod.uid)).await;
        let Ok(listed) = seen else {
            return false;
        };
        let same = listed.iter().find(|listed| listed.id == self.container.id);
        same.is_none_or(|same| matches!(same.state, ListedState::Exited | ListedState::Unknown))
    }
}

/// Runs blocking work on a blocking thread.
async fn blocking<T: Send + 'static>(
    path: &Path,
    work: impl FnOnce() -> Result<T, LogError> + Send + 'static,
) -> Result<T, LogError> {
    let done = tasks::spawn_blocking(work).await;
    done.unwrap_or_else(|error| {
        Err(LogError { path: path.to_owned(), source: io::Error::other(error) })
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use k8s_openapi::api::core::v1::{
        ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
        ContainerStatus,
    };
    use rstest::rstest;

    use super::*;

    fn waiting(reason: &str) -> ContainerState {
        let reason = Some(reason.to_owned());
        let waiting = Some(ContainerStateWaiting { reason, message: None });
        ContainerState { waiting, ..ContainerState::default() }
    }

    fn terminated(id: &str) -> ContainerState {
        let container_id = Some(id.to_owned());
        let ended =
            ContainerStateTerminated { container_id, ..ContainerStateTerminated::default() };
        ContainerState { terminated: Some(ended), ..ContainerState::default() }
    }

    fn running() -> ContainerState {
        let running = Some(ContainerStateRunning { started_at: None });
        ContainerState { running, ..ContainerState::default() }
    }

    #[rstest]
    #[case::running(running(), None, false, Ok("now"))]
    #[case::restarted(running(), Some(terminated("crib://old")), true, Ok("old"))]
    #[case::ended(terminated("crib://ended"), None, false, Ok("ended"))]
    #[case::between(waiting("CrashLoopBackOff"), Some(terminated("crib://old")), false, Ok("old"))]
    #[case::not_created(
        terminated(""),
        None,
        false,
        Err("container \"c\" in pod \"p\" is terminated")
    )]
    #[case::first(
        running(),
        None,
        true,
        Err("previous terminated container \"c\" in pod \"p\" not found")
    )]
    #[case::waits(
        waiting("ContainerCreating"),
        None,
        false,
        Err("container \"c\" in pod \"p\" is waiting to start: ContainerCreating")
    )]
    #[case::pulls(
        waiting("ErrImagePull"),
        None,
        false,
        Err("container \"c\" in pod \"p\" is waiting to start: image can't be pulled")
    )]
    fn log_attempt_matches_the_kubelets_choice(
        #[case] state: ContainerState,
        #[case] last_state: Option<ContainerState>,
        #[case] previous: bool,
        #[case] expected: Result<&str, &str>,
    ) {
        let status = ContainerStatus {
            name: "c".to_owned(),
            container_id: Some("crib://now".to_owned()),
            state: Some(state),
            last_state,
            ..ContainerStatus::default()
        };
        let container_statuses = Some(vec![status]);
        let status = PodStatus { container_statuses, ..PodStatus::default() };
        let found = container_id(&status, "p", "c", previous);
        assert_eq!(found.as_deref().map_err(String::as_str), expected);
    }
}
