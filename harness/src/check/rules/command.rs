//! Rules of the commands that ExecSync runs: their arguments, and several at once.

use crate::check::context::Context;
use crate::check::outcome::{Verdict, ensure, equal, failed};
use crate::check::rule::sources::{API, CONTAINERD, KUBELET};
use crate::check::rule::{Rule, Severity};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "CRI-EXE-018",
        severity: Severity::Must,
        says: "ExecSync runs the command with its arguments as they were sent: empty ones, spaces, quotes and dollar signs too.",
        source: API,
        tags: &["kubelet", "probe", "process"],
        calls: &["ExecSync"],
        faults: &[
            "ExecSync request set cmd [\"/bin/sh\", \"-c\", \"printf '<%s>' a\"]",
            "ExecSync set stdout \"PD4=\"",
        ],
        body: |x| Box::pin(arguments_are_kept(x)),
    },
    Rule {
        id: "CRI-EXE-019",
        severity: Severity::Must,
        says: "Two commands of ExecSync run in one container at the same time: a slow probe keeps no other one from running.",
        source: KUBELET,
        tags: &["kubelet", "probe", "concurrency"],
        calls: &["ExecSync"],
        faults: &[
            "ExecSync after 1 hang",
            "ExecSync after 1 answer UNAVAILABLE",
        ],
        body: |x| Box::pin(commands_run_beside_each_other(x)),
    },
    Rule {
        id: "CRI-EXE-020",
        severity: Severity::Should,
        says: "Of an output of 20 MB, ExecSync answers with 16 MiB at most, or refuses it; the next command runs as before.",
        source: CONTAINERD,
        tags: &["probe", "output", "limits"],
        calls: &["ExecSync"],
        faults: &[
            "ExecSync if request cmd = \"echo usable\" answer UNKNOWN",
            "ExecSync if request cmd = \"echo usable\" drop stdout",
            "ExecSync after 1 hang",
        ],
        body: |x| Box::pin(large_output_is_cut(x)),
    },
];

async fn arguments_are_kept(x: &Context) -> Verdict {
    const ARGUMENTS: [&str; 8] = ["", "a b", "", "$HOME `x`", "'\"\\", "é\n", "-n", ""];
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    let script = "for a; do printf '<%s>' \"$a\"; done";
    let command = ["/bin/sh", "-c", script, "sh"];
    let answer = x
        .client
        .exec(&id, command.into_iter().chain(ARGUMENTS), 30)
        .await?;
    let expected: String = ARGUMENTS.map(|argument| format!("<{argument}>")).concat();
    let seen = String::from_utf8_lossy(&answer.stdout).into_owned();
    equal("the arguments, each in < and >", &seen, &expected)
}

async fn commands_run_beside_each_other(x: &Context) -> Verdict {
    x.needs_namespaces()?;
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    // The first one ends when the second one has run.
    let waiting = "until [ -e /tmp/go ]; do sleep 0.05; done; echo went";
    let (client, container) = (x.client.clone(), id.clone());
    let first = tokio::spawn(async move { client.sh(&container, waiting).await });
    x.client.sh(&id, "echo >/tmp/go").await?;
    match first.await {
        Ok(answer) => equal("the first command's output", &answer?, &"went\n".to_owned()),
        Err(error) => failed("the first ExecSync", "to end", error.to_string()),
    }
}

async fn large_output_is_cut(x: &Context) -> Verdict {
    const MOST: usize = 16 << 20;
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    let script = "head -c 20000000 /dev/zero";
    // A runtime may refuse what does not fit into a message.
    if let Ok(answer) = x.client.exec(&id, ["/bin/sh", "-c", script], 60).await {
        let length = answer.stdout.len();
        let fits = length > 0 && length <= MOST;
        ensure(fits, "the length of the output", "1 to 16777216", length)?;
    }
    let output = x.client.sh(&id, "echo usable").await?;
    equal("the next output", output.as_str(), "usable\n")
}
