//! Rules of commands that leave a process behind.

use std::time::Duration;

use tokio::time::Instant;
use tonic::Code;

use crate::check::context::Context;
use crate::check::outcome::{Outcome, Verdict, ensure, equal};
use crate::check::rule::sources::CONTAINERD;
use crate::check::rule::{Rule, Severity};

pub(super) const RULES: &[Rule] = &[Rule {
    id: "CRI-EXE-021",
    severity: Severity::Must,
    says: "ExecSync ends although a process that the command left behind holds its output open: with what was written, or when its timeout is over.",
    source: CONTAINERD,
    tags: &["kubelet", "exec", "time"],
    calls: &["ExecSync"],
    faults: &[
        "ExecSync hang",
        "ExecSync delay 30",
        "ExecSync set stdout \"\"",
        "ExecSync answer INTERNAL",
    ],
    body: |x| Box::pin(exec_ends_without_what_it_leaves(x)),
}];

/// The timeout of the command, in seconds.
const TIMEOUT: i64 = 5;
/// What a busy machine may add to it.
const SLACK: Duration = Duration::from_secs(15);

async fn exec_ends_without_what_it_leaves(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    let began = Instant::now();
    let command = ["/bin/sh", "-c", "echo left; sleep 1000 & exit 3"];
    let answer = x.client.exec(&id, command, TIMEOUT).await;
    let took = began.elapsed();
    ensure(
        took < SLACK,
        "ExecSync with a timeout of 5 s",
        "to take less than 15 s",
        took,
    )?;
    match answer {
        Err(status) if status.code() == Code::DeadlineExceeded => Err(Outcome::Diverges(
            "the command counts as running until its timeout, and has no exit code".to_owned(),
        )),
        Err(status) => Err(status.into()),
        Ok(answer) => {
            let text = String::from_utf8_lossy(&answer.stdout);
            equal("standard output", text.as_ref(), "left\n")?;
            equal("the exit code", &answer.exit_code, &3)
        }
    }
}
