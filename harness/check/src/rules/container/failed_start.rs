//! Rules of containers that failed to start.

use crate::prelude::*;

pub(crate) const RULES: &[Rule] = rules! {
    Should "CRI-CTR-054": "ContainerStatus of a container that failed to start has a message with the cause, which the pod's status shows.",
        KUBELET, tags ["kubelet", "exit"], calls [StartContainer, ContainerStatus],
        status_says_why_it_did_not_start, faults [
            "ContainerStatus drop status.message",
            "ContainerStatus set status.message \"failed\"",
        ];
};

async fn status_says_why_it_did_not_start(x: &Context) -> Verdict {
    let command = "/no/such/command";
    let pod = x.pod().await?;
    let mut config = x.forever("c");
    config.command = vec![command.to_owned()];
    let id = match pod.create(config).await {
        Ok(id) => id,
        answer => {
            refused("CreateContainer of a missing command", answer)?;
            let how = "CreateContainer refuses a nonexistent command and creates no container";
            return Err(Outcome::Diverges(how.to_owned()));
        }
    };
    let start = x.client.start(&id).await;
    refused("StartContainer of a missing command", start)?;
    let status = x.client.container(&id).await?;
    if status.state() == ContainerState::ContainerCreated {
        let how = "a container that failed to start stays CONTAINER_CREATED";
        return Err(Outcome::Diverges(how.to_owned()));
    }
    let says = status.message.contains(command);
    ensure(says, "message in ContainerStatus", "the missing command", &status.message)
}
