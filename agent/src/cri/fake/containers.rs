//! Operations on scripted containers: starts, commands, limits.

use std::time::Duration;

use api::pod::PodUid;
use jiff::Timestamp;

use super::{Behaviour, Container, FakeCri, Inner, failed, not_found};
use crate::cri::stats::{ContainerStats, LayerStats, MemoryStats, SandboxStats, Usage};
use crate::cri::{Code, CriError, EventKind, ExecOutput, ListedState};
use crate::observed::{ContainerId, ContainerResources, MemoryUsage, SandboxId};
use crate::pod_spec::spec::Resources;

impl Inner {
    /// Starts a container, and returns its behaviour and its pod.
    pub(super) fn start(
        &mut self,
        id: &ContainerId,
        now: Timestamp,
    ) -> Result<(Behaviour, PodUid), CriError> {
        let running: Vec<(PodUid, String)> = self
            .containers
            .values()
            .filter(|other| other.listed.state == ListedState::Running)
            .map(|other| (other.listed.pod.uid.clone(), other.listed.name.clone()))
            .collect();
        let container =
            self.containers.get_mut(id).ok_or_else(|| not_found("StartContainer", id.as_str()))?;
        let image = container.spec.image.image.trim_end_matches(":latest");
        let starts = self.starts.entry(image.to_owned()).or_default();
        let mut behaviour = self.images.get(image).cloned().unwrap_or_else(Behaviour::forever);
        if let Some(message) = behaviour.start_fails {
            return Err(failed("StartContainer", message));
        }
        if behaviour.heals_after.is_some_and(|most| *starts >= most) {
            behaviour.ends = None;
        }
        *starts += 1;
        let pod = container.listed.pod.uid.clone();
        if running.contains(&(pod.clone(), container.listed.name.clone())) {
            let attempt = container.spec.attempt;
            self.duplicate_attempts.push(format!("{}/{attempt}", container.listed.name));
        }
        container.listed.state = ListedState::Running;
        container.started_at = Some(now);
        let sandbox = self.sandboxes.get(&container.listed.sandbox_id);
        if let Some(sandbox) = sandbox.filter(|_| self.writes_logs) {
            let log = sandbox.spec.log_directory.join(&container.spec.log_path);
            let made = log.parent().map_or(Ok(()), std::fs::create_dir_all);
            made.and_then(|()| std::fs::write(&log, ""))
                .map_err(|error| failed("StartContainer", error.to_string()))?;
        }
        Ok((behaviour, pod))
    }
}

impl FakeCri {
    /// Forgets the state of a container that has not exited.
    pub fn lose(&self, name: &str) {
        let is_lost = |container: &&mut Container| {
            container.listed.name == name && container.listed.state == ListedState::Running
        };
        let mut inner = self.lock();
        let lost = inner.containers.values_mut().find(is_lost).map(|container| {
            container.listed.state = ListedState::Unknown;
            (container.listed.id.clone(), container.listed.pod.uid.clone())
        });
        drop(inner);
        if let Some((id, pod)) = lost {
            self.emit(id.as_str(), EventKind::Stopped, Some(pod));
        }
    }
}

impl Inner {
    /// The usage of the ready sandboxes and their running containers; `None` if no test has set it.
    pub(super) fn sandbox_stats(&self) -> Option<Vec<SandboxStats>> {
        let ready = self.sandboxes.iter().filter(|(_, sandbox)| sandbox.listed.ready);
        let of_sandbox = |id: &SandboxId| {
            let mut stats =
                SandboxStats { id: id.clone(), processes: Some(1), ..SandboxStats::default() };
            let running = self.containers.values().filter(|container| {
                container.listed.sandbox_id == *id && container.listed.state == ListedState::Running
            });
            for container in running {
                let image = container.spec.image.image.trim_end_matches(":latest");
                let used = self.usage.get(image).copied().unwrap_or_default();
                stats.processes = stats.processes.map(|count| count + used.processes);
                let memory =
                    MemoryStats { working_set: Some(used.memory), ..MemoryStats::default() };
                let layer = LayerStats {
                    used_bytes: Some(used.layer),
                    inodes_used: Some(used.layer >> 20),
                    ..LayerStats::default()
                };
                stats.containers.push(ContainerStats {
                    id: container.listed.id.clone(),
                    usage: Usage { memory: Some(memory), ..Usage::default() },
                    layer: Some(layer),
                    ..ContainerStats::default()
                });
            }
            stats
        };
        let measured = ready.map(|(id, _)| of_sandbox(id)).collect();
        (!self.usage.is_empty()).then_some(measured)
    }
}

impl FakeCri {
    pub(super) async fn run_command(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Option<Duration>,
    ) -> Result<ExecOutput, CriError> {
        let line = command.join(" ");
        let about = format!("{} {line}", self.about(id));
        self.called("ExecSync", about.trim_end())?;
        let (takes, output, mut ended) = {
            let inner = self.lock();
            let container = inner.containers.get(id);
            let scripted = inner.commands.get(&command.join(" ")).or_else(|| {
                let name = &container?.spec.name;
                inner.execs.get(name)
            });
            let (takes, output) = scripted.cloned().unwrap_or_default();
            let ended = container.map(|container| container.ended.subscribe());
            (takes, output, ended)
        };
        let container_ended = async {
            match &mut ended {
                Some(ended) => drop(ended.wait_for(|ended| *ended).await),
                None => std::future::pending().await,
            }
        };
        let limit = timeout.filter(|timeout| *timeout < takes);
        tokio::select! {
            () = tokio::time::sleep(limit.unwrap_or(takes)) => match limit {
                Some(_) => Err(CriError {
                    call: "ExecSync",
                    code: Code::DeadlineExceeded,
                    message: "the command takes too long".to_owned(),
                }),
                None => Ok(output),
            },
            () = container_ended => Ok(ExecOutput {
                exit_code: 137,
                ..ExecOutput::default()
            }),
        }
    }
}

impl FakeCri {
    /// Sets the memory usage of every pod.
    pub fn set_memory(&self, usage: MemoryUsage) {
        self.lock().memory = usage;
    }

    pub(super) fn limit_container(
        &self,
        id: &ContainerId,
        limits: &Resources,
    ) -> Result<(), CriError> {
        let about = format!("{} {}", self.about(id), describe_limits(limits));
        self.called("UpdateContainerResources", &about)?;
        let mut inner = self.lock();
        let container = inner
            .containers
            .get_mut(id)
            .ok_or_else(|| not_found("UpdateContainerResources", id.as_str()))?;
        container.spec.resources = limits.clone();
        Ok(())
    }

    pub(super) fn limit_sandbox(&self, id: &SandboxId, limits: &Resources) -> Result<(), CriError> {
        let name = self.lock().sandboxes.get(id).map(|sandbox| sandbox.spec.name.clone());
        let name = name.ok_or_else(|| not_found("UpdatePodSandboxResources", id.as_str()))?;
        let about = format!("{name} {}", describe_limits(limits));
        self.called("UpdatePodSandboxResources", &about)
    }
}

/// Shares, quota and memory.
fn describe_limits(limits: &Resources) -> String {
    format!(
        "shares={} quota={} memory={}",
        limits.cpu_shares, limits.cpu_quota, limits.memory_limit
    )
}

/// The limits as the kernel reports them.
pub(super) fn kernel_limits(limits: &Resources) -> ContainerResources {
    ContainerResources {
        cpu_shares: limits.cpu_shares,
        cpu_quota: limits.cpu_quota,
        cpu_period: limits.cpu_period,
        memory_limit: limits.memory_limit,
    }
}
