//! Conversion of protobuf responses into the agent's types; `request` converts requests.

use std::collections::HashMap;
use std::path::PathBuf;

use api::pod::PodUid;
use cri::v1;
use jiff::{SignedDuration, Timestamp};
use tonic::Status;

use super::{
    Capabilities, Code, CriError, EventKind, FsUsage, Image, ListedContainer, ListedSandbox,
    ListedState, PodRef, RegistryAuth, RuntimeCondition, RuntimeEvent, RuntimeStatus, Version,
};
use crate::labels;
use crate::observed::{
    ContainerId, ContainerResources, ContainerState, ContainerUser, Exit, MemoryUsage, NetworkMode,
    ObservedContainer, ObservedSandbox, SandboxId,
};
use crate::pod_spec::spec::{CgroupDriver, HandlerFeatures, Resources};

mod request;
mod stats;
pub(super) mod verify;

use request::resources;
pub(super) use request::{container_config, image_spec, pod_selector, sandbox_config};
pub(super) use stats::{container_stats, metric_descriptor, metrics, sandbox_stats};

/// The CRI's nanoseconds since 1970 as a timestamp.
fn timestamp(nanoseconds: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH
        .saturating_add(SignedDuration::from_nanos(nanoseconds))
        .unwrap_or(Timestamp::UNIX_EPOCH)
}

/// The error of a failed call.
pub(super) fn error(call: &'static str, status: &Status) -> CriError {
    let code = match status.code() {
        tonic::Code::NotFound => Code::NotFound,
        tonic::Code::Unimplemented => Code::Unimplemented,
        tonic::Code::DeadlineExceeded => Code::DeadlineExceeded,
        tonic::Code::Unavailable => Code::Unavailable,
        tonic::Code::InvalidArgument => Code::InvalidArgument,
        tonic::Code::OutOfRange => Code::OutOfRange,
        tonic::Code::AlreadyExists => Code::AlreadyExists,
        tonic::Code::FailedPrecondition => Code::FailedPrecondition,
        tonic::Code::Aborted => Code::Aborted,
        tonic::Code::PermissionDenied => Code::PermissionDenied,
        tonic::Code::Unauthenticated => Code::Unauthenticated,
        tonic::Code::ResourceExhausted => Code::ResourceExhausted,
        tonic::Code::Cancelled => Code::Cancelled,
        // tonic reports a connection that breaks during a call as Unknown, with the transport's error as source.
        tonic::Code::Ok | tonic::Code::Unknown if std::error::Error::source(status).is_some() => {
            Code::Unavailable
        }
        tonic::Code::Ok | tonic::Code::Unknown => Code::Unknown,
        tonic::Code::Internal => Code::Internal,
        tonic::Code::DataLoss => Code::DataLoss,
    };
    CriError { call, code, message: status.message().to_owned() }
}

/// How a runtime creates cgroups; `None` for a value that this version of the CRI does not define.
pub(super) fn cgroup_driver(driver: i32) -> Option<CgroupDriver> {
    match v1::CgroupDriver::try_from(driver).ok()? {
        v1::CgroupDriver::Systemd => Some(CgroupDriver::Systemd),
        v1::CgroupDriver::Cgroupfs => Some(CgroupDriver::Cgroupfs),
    }
}

pub(super) fn version(answer: v1::VersionResponse) -> Version {
    Version {
        runtime_name: answer.runtime_name,
        runtime_version: answer.runtime_version,
        api_version: answer.runtime_api_version,
    }
}

