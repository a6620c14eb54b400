//! Rules for container settings that survive a runtime restart: updated resources, the stop signal, a failed start.

use crate::prelude::*;
use crate::rules::content::{image, script};
use crate::rules::limits::with;

pub(crate) const RULES: &[Rule] = rules! {
    Should "CRI-RST-014": "After a runtime restart, ContainerStatus still reports the resources that UpdateContainerResources set, which the kubelet compares with the pod's resources.",
        KUBELET, tags ["kubelet", "resources", "resize", RESTART], calls [UpdateContainerResources, ContainerStatus],
        changed_resources_are_kept given [restart], faults [
            "off restarted: ContainerStatus set status.resources.linux.cpu_shares \"512\"",
            "off restarted: ContainerStatus drop status.resources",
        ];
    Must "CRI-RST-015": "After a runtime restart, StopContainer still sends the container's own stop signal.",
        KUBELET, tags ["signal", RESTART], calls [StopContainer],
        stop_signal_is_kept given [restart], faults [
            "off restarted: StopContainer request set timeout 0",
            "off restarted: StopContainer swallow",
            "CreateContainer request set config.stop_signal \"SIGTERM\"",
        ];
    Must "CRI-RST-016": "A container that failed to start keeps its exit code, reason and message across a runtime restart.",
        KUBELET, tags ["kubelet", "exit", RESTART], calls [ContainerStatus],
        failed_start_is_remembered given [restart, pod], faults [
            "off restarted: ContainerStatus set status.reason \"Completed\"",
            "off restarted: ContainerStatus set status.message \"other\"",
            "off restarted: ContainerStatus set status.exit_code 1",
            "off restarted: ContainerStatus answer NOT_FOUND",
        ];
};

/// The CPU shares in ContainerStatus, if it has resources.
async fn shares(x: &Context, id: &str) -> Verdict<Option<i64>> {
    let resources = x.client.container(id).await?.resources;
    let linux = resources.and_then(|resources| resources.linux);
    Ok(linux.map(|linux| linux.cpu_shares))
}

async fn changed_resources_are_kept(x: &Context) -> Verdict {
    x.needs_limits()?;
    let of = |cpu_shares| v1::LinuxContainerResources { cpu_shares, ..Default::default() };
    let pod = x.pod().await?;
    let id = x.start_ready(&pod, with(x.forever("c"), of(512))).await?;
    x.client.update(&id, of(1024)).await?;
    let before = shares(x, &id).await?;
    // Older runtimes do not have the field.
    if before.is_none() {
        return unsupported("ContainerStatus has no resources");
    }
    equal("cpu_shares before the restart", &before, &Some(1024))?;
    x.restart().await?;
    // CRI-O restores the resources with which it created the container, and the kubelet compares those.
    let after = shares(x, &id).await?;
    equal("cpu_shares after the restart", &after, &Some(1024))
}

const TRAPS: &str =
    "trap 'exit 10' USR1; trap 'exit 11' TERM; echo ready; while :; do sleep 1000 & wait $!; done";

/// A container with the stop signal SIGUSR1, set by its image, or by its configuration if no image can be pulled.
async fn stopped_by_usr1(x: &Context) -> Verdict<v1::ContainerConfig> {
    match image(x, "1", |image| image.stop_signal("SIGUSR1")).await {
        Ok(name) => Ok(script(x, &name, TRAPS)),
        Err(Outcome::Skipped(_)) => {
            let mut config = x.script("c", TRAPS);
            config.stop_signal = v1::Signal::Sigusr1.into();
            Ok(config)
        }
        Err(other) => Err(other),
    }
}

async fn stop_signal_is_kept(x: &Context) -> Verdict {
    x.needs_namespaces()?;
    let config = stopped_by_usr1(x).await?;
    let of_configuration = config.stop_signal() == v1::Signal::Sigusr1;
    let pod = x.pod().await?;
    let id = x.start_ready(&pod, config).await?;
    let named = x.client.container(&id).await?.stop_signal();
    if of_configuration && named != v1::Signal::Sigusr1 {
        return unsupported("the runtime ignores the stop signal of the configuration");
    }
    x.restart().await?;
    x.client.stop(&id, 3600).await?;
    let status = x.client.container(&id).await?;
    equal("the exit code of a container that SIGUSR1 stops", &status.exit_code, &10)
}

/// State, exit code, reason and message in ContainerStatus.
fn exit_details(status: &v1::ContainerStatus) -> (&'static str, i32, &str, &str) {
    let state = status.state().as_str_name();
    (state, status.exit_code, &status.reason, &status.message)
}

async fn failed_start_is_remembered(x: &Context, pod: Pod) -> Verdict {
    let mut config = x.forever("c");
    config.command = vec!["/no/such/command".to_owned()];
    let id = match pod.create(config).await {
        Ok(id) => id,
        answer => {
            refused("CreateContainer of a missing command", answer)?;
            return diverges("CreateContainer refuses a command that does not exist");
        }
    };
    let answer = x.client.start(&id).await;
    refused("StartContainer of a missing command", answer)?;
    let before = match x.client.container(&id).await {
        Err(status) if status.code() == Code::NotFound => {
            return diverges("a container that failed to start is removed");
        }
        answer => answer?,
    };
    x.restart().await?;
    let after = x.client.container(&id).await?;
    equal(
        "state, exit code, reason and message after the restart",
        &exit_details(&after),
        &exit_details(&before),
    )
}
