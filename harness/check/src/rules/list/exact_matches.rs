//! Rules of filters that match too much: labels match exactly, and every field of a stats filter counts.

use std::collections::HashMap;

use compact::Set;
use cri::v1::{ContainerFilter, ContainerStatsFilter, PodSandboxFilter, PodSandboxStatsFilter};

use crate::prelude::*;
use crate::rules::list::{colour, containers, ids, pods, two_containers, two_pods};
use crate::rules::statistics::without_cgroup_parent;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-SBX-045": "Label filters of ListPodSandbox match whole keys and values, case-sensitively, and do not match annotations.",
        CRIO, tags ["kubelet", "filter"], calls [ListPodSandbox],
        labels_of_sandboxes_match_whole, faults [
            "ListPodSandbox if request.filter.label_selector[\"colour\"] == \"re\" request set filter.label_selector.colour \"red\"",
            "ListPodSandbox if request.filter.label_selector[\"colour\"] == \"Red\" request set filter.label_selector.colour \"red\"",
            "ListPodSandbox request drop filter.label_selector.note",
            "ListPodSandbox request drop filter.label_selector",
        ];
    Must "CRI-CTR-047": "Label filters of ListContainers match whole keys and values of the container's own labels, case-sensitively.",
        CRIO, tags ["kubelet", "filter"], calls [ListContainers],
        labels_of_containers_match_whole, faults [
            "ListContainers if request.filter.label_selector[\"colour\"] == \"re\" request set filter.label_selector.colour \"red\"",
            "ListContainers if request.filter.label_selector[\"colour\"] == \"Red\" request set filter.label_selector.colour \"red\"",
            "ListContainers request drop filter.label_selector.note",
            "ListContainers request drop filter.label_selector",
        ];
    Must "CRI-STA-020": "ListContainerStats returns the containers that match every field of the filter.",
        API, tags ["kubelet", "filter"], calls [ListContainerStats],
        parts_of_stats_filter_are_all_met, faults [
            "ListContainerStats request drop filter.id",
            "ListContainerStats if request.filter.id != \"\" request drop filter.pod_sandbox_id",
            "ListContainerStats if request.filter.id != \"\" request drop filter.label_selector",
            "ListContainerStats if request.filter.pod_sandbox_id != \"\" request drop filter.label_selector",
            "ListContainerStats if request.filter.label_selector[\"colour\"] == \"re\" request set filter.label_selector.colour \"red\"",
            "ListContainerStats drop stats",
        ];
    Should "CRI-STA-021": "ListPodSandboxStats returns the sandboxes that match every field of the filter.",
        API, tags ["kubelet", "filter"], calls [ListPodSandboxStats],
        parts_of_sandbox_stats_filter_are_all_met, faults [
            "ListPodSandboxStats request drop filter.id",
            "ListPodSandboxStats if request.filter.id != \"\" request drop filter.label_selector",
            "ListPodSandboxStats if request.filter.label_selector[\"colour\"] == \"re\" request set filter.label_selector.colour \"red\"",
            "ListPodSandboxStats drop stats",
        ];
};

