//! Executes a plan and reports its progress.

use std::sync::Arc;

use api::pod::Pod;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Worker;
use crate::decide::plan::PodPlan;
use crate::execute::kill::kill_requested;
use crate::execute::{self, Job};
use crate::observed::Observed;
use crate::reporting::causes::Causes;
use crate::reporting::report::transitions::Stage;

impl Worker {
    /// Executes a plan and reports its progress.
    pub(super) async fn execute(
        &mut self,
        pod: Pod,
        observed: Arc<Observed>,
        plan: PodPlan,
        causes: &Causes,
    ) {
        let finishes = self.shared.config.finish_starts;
        let mut kill_now = self.shared.kill_now.clone();
        let (progress, mut progress_receiver) = mpsc::unbounded_channel();
        let terminating = CancellationToken::new();
        let end_requested = CancellationToken::new();
        let job = Job {
            shared: Arc::clone(&self.shared),
            pod,
            dirs: self.dirs.clone(),
            observed,
            actuated: self.resizing.actuated.clone(),
            terminating: terminating.clone(),
            end_requested: end_requested.clone(),
            progress,
        };
        let work = execute::execute(Arc::new(job), plan);
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                Some(progress) = progress_receiver.recv() => self.record_progress(*progress),
                // The finished work has dropped its sender; its last messages were received above.
                () = &mut work => break,
                // `take_update` applies the update when the work is done.
                Ok(()) = self.updates.changed() => {
                    if self.updates.borrow().ends() {
                        end_requested.cancel();
                        if !finishes {
                            terminating.cancel();
                        }
                    }
                }
                () = kill_requested(&mut kill_now), if !terminating.is_cancelled() => {
                    terminating.cancel();
                }
                Ok(()) = self.observation.snapshots.changed() => self.report_meanwhile(causes).await,
                () = self.probes.changed() => {
                    self.publish_probes(Stage::Active);
                    self.report_meanwhile(causes).await;
                }
            }
        }
        while let Ok(progress) = progress_receiver.try_recv() {
            self.record_progress(*progress);
        }
        self.hooks.pending.clear();
    }

    /// Reports a snapshot that arrives during the execution of a plan with these causes.
    async fn report_meanwhile(&mut self, causes: &Causes) {
        let snapshot = self.observation.snapshots.borrow_and_update().clone();
        if let Some(snapshot) = snapshot {
            let observed = self.observe(&snapshot);
            let causes = snapshot.causes.and(causes.clone());
            let causes = causes.and(self.hooks.failed.clone());
            self.report(&observed, Stage::Active, causes);
        }
    }

    pub(super) fn report_again(&mut self, causes: Causes) {
        let observed = self
            .observation
            .snapshots
            .borrow()
            .as_ref()
            .map(|snapshot| Arc::clone(&snapshot.observed));
        if let Some(observed) = observed {
            let observed = self.probes.add_to(observed);
            self.report(&observed, Stage::Active, causes);
        }
    }
}
