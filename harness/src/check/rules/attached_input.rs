//! Rules of the standard input of a container that clients attach to one after the other.

use cri::v1::ContainerState;

use super::stream::{BOTH_WAYS, attach, read_until, write};
use crate::check::context::Context;
use crate::check::outcome::Verdict;
use crate::check::rule::sources::{API, KUBELET};
use crate::check::rule::{Rule, Severity};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "CRI-STR-015",
        severity: Severity::Must,
        says: "Without stdin_once, a container's standard input stays open when a client that was attached leaves, and takes what the next one types.",
        source: API,
        tags: &["kubelet", "stream"],
        calls: &["Attach"],
        faults: &[
            "CreateContainer request set config.stdin_once true",
            "Attach after 1 answer UNKNOWN",
            "Attach after 1 drop url",
        ],
        body: |x| Box::pin(input_stays_open(x)),
    },
    Rule {
        id: "CRI-STR-026",
        severity: Severity::Should,
        says: "With stdin_once a client that has ended its input still gets the output (kubectl run -i).",
        source: KUBELET,
        tags: &["kubelet", "stream"],
        calls: &["Attach"],
        faults: &[
            "Attach drop url",
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"echo ready; cat >/dev/null; exit 7\"]",
        ],
        body: |x| Box::pin(output_comes_after_input(x)),
    },
];

async fn output_comes_after_input(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let text = "echo ready; cat >/dev/null; sleep 1; echo after; sleep 1000";
    let mut config = x.script("c", text);
    config.stdin = true;
    config.stdin_once = true;
    let id = pod.start(config).await?;
    x.logged(&pod, "ready").await?;
    let mut attached = attach(x, &id, BOTH_WAYS).await?;
    write(&attached, b"typed\n").await?;
    attached.end_stdin().await;
    read_until(x, &mut attached.stdout, "after\n").await?;
    Ok(())
}

async fn input_stays_open(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let text = "echo ready; while read line; do echo \"got $line\"; done; exit 21";
    let mut config = x.script("c", text);
    config.stdin = true;
    let id = pod.start(config).await?;
    x.logged(&pod, "ready").await?;
    for typed in ["first", "second", "third"] {
        let mut attached = attach(x, &id, BOTH_WAYS).await?;
        write(&attached, format!("{typed}\n").as_bytes()).await?;
        read_until(x, &mut attached.stdout, &format!("got {typed}\n")).await?;
        // The end of what a client types is not that of the container's input.
        attached.end_stdin().await;
    }
    x.container_is(&id, ContainerState::ContainerRunning).await
}