pub(super) fn runtime_status(answer: v1::StatusResponse) -> RuntimeStatus {
    let conditions = answer.status.unwrap_or_default().conditions;
    let condition = |from: v1::RuntimeCondition| RuntimeCondition {
        kind: from.r#type,
        status: from.status,
        reason: from.reason,
        message: from.message,
    };
    let handler = |from: v1::RuntimeHandler| {
        let features = from.features.unwrap_or_default();
        let features = HandlerFeatures {
            recursive_read_only_mounts: features.recursive_read_only_mounts,
            user_namespaces: features.user_namespaces,
        };
        (from.name, features)
    };
    let handlers = answer.runtime_handlers;
    let features = answer.features.unwrap_or_default();
    RuntimeStatus {
        conditions: conditions.into_iter().map(condition).collect(),
        capabilities: Capabilities {
            handlers: (!handlers.is_empty()).then(|| handlers.into_iter().map(handler).collect()),
            strict_supplemental_groups: features.supplemental_groups_policy,
            user_namespaces_host_network: features.user_namespaces_host_network,
        },
    }
}

/// The pod named by the labels; `None` for objects that no kubelet created.
fn pod_ref(labels: &HashMap<String, String>) -> Option<PodRef> {
    Some(PodRef {
        uid: PodUid::new(labels.get(labels::POD_UID)?.as_str()),
        namespace: labels.get(labels::POD_NAMESPACE)?.clone(),
        name: labels.get(labels::POD_NAME)?.clone(),
        agent: labels.get(labels::AGENT).cloned(),
    })
}

/// `None` for sandboxes that no agent created, and for those without an id, which a kubelet ignores too.
pub(super) fn listed_sandbox(from: v1::PodSandbox) -> Option<ListedSandbox> {
    if from.id.is_empty() {
        return None;
    }
    Some(ListedSandbox {
        pod: pod_ref(&from.labels)?,
        ready: from.state() == v1::PodSandboxState::SandboxReady,
        created_at: timestamp(from.created_at),
        id: SandboxId::new(from.id),
    })
}

pub(super) fn sandbox_status(
    answer: Option<v1::PodSandboxStatus>,
) -> Result<ObservedSandbox, CriError> {
    let from =
        answer.ok_or_else(|| verify::invalid("PodSandboxStatus", "pod sandbox status is nil"))?;
    verify::sandbox(&from)?;
    let ready = from.state() == v1::PodSandboxState::SandboxReady;
    let namespaces =
        from.linux.and_then(|linux| linux.namespaces).and_then(|namespaces| namespaces.options);
    let network = match namespaces.map(|options| options.network()) {
        Some(v1::NamespaceMode::Node) => NetworkMode::Node,
        Some(v1::NamespaceMode::Pod | v1::NamespaceMode::Container | v1::NamespaceMode::Target)
        | None => NetworkMode::Pod,
    };
    let ips = from.network.map(|network| {
        std::iter::once(network.ip)
            .chain(network.additional_ips.into_iter().map(|additional| additional.ip))
            .collect()
    });
    Ok(ObservedSandbox {
        id: SandboxId::new(from.id),
        ready,
        attempt: from.metadata.map_or(0, |metadata| metadata.attempt),
        created_at: timestamp(from.created_at),
        network,
        ips,
    })
}

/// `None` for containers that no agent created, and for those without an id, which a kubelet ignores too.
pub(super) fn listed_container(from: v1::Container) -> Option<ListedContainer> {
    if from.id.is_empty() {
        return None;
    }
    let state = match from.state() {
        v1::ContainerState::ContainerCreated => ListedState::Created,
        v1::ContainerState::ContainerRunning => ListedState::Running,
        v1::ContainerState::ContainerExited => ListedState::Exited,
        v1::ContainerState::ContainerUnknown => ListedState::Unknown,
    };
    Some(ListedContainer {
        pod: pod_ref(&from.labels)?,
        name: from.labels.get(labels::CONTAINER_NAME)?.clone(),
        state,
        created_at: timestamp(from.created_at),
        sandbox_id: SandboxId::new(from.pod_sandbox_id),
        id: ContainerId::new(from.id),
    })
}

