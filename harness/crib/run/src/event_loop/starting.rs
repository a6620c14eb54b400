//! The start of a run in the background: until its pods have started, the command at the terminal waits.

use std::fs::File;
use std::io;

use tokio::sync::mpsc;

use super::Loop;
use crate::processes::background::{Background, FAILED, STARTED};
use crate::reports::Reports;
use crate::started::{all_are_ready, all_have_started, one_cannot_run};

/// What there is until the pods have started.
#[derive(Debug)]
pub(super) struct Starting {
    background: Background,
    /// Where everything later is printed.
    log: File,
    starter_gone: mpsc::UnboundedReceiver<()>,
    /// The pods have to be ready, too.
    until_ready: bool,
}

impl Starting {
    pub(super) fn new(background: Background, log: File, until_ready: bool) -> io::Result<Self> {
        let starter_gone = background.watch_starter()?;
        Ok(Self { background, log, starter_gone, until_ready })
    }
}

impl Loop {
    /// Lets the command at the terminal end if the pods have started, or are ready where it waits for that.
    pub(super) fn report_start(&mut self, reports: &Reports) {
        let Some(starting) = &self.starting else {
            return;
        };
        let pods = self.hub.desired();
        let succeeded = match starting.until_ready {
            true => all_are_ready(pods, reports, |uid| self.manager.controllers().owns(uid)),
            false => all_have_started(pods, reports).then(|| !one_cannot_run(reports)),
        };
        let Some(succeeded) = succeeded else {
            return;
        };
        if let Some(starting) = self.starting.take() {
            // What is printed later is not on the terminal.
            let later = self.services.node_ports_to_come(&self.objects.current());
            later.into_iter().for_each(|line| self.printer.note(line));
            let line = if succeeded { STARTED } else { FAILED };
            let reported = starting.background.started(self.printer.clone(), starting.log, line);
            tasks::spawn(reported);
        }
    }
}

/// Returns when the command at the terminal has ended before the pods have started; else never. Cancel-safe.
pub(super) async fn starter_gone(starting: &mut Option<Starting>) {
    if let Some(starting) = starting
        && starting.starter_gone.recv().await.is_some()
    {
        return;
    }
    std::future::pending().await
}
