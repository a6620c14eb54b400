//! Rules of gRPC codes: for ids that nothing has, for no id at all, and for requests that mean nothing.

use std::fmt::Debug;

use cri::v1;
use tonic::{Code, Status};

use super::sandbox::UNKNOWN;
use crate::check::context::Context;
use crate::check::outcome::{Outcome, Verdict, failed, refused};
use crate::check::rule::sources::{API, KUBELET};
use crate::check::rule::{Rule, Running, Severity};

pub(super) const RULES: &[Rule] = &[
    of_absent(
        "CRI-COD-001",
        "StartContainer of an unknown container is NOT_FOUND, and without an id an error.",
        &["StartContainer"],
        &[
            "StartContainer swallow",
            "StartContainer recode NOT_FOUND INTERNAL",
            "StartContainer after 1 swallow",
        ],
        |x| Box::pin(start_of_absent(x)),
    ),
    of_absent(
        "CRI-COD-002",
        "CreateContainer in an unknown sandbox is NOT_FOUND, and without a sandbox an error.",
        &["CreateContainer"],
        &[
            "CreateContainer swallow",
            "CreateContainer recode NOT_FOUND INTERNAL",
            "CreateContainer after 1 swallow",
        ],
        |x| Box::pin(create_in_absent(x)),
    ),
    of_absent(
        "CRI-COD-003",
        "ExecSync in an unknown container is NOT_FOUND, and without an id an error.",
        &["ExecSync"],
        &[
            "ExecSync swallow",
            "ExecSync recode NOT_FOUND INTERNAL",
            "ExecSync after 1 swallow",
        ],
        |x| Box::pin(exec_sync_in_absent(x)),
    ),
    of_absent(
        "CRI-COD-004",
        "Exec in an unknown container is NOT_FOUND, and without an id an error.",
        &["Exec"],
        &[
            "Exec swallow",
            "Exec recode NOT_FOUND INTERNAL",
            "Exec after 1 swallow",
        ],
        |x| Box::pin(exec_in_absent(x)),
    ),
    of_absent(
        "CRI-COD-005",
        "Attach to an unknown container is NOT_FOUND, and without an id an error.",
        &["Attach"],
        &[
            "Attach swallow",
            "Attach recode NOT_FOUND INTERNAL",
            "Attach after 1 swallow",
        ],
        |x| Box::pin(attach_to_absent(x)),
    ),
    of_absent(
        "CRI-COD-006",
        "PortForward to an unknown sandbox is NOT_FOUND, and without an id an error.",
        &["PortForward"],
        &[
            "PortForward swallow",
            "PortForward recode NOT_FOUND INTERNAL",
            "PortForward after 1 swallow",
        ],
        |x| Box::pin(port_forward_to_absent(x)),
    ),
    of_absent(
        "CRI-COD-007",
        "UpdateContainerResources of an unknown container is NOT_FOUND, and without an id an error.",
        &["UpdateContainerResources"],
        &[
            "UpdateContainerResources swallow",
            "UpdateContainerResources recode NOT_FOUND INTERNAL",
            "UpdateContainerResources after 1 swallow",
        ],
        |x| Box::pin(update_of_absent(x)),
    ),
    of_absent(
        "CRI-COD-008",
        "ReopenContainerLog of an unknown container is NOT_FOUND, and without an id an error.",
        &["ReopenContainerLog"],
        &[
            "ReopenContainerLog swallow",
            "ReopenContainerLog recode NOT_FOUND INTERNAL",
            "ReopenContainerLog after 1 swallow",
        ],
        |x| Box::pin(reopen_of_absent(x)),
    ),
    of_absent(
        "CRI-COD-009",
        "ContainerStats of an unknown container is NOT_FOUND, and without an id an error.",
        &["ContainerStats"],
        &[
            "ContainerStats swallow",
            "ContainerStats recode NOT_FOUND INTERNAL",
            "ContainerStats after 1 swallow",
        ],
        |x| Box::pin(container_stats_of_absent(x)),
    ),
    of_absent(
        "CRI-COD-010",
        "PodSandboxStats of an unknown sandbox is NOT_FOUND, and without an id an error.",
        &["PodSandboxStats"],
        &[
            "PodSandboxStats swallow",
            "PodSandboxStats recode NOT_FOUND INTERNAL",
            "PodSandboxStats after 1 swallow",
        ],
        |x| Box::pin(sandbox_stats_of_absent(x)),
    ),
    of_absent(
        "CRI-COD-011",
        "ContainerStatus and PodSandboxStatus without an id are errors.",
        &["ContainerStatus", "PodSandboxStatus"],
        &[
            "ContainerStatus swallow",
            "ContainerStatus answer INTERNAL",
            "PodSandboxStatus swallow",
            "PodSandboxStatus after 1 swallow",
        ],
        |x| Box::pin(status_of_absent(x)),
    ),
    nonsense(
        "CRI-COD-020",
        "ExecSync and Exec without a command are refused as INVALID_ARGUMENT.",
        &["ExecSync", "Exec"],
        &["ExecSync swallow", "Exec swallow"],
        |x| Box::pin(command_is_needed(x)),
    ),
    nonsense(
        "CRI-COD-021",
        "RunPodSandbox and CreateContainer without a configuration are refused as INVALID_ARGUMENT.",
        &["RunPodSandbox", "CreateContainer"],
        &[
            "RunPodSandbox if request config = null swallow",
            "CreateContainer swallow",
        ],
        |x| Box::pin(configuration_is_needed(x)),
    ),
    nonsense(
        "CRI-COD-022",
        "CreateContainer without an image is refused as INVALID_ARGUMENT.",
        &["CreateContainer"],
        &["CreateContainer swallow"],
        |x| Box::pin(image_is_needed(x)),
    ),
    nonsense(
        "CRI-COD-023",
        "PullImage of no image, and of a name that is none, is refused as INVALID_ARGUMENT.",
        &["PullImage"],
        &["PullImage swallow", "PullImage after 1 swallow"],
        |x| Box::pin(pull_needs_name(x)),
    ),
    nonsense(
        "CRI-COD-024",
        "A mount without a path in the container is refused as INVALID_ARGUMENT.",
        &["CreateContainer"],
        &[
            "CreateContainer request drop config.mounts",
            "CreateContainer request set config.mounts.container_path \"/somewhere\"",
        ],
        |x| Box::pin(mount_needs_path(x)),
    ),
];