pub(super) fn container_status(
    answer: Option<v1::ContainerStatus>,
    listed: &ListedContainer,
) -> Result<ObservedContainer, CriError> {
    let from =
        answer.ok_or_else(|| verify::invalid("ContainerStatus", "container status is nil"))?;
    verify::container(&from)?;
    let state = match from.state() {
        v1::ContainerState::ContainerCreated => ContainerState::Created,
        v1::ContainerState::ContainerRunning => {
            ContainerState::Running { started_at: timestamp(from.started_at) }
        }
        v1::ContainerState::ContainerExited => ContainerState::Exited(Exit {
            code: from.exit_code,
            reason: from.reason,
            message: from.message,
            // A container that could not be started has no start time: it becomes 1970, as a kubelet shows it.
            started_at: Some(timestamp(from.started_at)),
            finished_at: timestamp(from.finished_at),
        }),
        v1::ContainerState::ContainerUnknown => ContainerState::Unknown,
    };
    let annotated =
        from.annotations.get(labels::RESTART_COUNT).and_then(|count| count.parse().ok());
    let user = from.user.and_then(|user| user.linux).map(|user| ContainerUser {
        uid: user.uid,
        gid: user.gid,
        supplemental_groups: user.supplemental_groups,
    });
    Ok(ObservedContainer {
        id: ContainerId::new(from.id),
        name: listed.name.clone(),
        sandbox_id: listed.sandbox_id.clone(),
        state,
        created_at: timestamp(from.created_at),
        restart_count: annotated
            .unwrap_or_else(|| from.metadata.map_or(0, |metadata| metadata.attempt)),
        // The name that the runtime reports for the image, as in a kubelet's statuses (toKubeContainerStatus).
        image: from.image.map(|image| image.image).unwrap_or_default(),
        image_ref: from.image_ref,
        hash: from.annotations.get(labels::CONTAINER_HASH).cloned().unwrap_or_default(),
        log_path: (!from.log_path.is_empty()).then(|| PathBuf::from(from.log_path)),
        user,
        mounts: from
            .mounts
            .into_iter()
            .map(|mount| (mount.container_path.into(), mount.host_path.into()))
            .collect(),
        resources: from.resources.and_then(|resources| resources.linux).map(|linux| {
            ContainerResources {
                cpu_shares: linux.cpu_shares,
                cpu_quota: linux.cpu_quota,
                cpu_period: linux.cpu_period,
                memory_limit: linux.memory_limit_in_bytes,
            }
        }),
        stop_signal: request::signal_name(from.stop_signal),
    })
}

pub(super) fn registry_auth(from: &RegistryAuth) -> v1::AuthConfig {
    v1::AuthConfig {
        username: from.username.clone(),
        password: from.password.clone(),
        ..v1::AuthConfig::default()
    }
}

/// The id of a container's image; older runtimes report only the reference.
pub(super) fn image_id(from: v1::Container) -> String {
    if from.image_id.is_empty() { from.image_ref } else { from.image_id }
}

/// The images that a container mounts as volumes.
pub(super) fn mounted_images(status: Option<v1::ContainerStatus>) -> impl Iterator<Item = String> {
    let mounts = status.map(|status| status.mounts).unwrap_or_default();
    let images = mounts.into_iter().filter_map(|mount| mount.image);
    images.map(|image| image.image)
}

pub(super) fn image(from: v1::Image) -> Image {
    Image {
        id: from.id,
        repo_tags: from.repo_tags,
        repo_digests: from.repo_digests,
        size: from.size,
        pinned: from.pinned,
        uid: from.uid.map(|uid| uid.value),
        username: from.username,
    }
}

pub(super) fn fs_usage(from: v1::FilesystemUsage) -> FsUsage {
    FsUsage {
        mountpoint: from.fs_id.unwrap_or_default().mountpoint,
        used_bytes: from.used_bytes.map_or(0, |used| used.value),
        inodes_used: from.inodes_used.map_or(0, |used| used.value),
    }
}

