//! ◆ What a change of the manifests does to the pods that they have: kept, updated or replaced. Pure.

use std::collections::BTreeSet;

use api::pod::{Pod, PodUid};
use api::pod_update::may_change;

/// The pods of manifests after a change.
#[derive(Debug, Default)]
pub(crate) struct Applied {
    /// All of them, those that are kept with their earlier uid.
    pub(crate) pods: Vec<Pod>,
    /// The earlier ones that are not among them, each with the reason.
    pub(crate) ended: Vec<(PodUid, &'static str)>,
    /// The new ones among them.
    pub(crate) started: Vec<Pod>,
    /// What was done, each in a sentence.
    pub(crate) news: Vec<String>,
}

/// Compares the pods of manifests with those of before. `used` are the uids of all pods that there ever were; `has_ended` tells
/// which of the pods have.
pub(crate) fn pods(
    before: &[Pod],
    after: Vec<Pod>,
    used: &BTreeSet<PodUid>,
    has_ended: impl Fn(&PodUid) -> bool,
) -> Applied {
    let mut applied = Applied::default();
    for old in before {
        let name = old.full_name();
        if after.iter().all(|new| new.full_name() != name) {
            let why = "its manifest was removed";
            applied.ended.push((old.uid().clone(), why));
            applied.news.push(format!("pod {name} ends: {why}"));
        }
    }
    for new in after {
        let name = new.full_name();
        let Some(old) = before.iter().find(|old| old.full_name() == name) else {
            let pod = with_new_uid(new, used);
            applied.news.push(format!("pod {name} is new"));
            applied.started.push(pod.clone());
            applied.pods.push(pod);
            continue;
        };
        let same = with_uid(&new, old.uid().as_str());
        if !same.is_updated_from(old) {
            applied.pods.push(old.clone());
        } else if may_change(old, &same) && !has_ended(old.uid()) {
            applied.news.push(format!("pod {name} is updated"));
            applied.pods.push(same);
        } else {
            let why = "replaced, because its manifest changed";
            applied.ended.push((old.uid().clone(), why));
            let pod = with_new_uid(new, used);
            applied.news.push(format!("pod {name} is {why}"));
            applied.started.push(pod.clone());
            applied.pods.push(pod);
        }
    }
    applied
}

fn with_uid(pod: &Pod, uid: &str) -> Pod {
    let mut api = pod.api().clone();
    api.metadata.uid = Some(uid.to_owned());
    Pod::new(api).with_origin(pod.origin())
}

/// The pod with its own uid, or, when a pod had that already, one with a number.
fn with_new_uid(pod: Pod, used: &BTreeSet<PodUid>) -> Pod {
    if !used.contains(pod.uid()) {
        return pod;
    }
    let uid = pod.uid().as_str().to_owned();
    let mut number = 1_u64;
    loop {
        let next = format!("{uid}-{number}");
        if !used.contains(&PodUid::new(&*next)) {
            return with_uid(&pod, &next);
        }
        number += 1;
    }
}

#[cfg(test)]
mod tests {
    use api::manifest::{Strictness, parse};
    use rstest::rstest;

    use super::*;

    fn pod(name: &str, spec: &str) -> Pod {
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, image: i}}]}}\n"
        );
        let text = match spec.split_once(" => ") {
            Some((from, to)) => text.replace(from, to),
            None => text,
        };
        let parsed = parse("m.yaml", &text, Strictness::Strict);
        assert_eq!(parsed.problems, []);
        parsed.pods[0].clone()
    }

    fn apply(before: &[Pod], after: Vec<Pod>, has_ended: bool) -> Applied {
        let used = before.iter().map(|pod| pod.uid().clone()).collect();
        pods(before, after, &used, |_| has_ended)
    }

    #[rstest]
    #[case::same("", false, &[])]
    #[case::image("image: i => image: j", false, &["pod default/p is updated"])]
    #[case::label("{name: p} => {name: p, labels: {a: b}}", false, &["pod default/p is updated"])]
    #[case::command(
        "image: i => image: i, command: [x]",
        false,
        &["pod default/p is replaced, because its manifest changed"]
    )]
    #[case::limited(
        "image: i => image: i, resources: {limits: {memory: 9Mi}}",
        false,
        &["pod default/p is replaced, because its manifest changed"]
    )]
    #[case::ended(
        "image: i => image: j",
        true,
        &["pod default/p is replaced, because its manifest changed"]
    )]
    fn changed_pod_is_updated_or_replaced(
        #[case] change: &str,
        #[case] has_ended: bool,
        #[case] news: &[&str],
    ) {
        let old = pod("p", "");
        let applied = apply(std::slice::from_ref(&old), vec![pod("p", change)], has_ended);
        assert_eq!(applied.news, news);
        let is_replaced = news.iter().any(|line| line.contains("replaced"));
        assert_eq!(applied.pods[0].uid() != old.uid(), is_replaced);
        assert_eq!(applied.ended.len(), usize::from(is_replaced));
        assert_eq!(applied.started.len(), usize::from(is_replaced));
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
        let applied = apply(std::slice::from_ref(&old), vec![with(resources)], false);
        assert_eq!(applied.pods[0].uid() == old.uid(), allowed, "{:?}", applied.news);
    }

    #[test]
    fn added_pods_start_and_removed_pods_end() {
        let (a, b) = (pod("a", ""), pod("b", ""));
        let applied = apply(std::slice::from_ref(&a), vec![b.clone()], false);
        assert_eq!(applied.pods, std::slice::from_ref(&b));
        assert_eq!(applied.started, [b]);
        assert_eq!(applied.ended, [(a.uid().clone(), "its manifest was removed")]);
    }

    #[test]
    fn pod_that_comes_back_has_another_uid() {
        let a = pod("a", "");
        let used = BTreeSet::from([a.uid().clone()]);
        let applied = pods(&[], vec![a.clone()], &used, |_| false);
        assert_eq!(applied.started[0].uid().as_str(), format!("{}-1", a.uid().as_str()));
    }
}
