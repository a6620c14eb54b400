//! ◆ The effects of changed manifests on their objects: kept, updated, replaced or removed. Pure.
//!
//! Pods and objects with controllers are treated alike. `api` decides which changes an object may have, as an API server does
//! (`api::pod_update::may_change`, [`Workload::may_become`]); `kubectl apply` rejects the others, here the object is replaced.

use std::collections::{BTreeMap, BTreeSet};

use api::manifest::Workload;
use api::pod::Pod;
use api::pod_update::may_change;

/// Why the pods of an object terminate that is no longer in a manifest, or was replaced.
pub(crate) const REMOVED: &str = "its manifest was removed";
pub(crate) const REPLACED: &str = "replaced, because its manifest changed";

/// An object of a manifest.
pub trait ManifestObject: Clone {
    /// Kind, namespace and name, as in messages: `pod default/web`.
    fn name(&self) -> String;
    /// `metadata.uid`.
    fn uid(&self) -> &str;
    /// The same object with another uid.
    #[must_use]
    fn with_uid(&self, uid: &str) -> Self;
    /// The change from this object to another one with its name and uid.
    fn change(&self, to: &Self) -> Change;
}

/// The change from one object to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// No field that a manifest controls differs.
    None,
    /// An update.
    Update,
    /// A replacement by a new object.
    Replace,
}

impl ManifestObject for Pod {
    fn name(&self) -> String {
        format!("pod {}", self.full_name())
    }

    fn uid(&self) -> &str {
        self.uid().as_str()
    }

    fn with_uid(&self, uid: &str) -> Self {
        let mut api = self.api().clone();
        api.metadata.uid = Some(uid.to_owned());
        Self::new(api).with_origin(self.origin())
    }

    fn change(&self, to: &Self) -> Change {
        match to.is_updated_from(self) {
            false => Change::None,
            true if may_change(self, to) => Change::Update,
            true => Change::Replace,
        }
    }
}

impl ManifestObject for Workload {
    fn name(&self) -> String {
        self.full_name()
    }

    fn uid(&self) -> &str {
        self.metadata().uid.as_deref().unwrap_or_default()
    }

    fn with_uid(&self, uid: &str) -> Self {
        let mut workload = self.clone();
        workload.set_uid(Some(uid.to_owned()));
        workload
    }

    fn change(&self, to: &Self) -> Change {
        match self == to {
            true => Change::None,
            false if self.may_become(to) => Change::Update,
            false => Change::Replace,
        }
    }
}

/// The objects of manifests after a change.
#[must_use]
#[derive(Clone, Debug)]
pub struct Applied<T> {
    /// All objects. Kept and updated ones have their previous uid.
    pub all: Vec<T>,
    /// The previous objects that are not in `all`, each with the reason.
    pub ended: Vec<(T, &'static str)>,
    /// The new objects in `all`.
    pub started: Vec<T>,
    /// The updated objects in `all`.
    pub updated: Vec<T>,
    /// The messages about the changes.
    pub messages: Vec<String>,
}

/// Compares the objects of manifests with those of `before`. `used` are the uids of all objects so far. An object that `is_over` is
/// replaced instead of updated.
pub fn apply<T: ManifestObject>(
    before: &[T],
    after: Vec<T>,
    used: &BTreeSet<String>,
    is_over: impl Fn(&T) -> bool,
) -> Applied<T> {
    let mut applied = Applied::default();
    let names: BTreeSet<String> = after.iter().map(T::name).collect();
    let mut known = BTreeMap::new();
    for old in before {
        let name = old.name();
        if !names.contains(&name) {
            applied.ended.push((old.clone(), REMOVED));
            applied.messages.push(format!("{name} ends: {REMOVED}"));
        }
        known.insert(name, old);
    }
    for new in after {
        let name = new.name();
        let Some(old) = known.get(&name) else {
            applied.messages.push(format!("{name} is new"));
            applied.start(with_unused_uid(new, used));
            continue;
        };
        let same = new.with_uid(old.uid());
        match old.change(&same) {
            Change::None => applied.all.push((*old).clone()),
            Change::Update if !is_over(old) => {
                applied.messages.push(format!("{name} is updated"));
                applied.updated.push(same.clone());
                applied.all.push(same);
            }
            Change::Update | Change::Replace => {
                applied.ended.push(((*old).clone(), REPLACED));
                applied.messages.push(format!("{name} is {REPLACED}"));
                applied.start(with_unused_uid(new, used));
            }
        }
    }
    applied
}

impl<T> Default for Applied<T> {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            ended: Vec::new(),
            started: Vec::new(),
            updated: Vec::new(),
            messages: Vec::new(),
        }
    }
}

impl<T: Clone> Applied<T> {
    fn start(&mut self, object: T) {
        self.started.push(object.clone());
        self.all.push(object);
    }
}