pub(super) fn event(from: v1::ContainerEventResponse) -> RuntimeEvent {
    let kind = match from.container_event_type() {
        v1::ContainerEventType::ContainerCreatedEvent => EventKind::Created,
        v1::ContainerEventType::ContainerStartedEvent => EventKind::Started,
        v1::ContainerEventType::ContainerStoppedEvent => EventKind::Stopped,
        v1::ContainerEventType::ContainerDeletedEvent => EventKind::Deleted,
    };
    let own = from.containers_statuses.iter().find(|container| container.id == from.container_id);
    let name = own.and_then(|own| own.labels.get(labels::CONTAINER_NAME).cloned());
    let is_sandbox = |sandbox: &v1::PodSandboxStatus| sandbox.id == from.container_id;
    let name = match &from.pod_sandbox_status {
        Some(sandbox) if is_sandbox(sandbox) => Some("sandbox".to_owned()),
        Some(_) | None => name,
    };
    let sandbox = from.pod_sandbox_status.map(|sandbox| sandbox.labels);
    let containers = from.containers_statuses.into_iter().map(|container| container.labels);
    let pod = sandbox
        .into_iter()
        .chain(containers)
        .find_map(|labels| pod_ref(&labels))
        .map(|pod| pod.uid);
    let created_at = (from.created_at > 0).then(|| timestamp(from.created_at));
    RuntimeEvent { id: from.container_id, kind, pod, name, created_at }
}

pub(super) fn update_container(
    id: &ContainerId,
    limits: &Resources,
) -> v1::UpdateContainerResourcesRequest {
    v1::UpdateContainerResourcesRequest {
        container_id: id.as_str().to_owned(),
        linux: Some(resources(limits)),
        ..v1::UpdateContainerResourcesRequest::default()
    }
}

pub(super) fn update_sandbox(
    id: &SandboxId,
    limits: &Resources,
    overhead: &Resources,
) -> v1::UpdatePodSandboxResourcesRequest {
    v1::UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: id.as_str().to_owned(),
        overhead: Some(resources(overhead)),
        resources: Some(resources(limits)),
    }
}

