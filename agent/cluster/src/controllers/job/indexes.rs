//! ◆ The indexes of an Indexed Job: which succeeded, failed, or wait for a pod. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::batch::v1::JobSpec;

use super::super::owned::OwnedPod;
use super::count;
use super::failure::{Verdict, verdict};

/// The indexes with a succeeded pod.
pub(super) fn succeeded(pods: &[OwnedPod]) -> BTreeSet<u32> {
    let succeeded = pods.iter().filter(|pod| pod.has_succeeded());
    succeeded.filter_map(|pod| pod.index).collect()
}

/// The failed indexes: more of their pods failed than `backoffLimitPerIndex` allows, or a rule makes them fail.
pub(super) fn failed(job: &JobSpec, pods: &[OwnedPod]) -> BTreeSet<u32> {
    let Some(limit) = job.backoff_limit_per_index else {
        return BTreeSet::new();
    };
    let all = 0..u32::try_from(job.completions.unwrap_or_default()).unwrap_or_default();
    let succeeded = succeeded(pods);
    // Only indexes with pods are checked: `completions` may be any number.
    let mut verdicts = BTreeMap::<u32, Vec<Verdict>>::new();
    for pod in pods.iter().filter(|pod| pod.has_failed()) {
        if let Some(index) = pod.index.filter(|index| all.contains(index)) {
            verdicts.entry(index).or_default().push(verdict(job, pod));
        }
    }
    let failed = verdicts.into_iter().filter(|(index, verdicts)| {
        let counted = verdicts.iter().filter(|verdict| **verdict != Verdict::Ignored);
        let is_given_up = counted.count() > count(limit) || verdicts.contains(&Verdict::IndexFails);
        is_given_up && !succeeded.contains(index)
    });
    failed.map(|(index, _)| index).collect()
}

/// The first indexes that need a pod, `most` of them.
pub(super) fn pending(job: &JobSpec, pods: &[OwnedPod], most: usize) -> Vec<u32> {
    let (succeeded, failed) = (succeeded(pods), failed(job, pods));
    // With `podReplacementPolicy: Failed` a terminating pod still occupies its index; otherwise this plan deletes no pod.
    let taken = pods.iter().filter(|pod| pod.ended.is_none());
    let taken: BTreeSet<u32> = taken.filter_map(|pod| pod.index).collect();
    let all = 0..u32::try_from(job.completions.unwrap_or_default()).unwrap_or_default();
    let mut free = all.filter(|index| {
        !succeeded.contains(index) && !failed.contains(index) && !taken.contains(index)
    });
    free.by_ref().take(most).collect()
}
