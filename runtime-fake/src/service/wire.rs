//! ◆ Converts records to the CRI's messages. Pure.

use std::collections::HashMap;

use cri::v1;
use jiff::Timestamp;

use crate::{
    container::{Container, ContainerState, EventKind},
    id::SandboxId,
    launch::signal_of,
    sandbox::{Sandbox, SandboxState},
    store::State,
};

/// Nanoseconds since 1970, as in the CRI; 0 is never.
fn nanoseconds(at: Option<Timestamp>) -> i64 {
    at.map_or(0, |at| i64::try_from(at.as_nanosecond()).unwrap_or(i64::MAX))
}

fn sandbox_state(sandbox: &Sandbox) -> i32 {
    let state = match sandbox.state {
        SandboxState::Ready if sandbox.unknown_reason.is_none() => {
            v1::PodSandboxState::SandboxReady
        }
        SandboxState::Ready | SandboxState::Creating | SandboxState::NotReady => {
            v1::PodSandboxState::SandboxNotready
        }
    };
    state.into()
}

fn container_state(container: &Container) -> i32 {
    if container.unknown_reason().is_some() {
        return v1::ContainerState::ContainerUnknown.into();
    }
    let state = match container.state {
        ContainerState::Creating | ContainerState::Created => v1::ContainerState::ContainerCreated,
        ContainerState::Running => v1::ContainerState::ContainerRunning,
        ContainerState::Exited | ContainerState::Lost => v1::ContainerState::ContainerExited,
    };
    state.into()
}

/// A sandbox in a list.
pub(super) fn sandbox(sandbox: &Sandbox) -> v1::PodSandbox {
    v1::PodSandbox {
        id: sandbox.id.to_string(),
        metadata: sandbox.config.metadata.clone(),
        state: sandbox_state(sandbox),
        created_at: nanoseconds(Some(sandbox.created_at)),
        labels: sandbox.config.labels.clone(),
        annotations: sandbox.config.annotations.clone(),
        runtime_handler: sandbox.runtime_handler.clone(),
    }
}

/// The status of a sandbox.
pub(super) fn sandbox_status(sandbox: &Sandbox) -> v1::PodSandboxStatus {
    let mut addresses = sandbox.addresses.iter().map(ToString::to_string);
    let context = sandbox.config.linux.as_ref().and_then(|l| l.security_context.as_ref());
    let options = context.and_then(|c| c.namespace_options.clone()).unwrap_or_default();
    v1::PodSandboxStatus {
        id: sandbox.id.to_string(),
        metadata: sandbox.config.metadata.clone(),
        state: sandbox_state(sandbox),
        created_at: nanoseconds(Some(sandbox.created_at)),
        network: Some(v1::PodSandboxNetworkStatus {
            ip: addresses.next().unwrap_or_default(),
            additional_ips: addresses.map(|ip| v1::PodIp { ip }).collect(),
        }),
        linux: Some(v1::LinuxPodSandboxStatus {
            namespaces: Some(v1::Namespace { options: Some(options) }),
        }),
        labels: sandbox.config.labels.clone(),
        annotations: sandbox.config.annotations.clone(),
        runtime_handler: sandbox.runtime_handler.clone(),
    }
}

/// A container in a list.
pub(super) fn container(container: &Container) -> v1::Container {
    v1::Container {
        id: container.id.to_string(),
        pod_sandbox_id: container.sandbox.to_string(),
        metadata: container.config.metadata.clone(),
        image: container.config.image.clone(),
        image_ref: container.image_id.clone(),
        state: container_state(container),
        created_at: nanoseconds(Some(container.created_at)),
        labels: container.config.labels.clone(),
        annotations: container.config.annotations.clone(),
        image_id: container.image_id.clone(),
    }
}