type Body = for<'a> fn(&'a Context) -> Running<'a>;
type Words = &'static [&'static str];

const fn of_absent(
    id: &'static str,
    says: &'static str,
    calls: Words,
    faults: Words,
    body: Body,
) -> Rule {
    Rule {
        id,
        severity: Severity::Should,
        says,
        source: KUBELET,
        tags: &["codes", "input"],
        calls,
        faults,
        body,
    }
}

const fn nonsense(
    id: &'static str,
    says: &'static str,
    calls: Words,
    faults: Words,
    body: Body,
) -> Rule {
    Rule {
        id,
        severity: Severity::Should,
        says,
        source: API,
        tags: &["codes", "input"],
        calls,
        faults,
        body,
    }
}

/// Passes for one of these codes. Some runtimes say UNKNOWN wherever they have not thought of a code: that diverges.
fn coded<T: Debug>(what: &str, answer: Result<T, Status>, codes: &[Code]) -> Verdict {
    let status = refused(what, answer)?;
    let said = format!("{:?}: {}", status.code(), status.message());
    if codes.contains(&status.code()) {
        return Ok(());
    }
    match status.code() == Code::Unknown {
        true => Err(Outcome::Diverges(format!("{what}: {said}"))),
        false => failed(what, format!("one of the codes {codes:?}"), said),
    }
}

/// An id that nothing has, and none.
const ABSENT: [&str; 2] = [UNKNOWN, ""];

/// Makes the call for each id of [`ABSENT`], one after the other, and judges the answers.
async fn absent<T: Debug>(
    call: &str,
    [unknown, empty]: [impl Future<Output = Result<T, Status>>; 2],
) -> Verdict {
    let unknown = coded(
        &format!("{call} with an unknown id"),
        unknown.await,
        &[Code::NotFound],
    );
    let empty = coded(
        &format!("{call} with an empty id"),
        empty.await,
        &[Code::NotFound, Code::InvalidArgument],
    );
    all([unknown, empty])
}

/// Passes for INVALID_ARGUMENT; most other refusals diverge, since runtimes differ in when they look. INTERNAL and DATA_LOSS say
/// that the runtime is broken, which it is not.
fn invalid<T: Debug>(what: &str, answer: Result<T, Status>) -> Verdict {
    let status = refused(what, answer)?;
    let said = format!("{what}: {:?}: {}", status.code(), status.message());
    let code = status.code();
    if [Code::Internal, Code::DataLoss].contains(&code) {
        return failed(what, "INVALID_ARGUMENT", said);
    }
    match code == Code::InvalidArgument {
        true => Ok(()),
        false => Err(Outcome::Diverges(said)),
    }
}

/// The first failure, or what diverges.
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

async fn start_of_absent(x: &Context) -> Verdict {
    let answers = ABSENT.map(|id| async move { x.client.start(id).await });
    absent("StartContainer", answers).await
}

