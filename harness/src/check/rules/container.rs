//! Rules of the life of containers: create, start, exit, remove, and the names they hold.

use cri::v1::ContainerState;
use tonic::Code;

use super::sandbox::UNKNOWN;
use crate::check::context::Context;
use crate::check::outcome::{Outcome, Verdict, ensure, equal, failed, refused, refused_with};
use crate::check::rule::sources::{API, CONTAINERD, CRIO, CRITEST, KUBELET};
use crate::check::rule::{Rule, Severity};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "CRI-CTR-001",
        severity: Severity::Must,
        says: "A container is created and does not run when CreateContainer returns.",
        source: CRITEST,
        tags: &["kubelet", "state"],
        calls: &["CreateContainer", "ContainerStatus", "ListContainers"],
        faults: &[
            "ContainerStatus set status.state \"CONTAINER_RUNNING\"",
            "ListContainers set containers.state \"CONTAINER_UNKNOWN\"",
            "CreateContainer swallow",
        ],
        body: |x| Box::pin(created_container_does_not_run(x)),
    },
    Rule {
        id: "CRI-CTR-002",
        severity: Severity::Must,
        says: "A container runs when StartContainer returns, in its status and in the list.",
        source: CRITEST,
        tags: &["kubelet", "state"],
        calls: &["StartContainer", "ContainerStatus", "ListContainers"],
        faults: &[
            "StartContainer swallow",
            "ContainerStatus set status.state \"CONTAINER_CREATED\"",
            "ListContainers set containers.state \"CONTAINER_CREATED\"",
        ],
        body: |x| Box::pin(started_container_runs(x)),
    },
    Rule {
        id: "CRI-CTR-003",
        severity: Severity::Must,
        says: "A container whose process ended with 0 is exited, with exit code 0 and the reason Completed.",
        source: KUBELET,
        tags: &["kubelet", "state", "exit"],
        calls: &["ContainerStatus"],
        faults: &[
            "ContainerStatus drop status.reason",
            "ContainerStatus set status.exit_code 1",
            "ContainerStatus set status.state \"CONTAINER_RUNNING\"",
        ],
        body: |x| Box::pin(success_is_completed(x)),
    },
    Rule {
        id: "CRI-CTR-004",
        severity: Severity::Must,
        says: "A container whose process failed has its exit code and the reason Error.",
        source: KUBELET,
        tags: &["kubelet", "state", "exit"],
        calls: &["ContainerStatus"],
        faults: &[
            "ContainerStatus drop status.exit_code",
            "ContainerStatus set status.reason \"Completed\"",
            "ListContainers set containers.state \"CONTAINER_RUNNING\"",
        ],
        body: |x| Box::pin(failure_has_exit_code(x)),
    },
    Rule {
        id: "CRI-CTR-005",
        severity: Severity::Must,
        says: "A container that a signal killed has the exit code 128 plus the signal's number.",
        source: KUBELET,
        tags: &["kubelet", "exit"],
        calls: &["ContainerStatus"],
        faults: &[
            "ContainerStatus set status.exit_code 9",
            "ContainerStatus set status.exit_code -1",
        ],
        body: |x| Box::pin(killed_container_has_code_of_signal(x)),
    },
    Rule {
        id: "CRI-CTR-006",
        severity: Severity::Must,
        says: "ContainerStatus of an unknown container is NOT_FOUND.",
        source: KUBELET,
        tags: &["kubelet", "codes"],
        calls: &["ContainerStatus"],
        faults: &[
            "ContainerStatus recode NOT_FOUND UNKNOWN",
            "ContainerStatus recode NOT_FOUND OK",
        ],
        body: |x| Box::pin(status_of_unknown_container_is_not_found(x)),
    },
    Rule {
        id: "CRI-CTR-007",
        severity: Severity::Must,
        says: "RemoveContainer of a container that is gone, or never was, succeeds.",
        source: API,
        tags: &["kubelet", "idempotence"],
        calls: &["RemoveContainer"],
        faults: &[
            "RemoveContainer answer NOT_FOUND",
            "RemoveContainer after 2 answer NOT_FOUND",
        ],
        body: |x| Box::pin(remove_of_unknown_container_succeeds(x)),
    },
    Rule {
        id: "CRI-CTR-008",
        severity: Severity::Must,
        says: "A removed container is in no list, and its status is NOT_FOUND.",
        source: CRITEST,
        tags: &["kubelet", "codes"],
        calls: &["RemoveContainer", "ContainerStatus", "ListContainers"],
        faults: &[
            "RemoveContainer swallow",
            "ContainerStatus recode NOT_FOUND INTERNAL",
        ],
        body: |x| Box::pin(removed_container_is_gone(x)),
    },
    Rule {
        id: "CRI-CTR-009",
        severity: Severity::Must,
        says: "RemoveContainer removes a container that runs, by force.",
        source: API,
        tags: &["kubelet", "state"],
        calls: &["RemoveContainer"],
        faults: &[
            "RemoveContainer swallow",
            "RemoveContainer answer FAILED_PRECONDITION",
        ],
        body: |x| Box::pin(running_container_is_removed(x)),
    },
    Rule {
        id: "CRI-CTR-010",
        severity: Severity::Must,
        says: "RemoveContainer removes a container that was never started.",
        source: CRITEST,
        tags: &["kubelet", "state"],
        calls: &["RemoveContainer"],
        faults: &[
            "RemoveContainer swallow",
            "RemoveContainer answer FAILED_PRECONDITION",
        ],
        body: |x| Box::pin(created_container_is_removed(x)),
    },
    Rule {
        id: "CRI-CTR-011",
        severity: Severity::Must,
        says: "A container is started once: StartContainer of a running or exited one is refused.",
        source: API,
        tags: &["state"],
        calls: &["StartContainer"],
        faults: &[
            "StartContainer after 1 swallow",
            "StartContainer after 2 swallow",
        ],
        body: |x| Box::pin(container_is_started_once(x)),
    },
    Rule {
        id: "CRI-CTR-012",
        severity: Severity::Must,
        says: "StartContainer of an unknown container is refused.",
        source: API,
        tags: &["codes"],
        calls: &["StartContainer"],
        faults: &["StartContainer swallow"],
        body: |x| Box::pin(start_of_unknown_container_is_refused(x)),
    },
    Rule {
        id: "CRI-CTR-013",
        severity: Severity::Must,
        says: "CreateContainer in an unknown sandbox is refused.",
        source: API,
        tags: &["codes"],
        calls: &["CreateContainer"],
        faults: &["CreateContainer swallow"],
        body: |x| Box::pin(create_in_unknown_sandbox_is_refused(x)),
    },
    Rule {
        id: "CRI-CTR-014",
        severity: Severity::Must,
        says: "A second CreateContainer with the same metadata makes no second container: it is refused, or returns the first one.",
        source: CONTAINERD,
        tags: &["kubelet", "names", "idempotence"],
        calls: &["CreateContainer"],
        faults: &["CreateContainer after 1 request set config.metadata.attempt 7"],
        body: |x| Box::pin(same_metadata_makes_no_second_container(x)),
    },
    Rule {
        id: "CRI-CTR-015",
        severity: Severity::Must,
        says: "The next attempt of a container runs beside the exited one, which keeps its status.",
        source: KUBELET,
        tags: &["kubelet", "names", "restart"],
        calls: &["CreateContainer", "StartContainer", "ContainerStatus"],
        faults: &[
            "CreateContainer after 1 answer ALREADY_EXISTS",
            "ContainerStatus after 1 recode OK NOT_FOUND",
            "CreateContainer after 1 request set config.metadata.attempt 5",
        ],
        body: |x| Box::pin(next_attempt_runs_beside_exited_one(x)),
    },
    Rule {
        id: "CRI-CTR-016",
        severity: Severity::Must,
        says: "The name of a removed container can be used again.",
        source: CRIO,
        tags: &["names"],
        calls: &["CreateContainer", "RemoveContainer"],
        faults: &["CreateContainer after 1 answer ALREADY_EXISTS"],
        body: |x| Box::pin(name_of_removed_container_is_free(x)),
    },
    Rule {
        id: "CRI-CTR-017",
        severity: Severity::Must,
        says: "A command that does not exist is refused by CreateContainer or StartContainer, the container is not told to have run, and can be removed.",
        source: CRIO,
        tags: &["kubelet", "exit"],
        calls: &["CreateContainer"],
        faults: &[
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"sleep 100\"]",
            "ContainerStatus set status.state \"CONTAINER_RUNNING\"",
            "ListContainers set containers.state \"CONTAINER_RUNNING\"",
            "ContainerStatus drop status.exit_code",
            "ContainerStatus set status.reason \"Completed\"",
            "RemoveContainer answer FAILED_PRECONDITION",
        ],
        body: |x| Box::pin(missing_command_is_refused(x)),
    },
    Rule {
        id: "CRI-CTR-018",
        severity: Severity::Must,
        says: "CreateContainer without metadata is refused, and the runtime goes on serving.",
        source: CONTAINERD,
        tags: &["input"],
        calls: &["CreateContainer"],
        faults: &["CreateContainer request set config.metadata {\"name\": \"a\"}"],
        body: |x| Box::pin(container_without_metadata_is_refused(x)),
    },
    Rule {
        id: "CRI-CTR-019",
        severity: Severity::Must,
        says: "CreateContainer of an image that is not there is refused: pulling is the client's business.",
        source: API,
        tags: &["kubelet", "image"],
        calls: &["CreateContainer"],
        faults: &["CreateContainer swallow"],
        body: |x| Box::pin(missing_image_is_refused(x)),
    },
];

