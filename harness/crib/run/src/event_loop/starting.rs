//! The start of a run in the background: until its pods have started, the command at the terminal waits.

use std::fs::File;
use std::io;

use tokio::sync::mpsc;

use super::Loop;
use crate::processes::background::{Background, FAILED, STARTED};
use crate::reports::Reports;
use crate::started::{all_have_started, one_cannot_run};

/// What there is until the pods have started.
#[derive(Debug)]
pub(super) struct Starting {
    background: Background,
    /// Where everything later is printed.
    log: File,
    starter_gone: mpsc::UnboundedReceiver<()>,
}

impl Starting {
    pub(super) fn new(background: Background, log: File) -> io::Result<Self> {
        let starter_gone = background.watch_starter()?;
        Ok(Self { background, log, starter_gone })
    }
}

impl Loop {
    /// Lets the command at the terminal end if the pods have started.
    pub(super) fn tell_when_started(&mut self, reports: &Reports) {
        if !all_have_started(self.hub.desired(), reports) {
            return;
        }
        if let Some(starting) = self.starting.take() {
            // What is printed later is not on the terminal.
            let later = self.services.node_ports_to_come(&self.objects.current());
            later.into_iter().for_each(|line| self.printer.note(line));
            let line = match one_cannot_run(reports) {
                true => FAILED,
                false => STARTED,
            };
            let told = starting.background.started(self.printer.clone(), starting.log, line);
            tokio::spawn(told);
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
