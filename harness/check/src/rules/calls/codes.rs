//! Rules of gRPC codes and error messages: for unknown ids, empty ids and invalid requests.

pub(crate) mod arguments;
pub(crate) mod messages;

use std::fmt::Debug;

use crate::prelude::*;
use crate::rule::Severity;
use crate::rules::sandbox::UNKNOWN;

/// Defines rules of calls with an unknown id and with an empty one. Each entry makes its call with the context and the id.
macro_rules! of_absent {
    ($($id:literal $call:ident: $says:literal, |$x:ident, $object:ident| $answer:expr;)*) => {
        &[$(Rule {
            id: $id,
            severity: Severity::Should,
            says: $says,
            source: KUBELET,
            tags: &["codes", "input"],
            calls: &[stringify!($call)],
            faults: &[
                concat!(stringify!($call), " swallow"),
                concat!(stringify!($call), " recode NOT_FOUND INTERNAL"),
                concat!(stringify!($call), " after 1 swallow"),
                concat!(stringify!($call), " recode NOT_FOUND NOT_FOUND \"\""),
            ],
            body: |$x| Box::pin(async move {
                let answers = ABSENT.map(|$object| async move { $answer.await });
                absent(stringify!($call), answers).await
            }),
        }),*]
    };
}

pub(crate) const OF_ABSENT: &[Rule] = of_absent! {
    "CRI-COD-001" StartContainer: "StartContainer returns NOT_FOUND for an unknown container and refuses an empty id.",
        |x, id| x.client.start(id);
    "CRI-COD-002" CreateContainer: "CreateContainer returns NOT_FOUND for an unknown sandbox and refuses an empty sandbox id.",
        |x, id| x.client.create(id, x.forever("c"), x.sandbox());
    "CRI-COD-003" ExecSync: "ExecSync returns NOT_FOUND for an unknown container and refuses an empty id.",
        |x, id| x.client.exec(id, ["/bin/sh"], 10);
    "CRI-COD-004" Exec: "Exec returns NOT_FOUND for an unknown container and refuses an empty id.",
        |x, id| x.client.runtime.clone().exec(exec_of(id, &["/bin/sh"]));
    "CRI-COD-005" Attach: "Attach returns NOT_FOUND for an unknown container and refuses an empty id.",
        |x, id| x.client.runtime.clone().attach(v1::AttachRequest {
            container_id: id.to_owned(),
            stdout: true,
            ..Default::default()
        });
    "CRI-COD-006" PortForward: "PortForward returns NOT_FOUND for an unknown sandbox and refuses an empty id.",
        |x, id| x.client.runtime.clone().port_forward(v1::PortForwardRequest {
            pod_sandbox_id: id.to_owned(),
            port: vec![80],
        });
    "CRI-COD-007" UpdateContainerResources: "UpdateContainerResources returns NOT_FOUND for an unknown container and refuses an empty id.",
        |x, id| x.client.runtime.clone().update_container_resources(v1::UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(v1::LinuxContainerResources::default()),
            ..Default::default()
        });
    "CRI-COD-008" ReopenContainerLog: "ReopenContainerLog returns NOT_FOUND for an unknown container and refuses an empty id.",
        |x, id| x.client.reopen_log(id);
    "CRI-COD-009" ContainerStats: "ContainerStats returns NOT_FOUND for an unknown container and refuses an empty id.",
        |x, id| x.client.runtime.clone().container_stats(v1::ContainerStatsRequest {
            container_id: id.to_owned(),
        });
    "CRI-COD-010" PodSandboxStats: "PodSandboxStats returns NOT_FOUND for an unknown sandbox and refuses an empty id.",
        |x, id| x.client.runtime.clone().pod_sandbox_stats(v1::PodSandboxStatsRequest {
            pod_sandbox_id: id.to_owned(),
        });
};

pub(crate) const RULES: &[Rule] = rules! {
    Should "CRI-COD-011": "ContainerStatus and PodSandboxStatus refuse an empty id with NOT_FOUND or INVALID_ARGUMENT.",
        KUBELET, tags ["codes", "input"], calls [ContainerStatus, PodSandboxStatus],
        status_of_absent, faults [
            "ContainerStatus swallow",
            "ContainerStatus answer INTERNAL",
            "PodSandboxStatus swallow",
            "PodSandboxStatus after 1 swallow",
        ];
    Should "CRI-COD-020": "ExecSync and Exec without a command return INVALID_ARGUMENT.",
        API, tags ["codes", "input"], calls [ExecSync, Exec],
        command_is_needed given [container], faults ["ExecSync swallow", "Exec swallow"];
    Should "CRI-COD-021": "RunPodSandbox and CreateContainer without a configuration return INVALID_ARGUMENT.",
        API, tags ["codes", "input"], calls [RunPodSandbox, CreateContainer],
        configuration_is_needed, faults [
            "RunPodSandbox if request config = null swallow",
            "CreateContainer swallow",
        ];
    Should "CRI-COD-022": "CreateContainer without an image returns INVALID_ARGUMENT.",
        API, tags ["codes", "input"], calls [CreateContainer],
        image_is_needed given [pod], faults ["CreateContainer swallow"];
    Should "CRI-COD-023": "PullImage without an image name, or with a malformed name, returns INVALID_ARGUMENT.",
        API, tags ["codes", "input"], calls [PullImage],
        pull_needs_name, faults ["PullImage swallow", "PullImage after 1 swallow"];
    Should "CRI-COD-024": "CreateContainer with a mount that has no container path returns INVALID_ARGUMENT.",
        API, tags ["codes", "input"], calls [CreateContainer],
        mount_needs_path given [pod], faults [
            "CreateContainer request drop config.mounts",
            "CreateContainer request set config.mounts.container_path \"/somewhere\"",
        ];
};

