//! What scripted commands do.

use std::time::Duration;

use super::FakeCri;
use crate::cri::{Code, CriError, ExecOutput};
use crate::observed::ContainerId;

impl FakeCri {
    pub(super) async fn run_command(
        &self,
        id: &ContainerId,
        command: &[String],
        timeout: Option<Duration>,
    ) -> Result<ExecOutput, CriError> {
        let line = command.join(" ");
        let about = format!("{} {line}", self.about(id));
        self.called("ExecSync", about.trim_end())?;
        let (takes, output, mut ended) = {
            let inner = self.lock();
            let container = inner.containers.get(id);
            let scripted = inner.commands.get(&command.join(" ")).or_else(|| {
                let name = &container?.spec.name;
                inner.execs.get(name)
            });
            let (takes, output) = scripted.cloned().unwrap_or_default();
            let ended = container.map(|container| container.ended.subscribe());
            (takes, output, ended)
        };
        let container_ended = async {
            match &mut ended {
                Some(ended) => drop(ended.wait_for(|ended| *ended).await),
                None => std::future::pending().await,
            }
        };
        let limit = timeout.filter(|timeout| *timeout < takes);
        tokio::select! {
            () = tokio::time::sleep(limit.unwrap_or(takes)) => match limit {
                Some(_) => Err(CriError {
                    call: "ExecSync",
                    code: Code::DeadlineExceeded,
                    message: "the command takes too long".to_owned(),
                }),
                None => Ok(output),
            },
            () = container_ended => Ok(ExecOutput {
                exit_code: 137,
                ..ExecOutput::default()
            }),
        }
    }
}
