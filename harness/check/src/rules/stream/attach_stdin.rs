//! Rules for a container's standard input when clients attach one after the other.

use crate::prelude::*;
use crate::rules::stream::{BOTH_WAYS, attach, read_until, write};

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-STR-015": "Without stdin_once, a container's standard input stays open when an attached client leaves, and accepts input from the next one.",
        API, tags ["kubelet", "stream"], calls [Attach],
        input_stays_open given [pod], faults [
            "CreateContainer request set config.stdin_once true",
            "Attach after 1 answer UNKNOWN",
            "Attach after 1 drop url",
        ];
    Should "CRI-STR-026": "With stdin_once, a client that has closed its input still receives the output (kubectl run -i).",
        KUBELET, tags ["kubelet", "stream"], calls [Attach],
        output_comes_after_input given [pod], faults [
            "Attach drop url",
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"echo ready; cat >/dev/null; exit 7\"]",
        ];
};

async fn output_comes_after_input(x: &Context, pod: Pod) -> Verdict {
    let text = "echo ready; cat >/dev/null; sleep 1; echo after; sleep 1000";
    let mut config = x.script("c", text);
    config.stdin = true;
    config.stdin_once = true;
    let id = x.start_ready(&pod, config).await?;
    let mut attached = attach(x, &id, BOTH_WAYS).await?;
    write(&attached, b"typed\n").await?;
    attached.end_stdin().await;
    read_until(x, &mut attached.stdout, "after\n").await?;
    Ok(())
}

async fn input_stays_open(x: &Context, pod: Pod) -> Verdict {
    let text = "echo ready; while read line; do echo \"got $line\"; done; exit 21";
    let mut config = x.script("c", text);
    config.stdin = true;
    let id = x.start_ready(&pod, config).await?;
    for typed in ["first", "second", "third"] {
        let mut attached = attach(x, &id, BOTH_WAYS).await?;
        write(&attached, format!("{typed}\n").as_bytes()).await?;
        read_until(x, &mut attached.stdout, &format!("got {typed}\n")).await?;
        // The end of a client's input does not end the container's.
        attached.end_stdin().await;
    }
    x.container_is(&id, ContainerState::ContainerRunning).await
}
