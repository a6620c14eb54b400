//! Rules of commands that leave a process behind.

use crate::prelude::*;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-EXE-021": "ExecSync that ends although a process which the command left behind holds its output open has what was written and the exit code.",
        CONTAINERD, tags ["kubelet", "exec", "time"], calls [ExecSync],
        exec_ends_without_what_it_leaves given [container], faults [
            "ExecSync drop stdout",
            "ExecSync set exit_code 0",
            "ExecSync answer INTERNAL",
        ];
};

/// The timeout of the command, in seconds.
const TIMEOUT: i64 = 5;
/// After this the call does not heed its timeout.
const PATIENCE: Duration = Duration::from_secs(15);

async fn exec_ends_without_what_it_leaves(x: &Context, id: String) -> Verdict {
    let command = ["/bin/sh", "-c", "echo left; sleep 1000 & exit 3"];
    let answer = x.client.exec(&id, command, TIMEOUT);
    let diverges = |why: &str| Err(Outcome::Diverges(why.to_owned()));
    match tokio::time::timeout(PATIENCE, answer).await {
        // Containerd does, unless drain_exec_sync_io_timeout is set.
        Err(_) => diverges("the call ends with the last process that holds the output"),
        Ok(Err(status)) if status.code() == Code::DeadlineExceeded => {
            diverges("the call ends with its timeout, and has no exit code")
        }
        Ok(Err(status)) => Err(status.into()),
        Ok(Ok(answer)) => {
            let text = String::from_utf8_lossy(&answer.stdout);
            equal("standard output", text.as_ref(), "left\n")?;
            equal("the exit code", &answer.exit_code, &3)
        }
    }
}
