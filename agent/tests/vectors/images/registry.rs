//! A runtime that has images and pulls them from a scripted registry.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use agent::cri::{
    Code, Cri, CriError, EventStream, ExecOutput, FsUsage, Image, ListedContainer, ListedSandbox,
    RegistryAuth, RuntimeStatus, StreamOptions, Version,
};
use agent::observed::{ContainerId, MemoryUsage, ObservedContainer, ObservedSandbox, SandboxId};
use agent::pod_spec::spec::{ContainerSpec, ImageSpec, Resources, SandboxSpec};
use api::pod::PodUid;
use async_trait::async_trait;
use serde_json::{Value, json};

use crate::pods::texts;
use crate::read::text;

#[derive(Default)]
struct State {
    /// Images by name.
    present: BTreeMap<String, Image>,
    /// The results of pulls, by name.
    entries: BTreeMap<String, Value>,
    /// The result of the next pull of any name.
    next: Option<Value>,
    inspection_errors: BTreeMap<String, CriError>,
    pulls: Vec<Value>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Registry(Mutex<State>);

fn failure(call: &'static str, code: Code, message: &str) -> CriError {
    CriError { call, code, message: message.to_owned() }
}

/// Reads `rpc error: code = X desc = Y`.
fn status(call: &'static str, error: &str) -> CriError {
    let parts =
        error.strip_prefix("rpc error: code = ").and_then(|rest| rest.split_once(" desc = "));
    match parts {
        Some((name, message)) => failure(call, code(name), message),
        None => failure(call, Code::Unknown, error),
    }
}

fn code(name: &str) -> Code {
    match name {
        "NotFound" => Code::NotFound,
        "Unimplemented" => Code::Unimplemented,
        "DeadlineExceeded" => Code::DeadlineExceeded,
        "Unavailable" => Code::Unavailable,
        "InvalidArgument" => Code::InvalidArgument,
        "AlreadyExists" => Code::AlreadyExists,
        "FailedPrecondition" => Code::FailedPrecondition,
        "PermissionDenied" => Code::PermissionDenied,
        "ResourceExhausted" => Code::ResourceExhausted,
        "Canceled" => Code::Cancelled,
        "Unauthenticated" => Code::Unauthenticated,
        "Aborted" => Code::Aborted,
        "OutOfRange" => Code::OutOfRange,
        "DataLoss" => Code::DataLoss,
        "Unknown" | "" => Code::Unknown,
        "Internal" => Code::Internal,
        other => panic!("code {other}"),
    }
}

fn image(id: &str, size: u64) -> Image {
    Image { id: id.to_owned(), size, ..Image::default() }
}

impl Registry {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Replaces the results of all names.
    pub(super) fn replace(&self, entries: &Value) {
        let entries = entries.as_object().into_iter().flatten();
        self.state().entries = entries.map(|(name, entry)| (name.clone(), entry.clone())).collect();
    }

    pub(super) fn set(&self, name: &str, entry: &Value) {
        self.state().entries.insert(name.to_owned(), entry.clone());
    }

    pub(super) fn preload(&self, name: &str, id: &str) {
        self.state().present.insert(name.to_owned(), image(id, 1));
    }

    pub(super) fn remove(&self, name: &str) {
        self.state().present.remove(name);
    }

    /// An empty error ends the failures.
    pub(super) fn fail_inspection(&self, name: &str, error: &str) {
        let mut state = self.state();
        if error.is_empty() {
            state.inspection_errors.remove(name);
        } else {
            let error = status("ImageStatus", error);
            state.inspection_errors.insert(name.to_owned(), error);
        }
    }

    /// Sets the results of a step of image-backoff, for any name.
    pub(super) fn script(&self, step: &Value) {
        let mut state = self.state();
        state.present.clear();
        state.inspection_errors.clear();
        if let Some(id) = step["presentRef"].as_str() {
            state.present.insert(String::new(), image(id, 1));
        }
        if let Some(error) = step["inspectError"].as_str() {
            let error = status("ImageStatus", error);
            state.inspection_errors.insert(String::new(), error);
        }
        state.next = step.get("pull").cloned();
    }

    /// The pulls since the last call.
    pub(super) fn take_pulls(&self) -> Vec<Value> {
        std::mem::take(&mut self.state().pulls)
    }
}

fn unused(call: &'static str) -> CriError {
    failure(call, Code::Unimplemented, "not used")
}

#[async_trait]
impl Cri for Registry {
    async fn image_status(&self, spec: &ImageSpec) -> Result<Option<Image>, CriError> {
        let state = self.state();
        let names = [spec.image.as_str(), ""];
        if let Some(error) = names.iter().find_map(|name| state.inspection_errors.get(*name)) {
            return Err(error.clone());
        }
        let of_id = || state.present.values().find(|image| image.id == spec.image);
        let found = state.present.get(&spec.image).or_else(of_id);
        Ok(found.or_else(|| state.present.get("")).cloned())
    }

