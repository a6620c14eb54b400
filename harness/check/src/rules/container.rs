//! Rules of the container lifecycle: create, start, exit, remove, and the names that containers reserve.

pub(crate) mod echo;
pub(crate) mod id_prefix;
pub(crate) mod states;

use crate::prelude::*;
use crate::rules::sandbox::UNKNOWN;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-CTR-001": "When CreateContainer returns, ContainerStatus and ListContainers report the container as CONTAINER_CREATED.",
        CRITEST, tags ["kubelet", "state"], calls [CreateContainer, ContainerStatus, ListContainers],
        created_container_does_not_run given [pod], faults [
            "ContainerStatus set status.state \"CONTAINER_RUNNING\"",
            "ListContainers set containers.state \"CONTAINER_UNKNOWN\"",
            "CreateContainer swallow",
        ];
    Must "CRI-CTR-002": "When StartContainer returns, ContainerStatus and ListContainers report the container as CONTAINER_RUNNING.",
        CRITEST, tags ["kubelet", "state"], calls [StartContainer, ContainerStatus, ListContainers],
        started_container_runs given [pod], faults [
            "StartContainer swallow",
            "ContainerStatus set status.state \"CONTAINER_CREATED\"",
            "ListContainers set containers.state \"CONTAINER_CREATED\"",
        ];
    Must "CRI-CTR-003": "A container whose process exits with 0 is CONTAINER_EXITED with exit code 0 and reason Completed.",
        KUBELET, tags ["kubelet", "state", "exit"], calls [ContainerStatus],
        success_is_completed, faults [
            "ContainerStatus drop status.reason",
            "ContainerStatus set status.exit_code 1",
            "ContainerStatus set status.state \"CONTAINER_RUNNING\"",
        ];
    Must "CRI-CTR-004": "A container whose process fails is CONTAINER_EXITED with its exit code and reason Error.",
        KUBELET, tags ["kubelet", "state", "exit"], calls [ContainerStatus],
        failure_has_exit_code, faults [
            "ContainerStatus drop status.exit_code",
            "ContainerStatus set status.reason \"Completed\"",
            "ListContainers set containers.state \"CONTAINER_RUNNING\"",
        ];
    Must "CRI-CTR-005": "A container killed by a signal has the exit code 128 plus the signal number.",
        KUBELET, tags ["kubelet", "exit"], calls [ContainerStatus],
        killed_container_has_code_of_signal given [container], faults [
            "ContainerStatus set status.exit_code 9",
            "ContainerStatus set status.exit_code -1",
        ];
    Must "CRI-CTR-006": "ContainerStatus of an unknown container returns NOT_FOUND.",
        KUBELET, tags ["kubelet", "codes"], calls [ContainerStatus],
        status_of_unknown_container_is_not_found, faults [
            "ContainerStatus recode NOT_FOUND UNKNOWN",
            "ContainerStatus recode NOT_FOUND OK",
        ];
    Must "CRI-CTR-007": "RemoveContainer of a removed or unknown container succeeds.",
        API, tags ["kubelet", "idempotence"], calls [RemoveContainer],
        remove_of_unknown_container_succeeds, faults [
            "RemoveContainer answer NOT_FOUND",
            "RemoveContainer after 2 answer NOT_FOUND",
        ];
    Must "CRI-CTR-008": "ListContainers omits a removed container, and ContainerStatus of a removed container returns NOT_FOUND.",
        CRITEST, tags ["kubelet", "codes"], calls [RemoveContainer, ContainerStatus, ListContainers],
        removed_container_is_gone given [pod], faults [
            "RemoveContainer swallow",
            "ContainerStatus recode NOT_FOUND INTERNAL",
        ];
    Must "CRI-CTR-009": "RemoveContainer forcibly removes a running container.",
        API, tags ["kubelet", "state"], calls [RemoveContainer],
        running_container_is_removed given [container], faults [
            "RemoveContainer swallow",
            "RemoveContainer answer FAILED_PRECONDITION",
        ];
    Must "CRI-CTR-010": "RemoveContainer removes a container that was never started.",
        CRITEST, tags ["kubelet", "state"], calls [RemoveContainer],
        created_container_is_removed given [pod], faults [
            "RemoveContainer swallow",
            "RemoveContainer answer FAILED_PRECONDITION",
        ];
    Must "CRI-CTR-011": "A container can be started only once: StartContainer of a running or exited container is refused.",
        API, tags ["state"], calls [StartContainer],
        container_is_started_once given [container], faults [
            "StartContainer after 1 swallow",
            "StartContainer after 2 swallow",
        ];
    Must "CRI-CTR-012": "StartContainer of an unknown container is refused.",
        API, tags ["codes"], calls [StartContainer],
        start_of_unknown_container_is_refused, faults ["StartContainer swallow"];
    Must "CRI-CTR-013": "CreateContainer in an unknown sandbox is refused.",
        API, tags ["codes"], calls [CreateContainer],
        create_in_unknown_sandbox_is_refused, faults ["CreateContainer swallow"];
    Must "CRI-CTR-014": "A second CreateContainer with the same metadata is refused, or returns the id of the first container.",
        CONTAINERD, tags ["kubelet", "names", "idempotence"], calls [CreateContainer],
        same_metadata_makes_no_second_container given [pod], faults [
            "CreateContainer after 1 request set config.metadata.attempt 7",
        ];
    Must "CRI-CTR-015": "The next attempt of a container can run while ContainerStatus still reports the exited attempt.",
        KUBELET, tags ["kubelet", "names", "restart"], calls [CreateContainer, StartContainer, ContainerStatus],
        next_attempt_runs_beside_exited_one given [pod], faults [
            "CreateContainer after 1 answer ALREADY_EXISTS",
            "ContainerStatus after 1 recode OK NOT_FOUND",
            "CreateContainer after 1 request set config.metadata.attempt 5",
        ];
    Must "CRI-CTR-016": "The name of a removed container can be reused.",
        CRIO, tags ["names"], calls [CreateContainer, RemoveContainer],
        name_of_removed_container_is_free given [pod], faults ["CreateContainer after 1 answer ALREADY_EXISTS"];
    Must "CRI-CTR-017": "CreateContainer or StartContainer refuses a command that does not exist; the container is not reported as started, and can be removed.",
        CRIO, tags ["kubelet", "exit"], calls [CreateContainer],
        missing_command_is_refused given [pod], faults [
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"sleep 100\"]",
            "ContainerStatus set status.state \"CONTAINER_RUNNING\"",
            "ListContainers set containers.state \"CONTAINER_RUNNING\"",
            "ContainerStatus drop status.exit_code",
            "ContainerStatus set status.reason \"Completed\"",
            "RemoveContainer answer FAILED_PRECONDITION",
        ];
    Must "CRI-CTR-018": "CreateContainer without metadata is refused, and the runtime keeps serving.",
        CONTAINERD, tags ["input"], calls [CreateContainer],
        container_without_metadata_is_refused given [pod], faults [
            "CreateContainer request set config.metadata {\"name\": \"a\"}",
        ];
    Must "CRI-CTR-019": "CreateContainer refuses a missing image, which the client must pull first.",
        API, tags ["kubelet", "image"], calls [CreateContainer],
        missing_image_is_refused given [pod], faults ["CreateContainer swallow"];
};