async fn create_in_absent(x: &Context) -> Verdict {
    let answers =
        ABSENT.map(|id| async move { x.client.create(id, x.forever("c"), x.sandbox()).await });
    absent("CreateContainer", answers).await
}

async fn exec_sync_in_absent(x: &Context) -> Verdict {
    let answers = ABSENT.map(|id| async move { x.client.exec(id, ["/bin/sh"], 10).await });
    absent("ExecSync", answers).await
}

fn exec_of(id: &str, cmd: &[&str]) -> v1::ExecRequest {
    v1::ExecRequest {
        container_id: id.to_owned(),
        cmd: cmd.iter().map(|word| (*word).to_owned()).collect(),
        stdout: true,
        ..Default::default()
    }
}

async fn exec_in_absent(x: &Context) -> Verdict {
    let answers = ABSENT.map(|id| async move {
        x.client
            .runtime
            .clone()
            .exec(exec_of(id, &["/bin/sh"]))
            .await
    });
    absent("Exec", answers).await
}

async fn attach_to_absent(x: &Context) -> Verdict {
    let answers = ABSENT.map(|id| async move {
        let request = v1::AttachRequest {
            container_id: id.to_owned(),
            stdout: true,
            ..Default::default()
        };
        x.client.runtime.clone().attach(request).await
    });
    absent("Attach", answers).await
}

async fn port_forward_to_absent(x: &Context) -> Verdict {
    let answers = ABSENT.map(|id| async move {
        let request = v1::PortForwardRequest {
            pod_sandbox_id: id.to_owned(),
            port: vec![80],
        };
        x.client.runtime.clone().port_forward(request).await
    });
    absent("PortForward", answers).await
}

async fn update_of_absent(x: &Context) -> Verdict {
    let answers = ABSENT.map(|id| async move {
        let request = v1::UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(v1::LinuxContainerResources::default()),
            ..Default::default()
        };

        x.client
            .runtime
            .clone()
            .update_container_resources(request)
            .await
    });
    absent("UpdateContainerResources", answers).await
}

async fn reopen_of_absent(x: &Context) -> Verdict {
    let answers = ABSENT.map(|id| async move { x.client.reopen_log(id).await });
    absent("ReopenContainerLog", answers).await
}

async fn container_stats_of_absent(x: &Context) -> Verdict {
    let answers = ABSENT.map(|id| async move {
        let request = v1::ContainerStatsRequest {
            container_id: id.to_owned(),
        };
        x.client.runtime.clone().container_stats(request).await
    });
    absent("ContainerStats", answers).await
}

async fn sandbox_stats_of_absent(x: &Context) -> Verdict {
    let answers = ABSENT.map(|id| async move {
        let request = v1::PodSandboxStatsRequest {
            pod_sandbox_id: id.to_owned(),
        };
        x.client.runtime.clone().pod_sandbox_stats(request).await
    });
    absent("PodSandboxStats", answers).await
}

async fn status_of_absent(x: &Context) -> Verdict {
    let codes = [Code::NotFound, Code::InvalidArgument];
    let mut verdicts = Vec::new();
    let container = x.client.container("").await;
    verdicts.push(coded("ContainerStatus without an id", container, &codes));
    // The second one finds a runtime that answers only the first call.
    for _ in 0..2 {
        let pod = x.client.pod("").await;
        verdicts.push(coded("PodSandboxStatus without an id", pod, &codes));
    }
    all(verdicts)
}

async fn command_is_needed(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    let sync = x.client.exec(&id, [""; 0], 10).await;
    let mut runtime = x.client.runtime.clone();
    let streamed = runtime.exec(exec_of(&id, &[])).await;
    let streamed = match streamed {
        // The command is looked at when the URL is opened.
        Ok(answer) if !answer.get_ref().url.is_empty() => {
            Err(Outcome::Diverges("Exec gives a URL for it".to_owned()))
        }
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

async fn image_is_needed(x: &Context) -> Verdict {
    let pod = x.pod().await?;
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
    all([
        invalid("PullImage of no image", none),
        invalid("PullImage of a name that is none", bad),
    ])
}

async fn mount_needs_path(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let mut config = x.forever("c");
    config.mounts.push(v1::Mount {
        host_path: x.shared.directory.display().to_string(),
        ..Default::default()
    });
    match pod.create(config).await {
        Ok(id) => match x.client.start(&id).await {
            Err(status) => Err(Outcome::Diverges(format!(
                "StartContainer refuses it: {}",
                status.message()
            ))),
            Ok(()) => failed(
                "a mount without a path in the container",
                "refused by CreateContainer or StartContainer",
                "the container runs",
            ),
        },
        answer => invalid("CreateContainer with a mount without a path", answer),
    }
}
