//! The weights of the cgroups of QoS classes, which a kubelet sets and a client may leave to the runtime.

use keeper::kernel::cgroup::{CgroupPlan, Limits, directory};

use super::{Error, Runtime, blocking};
use crate::{
    launch,
    sandbox::{Sandbox, SandboxState},
};

impl Runtime {
    /// Gives the cgroup of a pod's class the weight of the pods that are in it now, if the client named the class.
    pub(super) async fn weigh_class(&self, pod: &Sandbox) -> Result<(), Error> {
        let (Some(class), Some(cgroup)) = (launch::qos_class(&pod.config)?, &pod.cgroup) else {
            return Ok(());
        };
        let Some(path) = cgroup.parent() else {
            return Ok(());
        };
        // The last one to write knows of every pod that an earlier one knew of.
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
