//! ◆ Converts the CRI statuses of a pod to a Pod, for pods without an agent. Pure.

use std::collections::{BTreeMap, HashMap};

use compact::Map;
use cri::v1;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, Pod, PodIP, PodSpec, PodStatus, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

/// The pod. Of several attempts of a container, the newest is shown, with the previous one as its last state.
pub(super) fn pod(sandbox: v1::PodSandboxStatus, containers: Vec<v1::ContainerStatus>) -> Pod {
    let metadata = sandbox.metadata.clone().unwrap_or_default();
    let mut by_name: Map<String, Vec<v1::ContainerStatus>> = Map::new();
    for container in containers {
        by_name.entry(name(&container)).or_default().push(container);
    }
    let (mut specs, mut statuses) = (Vec::new(), Vec::new());
    for (_, mut attempts) in by_name {
        compact::sort_by_key(&mut attempts, |container| std::cmp::Reverse(attempt(container)));
        let mut attempts = attempts.iter();
        if let Some(newest) = attempts.next() {
            specs.push(spec(newest));
            statuses.push(status(newest, attempts.next()));
        }
    }
    let network = sandbox.network.clone().unwrap_or_default();
    let ips = std::iter::once(network.ip).chain(network.additional_ips.into_iter().map(|ip| ip.ip));
    let ips: Vec<PodIP> = ips.filter(|ip| !ip.is_empty()).map(|ip| PodIP { ip }).collect();
    let phase = match sandbox.state() {
        v1::PodSandboxState::SandboxReady => "Ready",
        v1::PodSandboxState::SandboxNotready => "NotReady",
    };
    Pod {
        metadata: ObjectMeta {
            name: Some(metadata.name),
            namespace: Some(metadata.namespace),
            uid: Some(metadata.uid),
            labels: sorted(&sandbox.labels),
            annotations: sorted(&sandbox.annotations),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec { containers: specs, ..PodSpec::default() }),
        status: Some(PodStatus {
            phase: Some(phase.to_owned()),
            start_time: time(sandbox.created_at),
            pod_ip: ips.first().map(|ip| ip.ip.clone()),
            pod_ips: Some(ips),
            container_statuses: Some(statuses),
            ..PodStatus::default()
        }),
    }
}

/// The mounts are named after their host paths.
fn spec(container: &v1::ContainerStatus) -> Container {
    let mounts = container.mounts.iter().map(|mount| VolumeMount {
        name: mount.host_path.clone(),
        mount_path: mount.container_path.clone(),
        read_only: Some(mount.readonly),
        ..VolumeMount::default()
    });
    Container {
        name: name(container),
        image: Some(image(container)),
        volume_mounts: Some(mounts.collect()),
        ..Container::default()
    }
}

fn status(
    container: &v1::ContainerStatus,
    before: Option<&v1::ContainerStatus>,
) -> ContainerStatus {
    ContainerStatus {
        name: name(container),
        container_id: Some(container.id.clone()),
        image: image(container),
        image_id: container.image_ref.clone(),
        state: Some(state(container)),
        last_state: before.map(state),
        restart_count: i32::try_from(attempt(container)).unwrap_or(i32::MAX),
        ..ContainerStatus::default()
    }
}

fn state(container: &v1::ContainerStatus) -> ContainerState {
    let mut state = ContainerState::default();
    let waiting =
        |reason: &str| ContainerStateWaiting { reason: Some(reason.to_owned()), message: None };
    match container.state() {
        v1::ContainerState::ContainerCreated => state.waiting = Some(waiting("Created")),
        v1::ContainerState::ContainerUnknown => state.waiting = Some(waiting("Unknown")),
        v1::ContainerState::ContainerRunning => {
            state.running = Some(ContainerStateRunning { started_at: time(container.started_at) });
        }
        v1::ContainerState::ContainerExited => {
            state.terminated = Some(ContainerStateTerminated {
                exit_code: container.exit_code,
                reason: Some(container.reason.clone()),
                message: Some(container.message.clone()),
                started_at: time(container.started_at),
                finished_at: time(container.finished_at),
                ..ContainerStateTerminated::default()
            });
        }
    }
    state
}