async fn created_container_does_not_run(x: &Context, pod: Pod) -> Verdict {
    let id = pod.create(x.forever("c")).await?;
    ensure(!id.is_empty(), "the id", "not empty", &id)?;
    x.container_is(&id, ContainerState::ContainerCreated).await
}

async fn started_container_runs(x: &Context, pod: Pod) -> Verdict {
    let id = pod.start(x.forever("c")).await?;
    x.container_is(&id, ContainerState::ContainerRunning).await
}

async fn ends(x: &Context, script: &str, code: i32, reason: &str) -> Verdict {
    let pod = x.pod().await?;
    let id = pod.start(x.script("c", script)).await?;
    let status = x.exited(&id).await?;
    equal("the exit code", &status.exit_code, &code)?;
    equal("the reason", status.reason.as_str(), reason)?;
    x.container_is(&id, ContainerState::ContainerExited).await
}

async fn success_is_completed(x: &Context) -> Verdict {
    ends(x, "exit 0", 0, "Completed").await
}

async fn failure_has_exit_code(x: &Context) -> Verdict {
    ends(x, "exit 77", 77, "Error").await
}

async fn killed_container_has_code_of_signal(x: &Context, id: String) -> Verdict {
    x.client.stop(&id, 0).await?;
    let status = x.exited(&id).await?;
    equal("the exit code after SIGKILL", &status.exit_code, &137)
}

async fn status_of_unknown_container_is_not_found(x: &Context) -> Verdict {
    let answer = x.client.container(UNKNOWN).await;
    refused_with("ContainerStatus of an unknown container", answer, Code::NotFound)
}

async fn remove_of_unknown_container_succeeds(x: &Context) -> Verdict {
    x.client.remove(UNKNOWN).await?;
    let pod = x.pod().await?;
    let id = pod.create(x.forever("c")).await?;
    x.client.remove(&id).await?;
    Ok(x.client.remove(&id).await?)
}

async fn expect_removed(x: &Context, id: &str) -> Verdict {
    equal("the removed container in the list", &x.listed_container(id).await?, &None)?;
    let answer = x.client.container(id).await;
    refused_with("ContainerStatus of a removed container", answer, Code::NotFound)
}

