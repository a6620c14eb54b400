//! Takes manifests that changed during `crib run --watch`.

use agent::clock::{Clock as _, SystemClock};
use api::pod::{Pod, PodUid};

use super::super::ending::graces;
use super::super::immutable;
use super::super::manifest_watch::Reloaded;
use super::super::{apply, archived_images};
use super::Loop;

impl Loop {
    /// Takes manifests that changed; if something is wrong with them all stays as it is.
    pub(super) async fn reload(&mut self, reloaded: Reloaded) {
        let mut inputs = match reloaded {
            Ok(inputs) => inputs,
            Err(problems) => {
                problems.into_iter().for_each(|line| self.printer.note(line));
                self.printer.note("the manifests cannot be applied: the pods stay as they are");
                return;
            }
        };
        for warning in std::mem::take(&mut inputs.warnings) {
            self.warn(warning);
        }
        for warning in immutable::keep(&self.objects.current(), &mut inputs.objects) {
            self.warn(warning);
        }
        inputs.objects.merge(self.pull_secrets.clone());
        if let Some(problem) = self.services.assign(&mut inputs.objects).await {
            self.warn(problem);
        }
        let images = archived_images::never_pulled(&inputs.pods, &inputs.workloads);
        for problem in archived_images::import(&self.socket, &images).await {
            self.warn(problem);
        }
        self.objects.set(inputs.objects);
        let reports = self.reports.borrow().clone();
        let has_ended = |uid: &PodUid| reports.get(uid).is_some_and(|report| report.finished);
        let applied = apply::pods(&self.bare, inputs.pods, &self.used, has_ended);
        let uids = applied.pods.iter().map(|pod| pod.uid().clone());
        self.wanted = uids.collect();
        self.used.extend(self.wanted.iter().cloned());
        // All pods of manifests are tried again.
        self.refused.clear();
        self.notes.add(&applied.started);
        self.removed.extend(applied.ended);
        let bare = std::mem::replace(&mut self.bare, applied.pods);
        let was_bare = |pod: &Pod| bare.iter().any(|bare| bare.uid() == pod.uid());
        self.desired.retain(|pod| !was_bare(pod));
        self.desired.extend(self.bare.iter().cloned());
        self.graces.extend(graces(&self.bare));
        self.tell(applied.news);
        self.pods.set(self.desired.clone());
        let now = SystemClock.now();
        let changes = self.controllers.apply(inputs.workloads, now);
        self.apply(changes);
        let changes = self.controllers.sync(&reports, now);
        self.apply(changes);
    }
}