/// The status of a container.
pub(super) fn container_status(container: &Container) -> v1::ContainerStatus {
    let (reason, message) = container.reason();
    let user = container.user.as_ref().map(|user| v1::LinuxContainerUser {
        uid: user.uid.into(),
        gid: user.gid.into(),
        supplemental_groups: user.additional_gids.iter().map(|g| i64::from(*g)).collect(),
    });
    let resources = container.config.linux.as_ref().and_then(|l| l.resources.clone());
    v1::ContainerStatus {
        id: container.id.to_string(),
        metadata: container.config.metadata.clone(),
        state: container_state(container),
        created_at: nanoseconds(Some(container.created_at)),
        started_at: nanoseconds(container.started_at),
        finished_at: nanoseconds(container.exit.as_ref().map(|e| e.at)),
        exit_code: container.exit.as_ref().map_or(0, |e| e.code),
        image: Some(image(container)),
        image_ref: first_said([&container.image_reference, &container.image_id]),
        reason: reason.to_owned(),
        message,
        labels: container.config.labels.clone(),
        annotations: container.config.annotations.clone(),
        mounts: container.config.mounts.clone(),
        log_path: container.log_path.clone(),
        resources: resources
            .map(|linux| v1::ContainerResources { linux: Some(linux), windows: None }),
        image_id: container.image_id.clone(),
        user: user.map(|linux| v1::ContainerUser { linux: Some(linux) }),
        stop_signal: stop_signal(container),
    }
}

/// The image by a tag, even if the client requested it by its ID. Records of earlier versions have no name.
fn image(container: &Container) -> v1::ImageSpec {
    let asked = container.config.image.clone().unwrap_or_default();
    v1::ImageSpec { image: first_said([&container.image_name, &asked.image]), ..asked }
}

fn first_said(names: [&String; 2]) -> String {
    let said = names.into_iter().find(|name| !name.is_empty());
    said.cloned().unwrap_or_default()
}

/// The stop signal: the client's, or the image's.
fn stop_signal(container: &Container) -> i32 {
    match v1::Signal::try_from(container.config.stop_signal) {
        Ok(v1::Signal::RuntimeDefault) => signal_of(container.stop_signal).into(),
        _ => container.config.stop_signal,
    }
}

/// The visible containers of a sandbox.
pub(super) fn statuses_of(state: &State, sandbox: &SandboxId) -> Vec<v1::ContainerStatus> {
    state.containers_of(sandbox).filter(|c| c.visible()).map(|c| container_status(c)).collect()
}

/// Converts an event of the store. A deleted sandbox has no status (CRI v1, ContainerEventResponse).
pub(super) fn event(event: &crate::store::StoreEvent) -> v1::ContainerEventResponse {
    let kind = match event.kind {
        EventKind::Created => v1::ContainerEventType::ContainerCreatedEvent,
        EventKind::Started => v1::ContainerEventType::ContainerStartedEvent,
        EventKind::Stopped => v1::ContainerEventType::ContainerStoppedEvent,
        EventKind::Deleted => v1::ContainerEventType::ContainerDeletedEvent,
    };
    v1::ContainerEventResponse {
        container_id: event.about.clone(),
        container_event_type: kind.into(),
        created_at: nanoseconds(Some(event.at)),
        pod_sandbox_status: event.state.sandboxes.get(&event.sandbox).map(|s| sandbox_status(s)),
        containers_statuses: statuses_of(&event.state, &event.sandbox),
    }
}

/// Whether `labels` has all of `selector`.
fn selected(labels: &HashMap<String, String>, selector: &HashMap<String, String>) -> bool {
    selector.iter().all(|(name, value)| labels.get(name) == Some(value))
}

/// Whether `sandbox` matches `filter`. All fields that are set must match; an ID may be a prefix.
pub(super) fn sandbox_fits(sandbox: &Sandbox, filter: &v1::PodSandboxFilter) -> bool {
    sandbox.visible()
        && sandbox.id.as_str().starts_with(&filter.id)
        && filter.state.as_ref().is_none_or(|wanted| wanted.state == sandbox_state(sandbox))
        && selected(&sandbox.config.labels, &filter.label_selector)
}

/// Whether `container` matches `filter`. All fields that are set must match; IDs may be prefixes.
pub(super) fn container_fits(container: &Container, filter: &v1::ContainerFilter) -> bool {
    container.visible()
        && container.id.as_str().starts_with(&filter.id)
        && container.sandbox.as_str().starts_with(&filter.pod_sandbox_id)
        && filter.state.as_ref().is_none_or(|wanted| wanted.state == container_state(container))
        && selected(&container.config.labels, &filter.label_selector)
}
