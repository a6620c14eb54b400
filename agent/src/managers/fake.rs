//! Managers with results set by a test.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api::pod::{Pod, PodUid};
use async_trait::async_trait;
use compact::{Map, Set};
use k8s_openapi::api::core::v1::Container;
use tokio::sync::Notify;

use super::{Active, Allocation, DeviceHealth, DeviceResources, Managers};
use crate::decide::resize::Infeasible;
use crate::observed::ContainerId;
use crate::pod_spec::admission::Rejection;
use crate::pod_spec::spec::Assigned;

/// Clones share the results.
#[derive(Clone, Default)]
pub(crate) struct FakeManagers(Arc<Inner>);

#[derive(Default)]
struct Inner {
    answers: Mutex<Answers>,
    opened: Notify,
    changed: Notify,
}

/// The results, and the recorded calls.
#[derive(Default)]
pub(crate) struct Answers {
    /// Whether allocations wait until this is false.
    pub(crate) holds: bool,
    /// Whether the managers concern no pod.
    pub(crate) concerns_none: bool,
    /// The rejections, by the pod's name.
    pub(crate) rejections: Map<String, Rejection>,
    /// The assignments, by the container's name; `Err`: it cannot be created.
    pub(crate) assigned: Map<String, Result<Assigned, String>>,
    pub(crate) devices: DeviceResources,
    /// The health of devices, by the container's name.
    pub(crate) health: Map<String, DeviceHealth>,
    pub(crate) forbidden_resize: Option<Infeasible>,
    /// The calls, as `allocate pod [active]`.
    pub(crate) calls: Vec<String>,
}

impl FakeManagers {
    /// Changes the results.
    pub(crate) fn set(&self, change: impl FnOnce(&mut Answers)) {
        change(&mut self.answers());
        self.0.opened.notify_waiters();
        self.0.changed.notify_waiters();
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.answers().calls.clone()
    }

    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.0.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Managers for FakeManagers {
    fn concerns(&self, _: &Pod) -> bool {
        !self.answers().concerns_none
    }

    fn admitted_without_allocation(&self) {
        self.answers().calls.push("admitted".to_owned());
    }

    fn allocate(&self, pod: &Pod, active: Active) -> Allocation {
        let active = match active {
            None => "unknown".to_owned(),
            Some(active) => {
                let active: Set<&str> = active.iter().map(PodUid::as_str).collect();
                active.into_iter().collect::<Vec<_>>().join(",")
            }
        };
        self.answers().calls.push(format!("allocate {} [{active}]", pod.name()));
        let (fake, name) = (self.clone(), pod.name().to_owned());
        Box::pin(async move {
            loop {
                let opened = fake.0.opened.notified();
                if !fake.answers().holds {
                    break;
                }
                opened.await;
            }
            match fake.answers().rejections.get(&name) {
                Some(rejection) => Err(rejection.clone()),
                None => Ok(()),
            }
        })
    }

    async fn prepare(&self, _: &Pod, container: &Container) -> Result<Assigned, String> {
        let mut answers = self.answers();
        answers.calls.push(format!("prepare {}", container.name));
        answers.assigned.get(&container.name).cloned().unwrap_or_else(|| Ok(Assigned::default()))
    }

    fn created(&self, _: &Pod, container: &str, _: &ContainerId) {
        self.answers().calls.push(format!("created {container}"));
    }

    fn release(&self, pod: &PodUid) {
        self.answers().calls.push(format!("release {pod}"));
    }

    fn forbids_resize(&self, _: &Pod, _: &Pod) -> Option<Infeasible> {
        self.answers().forbidden_resize.clone()
    }

    fn has_own_cpus(&self, _: &PodUid, container: &str) -> bool {
        let answers = self.answers();
        let assigned = answers.assigned.get(container);
        assigned.and_then(|it| it.as_ref().ok()).is_some_and(|it| it.cpus_are_exclusive)
    }

    fn health(&self, _: &PodUid, container: &str) -> DeviceHealth {
        self.answers().health.get(container).cloned().unwrap_or_default()
    }

    fn devices(&self) -> DeviceResources {
        self.answers().devices.clone()
    }

    async fn devices_changed(&self) {
        self.0.changed.notified().await;
    }
}
