//! ◆ The messages of events about resizes: the requested resources as JSON.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/events/resize.go.

use std::collections::BTreeMap;

use api::pod::Pod;
use api::totals::{self, Kind};
use k8s_openapi::api::core::v1::Container;
use serde::Serialize;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    init_containers: Vec<ContainerSummary<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    containers: Vec<ContainerSummary<'a>>,
    generation: i64,
    #[serde(skip_serializing_if = "str::is_empty")]
    error: &'a str,
}

#[derive(Serialize)]
struct ContainerSummary<'a> {
    name: &'a str,
    resources: Resources,
}

#[derive(Serialize)]
struct Resources {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    limits: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    requests: BTreeMap<String, String>,
}

/// `what` followed by the resources in the pod's spec, the generation, and the error if the resize failed.
pub(super) fn message(what: &str, pod: &Pod, generation: i64, error: &str) -> String {
    let summary = Summary {
        init_containers: pod.init_containers().iter().map(container).collect(),
        containers: pod.containers().iter().map(container).collect(),
        generation,
        error,
    };
    match serde_json::to_string(&summary) {
        Ok(json) => format!("{what}: {}", as_go_writes(&json)),
        Err(_) => what.to_owned(),
    }
}

fn container(of: &Container) -> ContainerSummary<'_> {
    let list = |kind: Kind| {
        let amounts = kind.of(of.resources.as_ref()).into_iter().flatten();
        amounts.map(|(name, amount)| (name.clone(), totals::amount(amount).to_string())).collect()
    };
    ContainerSummary {
        name: &of.name,
        resources: Resources { limits: list(Kind::Limits), requests: list(Kind::Requests) },
    }
}

/// Escapes JSON as Go does, so that it can be embedded in HTML.
fn as_go_writes(json: &str) -> String {
    json.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;
    use crate::fixtures;

    #[test]
    fn message_has_resources_generation_and_error() {
        let spec = json!({
            "initContainers": [{"name": "i"}],
            "containers": [{"name": "a", "resources": {"requests": {"cpu": "1000m"}, "limits": {"memory": "64Mi"}}}],
        });
        let pod = fixtures::pod(json!({"spec": spec}));
        assert_eq!(
            message("Pod resize error", &pod, 3, "a < b"),
            "Pod resize error: {\"initContainers\":[{\"name\":\"i\",\"resources\":{}}],\"containers\":[{\"name\":\"a\",\
             \"resources\":{\"limits\":{\"memory\":\"64Mi\"},\"requests\":{\"cpu\":\"1\"}}}],\"generation\":3,\
             \"error\":\"a \\u003c b\"}"
        );
    }
}
