//! Updates the resource limits of running containers and pods, and the weights of the cgroups of QoS classes.

use cri::v1::LinuxContainerResources;
use keeper::kernel::cgroup::{CgroupPlan, Limits, directory, plan};

use super::containers::wrong_state;
use super::{Error, Runtime, blocking};
use crate::container::{ContainerEvent, ContainerState};
use crate::launch;
use crate::sandbox::{Sandbox, SandboxEvent, SandboxState};
use crate::store::{Change, StateError};

impl Runtime {
    /// Updates a container's limits, before or after its start: all limits in `update`, or none if one is rejected.
    pub(crate) async fn update_container(
        &self,
        id: &str,
        update: LinuxContainerResources,
    ) -> Result<(), Error> {
        const REQUIRED_STATE: &str =
            "only a container that has not ended can be given other limits";
        let (container, pod) = self.container_and_pod(id, REQUIRED_STATE)?;
        // Serialize updates: the second one must see the result of the first.
        let _turn = pod.limits.lock().await;
        let container = self.store.state().container(container.id.as_str())?.clone();
        match container.state {
            ContainerState::Created | ContainerState::Running => {}
            ContainerState::Creating | ContainerState::Exited | ContainerState::Lost => {
                return Err(wrong_state(&container, REQUIRED_STATE));
            }
        }
        let linux = container.config.linux.as_ref();
        let resources = launch::updated(linux.and_then(|l| l.resources.as_ref()), &update);
        let limits = launch::limits(Some(&resources))?;
        let place = container.cgroup.clone();
        let not_applied = blocking(move || -> Result<_, Error> {
            let Some(place) = place else {
                return Ok(plan::writes(&limits, &Default::default(), &Default::default())?);
            };
            let now = directory::current_values(&place, limits.memory);
            let writes = plan::writes(&limits, &place.tree, &now)?;
            directory::change(&place, &writes.list)?;
            Ok(writes)
        })
        .await?
        .not_applied;
        let event = ContainerEvent::Limited(Box::new(resources), not_applied);
        let change = Change::Container(container.id.clone(), event);
        Ok(self.store.apply(change).await?)
    }

    /// Updates a pod's recorded resources, and the weight of its cgroup if the runtime owns it.
    pub(crate) async fn update_sandbox(
        &self,
        id: &str,
        resources: Option<LinuxContainerResources>,
        overhead: Option<LinuxContainerResources>,
    ) -> Result<(), Error> {
        let sandbox = self.store.state().sandbox(id)?.clone();
        let not_ready = || StateError::SandboxNotReady {
            id: sandbox.id.clone(),
            wanted: "a change of resources",
        };
        let pod = self.pods.get(&sandbox.id).ok_or_else(not_ready)?;
        let _turn = pod.limits.lock().await;
        let sandbox = self.store.state().sandbox(sandbox.id.as_str())?.clone();
        if sandbox.state != SandboxState::Ready {
            return Err(not_ready().into());
        }
        let mut config = sandbox.config.clone();
        let linux = config.linux.get_or_insert_default();
        if let Some(update) = &resources {
            linux.resources = Some(launch::updated(linux.resources.as_ref(), update));
        }
        if let Some(update) = &overhead {
            linux.overhead = Some(launch::updated(linux.overhead.as_ref(), update));
        }
        let (resources, overhead) = (linux.resources.clone(), linux.overhead.clone());
        let limits = launch::pod_limits(&config)?;
        let in_class = launch::qos_class(&config)?.is_some();
        let cgroup = sandbox.cgroup.as_ref();
        if let Some(plan) = self.cgroups.pod_plan(cgroup, &limits, in_class)? {
            blocking(move || {
                directory::make(&plan.path)?;
                directory::change(&plan.path, &plan.writes)
            })
            .await?;
        }
        let event = SandboxEvent::Resources(Box::new((resources, overhead)));
        let change = Change::Sandbox(sandbox.id.clone(), event);
        self.store.apply(change).await?;
        self.set_class_weight(&sandbox).await
    }
}

impl Runtime {
    /// Sets the weight of the cgroup of a pod's QoS class from the pods in it, if the client named the class.
    pub(super) async fn set_class_weight(&self, pod: &Sandbox) -> Result<(), Error> {
        let (Some(class), Some(cgroup)) = (launch::qos_class(&pod.config)?, &pod.cgroup) else {
            return Ok(());
        };
        let Some(path) = cgroup.parent() else {
            return Ok(());
        };
        // Held so that the last write includes every pod that an earlier write included.
        let _turn = self.class_weights.lock().await;
        let pods = {
            let state = self.store.state();
            let pods = state.sandboxes.values().filter(|other| {
                let lives = match other.state {
                    SandboxState::Creating | SandboxState::Ready => true,
                    SandboxState::NotReady => false,
                };
                let beside = other.cgroup.as_ref().and_then(|cgroup| cgroup.path.parent());
                lives && beside == Some(&path.path)
            });
            let shares = pods.map(|pod| launch::pod_limits(&pod.config).map(|it| it.cpu_shares));
            shares.collect::<Result<Vec<i64>, _>>()?
        };
        let shares = launch::class_shares(class, pods.iter().copied());
        let (Some(cpu_shares), false) = (shares, pods.is_empty()) else {
            return Ok(());
        };
        let limits = Limits { cpu_shares, ..Limits::default() };
        let plan = self.cgroups.pod_plan(Some(&path), &limits, true)?;
        if let Some(CgroupPlan { path, writes, .. }) = plan {
            blocking(move || {
                directory::make(&path)?;
                directory::change(&path, &writes)
            })
            .await?;
        }
        Ok(())
    }
}
