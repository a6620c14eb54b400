//! Applies changed manifests during `crib run --watch`.

use agent::clock::{Clock as _, SystemClock};
use api::manifest::Workload;
use api::pod::PodUid;
use cluster::Key;
use compact::Map;

use super::Loop;
use crate::hub::Deletion;
use crate::input::archived_images;
use crate::manifest_watch::Reloaded;

impl Loop {
    /// Applies changed manifests. If they have errors, prints these and changes nothing.
    pub(super) async fn reload(&mut self, reloaded: Reloaded) {
        let mut inputs = match reloaded {
            Ok(inputs) => inputs,
            Err(problems) => {
                problems.into_iter().for_each(|line| self.printer.note(line));
                self.printer.note("failed to apply the manifests: the pods are not changed");
                return;
            }
        };
        for warning in std::mem::take(&mut inputs.warnings) {
            self.warn(warning);
        }
        if let Some(problem) = self.services.assign(&mut inputs.objects).await {
            self.warn(problem);
        }
        let now = SystemClock.now();
        let replaced = self.hub.set_objects(inputs.objects.json(), now);
        replaced.warnings.into_iter().for_each(|warning| self.warn(warning));
        self.print_notices(replaced.changed.iter().filter_map(change_of_data).collect());
        let images = archived_images::never_pulled(&inputs.pods, &inputs.workloads);
        for problem in archived_images::import(&self.socket, &images).await {
            self.warn(problem);
        }
        self.publish_objects();
        let reports = self.reports.borrow().clone();
        let has_ended = |uid: &PodUid| reports.get(uid).is_some_and(|report| report.finished);
        let applied = self.manifest_pods.apply(inputs.pods, has_ended);
        // Retries all pods of manifests.
        self.hub.forget_refused();
        self.without_grace = inputs.without_grace;
        self.notes.add(&applied.started);
        let ended = applied.ended.iter().map(|(pod, why)| (pod.uid().clone(), *why));
        let ended: Map<PodUid, &'static str> = ended.collect();
        self.delete(|pod| ended.get(pod.uid()).copied(), Deletion::Forgotten);
        self.hub.update(&applied.updated);
        self.hub.create(applied.started, now);
        self.print_notices(applied.messages);
        let names = inputs.workloads.iter().map(Workload::full_name).collect();
        let applied = self.manifest_workloads.apply(inputs.workloads, self.manager.controllers());
        self.hub.apply_workloads(&applied, now);
        if !applied.started.is_empty() {
            // The workloads' pods may mount claims.
            self.publish_objects();
        }
        self.print_notices(applied.messages);
        self.rollouts.begin(names);
        // The controllers must observe a change that affects no pod, too.
        self.control(&reports, now);
    }

    /// Publishes the store's objects of manifests to the agent.
    fn publish_objects(&self) {
        let mut objects = self.hub.referred();
        objects.merge(self.pull_secrets.clone());
        self.objects.set(objects);
    }
}

/// A message about the effect of a changed ConfigMap or Secret.
fn change_of_data(key: &Key) -> Option<String> {
    let kind = match &*key.kind.name {
        kind @ ("ConfigMap" | "Secret") => kind.to_lowercase(),
        _ => return None,
    };
    let (namespace, name) = (&key.namespace, &key.name);
    Some(format!(
        "{kind} {namespace}/{name} was updated: volumes are updated too, environment variables only when a container restarts"
    ))
}
