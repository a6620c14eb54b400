//! Rules of commands that leave a process behind.

use crate::prelude::*;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-EXE-021": "ExecSync returns the output and the exit code even if an orphaned process holds standard output open.",
        CONTAINERD, tags ["kubelet", "exec", "time"], calls [ExecSync],
        exec_ends_without_what_it_leaves given [container], faults [
            "ExecSync drop stdout",
            "ExecSync set exit_code 0",
            "ExecSync answer INTERNAL",
        ];
};

/// The timeout of the command, in seconds.
const TIMEOUT: i64 = 5;
/// A call that takes longer ignores its timeout.
const PATIENCE: Duration = Duration::from_secs(15);

async fn exec_ends_without_what_it_leaves(x: &Context, id: String) -> Verdict {
    let command = ["/bin/sh", "-c", "echo left; sleep 1000 & exit 3"];
    let answer = x.client.exec(&id, command, TIMEOUT);
    let diverges = |why: &str| Err(Outcome::Diverges(why.to_owned()));
    match tokio::time::timeout(PATIENCE, answer).await {
        // Containerd does, unless drain_exec_sync_io_timeout is set.
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
