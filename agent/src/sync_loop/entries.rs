//! The workers, and the resources of their pods on the node. A pod is counted again after each change of its worker's entry.

use std::collections::{BTreeMap, BTreeSet};

use api::pod::{Pod, PodUid};
use compact::Map;
use tokio::sync::{mpsc, watch};

use super::reconcile::WorkerState;
use super::resizes::Granted;
use crate::cri::PodRef;
use crate::decide::resize::decision::counted;
use crate::pod_spec::admission::AdmittedPods;
use crate::reporting::report::{PodReport, Reports};
use crate::worker::PodUpdate;

/// The loop's record of one worker.
pub(super) struct Entry {
    pub(super) state: WorkerState,
    pub(super) updates: watch::Sender<PodUpdate>,
    /// Whether the node rejected the pod.
    pub(super) rejected: bool,
    /// The pod's granted resources.
    pub(super) granted: Granted,
    /// Whether the pod is evicted.
    pub(super) evicted: bool,
}

impl Entry {
    /// Sends the worker an update. The outcome of an evicted pod is final, except that its source may remove it.
    pub(super) fn send(&self, update: PodUpdate) {
        if self.evicted && !matches!(update, PodUpdate::Terminate { .. }) {
            return;
        }
        self.updates.send_if_modified(|current| {
            let differs = *current != update;
            *current = update;
            differs
        });
    }

    /// Informs the worker of a removed pod that its status was removed.
    pub(super) fn forget_status(&self) {
        self.updates.send_if_modified(|current| match current {
            PodUpdate::Terminate { forgotten, .. } => {
                *forgotten += 1;
                true
            }
            PodUpdate::Run(..) | PodUpdate::Evict(_) => false,
        });
    }

    /// The pod with the resources that count against the node, while it is active.
    fn active(&self, report: Option<&PodReport>) -> Option<Pod> {
        if self.rejected || report.is_some_and(|report| report.finished) {
            return None;
        }
        let pod = self.granted.pod(self.state.desired.as_ref()?);
        if report.is_none() && pod.has_ended() {
            return None;
        }
        let status = report.map(|report| &*report.status);
        Some(counted(pod, status).unwrap_or_else(|| pod.clone()))
    }
}

/// See the module.
pub(super) struct Entries {
    all: BTreeMap<PodUid, Entry>,
    /// The entries by namespace and name, which several pods may share.
    named: BTreeSet<(String, String, PodUid)>,
    /// The active pods' resources, without the changes of the pods in `changed`.
    admitted: AdmittedPods,
    /// The pods to count again.
    changed: BTreeSet<PodUid>,
    /// Receives the pods whose reports changed their resources.
    reported: mpsc::UnboundedReceiver<PodUid>,
}

impl Entries {
    /// No entries. `reported` receives the pods whose reports changed their resources.
    pub(super) fn new(reported: mpsc::UnboundedReceiver<PodUid>) -> Self {
        Self {
            all: BTreeMap::new(),
            named: BTreeSet::new(),
            admitted: AdmittedPods::default(),
            changed: BTreeSet::new(),
            reported,
        }
    }

    pub(super) fn get(&self, uid: &PodUid) -> Option<&Entry> {
        self.all.get(uid)
    }

    pub(super) fn get_mut(&mut self, uid: &PodUid) -> Option<&mut Entry> {
        let entry = self.all.get_mut(uid)?;
        self.changed.insert(uid.clone());
        Some(entry)
    }

    pub(super) fn insert(&mut self, uid: PodUid, entry: Entry) {
        self.changed.insert(uid.clone());
        self.named.insert(named(&entry.state.pod));
        self.all.insert(uid, entry);
    }

    pub(super) fn remove(&mut self, uid: &PodUid) -> Option<Entry> {
        self.admitted.remove(uid);
        let entry = self.all.remove(uid)?;
        self.named.remove(&named(&entry.state.pod));
        Some(entry)
    }

    pub(super) fn uids(&self) -> impl Iterator<Item = &PodUid> {
        self.all.keys()
    }

    /// The last update of each worker.
    pub(super) fn states(&self) -> Map<&PodUid, &WorkerState> {
        let states = self.all.iter().map(|(uid, entry)| (uid, &entry.state));
        states.collect()
    }

    /// The last updates of these pods' workers, and of other pods with their names.
    pub(super) fn conflicting_states(&self, pods: &[&[Pod]]) -> Map<&PodUid, &WorkerState> {
        let uids = pods.iter().copied().flatten().flat_map(|pod| {
            let (namespace, name) = (pod.namespace(), pod.name());
            let first = (namespace.to_owned(), name.to_owned(), PodUid::new(""));
            let others = self.named.range(first..);
            let others = others.take_while(move |(of, named, _)| of == namespace && named == name);
            others.map(|(_, _, uid)| uid).chain([pod.uid()])
        });
        let like = uids.filter_map(|uid| self.all.get_key_value(uid));
        like.map(|(uid, entry)| (uid, &entry.state)).collect()
    }

    /// The pods that may have running containers, or may start some.
    pub(super) fn active(&self, reports: &Reports) -> Vec<PodUid> {
        let is_active = |(uid, entry): &(&PodUid, &Entry)| {
            !entry.rejected && reports.get(uid).is_none_or(|report| !report.finished)
        };
        self.all.iter().filter(is_active).map(|(uid, _)| uid.clone()).collect()
    }

    /// Counts the changed pods.
    pub(super) fn count(&mut self, reports: &Reports) {
        while let Ok(uid) = self.reported.try_recv() {
            self.changed.insert(uid);
        }
        for uid in std::mem::take(&mut self.changed) {
            let entry = self.all.get(&uid);
            match entry.and_then(|entry| entry.active(reports.get(&uid))) {
                Some(pod) => self.admitted.set(pod),
                None => self.admitted.remove(&uid),
            }
        }
    }

    /// The active pods' resources as last counted.
    pub(super) fn admitted(&self) -> &AdmittedPods {
        &self.admitted
    }

    /// The active pods' resources as last counted, without those of pods that are being evicted.
    pub(super) fn kept(&self) -> AdmittedPods {
        let mut kept = self.admitted.clone();
        for (uid, _) in self.all.iter().filter(|(_, entry)| entry.evicted) {
            kept.remove(uid);
        }
        kept
    }
}

fn named(pod: &PodRef) -> (String, String, PodUid) {
    (pod.namespace.clone(), pod.name.clone(), pod.uid.clone())
}

#[cfg(test)]
mod tests;
