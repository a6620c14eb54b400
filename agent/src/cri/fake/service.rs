//! The calls of the scripted runtime.

use std::time::Duration;

use api::pod::PodUid;
use async_trait::async_trait;
use compact::Set;
use tokio::sync::watch;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::BroadcastStream;

use super::containers::kernel_limits;
use super::{Container, FakeCri, PoisonError, Sandbox, failed, not_found, pod_of};
use crate::cri::stats::SandboxStats;
use crate::cri::{
    Capabilities, Code, Cri, CriError, EventKind, EventStream, ExecOutput, FsUsage, Image,
    ListedContainer, ListedSandbox, ListedState, RegistryAuth, RuntimeCondition, RuntimeStatus,
    StreamOptions, Version,
};
use crate::labels;
use crate::observed::{
    ContainerId, ContainerState, MemoryUsage, NetworkMode, ObservedContainer, ObservedSandbox,
    SandboxId,
};
use crate::pod_spec::spec::{ContainerSpec, ImageSpec, NamespaceMode, Resources, SandboxSpec};

#[async_trait]
impl Cri for FakeCri {
    async fn version(&self) -> Result<Version, CriError> {
        self.called("Version", "")?;
        Ok(Version {
            runtime_name: self.lock().name.unwrap_or("fake").to_owned(),
            runtime_version: "1.0.0".to_owned(),
            api_version: "v1".to_owned(),
        })
    }

    async fn status(&self) -> Result<RuntimeStatus, CriError> {
        self.called("Status", "")?;
        let condition = |kind: &str| RuntimeCondition {
            kind: kind.to_owned(),
            status: kind == "RuntimeReady" || !self.lock().no_network,
            ..RuntimeCondition::default()
        };
        Ok(RuntimeStatus {
            conditions: vec![condition("RuntimeReady"), condition("NetworkReady")],
            capabilities: Capabilities::default(),
        })
    }

    async fn run_sandbox(&self, spec: &SandboxSpec) -> Result<SandboxId, CriError> {
        let called = self.called("RunPodSandbox", &format!("{}/{}", spec.name, spec.attempt));
        self.take_time("RunPodSandbox").await;
        called?;
        let ready = !self.is_idle("RunPodSandbox");
        let now = self.clock.now();
        let mut inner = self.lock();
        inner.serial += 1;
        let id = SandboxId::new(format!("sandbox-{}", inner.serial));
        let listed =
            ListedSandbox { id: id.clone(), pod: pod_of(&spec.labels), ready, created_at: now };
        let pod = listed.pod.uid.clone();
        inner.sandboxes.insert(id.clone(), Sandbox { listed, spec: spec.clone() });
        drop(inner);
        self.emit(id.as_str(), EventKind::Started, Some(pod));
        Ok(id)
    }

