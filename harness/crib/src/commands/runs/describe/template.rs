//! ◆ The pod template of a workload in the format of `kubectl describe`. Pure.

use k8s_openapi::api::core::v1::{Container, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::lines::Lines;
use super::metadata::{annotations, pairs};
use super::{container, pod};

/// Adds the pod template at this JSON pointer.
pub(super) fn add(lines: &mut Lines, object: &Value, pointer: &str) {
    let template = object.pointer(pointer).cloned().unwrap_or_default();
    let template: PodTemplateSpec = serde_json::from_value(template).unwrap_or_default();
    let metadata = template.metadata.unwrap_or_default();
    let spec = template.spec.unwrap_or_default();
    lines.line(0, "Pod Template:");
    lines.values(2, "Labels", &pairs(metadata.labels.as_ref()));
    if metadata.annotations.as_ref().is_some_and(|all| !all.is_empty()) {
        lines.values(2, "Annotations", &annotations(metadata.annotations.as_ref()));
    }
    lines.some(2, "Service Account", spec.service_account_name.as_deref());
    containers(lines, "Init Containers", spec.init_containers.as_deref().unwrap_or_default());
    containers(lines, "Containers", &spec.containers);
    pod::volumes(lines, 2, &spec);
    pod::constraints(lines, 2, &spec);
    lines.some(2, "Priority Class Name", spec.priority_class_name.as_deref());
    pod::scheduling(lines, 2, &spec);
}

/// Adds containers. There is no pod yet, so variables of its fields have no values.
fn containers(lines: &mut Lines, heading: &str, containers: &[Container]) {
    if containers.is_empty() {
        return;
    }
    lines.line(2, &format!("{heading}:"));
    for container in containers {
        container::add(lines, 3, container, None, &ObjectMeta::default(), true);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn template_has_sections_of_kubectl() {
        let object = json!({"template": {
            "metadata": {"labels": {"app": "web"}, "annotations": {"note": "x"}},
            "spec": {
                "serviceAccountName": "shop", "priorityClassName": "high",
                "initContainers": [{"name": "before", "image": "a"}],
                "containers": [{"name": "main", "image": "b", "ports": [{"containerPort": 80}]}],
                "volumes": [{"name": "v", "emptyDir": {}}],
                "topologySpreadConstraints": [
                    {"topologyKey": "zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"},
                ],
                "nodeSelector": {"a": "b"},
            },
        }});
        let mut lines = Lines::default();
        add(&mut lines, &object, "/template");
        let expected = "Pod Template:
  Labels:           app=web
  Annotations:      note: x
  Service Account:  shop
  Init Containers:
   before:
    Image:        a
    Port:         <none>
    Host Port:    <none>
    Environment:  <none>
    Mounts:       <none>
  Containers:
   main:
    Image:        b
    Port:         80/TCP
    Host Port:    0/TCP
    Environment:  <none>
    Mounts:       <none>
  Volumes:
   v:
    Type:                       EmptyDir (a temporary directory that shares a pod's lifetime)
    Medium:
    SizeLimit:                  <unset>
  Topology Spread Constraints:  zone:DoNotSchedule when max skew 1 is exceeded
  Priority Class Name:          high
  Node-Selectors:               a=b
  Tolerations:                  <none>";
        assert_eq!(lines.aligned().join("\n"), expected);
    }

    #[test]
    fn missing_template_is_empty() {
        let mut lines = Lines::default();
        add(&mut lines, &json!({}), "/template");
        let expected = [
            "Pod Template:",
            "  Labels:          <none>",
            "  Volumes:         <none>",
            "  Node-Selectors:  <none>",
            "  Tolerations:     <none>",
        ];
        assert_eq!(lines.aligned(), expected);
    }
}
