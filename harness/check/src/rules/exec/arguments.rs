//! Rules of the commands of ExecSync: arguments, concurrency and large output.

use crate::prelude::*;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-EXE-018": "ExecSync passes arguments unchanged, including empty ones, spaces, quotes and dollar signs.",
        API, tags ["kubelet", "probe", "process"], calls [ExecSync],
        arguments_are_kept given [container], faults [
            "ExecSync request set cmd [\"/bin/sh\", \"-c\", \"printf '<%s>' a\"]",
            "ExecSync set stdout \"PD4=\"",
        ];
    Must "CRI-EXE-019": "ExecSync runs two commands in one container concurrently, so that a slow probe does not block another.",
        KUBELET, tags ["kubelet", "probe", "concurrency"], calls [ExecSync],
        commands_run_beside_each_other given [namespaces, container], faults [
            "ExecSync after 1 hang",
            "ExecSync after 1 answer UNAVAILABLE",
        ];
    Should "CRI-EXE-020": "ExecSync truncates 20 MB of output to at most 16 MiB or returns an error, and the next command runs normally.",
        CONTAINERD, tags ["probe", "output", "limits"], calls [ExecSync],
        large_output_is_cut given [container], faults [
            "ExecSync if request cmd = \"echo usable\" answer UNKNOWN",
            "ExecSync if request cmd = \"echo usable\" drop stdout",
            "ExecSync after 1 hang",
        ];
};

async fn arguments_are_kept(x: &Context, id: String) -> Verdict {
    const ARGUMENTS: [&str; 8] = ["", "a b", "", "$HOME `x`", "'\"\\", "é\n", "-n", ""];
    let script = "for a; do printf '<%s>' \"$a\"; done";
    let command = ["/bin/sh", "-c", script, "sh"];
    let answer = x.client.exec(&id, command.into_iter().chain(ARGUMENTS), 30).await?;
    let expected: String = ARGUMENTS.map(|argument| format!("<{argument}>")).concat();
    let seen = String::from_utf8_lossy(&answer.stdout).into_owned();
    equal("the arguments, each in < and >", &seen, &expected)
}

async fn commands_run_beside_each_other(x: &Context, id: String) -> Verdict {
    // The first one ends when the second one has run.
    let waiting = "until [ -e /tmp/go ]; do sleep 0.05; done; echo went";
    let (client, container) = (x.client.clone(), id.clone());
    let first = tokio::spawn(async move { client.sh(&container, waiting).await });
    x.client.sh(&id, "echo >/tmp/go").await?;
    let output = joined("the first ExecSync", first.await)??;
    equal("the first command's output", &output, &"went\n".to_owned())
}

async fn large_output_is_cut(x: &Context, id: String) -> Verdict {
    const MOST: usize = 16 << 20;
    let script = "head -c 20000000 /dev/zero";
    // A runtime may refuse output that does not fit into a message.
    if let Ok(answer) = x.client.exec(&id, ["/bin/sh", "-c", script], 60).await {
        let length = answer.stdout.len();
        let fits = length > 0 && length <= MOST;
        ensure(fits, "the length of the output", "1 to 16777216", length)?;
    }
    let output = x.client.sh(&id, "echo usable").await?;
    equal("the next output", output.as_str(), "usable\n")
}