fn name(container: &v1::ContainerStatus) -> String {
    container.metadata.clone().unwrap_or_default().name
}

fn attempt(container: &v1::ContainerStatus) -> u32 {
    container.metadata.as_ref().map_or(0, |of| of.attempt)
}

fn image(container: &v1::ContainerStatus) -> String {
    let image = container.image.clone().unwrap_or_default();
    match image.user_specified_image.as_str() {
        "" => image.image,
        message => message.to_owned(),
    }
}

/// A CRI timestamp; 0 means never.
fn time(nanos: i64) -> Option<Time> {
    let time = Timestamp::from_nanosecond(nanos.into()).ok();
    time.filter(|_| nanos > 0).map(Time)
}

fn sorted(map: &HashMap<String, String>) -> Option<BTreeMap<String, String>> {
    Some(map.clone().into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::super::events::Events;
    use super::super::pod::lines;
    use super::*;

    fn container(attempt: u32, state: v1::ContainerState) -> v1::ContainerStatus {
        v1::ContainerStatus {
            id: format!("id-{attempt}"),
            metadata: Some(v1::ContainerMetadata { name: "main".to_owned(), attempt }),
            state: state.into(),
            started_at: 1_000_000_000,
            exit_code: 3,
            reason: "Error".to_owned(),
            image: Some(v1::ImageSpec { image: "x:1".to_owned(), ..v1::ImageSpec::default() }),
            mounts: vec![v1::Mount {
                container_path: "/in".to_owned(),
                host_path: "/out".to_owned(),
                readonly: true,
                ..v1::Mount::default()
            }],
            ..v1::ContainerStatus::default()
        }
    }

    #[test]
    fn pod_of_runtime_shows_sandbox_and_newest_attempts() {
        let sandbox = v1::PodSandboxStatus {
            metadata: Some(v1::PodSandboxMetadata {
                name: "web".to_owned(),
                namespace: "shop".to_owned(),
                ..v1::PodSandboxMetadata::default()
            }),
            created_at: 1_000_000_000,
            network: Some(v1::PodSandboxNetworkStatus {
                ip: "10.1.0.2".to_owned(),
                ..v1::PodSandboxNetworkStatus::default()
            }),
            ..v1::PodSandboxStatus::default()
        };
        let all = vec![
            container(0, v1::ContainerState::ContainerExited),
            container(1, v1::ContainerState::ContainerRunning),
        ];
        let now = "1970-01-01T00:00:02Z".parse().unwrap();
        let expected = "Name:         web
Namespace:    shop
Start Time:   Thu, 01 Jan 1970 00:00:01 +0000
Labels:       <none>
Annotations:  <none>
Status:       Ready
IP:           10.1.0.2
IPs:
  IP:  10.1.0.2
Containers:
  main:
    Container ID:   id-1
    Image:          x:1
    Image ID:
    State:          Running
      Started:      Thu, 01 Jan 1970 00:00:01 +0000
    Last State:     Terminated
      Reason:       Error
      Exit Code:    3
      Started:      Thu, 01 Jan 1970 00:00:01 +0000
    Restart Count:  1
    Mounts:
      /in from /out (ro)
Events:  <unknown: only the agent of `crib run` keeps events>";
        assert_eq!(lines(&pod(sandbox, all), Events::Unknown, now).join("\n"), expected);
    }

    #[test]
    fn container_that_never_ran_waits() {
        for (of, reason) in [
            (v1::ContainerState::ContainerCreated, "Created"),
            (v1::ContainerState::ContainerUnknown, "Unknown"),
        ] {
            let waiting = state(&container(0, of)).waiting.unwrap();
            assert_eq!(waiting.reason.as_deref(), Some(reason));
        }
    }
}
