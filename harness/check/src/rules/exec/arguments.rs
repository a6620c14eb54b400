//! Rules of the commands of ExecSync: arguments, concurrency, large output, and remaining processes.

use crate::prelude::*;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-EXE-018": "ExecSync passes arguments unchanged, including empty arguments, spaces, quotes and dollar signs.",
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
    // The first command ends when the second one has run.
    let waiting = "until [ -e /tmp/go ]; do sleep 0.05; done; echo went";
    let (client, container) = (x.client.clone(), id.clone());
    let first = tasks::spawn(async move { client.sh(&container, waiting).await });
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

pub(crate) const ORPHANS: &[Rule] = rules! {
    Must "CRI-EXE-021": "ExecSync returns the output and the exit code even if an orphaned process holds standard output open.",
        CONTAINERD, tags ["kubelet", "exec", "time"], calls [ExecSync],
        exec_ends_despite_background_process given [container], faults [
            "ExecSync drop stdout",
            "ExecSync set exit_code 0",
            "ExecSync answer INTERNAL",
        ];
};

/// The timeout of the command, in seconds.
const TIMEOUT: i64 = 5;
/// A call that takes longer ignores its timeout.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);

async fn exec_ends_despite_background_process(x: &Context, id: String) -> Verdict {
    let command = ["/bin/sh", "-c", "echo left; sleep 1000 & exit 3"];
    let answer = x.client.exec(&id, command, TIMEOUT);
    let diverges = |why: &str| Err(Outcome::Diverges(why.to_owned()));
    match tokio::time::timeout(ANSWER_LIMIT, answer).await {
        // containerd does this unless drain_exec_sync_io_timeout is set.
        Err(_) => diverges("the call returns when the last process has closed the output"),
        Ok(Err(status)) if status.code() == Code::DeadlineExceeded => {
            diverges("the call ends at its timeout, without an exit code")
        }
        Ok(Err(status)) => Err(status.into()),
        Ok(Ok(answer)) => {
            let text = String::from_utf8_lossy(&answer.stdout);
            equal("standard output", text.as_ref(), "left\n")?;
            equal("the exit code", &answer.exit_code, &3)
        }
    }
}