pub(super) fn memory_usage(answer: v1::PodSandboxStatsResponse) -> MemoryUsage {
    let used = |memory: Option<v1::MemoryUsage>| Some(memory?.usage_bytes?.value);
    let linux = answer.stats.and_then(|stats| stats.linux).unwrap_or_default();
    let of_container = |stats: v1::ContainerStats| {
        let name = stats.attributes?.metadata?.name;
        Some((name, used(stats.memory)))
    };
    MemoryUsage {
        pod: used(linux.memory),
        containers: linux.containers.into_iter().filter_map(of_container).collect(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn labelled(uid: &str) -> HashMap<String, String> {
        [
            (labels::POD_UID, uid),
            (labels::POD_NAMESPACE, "default"),
            (labels::POD_NAME, "web"),
            (labels::CONTAINER_NAME, "app"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
    }

    #[test]
    fn objects_without_kubelet_labels_are_not_listed() {
        assert_eq!(
            listed_sandbox(v1::PodSandbox { id: "s".to_owned(), ..v1::PodSandbox::default() }),
            None
        );
        assert_eq!(
            listed_container(v1::Container { id: "c".to_owned(), ..v1::Container::default() }),
            None
        );
    }

    #[test]
    fn objects_without_ids_are_not_listed() {
        let labels = || labelled("u1");
        let sandbox = |id: &str| v1::PodSandbox {
            id: id.to_owned(),
            labels: labels(),
            ..v1::PodSandbox::default()
        };
        let container = |id: &str| v1::Container {
            id: id.to_owned(),
            labels: labels(),
            ..v1::Container::default()
        };
        for (id, expected) in [("x", true), ("", false)] {
            assert_eq!(listed_sandbox(sandbox(id)).is_some(), expected, "{id:?}");
            assert_eq!(listed_container(container(id)).is_some(), expected, "{id:?}");
        }
    }

    #[test]
    fn exited_container_has_exit_and_restart_count() {
        let listed = listed_container(v1::Container {
            id: "c1".to_owned(),
            pod_sandbox_id: "s1".to_owned(),
            state: v1::ContainerState::ContainerExited.into(),
            labels: labelled("u1"),
            ..v1::Container::default()
        })
        .unwrap();
        let status = v1::ContainerStatus {
            id: "c1".to_owned(),
            metadata: Some(v1::ContainerMetadata { name: "app".to_owned(), attempt: 2 }),
            state: v1::ContainerState::ContainerExited.into(),
            created_at: 1,
            started_at: 1_000_000_000,
            finished_at: 3_000_000_000,
            exit_code: 7,
            reason: "Error".to_owned(),
            annotations: [(labels::RESTART_COUNT.to_owned(), "5".to_owned())].into(),
            image: Some(v1::ImageSpec {
                image: "registry.test/web:1".to_owned(),
                user_specified_image: "web:1".to_owned(),
                ..v1::ImageSpec::default()
            }),
            image_ref: "sha256:1".to_owned(),
            ..v1::ContainerStatus::default()
        };
        let seen = container_status(Some(status.clone()), &listed).unwrap();
        let exit = seen.state.exit().unwrap();
        assert_eq!((exit.code, exit.reason.as_str()), (7, "Error"));
        assert_eq!(exit.finished_at, "1970-01-01T00:00:03Z".parse().unwrap());
        assert_eq!(
            (seen.restart_count, seen.image.as_str(), seen.sandbox_id.as_str()),
            (5, "registry.test/web:1", "s1")
        );
        let bare = v1::ContainerStatus { annotations: HashMap::new(), ..status };
        assert_eq!(
            container_status(Some(bare), &listed).unwrap().restart_count,
            2,
            "the attempt stands in"
        );
        assert_eq!(container_status(None, &listed).unwrap_err().code, Code::InvalidResponse);
    }

    #[test]
    fn event_pod_comes_from_sandbox_or_container() {
        let sandbox =
            v1::PodSandboxStatus { labels: labelled("u1"), ..v1::PodSandboxStatus::default() };
        let by_sandbox = v1::ContainerEventResponse {
            pod_sandbox_status: Some(sandbox),
            ..v1::ContainerEventResponse::default()
        };
        assert_eq!(event(by_sandbox).pod, Some(PodUid::new("u1")));
        let container = v1::ContainerStatus {
            id: "c1".to_owned(),
            labels: labelled("u2"),
            ..v1::ContainerStatus::default()
        };
        let by_container = v1::ContainerEventResponse {
            container_id: "c1".to_owned(),
            container_event_type: v1::ContainerEventType::ContainerDeletedEvent.into(),
            containers_statuses: vec![container],
            ..v1::ContainerEventResponse::default()
        };
        let event = event(by_container);
        assert_eq!(
            (event.pod, event.kind, event.name.as_deref()),
            (Some(PodUid::new("u2")), EventKind::Deleted, Some("app"))
        );
    }

    #[test]
    fn first_address_is_primary() {
        let status = v1::PodSandboxStatus {
            id: "s1".to_owned(),
            metadata: Some(v1::PodSandboxMetadata {
                name: "web".to_owned(),
                uid: "u1".to_owned(),
                namespace: "default".to_owned(),
                attempt: 0,
            }),
            created_at: 1,
            network: Some(v1::PodSandboxNetworkStatus {
                ip: "10.0.0.2".to_owned(),
                additional_ips: vec![v1::PodIp { ip: "fd00::2".to_owned() }],
            }),
            ..v1::PodSandboxStatus::default()
        };
        let sandbox = sandbox_status(Some(status)).unwrap();
        assert_eq!(sandbox.ips, Some(vec!["10.0.0.2".to_owned(), "fd00::2".to_owned()]));
        assert!(sandbox.ready, "the state's zero value is ready");
    }
}
