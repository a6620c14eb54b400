//! `ExecSync`: runs a process in a container and returns its output.

use std::{fs::File, os::fd::OwnedFd, time::Duration};

use keeper::contract::plan::ExecPlan;
use keeper::contract::protocol::Call;
use tokio::io::AsyncReadExt as _;

use super::{
    Error, Runtime,
    containers::wrong_state,
    io,
    streams::stdio::{ProcessOutput, pipe_from_process},
};
use crate::{
    container::{Container, ContainerState},
    launch,
    store::StateError,
};

/// Limit on both outputs of an exec together, so that they fit into the longest message that a kubelet's client
/// accepts (16 MiB, Kubernetes 1.36, cri-client). containerd and CRI-O truncate each output at 16 MiB, and then
/// the client rejects the response.
const MAX_OUTPUT: usize = (16 << 20) - (4 << 10);

/// The result of an exec.
pub(crate) struct ExecResult {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) exit_code: i32,
}

impl Runtime {
    /// The keeper's plan for an exec in `container`.
    pub(super) fn exec_plan(
        &self,
        container: &Container,
        argv: Vec<String>,
        tty: bool,
    ) -> Result<ExecPlan, Error> {
        let mut plan = launch::exec(
            &container.config,
            &container.image,
            &self.container_dir(&container.sandbox, &container.id),
            &container.confinement,
            container.user.clone().unwrap_or_default(),
            argv,
            tty,
        )?;
        container.device_edits.apply(&mut plan.process);
        let behaviour = self.behaviour(container)?;
        plan.process.act = behaviour.and_then(|behaviour| behaviour.act_of_exec());
        Ok(plan)
    }

    /// Runs `argv` in a running container. A zero `timeout` means none; when it expires, all processes of the exec
    /// are killed.
    pub(crate) async fn exec_sync(
        &self,
        id: &str,
        argv: Vec<String>,
        timeout: Duration,
    ) -> Result<ExecResult, Error> {
        let (container, pod) = self.container_and_pod(id, "a process needs a running one")?;
        if container.state != ContainerState::Running {
            return Err(wrong_state(&container, "a process needs a running one"));
        }
        let plan = self.exec_plan(&container, argv, false)?;
        let (stdout, child_stdout) = pipe_from_process().map_err(io("make a pipe"))?;
        let (stderr, child_stderr) = pipe_from_process().map_err(io("make a pipe"))?;
        let stdin: OwnedFd = File::open("/dev/null").map_err(io("open /dev/null"))?.into();
        let exec = pod
            .keeper
            .exec(container.id.as_str(), plan, vec![stdin, child_stdout, child_stderr])
            .await?;
        // Both end when the process has ended and its output was read: an orphan that keeps them open does not delay
        // the caller.
        let mut stdout = ProcessOutput::new(stdout, exec.exit.over.clone());
        let mut stderr = ProcessOutput::new(stderr, exec.exit.over.clone());
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let work = async {
            let read = tokio::join!(read(&mut stdout, &mut out), read(&mut stderr, &mut err));
            let ((), ()) = read;
            exec.exit.code().await
        };
        let late = async {
            if timeout.is_zero() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(timeout).await;
        };
        // Cancel-safe: a dropped future is not polled again.
        let given_up: Error = tokio::select! {
            exit_code = work => {
                fit(&mut out, &mut err);
                return Ok(ExecResult { stdout: out, stderr: err, exit_code });
            }
            () = late => Error::Timeout {
                what: format!("the command in container {}", container.id.short()),
                seconds: timeout.as_secs(),
            },
            () = self.stopping.cancelled() => StateError::ShuttingDown.into(),
        };
        pod.keeper.call(Call::KillExec { pid: exec.pid }).await?;
        Err(given_up)
    }
}

/// Reads to the end. Output beyond the limit is read and dropped, so that the process does not block.
async fn read(from: &mut ProcessOutput, into: &mut Vec<u8>) {
    let mut chunk = vec![0u8; 16 << 10];
    while let Ok(n @ 1..) = from.read(&mut chunk).await {
        keep(into, &chunk[..n]);
    }
}

fn keep(into: &mut Vec<u8>, bytes: &[u8]) {
    let room = MAX_OUTPUT.saturating_sub(into.len());
    into.extend_from_slice(&bytes[..bytes.len().min(room)]);
}

/// Truncates both outputs so that they fit together. Neither is cut below half of the limit to make room for the
/// other.
fn fit(out: &mut Vec<u8>, err: &mut Vec<u8>) {
    err.truncate(MAX_OUTPUT - out.len().min(MAX_OUTPUT / 2));
    out.truncate(MAX_OUTPUT - err.len());
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::both_fit(3, 5, 3, 5)]
    #[case::one_is_all(MAX_OUTPUT, 0, MAX_OUTPUT, 0)]
    #[case::a_word_beside_it(MAX_OUTPUT, 4, MAX_OUTPUT - 4, 4)]
    #[case::a_word_before_it(4, MAX_OUTPUT, 4, MAX_OUTPUT - 4)]
    #[case::both_are_long(MAX_OUTPUT, MAX_OUTPUT, MAX_OUTPUT / 2, MAX_OUTPUT / 2)]
    fn exec_output_is_cut_to_common_limit(
        #[case] out: usize,
        #[case] err: usize,
        #[case] kept_out: usize,
        #[case] kept_err: usize,
    ) {
        let (mut out, mut err) = (vec![b'o'; out], vec![b'e'; err]);
        fit(&mut out, &mut err);
        assert_eq!((out.len(), err.len()), (kept_out, kept_err));
    }
}
