//! Rules of error messages: in the events of a pod, users see only these.

use std::fmt::Debug;

use crate::prelude::*;
use crate::rules::calls::codes::exec_of;
use crate::rules::sandbox::UNKNOWN;

pub(crate) const RULES: &[Rule] = rules! {
    May "CRI-COD-025": "The error for a missing sandbox, container or runtime handler contains its id or name, and has the code NOT_FOUND, INVALID_ARGUMENT or FAILED_PRECONDITION.",
        KUBELET, tags ["codes", "kubelet", "messages"], calls [ContainerStatus, PodSandboxStatus, RunPodSandbox, CreateContainer, StartContainer, ExecSync, Exec, Attach, PortForward, UpdateContainerResources, ReopenContainerLog, ContainerStats],
        errors_name_absent_objects, faults [
            "ContainerStatus recode NOT_FOUND NOT_FOUND \"no such container\"",
            "PodSandboxStatus,CreateContainer,PortForward recode NOT_FOUND NOT_FOUND \"no such sandbox\"",
            "StartContainer recode NOT_FOUND NOT_FOUND \"\"",
            "ExecSync recode NOT_FOUND NOT_FOUND \"container not found\"",
            "Exec recode NOT_FOUND NOT_FOUND \"container not found\"",
            "Attach recode NOT_FOUND NOT_FOUND \"container not found\"",
            "UpdateContainerResources recode NOT_FOUND NOT_FOUND \"container not found\"",
            "ReopenContainerLog recode NOT_FOUND NOT_FOUND \"container not found\"",
            "ContainerStats recode NOT_FOUND NOT_FOUND \"container not found\"",
            "PodSandboxStats recode NOT_FOUND NOT_FOUND \"sandbox not found\"",
            "CheckpointContainer answer NOT_FOUND \"no such container\"",
            "UpdatePodSandboxResources answer NOT_FOUND \"\"",
            "RunPodSandbox if request.runtime_handler == \"no-such-handler\" answer INVALID_ARGUMENT \"bad handler\"",
            "RunPodSandbox if request.runtime_handler == \"no-such-handler\" answer INTERNAL \"no-such-handler\"",
        ];
    Should "CRI-COD-026": "The error for a missing image or program contains its name, and has a code other than INTERNAL that describes the cause.",
        KUBELET, tags ["codes", "kubelet", "messages", "pull"], calls [PullImage, CreateContainer],
        errors_name_what_is_missing given [pod], faults [
            "PullImage fail NOT_FOUND \"\"",
            "PullImage fail NOT_FOUND \"pull failed\"",
            "CreateContainer if request.config.image.image prefix \"127.0.0.1:1/\" answer NOT_FOUND \"no such image\"",
            "CreateContainer if request.config.image.image prefix \"127.0.0.1:1/\" answer DATA_LOSS \"127.0.0.1:1/no-such/image:1\"",
            "StartContainer fail NOT_FOUND \"no such file\"",
        ];
    Should "CRI-COD-027": "The error for a container or sandbox in the wrong state contains a message, and has the code FAILED_PRECONDITION, NOT_FOUND or INVALID_ARGUMENT.",
        KUBELET, tags ["codes", "kubelet", "messages", "state"], calls [StartContainer, ExecSync, Exec, Attach, ReopenContainerLog, CreateContainer, PortForward],
        errors_name_states given [pod], faults [
            "StartContainer after 1 answer FAILED_PRECONDITION \"\"",
            "ExecSync answer FAILED_PRECONDITION \"\"",
            "Exec answer FAILED_PRECONDITION \"\"",
            "Attach answer NOT_FOUND \"\"",
            "ReopenContainerLog answer FAILED_PRECONDITION \" \"",
            "CreateContainer after 1 answer DATA_LOSS \"it has stopped\"",
            "PortForward answer INTERNAL \"broken\"",
        ];
};

/// Codes for a missing object.
const ABSENT: &[Code] = &[Code::NotFound, Code::InvalidArgument, Code::FailedPrecondition];
/// Codes for an image that cannot be pulled now: the registry may be down, or require credentials.
const UNAVAILABLE: &[Code] = &[
    Code::NotFound,
    Code::InvalidArgument,
    Code::FailedPrecondition,
    Code::Unavailable,
    Code::PermissionDenied,
    Code::Unauthenticated,
];

/// The result of a call that cannot succeed, the name that its error must contain, and the permitted codes.
struct Refusal {
    call: &'static str,
    name: &'static str,
    status: Option<Status>,
    codes: &'static [Code],
}

/// The status is `None` if the call succeeds or is unimplemented: other rules check that.
fn refusal<T: Debug>(
    call: &'static str,
    name: &'static str,
    codes: &'static [Code],
    answer: Result<T, Status>,
) -> Refusal {
    let status = answer.err().filter(|status| status.code() != Code::Unimplemented);
    Refusal { call, name, status, codes }
}

/// Fails unless each error has a message with the required name, and a permitted code. UNKNOWN diverges: some runtimes set no code.
fn expect_messages(refusals: impl IntoIterator<Item = Refusal>) -> Verdict {
    let mut unknown = Vec::new();
    for Refusal { call, name, status, codes } in refusals {
        let Some(status) = status else {
            continue;
        };
        has_message(call, &status)?;
        let error = format!("{:?}: {}", status.code(), status.message());
        let names = status.message().contains(name);
        ensure_message(
            names,
            format!("the error of {call}"),
            format!("a message with {name}"),
            &error,
        )?;
        if status.code() == Code::Unknown {
            unknown.push(format!("{call}: {error}"));
            continue;
        }
        let fits = codes.contains(&status.code());
        let expected = format!("one of the codes {codes:?}");
        ensure_message(fits, format!("the error of {call}"), expected, &error)?;
    }
    match unknown.is_empty() {
        true => Ok(()),
        false => diverges(unknown.join("; ")),
    }
}