    async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), CriError> {
        let Some(name) = self.lock().sandboxes.get(id).map(|sandbox| sandbox.spec.name.clone())
        else {
            return Ok(());
        };
        self.called("StopPodSandbox", &name)?;
        if self.is_idle("StopPodSandbox") {
            return Ok(());
        }
        let members: Vec<ContainerId> = {
            let mut inner = self.lock();
            if let Some(sandbox) = inner.sandboxes.get_mut(id) {
                sandbox.listed.ready = false;
            }
            inner
                .containers
                .values()
                .filter(|c| c.listed.sandbox_id == *id)
                .map(|c| c.listed.id.clone())
                .collect()
        };
        for member in members {
            self.end(&member, 137);
        }
        Ok(())
    }

    async fn remove_sandbox(&self, id: &SandboxId) -> Result<(), CriError> {
        let Some(name) = self.lock().sandboxes.get(id).map(|sandbox| sandbox.spec.name.clone())
        else {
            return Ok(());
        };
        self.called("RemovePodSandbox", &name)?;
        let mut inner = self.lock();
        inner.containers.retain(|_, container| container.listed.sandbox_id != *id);
        inner.sandboxes.remove(id);
        Ok(())
    }

    async fn sandbox_status(&self, id: &SandboxId) -> Result<ObservedSandbox, CriError> {
        self.called("PodSandboxStatus", "")?;
        let inner = self.lock();
        let sandbox =
            inner.sandboxes.get(id).ok_or_else(|| not_found("PodSandboxStatus", id.as_str()))?;
        let node = sandbox.spec.security.namespaces.network == NamespaceMode::Node;
        Ok(ObservedSandbox {
            id: id.clone(),
            ready: sandbox.listed.ready,
            attempt: sandbox.spec.attempt,
            created_at: sandbox.listed.created_at,
            network: if node { NetworkMode::Node } else { NetworkMode::Pod },
            ips: (!node).then(|| vec!["10.0.0.2".to_owned()]),
        })
    }

    async fn list_sandboxes(&self, of: Option<&PodUid>) -> Result<Vec<ListedSandbox>, CriError> {
        self.called("ListPodSandbox", "")?;
        let inner = self.lock();
        let all = inner.sandboxes.values().map(|sandbox| sandbox.listed.clone());
        Ok(all.filter(|sandbox| of.is_none_or(|uid| sandbox.pod.uid == *uid)).collect())
    }

    async fn create_container(
        &self,
        sandbox: &SandboxId,
        spec: &ContainerSpec,
        _sandbox_spec: &SandboxSpec,
    ) -> Result<ContainerId, CriError> {
        self.called("CreateContainer", &format!("{}/{}", spec.name, spec.attempt))?;
        let behaviour = self
            .behaviour(&spec.image.image)
            .ok_or_else(|| not_found("CreateContainer", &spec.image.image))?;
        if let Some(message) = behaviour.create_fails {
            return Err(failed("CreateContainer", message));
        }
        let now = self.clock.now();
        let mut inner = self.lock();
        let pod = match inner.sandboxes.get(sandbox) {
            Some(sandbox) if sandbox.listed.ready => sandbox.listed.pod.clone(),
            Some(_) | None => return Err(not_found("CreateContainer", sandbox.as_str())),
        };
        inner.serial += 1;
        let id = ContainerId::new(format!("container-{}", inner.serial));
        let listed = ListedContainer {
            id: id.clone(),
            sandbox_id: sandbox.clone(),
            pod,
            name: spec.name.clone(),
            state: ListedState::Created,
            created_at: now,
        };
        let container = Container {
            listed,
            spec: spec.clone(),
            started_at: None,
            exit: None,
            ended: watch::channel(false).0,
        };
        inner.containers.insert(id.clone(), container);
        Ok(id)
    }

    async fn start_container(&self, id: &ContainerId) -> Result<(), CriError> {
        self.called("StartContainer", &self.about(id))?;
        self.take_time("StartContainer").await;
        if self.is_idle("StartContainer") {
            return Ok(());
        }
        let (behaviour, pod) = self.lock().start(id, self.clock.now())?;
        self.emit(id.as_str(), EventKind::Started, Some(pod));
        if let Some((after, code)) = behaviour.ends {
            let (fake, id) = (self.clone(), id.clone());
            tasks::spawn(async move {
                tokio::time::sleep(after).await;
                fake.end(&id, code);
            });
        }
        Ok(())
    }

    async fn stop_container(&self, id: &ContainerId, grace: Duration) -> Result<(), CriError> {
        self.called("StopContainer", &format!("{} {}s", self.about(id), grace.as_secs()))?;
        if self.is_idle("StopContainer") {
            return Ok(());
        }
        let (mut ended, yields_after) = {
            let inner = self.lock();
            let Some(container) = inner.containers.get(id) else {
                return Ok(());
            };
            if container.listed.state != ListedState::Running {
                return Ok(());
            }
            let behaviour =
                inner.images.get(container.spec.image.image.trim_end_matches(":latest"));
            (container.ended.subscribe(), behaviour.and_then(|behaviour| behaviour.yields_after))
        };
        let (wait, code) = match yields_after {
            Some(after) if after <= grace => (after, 143),
            Some(_) | None => (grace, 137),
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => self.end(id, code),
            _ = ended.wait_for(|ended| *ended) => {}
        }
        Ok(())
    }

    async fn remove_container(&self, id: &ContainerId) -> Result<(), CriError> {
        if !self.lock().containers.contains_key(id) {
            return Ok(());
        }
        self.called("RemoveContainer", &self.about(id))?;
        if self.is_idle("RemoveContainer") {
            return Ok(());
        }
        let pod = self.lock().containers.remove(id).map(|container| container.listed.pod.uid);
        self.emit(id.as_str(), EventKind::Deleted, pod);
        Ok(())
    }

    async fn container_status(
        &self,
        listed: &ListedContainer,
    ) -> Result<ObservedContainer, CriError> {
        self.called("ContainerStatus", "")?;
        let inner = self.lock();
        let container = inner
            .containers
            .get(&listed.id)
            .ok_or_else(|| not_found("ContainerStatus", listed.id.as_str()))?;
        let spec = &container.spec;
        let state = match (container.listed.state, &container.exit, container.started_at) {
            (ListedState::Created, _, _) => ContainerState::Created,
            (ListedState::Running, _, Some(started_at)) => ContainerState::Running { started_at },
            (ListedState::Exited, Some(exit), _) => ContainerState::Exited(exit.clone()),
            (ListedState::Running | ListedState::Exited | ListedState::Unknown, _, _) => {
                ContainerState::Unknown
            }
        };
        let logs = inner
            .sandboxes
            .get(&container.listed.sandbox_id)
            .map(|sandbox| sandbox.spec.log_directory.clone());
        Ok(ObservedContainer {
            id: listed.id.clone(),
            name: listed.name.clone(),
            sandbox_id: listed.sandbox_id.clone(),
            state,
            created_at: container.listed.created_at,
            restart_count: spec.attempt,
            image: spec.image.user_specified.clone(),
            image_ref: spec.image.image.clone(),
            hash: spec.annotations.get(labels::CONTAINER_HASH).cloned().unwrap_or_default(),
            log_path: logs.map(|logs| logs.join(&spec.log_path)),
            user: None,
            mounts: spec
                .mounts
                .iter()
                .map(|m| (m.container_path.clone().into(), m.host_path.clone()))
                .collect(),
            resources: Some(kernel_limits(&spec.resources)),
            stop_signal: None,
        })
    }

    async fn list_containers(&self, of: Option<&PodUid>) -> Result<Vec<ListedContainer>, CriError> {
        self.called("ListContainers", "")?;
        let inner = self.lock();
        let all = inner.containers.values().map(|container| container.listed.clone());
        Ok(all.filter(|container| of.is_none_or(|uid| container.pod.uid == *uid)).collect())
    }

    async fn image_status(&self, image: &ImageSpec) -> Result<Option<Image>, CriError> {
        self.called("ImageStatus", "")?;
        let name = image.image.trim_end_matches(":latest");
        let listed = self.lock().listed_images();
        // The id is the name as the client passed it.
        let found = listed.into_iter().find(|listed| listed.id == name);
        Ok(found.map(|found| Image { id: image.image.clone(), ..found }))
    }

    async fn list_images(&self) -> Result<Vec<Image>, CriError> {
        self.called("ListImages", "")?;
        Ok(self.lock().listed_images())
    }

    async fn images_in_use(&self) -> Result<Set<String>, CriError> {
        self.called("ListContainers", "")?;
        let inner = self.lock();
        let names = inner.containers.values().map(|c| &c.spec.image.image);
        Ok(names.map(|name| name.trim_end_matches(":latest").to_owned()).collect())
    }

    async fn pull_image(
        &self,
        image: &ImageSpec,
        _sandbox: &SandboxSpec,
        auth: Option<&RegistryAuth>,
    ) -> Result<String, CriError> {
        let user = auth.map_or(String::new(), |auth| format!(" as {}", auth.username));
        self.called("PullImage", &format!("{}{user}", image.image))?;
        let behaviour =
            self.behaviour(&image.image).ok_or_else(|| not_found("PullImage", &image.image))?;
        tokio::time::sleep(behaviour.pull.0).await;
        match behaviour.pull.1 {
            Some(message) => Err(failed("PullImage", message)),
            None => {
                let mut inner = self.lock();
                let name = image.image.trim_end_matches(":latest");
                inner.removed.remove(name);
                inner.pulled.insert(name.to_owned());
                Ok(image.image.clone())
            }
        }
    }

    async fn remove_image(&self, image: &ImageSpec) -> Result<(), CriError> {
        self.called("RemoveImage", &image.image)?;
        let mut inner = self.lock();
        inner.pulled.remove(&image.image);
        inner.removed.insert(image.image.clone());
        Ok(())
    }

    async fn image_fs_info(&self) -> Result<Vec<FsUsage>, CriError> {
        self.called("ImageFsInfo", "")?;
        Ok(vec![FsUsage { mountpoint: "/images".to_owned(), ..FsUsage::default() }])
    }

    async fn sandbox_stats(&self) -> Result<Vec<SandboxStats>, CriError> {
        self.called("ListPodSandboxStats", "")?;
        self.take_time("ListPodSandboxStats").await;
        let stats = self.lock().sandbox_stats();
        stats.ok_or_else(|| CriError::unimplemented("ListPodSandboxStats"))
    }

    async fn exec_sync(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Option<Duration>,
    ) -> Result<ExecOutput, CriError> {
        self.run_command(id, command, timeout).await
    }

    async fn update_container(&self, id: &ContainerId, limits: &Resources) -> Result<(), CriError> {
        self.limit_container(id, limits)
    }

    async fn update_sandbox(
        &self,
        id: &SandboxId,
        limits: &Resources,
        _: &Resources,
    ) -> Result<(), CriError> {
        self.limit_sandbox(id, limits)
    }

    async fn memory_usage(&self, _: &SandboxId) -> Result<MemoryUsage, CriError> {
        self.called("PodSandboxStats", "")?;
        Ok(self.lock().memory.clone())
    }

    async fn exec(
        &self,
        _: &ContainerId,
        _: &[String],
        _: StreamOptions,
    ) -> Result<String, CriError> {
        Err(no_streams("Exec"))
    }

    async fn attach(&self, _: &ContainerId, _: StreamOptions) -> Result<String, CriError> {
        Err(no_streams("Attach"))
    }

    async fn port_forward(&self, _: &SandboxId, _: &[u16]) -> Result<String, CriError> {
        Err(no_streams("PortForward"))
    }

    async fn writable_layer(&self, id: &ContainerId) -> Result<u64, CriError> {
        self.called("ContainerStats", &self.about(id))?;
        let inner = self.lock();
        let container = inner.containers.get(id);
        let image = container.map(|it| it.spec.image.image.trim_end_matches(":latest"));
        Ok(image.and_then(|image| inner.usage.get(image)).map_or(0, |usage| usage.layer))
    }

    async fn reopen_log(&self, id: &ContainerId) -> Result<(), CriError> {
        self.called("ReopenContainerLog", &self.about(id))
    }

    async fn events(&self) -> Result<EventStream, CriError> {
        self.called("GetContainerEvents", "")?;
        if self.lock().no_events {
            let message = "this fake was told to give none".to_owned();
            return Err(CriError {
                call: "GetContainerEvents",
                code: Code::Unimplemented,
                message,
            });
        }
        let receiver = self.events.lock().unwrap_or_else(PoisonError::into_inner).subscribe();
        Ok(Box::pin(
            BroadcastStream::new(receiver).map(|event| {
                event.map_err(|error| failed("GetContainerEvents", error.to_string()))
            }),
        ))
    }
}

/// The error of streaming calls: the scripted runtime has no processes.
fn no_streams(call: &'static str) -> CriError {
    let message = "this fake has no stream server".to_owned();
    CriError { call, code: Code::Unimplemented, message }
}
