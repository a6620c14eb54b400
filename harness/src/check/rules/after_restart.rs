//! Rules of what a runtime still knows of a container after its restart: changed resources, the stop signal, a start that failed.

use cri::v1;
use tonic::Code;

use super::image_content::{image, script};
use super::limits::{update, with};
use crate::check::context::Context;
use crate::check::outcome::{Outcome, Verdict, equal, refused};
use crate::check::rule::sources::KUBELET;
use crate::check::rule::{RESTART, Rule, Severity};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "CRI-RST-014",
        severity: Severity::Should,
        says: "ContainerStatus has the resources of the last UpdateContainerResources also after a restart of the runtime: a kubelet compares them with the pod's.",
        source: KUBELET,
        tags: &["kubelet", "resources", "resize", RESTART],
        calls: &["UpdateContainerResources", "ContainerStatus"],
        faults: &[
            "off restarted: ContainerStatus set status.resources.linux.cpu_shares \"512\"",
            "off restarted: ContainerStatus drop status.resources",
        ],
        body: |x| Box::pin(changed_resources_are_kept(x)),
    },
    Rule {
        id: "CRI-RST-015",
        severity: Severity::Must,
        says: "A restarted runtime stops a container with the container's own stop signal.",
        source: KUBELET,
        tags: &["signal", RESTART],
        calls: &["StopContainer"],
        faults: &[
            "off restarted: StopContainer request set timeout 0",
            "off restarted: StopContainer swallow",
            "CreateContainer request set config.stop_signal \"SIGTERM\"",
        ],
        body: |x| Box::pin(stop_signal_is_kept(x)),
    },
    Rule {
        id: "CRI-RST-016",
        severity: Severity::Must,
        says: "A container that failed to start has the same exit code, reason and message after a restart of the runtime.",
        source: KUBELET,
        tags: &["kubelet", "exit", RESTART],
        calls: &["ContainerStatus"],
        faults: &[
            "off restarted: ContainerStatus set status.reason \"Completed\"",
            "off restarted: ContainerStatus set status.message \"other\"",
            "off restarted: ContainerStatus set status.exit_code 1",
            "off restarted: ContainerStatus answer NOT_FOUND",
        ],
        body: |x| Box::pin(failed_start_is_remembered(x)),
    },
];

/// The shares of CPU time in ContainerStatus, if it has resources.
async fn shares(x: &Context, id: &str) -> Verdict<Option<i64>> {
    let resources = x.client.container(id).await?.resources;
    let linux = resources.and_then(|resources| resources.linux);
    Ok(linux.map(|linux| linux.cpu_shares))
}

async fn changed_resources_are_kept(x: &Context) -> Verdict {
    x.needs_restart()?;
    x.needs_limits()?;
    let of = |cpu_shares| v1::LinuxContainerResources {
        cpu_shares,
        ..Default::default()
    };
    let pod = x.pod().await?;
    let id = pod.start(with(x.forever("c"), of(512))).await?;
    x.logged(&pod, "ready").await?;
    update(x, &id, of(1024)).await?;
    let before = shares(x, &id).await?;
    // Older runtimes do not know the field.
    if before.is_none() {
        return Err(Outcome::Unsupported(
            "ContainerStatus has no resources".to_owned(),
        ));
    }
    equal("cpu_shares before the restart", &before, &Some(1024))?;
    x.restart().await?;
    // CRI-O reads again what it wrote when it made the container: that is what a kubelet then compares.
    let after = shares(x, &id).await?;
    equal("cpu_shares after the restart", &after, &Some(1024))
}

const TRAPS: &str =
    "trap 'exit 10' USR1; trap 'exit 11' TERM; echo ready; while :; do sleep 1000 & wait $!; done";

/// A container that SIGUSR1 stops: its image says so, or its configuration where no image can be pulled.
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
    x.needs_restart()?;
    x.needs_namespaces()?;
    let config = stopped_by_usr1(x).await?;
    let of_configuration = config.stop_signal() == v1::Signal::Sigusr1;
    let pod = x.pod().await?;
    let id = pod.start(config).await?;
    x.logged(&pod, "ready").await?;
    let named = x.client.container(&id).await?.stop_signal();
    if of_configuration && named != v1::Signal::Sigusr1 {
        return Err(Outcome::Unsupported(
            "the runtime does not take a stop signal from the configuration".to_owned(),
        ));
    }
    x.restart().await?;
    x.client.stop(&id, 3600).await?;
    let status = x.client.container(&id).await?;
    equal(
        "the exit code of a container that SIGUSR1 stops",
        &status.exit_code,
        &10,
    )
}

/// What ContainerStatus tells of a container that failed to start.
fn told(status: &v1::ContainerStatus) -> (&'static str, i32, &str, &str) {
    let state = status.state().as_str_name();
    (state, status.exit_code, &status.reason, &status.message)
}

async fn failed_start_is_remembered(x: &Context) -> Verdict {
    x.needs_restart()?;
    let pod = x.pod().await?;
    let mut config = x.forever("c");
    config.command = vec!["/no/such/command".to_owned()];
    let id = match pod.create(config).await {
        Ok(id) => id,
        answer => {
            refused("CreateContainer of a missing command", answer)?;
            return Err(Outcome::Diverges(
                "CreateContainer refuses a command that does not exist".to_owned(),
            ));
        }
    };
    let answer = x.client.start(&id).await;
    refused("StartContainer of a missing command", answer)?;
    let before = match x.client.container(&id).await {
        Err(status) if status.code() == Code::NotFound => {
            return Err(Outcome::Diverges(
                "a container that failed to start is removed".to_owned(),
            ));
        }
        answer => answer?,
    };
    x.restart().await?;
    let after = x.client.container(&id).await?;
    equal(
        "state, exit code, reason and message after the restart",
        &told(&after),
        &told(&before),
    )
}
