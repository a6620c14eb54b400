//! Rules of containers that could not be started.

use cri::v1::ContainerState;

use crate::check::context::Context;
use crate::check::outcome::{Outcome, Verdict, ensure, refused};
use crate::check::rule::sources::KUBELET;
use crate::check::rule::{Rule, Severity};

pub(super) const RULES: &[Rule] = &[Rule {
    id: "CRI-CTR-054",
    severity: Severity::Should,
    says: "The status of a container that could not be started has a message that says why: a pod's status shows it.",
    source: KUBELET,
    tags: &["kubelet", "exit"],
    calls: &["StartContainer", "ContainerStatus"],
    faults: &[
        "ContainerStatus drop status.message",
        "ContainerStatus set status.message \"failed\"",
    ],
    body: |x| Box::pin(status_says_why_it_did_not_start(x)),
}];

async fn status_says_why_it_did_not_start(x: &Context) -> Verdict {
    let command = "/no/such/command";
    let pod = x.pod().await?;
    let mut config = x.forever("c");
    config.command = vec![command.to_owned()];
    let id = match pod.create(config).await {
        Ok(id) => id,
        answer => {
            refused("CreateContainer of a missing command", answer)?;
            let how =
                "CreateContainer refuses a command that does not exist: there is no container";
            return Err(Outcome::Diverges(how.to_owned()));
        }
    };
    let start = x.client.start(&id).await;
    refused("StartContainer of a missing command", start)?;
    let status = x.client.container(&id).await?;
    if status.state() == ContainerState::ContainerCreated {
        let how = "a container that could not be started stays CONTAINER_CREATED";
        return Err(Outcome::Diverges(how.to_owned()));
    }
    let says = status.message.contains(command);
    ensure(
        says,
        "message in ContainerStatus",
        "the command that is missing",
        &status.message,
    )
}