    async fn pull_image(
        &self,
        spec: &ImageSpec,
        _: &SandboxSpec,
        auth: Option<&RegistryAuth>,
    ) -> Result<String, CriError> {
        let name = &spec.image;
        let mut pull = json!({"image": name});
        if let Some(auth) = auth {
            pull["username"] = json!(auth.username);
            pull["password"] = json!(auth.password);
        }
        let (next, entry) = {
            let mut state = self.state();
            state.pulls.push(pull);
            (state.next.clone(), state.entries.get(name).cloned())
        };
        let failed = |code, message: &str| Err(failure("PullImage", code, message));
        if let Some(next) = next {
            tokio::time::sleep(Duration::from_secs_f64(next["takes"].as_f64().unwrap())).await;
            if let Some(error) = next["error"].as_str() {
                // The error stays unchanged, with or without a code.
                return failed(Code::Unknown, error);
            }
            let pulled = image(text(&next["ref"]), next["size"].as_u64().unwrap());
            let reference = pulled.id.clone();
            let mut state = self.state();
            state.present.insert(name.clone(), pulled);
            // The step's error belongs to the inspection before a pull.
            state.inspection_errors.clear();
            return Ok(reference);
        }
        let Some(entry) = entry else {
            let message = format!("failed to pull and unpack image \"{name}\": not found");
            return failed(Code::NotFound, &message);
        };
        if let Some(message) = entry["errorMessage"].as_str() {
            return failed(code(text(&entry["errorCode"])), message);
        }
        let users = texts(&entry["users"]);
        let known = auth.is_some_and(|auth| users.contains(&auth.username));
        if entry["anonymous"] != true && !known {
            return failed(Code::Unknown, &format!("pull access denied for \"{name}\""));
        }
        let pulled = image(text(&entry["ref"]), entry["size"].as_u64().unwrap_or_default());
        self.state().present.insert(name.clone(), pulled);
        Ok(text(&entry["ref"]).to_owned())
    }

    async fn list_images(&self) -> Result<Vec<Image>, CriError> {
        let state = self.state();
        let tagged = |(name, image): (&String, &Image)| Image {
            repo_tags: vec![name.clone()],
            ..image.clone()
        };
        Ok(state.present.iter().map(tagged).collect())
    }

    async fn update_container(&self, _: &ContainerId, _: &Resources) -> Result<(), CriError> {
        Err(unused("UpdateContainerResources"))
    }
    async fn update_sandbox(
        &self,
        _: &SandboxId,
        _: &Resources,
        _: &Resources,
    ) -> Result<(), CriError> {
        Err(unused("UpdatePodSandboxResources"))
    }
    async fn memory_usage(&self, _: &SandboxId) -> Result<MemoryUsage, CriError> {
        Err(unused("PodSandboxStats"))
    }
    async fn version(&self) -> Result<Version, CriError> {
        Err(unused("Version"))
    }
    async fn status(&self) -> Result<RuntimeStatus, CriError> {
        Err(unused("Status"))
    }
    async fn run_sandbox(&self, _: &SandboxSpec) -> Result<SandboxId, CriError> {
        Err(unused("RunPodSandbox"))
    }
    async fn stop_sandbox(&self, _: &SandboxId) -> Result<(), CriError> {
        Err(unused("StopPodSandbox"))
    }
    async fn remove_sandbox(&self, _: &SandboxId) -> Result<(), CriError> {
        Err(unused("RemovePodSandbox"))
    }
    async fn sandbox_status(&self, _: &SandboxId) -> Result<ObservedSandbox, CriError> {
        Err(unused("PodSandboxStatus"))
    }
    async fn list_sandboxes(&self, _: Option<&PodUid>) -> Result<Vec<ListedSandbox>, CriError> {
        Err(unused("ListPodSandbox"))
    }
    async fn create_container(
        &self,
        _: &SandboxId,
        _: &ContainerSpec,
        _: &SandboxSpec,
    ) -> Result<ContainerId, CriError> {
        Err(unused("CreateContainer"))
    }
    async fn start_container(&self, _: &ContainerId) -> Result<(), CriError> {
        Err(unused("StartContainer"))
    }
    async fn stop_container(&self, _: &ContainerId, _: Duration) -> Result<(), CriError> {
        Err(unused("StopContainer"))
    }
    async fn remove_container(&self, _: &ContainerId) -> Result<(), CriError> {
        Err(unused("RemoveContainer"))
    }
    async fn container_status(&self, _: &ListedContainer) -> Result<ObservedContainer, CriError> {
        Err(unused("ContainerStatus"))
    }
    async fn list_containers(&self, _: Option<&PodUid>) -> Result<Vec<ListedContainer>, CriError> {
        Err(unused("ListContainers"))
    }
    async fn images_in_use(&self) -> Result<compact::Set<String>, CriError> {
        Err(unused("ListContainers"))
    }
    async fn remove_image(&self, _: &ImageSpec) -> Result<(), CriError> {
        Err(unused("RemoveImage"))
    }
    async fn image_fs_info(&self) -> Result<Vec<FsUsage>, CriError> {
        Err(unused("ImageFsInfo"))
    }
    async fn exec_sync(
        &self,
        _: &ContainerId,
        _: &[String],
        _: Option<Duration>,
    ) -> Result<ExecOutput, CriError> {
        Err(unused("ExecSync"))
    }
    async fn exec(
        &self,
        _: &ContainerId,
        _: &[String],
        _: StreamOptions,
    ) -> Result<String, CriError> {
        Err(unused("Exec"))
    }
    async fn attach(&self, _: &ContainerId, _: StreamOptions) -> Result<String, CriError> {
        Err(unused("Attach"))
    }
    async fn port_forward(&self, _: &SandboxId, _: &[u16]) -> Result<String, CriError> {
        Err(unused("PortForward"))
    }
    async fn writable_layer(&self, _: &ContainerId) -> Result<u64, CriError> {
        Err(unused("ContainerStats"))
    }
    async fn reopen_log(&self, _: &ContainerId) -> Result<(), CriError> {
        Err(unused("ReopenContainerLog"))
    }
    async fn events(&self) -> Result<EventStream, CriError> {
        Err(unused("GetContainerEvents"))
    }
}
