//! The start of a background run: the command at the terminal waits until the pods have started.

use std::fs::File;
use std::io;

use tokio::sync::mpsc;

use super::Loop;
use crate::processes::background::{Background, FAILED, STARTED};
use crate::reports::Reports;
use crate::started::{all_are_ready, all_have_started, any_cannot_run};

/// The state until the pods have started.
#[derive(Debug)]
pub(super) struct Starting {
    background: Background,
    /// The file for all later output.
    log: File,
    starter_exited: mpsc::UnboundedReceiver<()>,
    /// Whether to wait until the pods are ready (`--wait`).
    until_ready: bool,
}

impl Starting {
    pub(super) fn new(background: Background, log: File, until_ready: bool) -> io::Result<Self> {
        let starter_exited = background.watch_starter()?;
        Ok(Self { background, log, starter_exited, until_ready })
    }
}

impl Loop {
    /// Ends the command at the terminal once the pods have started or, with `--wait`, are ready.
    pub(super) fn report_start(&mut self, reports: &Reports) {
        let Some(starting) = &self.starting else {
            return;
        };
        let pods = self.hub.desired();
        let succeeded = match starting.until_ready {
            true => all_are_ready(pods, reports, |uid| self.manager.controllers().owns(uid)),
            false => all_have_started(pods, reports).then(|| !any_cannot_run(reports)),
        };
        let Some(succeeded) = succeeded else {
            return;
        };
        if let Some(starting) = self.starting.take() {
            // Later output does not appear on the terminal.
            let later = self.services.node_ports_to_come(&self.objects.current());
            later.into_iter().for_each(|line| self.printer.note(line));
            let line = if succeeded { STARTED } else { FAILED };
            let reported = starting.background.started(self.printer.clone(), starting.log, line);
            tasks::spawn(reported);
        }
    }
}

/// Returns if the command at the terminal ends before the pods have started; otherwise never returns. Cancel-safe.
pub(super) async fn starter_exited(starting: &mut Option<Starting>) {
    if let Some(starting) = starting
        && starting.starter_exited.recv().await.is_some()
    {
        return;
    }
    std::future::pending().await
}