/// The object with its own uid or, if an earlier object had it, with a number appended.
fn with_unused_uid<T: ManifestObject>(object: T, used: &BTreeSet<String>) -> T {
    if !used.contains(object.uid()) {
        return object;
    }
    let mut number = 1_u64;
    loop {
        let next = format!("{}-{number}", object.uid());
        if !used.contains(&next) {
            return object.with_uid(&next);
        }
        number += 1;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use rstest::rstest;

    use super::*;
    use crate::fixtures::parsed;

    fn pod(name: &str, spec: &str) -> Pod {
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, image: i}}]}}\n"
        );
        parsed(&replaced(&text, spec)).pods[0].clone()
    }

    fn workload(kind: &str, change: &str) -> Workload {
        let rest = match kind {
            "Job" => "template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}",
            _ => {
                "selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b, c: d}}, spec: {containers: [{name: c, image: i}]}}"
            }
        };
        let group = if kind == "Job" { "batch" } else { "apps" };
        let text = format!(
            "apiVersion: {group}/v1\nkind: {kind}\nmetadata: {{name: w}}\nspec: {{{rest}}}\n"
        );
        parsed(&replaced(&text, change)).workloads[0].clone()
    }

    /// A text after the replacement `PART => REPLACEMENT`.
    fn replaced(text: &str, change: &str) -> String {
        match change.split_once(" => ") {
            Some((from, to)) => text.replace(from, to),
            None => text.to_owned(),
        }
    }

    fn apply_one<T: ManifestObject>(before: T, after: T, is_over: bool) -> Applied<T> {
        let used = BTreeSet::from([before.uid().to_owned()]);
        apply(&[before], vec![after], &used, |_| is_over)
    }

    fn assert_changed<T: ManifestObject>(old: T, new: T, is_over: bool, expected: &str) {
        let name = old.name();
        let applied = apply_one(old.clone(), new, is_over);
        let messages = match expected {
            "" => Vec::new(),
            _ => vec![format!("{name} is {expected}")],
        };
        assert_eq!(applied.messages, messages);
        let is_replaced = expected.starts_with("replaced");
        assert_eq!(applied.all[0].uid() != old.uid(), is_replaced);
        assert_eq!(applied.ended.len(), usize::from(is_replaced));
        assert_eq!(applied.started.len(), usize::from(is_replaced));
        assert_eq!(applied.updated.len(), usize::from(expected == "updated"));
    }

    #[rstest]
    #[case::same("", false, "")]
    #[case::image("image: i => image: j", false, "updated")]
    #[case::label("{name: p} => {name: p, labels: {a: b}}", false, "updated")]
    #[case::command("image: i => image: i, command: [x]", false, REPLACED)]
    #[case::limited("image: i => image: i, resources: {limits: {memory: 9Mi}}", false, REPLACED)]
    #[case::ended("image: i => image: j", true, REPLACED)]
    fn changed_pod_is_updated_or_replaced(
        #[case] change: &str,
        #[case] has_ended: bool,
        #[case] expected: &str,
    ) {
        assert_changed(pod("p", ""), pod("p", change), has_ended, expected);
    }

    #[rstest]
    #[case::same("Deployment", "", false, "")]
    #[case::image("Deployment", "image: i => image: j", false, "updated")]
    #[case::selector("Deployment", "matchLabels: {a: b} => matchLabels: {c: d}", false, REPLACED)]
    #[case::job_template("Job", "image: i => image: j", false, REPLACED)]
    #[case::parallelism(
        "Job",
        "spec: {template => spec: {backoffLimit: 3, template",
        false,
        "updated"
    )]
    #[case::ended_job("Job", "spec: {template => spec: {backoffLimit: 3, template", true, REPLACED)]
    #[case::same_ended_job("Job", "", true, "")]
    fn changed_workload_is_updated_or_replaced(
        #[case] kind: &str,
        #[case] change: &str,
        #[case] is_over: bool,
        #[case] expected: &str,
    ) {
        assert_changed(workload(kind, ""), workload(kind, change), is_over, expected);
    }

    #[rstest]
    #[case::more_memory("limits: {cpu: 2, memory: 2Mi}, requests: {cpu: 1}", true)]
    #[case::another_request(
        "limits: {cpu: 2, memory: 1Mi}, requests: {cpu: 1500m, memory: 512Ki}",
        true
    )]
    #[case::limit_removed("limits: {cpu: 2}, requests: {cpu: 1}", false)]
    #[case::another_class("limits: {cpu: 1, memory: 1Mi}, requests: {cpu: 1, memory: 1Mi}", false)]
    #[case::storage(
        "limits: {cpu: 2, memory: 1Mi, ephemeral-storage: 1Gi}, requests: {cpu: 1}",
        false
    )]
    fn pod_is_resized_as_kubernetes_allows(#[case] resources: &str, #[case] allowed: bool) {
        let with = |resources: &str| {
            let change = format!("image: i => image: i, resources: {{{resources}}}");
            pod("p", &change)
        };
        let old = with("limits: {cpu: 2, memory: 1Mi}, requests: {cpu: 1}");
        let applied = apply_one(old.clone(), with(resources), false);
        assert_eq!(applied.all[0].uid() == old.uid(), allowed, "{:?}", applied.messages);
    }

    #[test]
    fn added_objects_start_and_removed_ones_end() {
        let (a, b) = (pod("a", ""), pod("b", ""));
        let used = BTreeSet::from([a.uid().as_str().to_owned()]);
        let applied = apply(std::slice::from_ref(&a), vec![b.clone()], &used, |_| false);
        assert_eq!(applied.all, std::slice::from_ref(&b));
        assert_eq!(applied.started, [b]);
        assert_eq!(applied.ended, [(a, REMOVED)]);
        assert_eq!(
            applied.messages,
            ["pod default/a ends: its manifest was removed", "pod default/b is new"]
        );
    }

    #[test]
    fn recreated_object_has_another_uid() {
        let a = pod("a", "");
        let uid = a.uid().as_str().to_owned();
        let used = BTreeSet::from([uid.clone(), format!("{uid}-1")]);
        let applied = apply(&[], vec![a], &used, |_| false);
        assert_eq!(applied.started[0].uid().as_str(), format!("{uid}-2"));
    }
}