fn ensure_message(holds: bool, what: String, expected: String, error: &str) -> Verdict {
    if holds { Ok(()) } else { failed(what, expected, error) }
}

const HANDLER: &str = "no-such-handler";

async fn errors_name_absent_objects(x: &Context) -> Verdict {
    let absent = || UNKNOWN.to_owned();
    let handled =
        v1::RunPodSandboxRequest { config: Some(x.sandbox()), runtime_handler: HANDLER.to_owned() };
    let attach = v1::AttachRequest { container_id: absent(), stdout: true, ..Default::default() };
    let forward = v1::PortForwardRequest { pod_sandbox_id: absent(), port: vec![80] };
    let limits = v1::UpdateContainerResourcesRequest {
        container_id: absent(),
        linux: Some(v1::LinuxContainerResources::default()),
        ..Default::default()
    };
    let stats = v1::ContainerStatsRequest { container_id: absent() };
    let pod_stats = v1::PodSandboxStatsRequest { pod_sandbox_id: absent() };
    let checkpoint = v1::CheckpointContainerRequest {
        container_id: absent(),
        location: x.shared.directory.join("none.tar").display().to_string(),
        ..Default::default()
    };
    let resources =
        v1::UpdatePodSandboxResourcesRequest { pod_sandbox_id: absent(), ..Default::default() };
    let (client, mut runtime) = (&x.client, x.client.runtime.clone());
    let of_id = |call, error: Result<(), Status>| refusal(call, UNKNOWN, ABSENT, error);
    expect_messages([
        refusal("RunPodSandbox", HANDLER, ABSENT, runtime.run_pod_sandbox(handled).await),
        of_id("ContainerStatus", client.container(UNKNOWN).await.map(drop)),
        of_id("PodSandboxStatus", client.pod(UNKNOWN).await.map(drop)),
        of_id(
            "CreateContainer",
            client.create(UNKNOWN, x.forever("c"), x.sandbox()).await.map(drop),
        ),
        of_id("StartContainer", client.start(UNKNOWN).await),
        of_id("ExecSync", client.exec(UNKNOWN, ["/bin/sh"], 10).await.map(drop)),
        of_id("Exec", runtime.exec(exec_of(UNKNOWN, &["/bin/sh"])).await.map(drop)),
        of_id("Attach", runtime.attach(attach).await.map(drop)),
        of_id("PortForward", runtime.port_forward(forward).await.map(drop)),
        of_id(
            "UpdateContainerResources",
            runtime.update_container_resources(limits).await.map(drop),
        ),
        of_id("ReopenContainerLog", client.reopen_log(UNKNOWN).await),
        of_id("ContainerStats", runtime.container_stats(stats).await.map(drop)),
        of_id("PodSandboxStats", runtime.pod_sandbox_stats(pod_stats).await.map(drop)),
        of_id("CheckpointContainer", runtime.checkpoint_container(checkpoint).await.map(drop)),
        of_id(
            "UpdatePodSandboxResources",
            runtime.update_pod_sandbox_resources(resources).await.map(drop),
        ),
    ])
}

/// An image in a registry that does not exist: port 1 of this machine.
const IMAGE: &str = "127.0.0.1:1/no-such/image:1";
const PROGRAM: &str = "/no/such/program";

async fn errors_name_what_is_missing(x: &Context, pod: Pod) -> Verdict {
    let mut of_image = x.forever("i");
    of_image.image.get_or_insert_default().image = IMAGE.to_owned();
    let mut of_program = x.forever("p");
    of_program.command = vec![PROGRAM.to_owned()];
    let started = match pod.create(of_program).await {
        Ok(id) => x.client.start(&id).await,
        Err(status) => Err(status),
    };
    expect_messages([
        refusal("PullImage", IMAGE, UNAVAILABLE, x.client.pull(IMAGE).await),
        refusal("CreateContainer with the image", IMAGE, ABSENT, pod.create(of_image).await),
        refusal("the start of a missing program", PROGRAM, UNAVAILABLE, started),
    ])
}

/// Codes for an object in the wrong state.
const STATES: &[Code] = &[Code::FailedPrecondition, Code::NotFound, Code::InvalidArgument];

async fn errors_name_states(x: &Context, pod: Pod) -> Verdict {
    let id = pod.start(x.script("c", "exit 0")).await?;
    x.exited(&id).await?;
    let mut runtime = x.client.runtime.clone();
    let cmd = ["/bin/true"];
    let attach = v1::AttachRequest { container_id: id.clone(), stdout: true, ..Default::default() };
    let forward = v1::PortForwardRequest { pod_sandbox_id: pod.id.clone(), port: vec![80] };
    let of_container = [
        refusal("StartContainer", "", STATES, x.client.start(&id).await),
        refusal("ExecSync", "", STATES, x.client.exec(&id, cmd, 10).await),
        refusal("Exec", "", STATES, runtime.exec(exec_of(&id, &cmd)).await),
        refusal("Attach", "", STATES, runtime.attach(attach).await),
        refusal("ReopenContainerLog", "", STATES, x.client.reopen_log(&id).await),
    ];
    x.client.stop_pod(&pod.id).await?;
    let of_pod = [
        refusal("CreateContainer", "", STATES, pod.create(x.forever("d")).await),
        refusal("PortForward", "", STATES, runtime.port_forward(forward).await),
    ];
    expect_messages(of_container.into_iter().chain(of_pod))
}