fn labels(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    let pairs = pairs.iter();
    pairs.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// Labels that nearly match an object with `colour: red`, `size: small` and the annotation `note`.
const ALMOST: &[&[(&str, &str)]] = &[
    &[("colour", "re")],
    &[("colour", "ed")],
    &[("colour", "r.d")],
    &[("colour", "redder")],
    &[("colour", "Red")],
    &[("colour", "")],
    &[("colou", "red")],
    &[("Colour", "red")],
    &[("size", "red")],
    &[("colour", "red"), ("note", "seen")],
];

async fn labels_of_sandboxes_match_whole(x: &Context) -> Verdict {
    let mut config = x.sandbox();
    colour(&mut config.labels, "red", "small");
    config.annotations.extend(labels(&[("note", "seen")]));
    let pod = x.pod_of(config).await?;
    let filter = |pairs: &[(&str, &str)]| PodSandboxFilter {
        label_selector: labels(pairs),
        ..Default::default()
    };
    for pairs in ALMOST {
        let what = format!("ListPodSandbox by {pairs:?}");
        equal(&what, &pods(x, filter(pairs)).await?, &ids([]))?;
    }
    let exactly = filter(&[("colour", "red"), ("size", "small")]);
    let seen = pods(x, exactly).await?;
    equal("ListPodSandbox by its labels", &seen, &ids([&pod.id]))
}

async fn labels_of_containers_match_whole(x: &Context) -> Verdict {
    let mut config = x.sandbox();
    config.labels.extend(labels(&[("of-sandbox", "yes")]));
    let pod = x.pod_of(config).await?;
    let mut config = x.forever("c");
    colour(&mut config.labels, "red", "small");
    config.annotations.extend(labels(&[("note", "seen")]));
    let id = pod.create(config).await?;
    let filter = |pairs: &[(&str, &str)]| ContainerFilter {
        label_selector: labels(pairs),
        ..Default::default()
    };
    let of_sandbox: &[(&str, &str)] = &[("of-sandbox", "yes")];
    for pairs in ALMOST.iter().chain([&of_sandbox]) {
        let what = format!("ListContainers by {pairs:?}");
        equal(&what, &containers(x, filter(pairs)).await?, &ids([]))?;
    }
    let exactly = filter(&[("colour", "red"), ("size", "small")]);
    let seen = containers(x, exactly).await?;
    equal("ListContainers by its labels", &seen, &ids([&id]))
}

/// The containers among `of` whose stats the filter returns.
async fn measured(
    x: &Context,
    filter: ContainerStatsFilter,
    of: &[&String],
) -> Verdict<Set<String>> {
    let all = x.client.list_container_stats(filter).await?.into_iter();
    let all = all.filter_map(|stats| Some(stats.attributes?.id));
    Ok(all.filter(|id| of.contains(&id)).collect())
}

async fn parts_of_stats_filter_are_all_met(x: &Context) -> Verdict {
    let (pod, [red, blue]) = two_containers(x).await?;
    let other: Pod = x.pod().await?;
    for id in [&red, &blue] {
        x.client.start(id).await?;
    }
    x.logged(&pod, "ready").await?;
    let filter = |id: &str, pod: &str, colour: &str| ContainerStatsFilter {
        id: id.to_owned(),
        pod_sandbox_id: pod.to_owned(),
        label_selector: match colour {
            "" => HashMap::new(),
            colour => labels(&[("colour", colour)]),
        },
    };
    let all: [(&str, &str, &str, &[&String]); 7] = [
        (&red, &pod.id, "red", &[&red]),
        (&red, &other.id, "", &[]),
        (&red, &pod.id, "blue", &[]),
        (&red, "", "blue", &[]),
        ("", &pod.id, "blue", &[&blue]),
        ("", &other.id, "red", &[]),
        ("", &pod.id, "re", &[]),
    ];
    for (id, sandbox, colour, expected) in all {
        let filter = filter(id, sandbox, colour);
        let what = format!("ListContainerStats by {filter:?}");
        let seen = measured(x, filter, &[&red, &blue]).await?;
        equal(&what, &seen, &ids(expected.iter().copied()))?;
    }
    Ok(())
}

async fn parts_of_sandbox_stats_filter_are_all_met(x: &Context) -> Verdict {
    let [red, blue] = two_pods(x).await?;
    let all: [(&str, &str, &[&String]); 4] = [
        (&red.id, "red", &[&red.id]),
        (&red.id, "blue", &[]),
        ("", "blue", &[&blue.id]),
        ("", "re", &[]),
    ];
    for (id, colour, expected) in all {
        let filter = PodSandboxStatsFilter {
            id: id.to_owned(),
            label_selector: labels(&[("colour", colour)]),
        };
        let what = format!("ListPodSandboxStats by {filter:?}");
        let request = v1::ListPodSandboxStatsRequest { filter: Some(filter) };
        let mut runtime = x.client.runtime.clone();
        let answer = runtime.list_pod_sandbox_stats(request).await;
        let answer = without_cgroup_parent(answer)?.into_inner();
        let seen = answer.stats.into_iter();
        let seen = seen.filter_map(|stats| Some(stats.attributes?.id));
        let seen: Set<String> = seen.filter(|id| [&red.id, &blue.id].contains(&id)).collect();
        equal(&what, &seen, &ids(expected.iter().copied()))?;
    }
    Ok(())
}