async fn created_container_does_not_run(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let id = pod.create(x.forever("c")).await?;
    ensure(!id.is_empty(), "the id", "not empty", &id)?;
    x.container_is(&id, ContainerState::ContainerCreated).await
}

async fn started_container_runs(x: &Context) -> Verdict {
    let pod = x.pod().await?;
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

async fn killed_container_has_code_of_signal(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    x.client.stop(&id, 0).await?;
    let status = x.exited(&id).await?;
    equal("the exit code after SIGKILL", &status.exit_code, &137)
}

async fn status_of_unknown_container_is_not_found(x: &Context) -> Verdict {
    let answer = x.client.container(UNKNOWN).await;
    refused_with(
        "ContainerStatus of an unknown container",
        answer,
        Code::NotFound,
    )
}

async fn remove_of_unknown_container_succeeds(x: &Context) -> Verdict {
    x.client.remove(UNKNOWN).await?;
    let pod = x.pod().await?;
    let id = pod.create(x.forever("c")).await?;
    x.client.remove(&id).await?;
    Ok(x.client.remove(&id).await?)
}

async fn gone(x: &Context, id: &str) -> Verdict {
    equal(
        "the removed container in the list",
        &x.listed_container(id).await?,
        &None,
    )?;
    let answer = x.client.container(id).await;
    refused_with(
        "ContainerStatus of a removed container",
        answer,
        Code::NotFound,
    )
}

async fn removed_container_is_gone(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let id = pod.start(x.script("c", "exit 0")).await?;
    x.exited(&id).await?;
    x.client.remove(&id).await?;
    gone(x, &id).await
}

async fn running_container_is_removed(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    x.client.remove(&id).await?;
    gone(x, &id).await
}

async fn created_container_is_removed(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let id = pod.create(x.forever("c")).await?;
    x.client.remove(&id).await?;
    gone(x, &id).await
}

async fn container_is_started_once(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    refused(
        "StartContainer of a running container",
        x.client.start(&id).await,
    )?;
    x.client.stop(&id, 0).await?;
    refused(
        "StartContainer of an exited container",
        x.client.start(&id).await,
    )?;
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

async fn same_metadata_makes_no_second_container(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let first = pod.create(x.forever("c")).await?;
    match pod.create(x.forever("c")).await {
        Ok(second) => equal("the id of the second CreateContainer", &second, &first),
        answer => refused("the second CreateContainer", answer).map(drop),
    }
}

async fn next_attempt_runs_beside_exited_one(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let first = pod.start(x.script("c", "exit 3")).await?;
    x.exited(&first).await?;
    let mut next = x.forever("c");
    next.metadata.get_or_insert_default().attempt = 1;
    let second = pod.start(next).await?;
    let attempt = x
        .client
        .container(&second)
        .await?
        .metadata
        .unwrap_or_default()
        .attempt;
    equal("the attempt of the second container", &attempt, &1)?;
    let status = x.client.container(&first).await?;
    equal(
        "the exit code of the first container",
        &status.exit_code,
        &3,
    )?;
    x.container_is(&second, ContainerState::ContainerRunning)
        .await
}

async fn name_of_removed_container_is_free(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let first = pod.create(x.forever("c")).await?;
    x.client.remove(&first).await?;
    let second = pod.create(x.forever("c")).await?;
    ensure(
        second != first,
        "the id of the second container",
        "another one",
        second,
    )
}

/// Fails if a container whose start was refused is told to run, or to have ended well.
async fn never_ran(x: &Context, id: &str) -> Verdict {
    let status = x.client.container(id).await?;
    match status.state() {
        ContainerState::ContainerExited => {
            let told = status.exit_code != 0
                && !["", "Completed"].contains(&status.reason.as_str())
                && status.finished_at > 0;
            let expected = "an exit code that is not 0, a reason for it, and a time";
            ensure(told, "the end of what did not start", expected, &status)?;
        }
        // Some runtimes leave it as it was.
        ContainerState::ContainerCreated => equal("started_at", &status.started_at, &0)?,
        ContainerState::ContainerRunning | ContainerState::ContainerUnknown => {
            let expected = "CONTAINER_EXITED or CONTAINER_CREATED";
            return failed(
                "the state of what did not start",
                expected,
                format!("{status:?}"),
            );
        }
    }
    x.container_is(id, status.state()).await
}

async fn missing_command_is_refused(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let mut config = x.forever("c");
    config.command = vec!["/no/such/command".to_owned()];
    match pod.create(config).await {
        Ok(id) => {
            refused(
                "StartContainer of a missing command",
                x.client.start(&id).await,
            )?;
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

async fn container_without_metadata_is_refused(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let mut config = x.forever("c");
    config.metadata = None;
    refused("CreateContainer without metadata", pod.create(config).await)?;
    x.client.version().await?;
    Ok(())
}

async fn missing_image_is_refused(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let mut config = x.forever("c");
    config.image.get_or_insert_default().image = "crib.invalid/no/such:image".to_owned();
    refused(
        "CreateContainer of a missing image",
        pod.create(config).await,
    )
    .map(drop)
}