/// Passes for one of these codes. Some runtimes return UNKNOWN because they set no code: that diverges.
fn coded<T: Debug>(what: &str, answer: Result<T, Status>, codes: &[Code]) -> Verdict {
    let status = refused(what, answer)?;
    let error = format!("{:?}: {}", status.code(), status.message());
    if codes.contains(&status.code()) {
        return Ok(());
    }
    match status.code() == Code::Unknown {
        true => diverges(format!("{what}: {error}")),
        false => failed(what, format!("one of the codes {codes:?}"), error),
    }
}

/// An unknown id and an empty one.
const ABSENT: [&str; 2] = [UNKNOWN, ""];

/// Makes the call for each id of [`ABSENT`], one after the other, and checks the answers.
async fn absent<T: Debug>(
    call: &str,
    [unknown, empty]: [impl Future<Output = Result<T, Status>>; 2],
) -> Verdict {
    let unknown = coded(&format!("{call} with an unknown id"), unknown.await, &[Code::NotFound]);
    let empty = coded(
        &format!("{call} with an empty id"),
        empty.await,
        &[Code::NotFound, Code::InvalidArgument],
    );
    all([unknown, empty])
}

/// Passes for INVALID_ARGUMENT. Most other refusals diverge, since runtimes validate at different times. INTERNAL and DATA_LOSS
/// fail: they mean that the runtime is broken.
fn invalid<T: Debug>(what: &str, answer: Result<T, Status>) -> Verdict {
    let status = refused(what, answer)?;
    let error = format!("{what}: {:?}: {}", status.code(), status.message());
    let code = status.code();
    if [Code::Internal, Code::DataLoss].contains(&code) {
        return failed(what, "INVALID_ARGUMENT", error);
    }
    match code == Code::InvalidArgument {
        true => Ok(()),
        false => Err(Outcome::Diverges(error)),
    }
}

/// The first failure, or else a divergence.
fn all(verdicts: impl IntoIterator<Item = Verdict>) -> Verdict {
    let mut diverges = Ok(());
    for verdict in verdicts {
        match verdict {
            Err(Outcome::Diverges(_)) => diverges = verdict,
            other => other?,
        }
    }
    diverges
}

pub(crate) fn exec_of(id: &str, cmd: &[&str]) -> v1::ExecRequest {
    v1::ExecRequest {
        container_id: id.to_owned(),
        cmd: cmd.iter().map(|word| (*word).to_owned()).collect(),
        stdout: true,
        ..Default::default()
    }
}

async fn status_of_absent(x: &Context) -> Verdict {
    let codes = [Code::NotFound, Code::InvalidArgument];
    let mut verdicts = Vec::new();
    let container = x.client.container("").await;
    verdicts.push(coded("ContainerStatus without an id", container, &codes));
    // The second call detects a runtime that refuses only the first one.
    for _ in 0..2 {
        let pod = x.client.pod("").await;
        verdicts.push(coded("PodSandboxStatus without an id", pod, &codes));
    }
    all(verdicts)
}

async fn command_is_needed(x: &Context, id: String) -> Verdict {
    let sync = x.client.exec(&id, [""; 0], 10).await;
    let mut runtime = x.client.runtime.clone();
    let streamed = runtime.exec(exec_of(&id, &[])).await;
    let streamed = match streamed {
        // Some runtimes check the command when the URL is opened.
        Ok(answer) if !answer.get_ref().url.is_empty() => diverges("Exec returns a URL for it"),
        answer => invalid("Exec without a command", answer),
    };
    all([invalid("ExecSync without a command", sync), streamed])
}

async fn configuration_is_needed(x: &Context) -> Verdict {
    let request = v1::RunPodSandboxRequest::default();
    let sandbox = x.client.runtime.clone().run_pod_sandbox(request).await;
    let pod = x.pod().await?;
    let request = v1::CreateContainerRequest {
        pod_sandbox_id: pod.id.clone(),
        sandbox_config: Some(pod.config.clone()),
        config: None,
    };
    let container = x.client.runtime.clone().create_container(request).await;
    all([
        invalid("RunPodSandbox without a configuration", sandbox),
        invalid("CreateContainer without a configuration", container),
    ])
}

async fn image_is_needed(x: &Context, pod: Pod) -> Verdict {
    let mut config = x.forever("c");
    config.image = None;
    let none = pod.create(config.clone()).await;
    config.image = Some(v1::ImageSpec::default());
    let unnamed = pod.create(config).await;
    all([
        invalid("CreateContainer without an image", none),
        invalid("CreateContainer of an image without a name", unnamed),
    ])
}

async fn pull_needs_name(x: &Context) -> Verdict {
    let request = v1::PullImageRequest::default();
    let none = x.client.images.clone().pull_image(request).await;
    let bad = x.client.pull("127.0.0.1:1/Not//A Name").await;
    all([invalid("PullImage without a name", none), invalid("PullImage of a malformed name", bad)])
}

async fn mount_needs_path(x: &Context, pod: Pod) -> Verdict {
    let mut config = x.forever("c");
    config.mounts.push(v1::Mount {
        host_path: x.shared.directory.display().to_string(),
        ..Default::default()
    });
    match pod.create(config).await {
        Ok(id) => match x.client.start(&id).await {
            Err(status) => diverges(format!("StartContainer refuses it: {}", status.message())),
            Ok(()) => failed(
                "a mount without a path in the container",
                "refused by CreateContainer or StartContainer",
                "the container runs",
            ),
        },
        answer => invalid("CreateContainer with a mount without a path", answer),
    }
}