async fn removed_container_is_gone(x: &Context, pod: Pod) -> Verdict {
    let id = pod.start(x.script("c", "exit 0")).await?;
    x.exited(&id).await?;
    x.client.remove(&id).await?;
    expect_removed(x, &id).await
}

async fn running_container_is_removed(x: &Context, id: String) -> Verdict {
    x.client.remove(&id).await?;
    expect_removed(x, &id).await
}

async fn created_container_is_removed(x: &Context, pod: Pod) -> Verdict {
    let id = pod.create(x.forever("c")).await?;
    x.client.remove(&id).await?;
    expect_removed(x, &id).await
}

async fn container_is_started_once(x: &Context, id: String) -> Verdict {
    refused("StartContainer of a running container", x.client.start(&id).await)?;
    x.client.stop(&id, 0).await?;
    refused("StartContainer of an exited container", x.client.start(&id).await)?;
    x.container_is(&id, ContainerState::ContainerExited).await
}

async fn start_of_unknown_container_is_refused(x: &Context) -> Verdict {
    let answer = x.client.start(UNKNOWN).await;
    refused("StartContainer of an unknown container", answer).map(drop)
}

async fn create_in_unknown_sandbox_is_refused(x: &Context) -> Verdict {
    let answer = x.client.create(UNKNOWN, x.forever("c"), x.sandbox()).await;
    refused("CreateContainer in an unknown sandbox", answer).map(drop)
}

async fn same_metadata_makes_no_second_container(x: &Context, pod: Pod) -> Verdict {
    let first = pod.create(x.forever("c")).await?;
    match pod.create(x.forever("c")).await {
        Ok(second) => equal("the id of the second CreateContainer", &second, &first),
        answer => refused("the second CreateContainer", answer).map(drop),
    }
}

async fn next_attempt_runs_beside_exited_one(x: &Context, pod: Pod) -> Verdict {
    let first = pod.start(x.script("c", "exit 3")).await?;
    x.exited(&first).await?;
    let mut next = x.forever("c");
    next.metadata.get_or_insert_default().attempt = 1;
    let second = pod.start(next).await?;
    let attempt = x.client.container(&second).await?.metadata.unwrap_or_default().attempt;
    equal("the attempt of the second container", &attempt, &1)?;
    let status = x.client.container(&first).await?;
    equal("the exit code of the first container", &status.exit_code, &3)?;
    x.container_is(&second, ContainerState::ContainerRunning).await
}

async fn name_of_removed_container_is_free(x: &Context, pod: Pod) -> Verdict {
    let first = pod.create(x.forever("c")).await?;
    x.client.remove(&first).await?;
    let second = pod.create(x.forever("c")).await?;
    ensure(second != first, "the id of the second container", "a new id", second)
}

/// Fails if a container whose start was refused is reported as running or as completed.
async fn never_ran(x: &Context, id: &str) -> Verdict {
    let status = x.client.container(id).await?;
    match status.state() {
        ContainerState::ContainerExited => {
            let has_failure = status.exit_code != 0
                && !["", "Completed"].contains(&status.reason.as_str())
                && status.finished_at > 0;
            let expected = "a nonzero exit code, a reason and a finish time";
            ensure(has_failure, "the status after a failed start", expected, &status)?;
        }
        // Some runtimes keep it created.
        ContainerState::ContainerCreated => equal("started_at", &status.started_at, &0)?,
        ContainerState::ContainerRunning | ContainerState::ContainerUnknown => {
            let expected = "CONTAINER_EXITED or CONTAINER_CREATED";
            return failed("the state after a failed start", expected, format!("{status:?}"));
        }
    }
    x.container_is(id, status.state()).await
}

async fn missing_command_is_refused(x: &Context, pod: Pod) -> Verdict {
    let mut config = x.forever("c");
    config.command = vec!["/no/such/command".to_owned()];
    match pod.create(config).await {
        Ok(id) => {
            refused("StartContainer of a missing command", x.client.start(&id).await)?;
            never_ran(x, &id).await?;
            x.client.remove(&id).await?;
        }
        answer => drop(refused("CreateContainer of a missing command", answer)?),
    }
    let id = pod.create(x.forever("c")).await?;
    x.client.start(&id).await?;
    x.client.remove(&id).await?;
    Ok::<(), Outcome>(())
}

async fn container_without_metadata_is_refused(x: &Context, pod: Pod) -> Verdict {
    let mut config = x.forever("c");
    config.metadata = None;
    refused("CreateContainer without metadata", pod.create(config).await)?;
    x.client.version().await?;
    Ok(())
}

async fn missing_image_is_refused(x: &Context, pod: Pod) -> Verdict {
    let mut config = x.forever("c");
    config.image.get_or_insert_default().image = "crib.invalid/no/such:image".to_owned();
    refused("CreateContainer of a missing image", pod.create(config).await).map(drop)
}
