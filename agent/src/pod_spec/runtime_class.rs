//! ◆ The effects of RuntimeClasses on their pods: the runtime's handler, and their overhead. Pure.
//!
//! Source: Kubernetes 1.36, plugin/pkg/admission/runtimeclass.

use std::collections::BTreeMap;

use api::manifest::Workload;
use api::pod::Pod;
use k8s_openapi::api::core::v1::PodSpec;
use k8s_openapi::api::node::v1::RuntimeClass;

use crate::objects::ObjectMap;

/// The handlers of the classes, by the classes' names.
pub(crate) fn handlers(objects: &ObjectMap) -> BTreeMap<String, String> {
    let classes = objects.runtime_classes().into_iter();
    classes
        .map(|class| {
            let name = class.metadata.name.clone().unwrap_or_default();
            (name, class.handler.clone())
        })
        .collect()
}

/// Sets the overhead of pods and pod templates from their classes. Returns the problems to print.
#[must_use]
pub fn add_overhead(
    pods: &mut [Pod],
    workloads: &mut [Workload],
    objects: &ObjectMap,
) -> Vec<String> {
    let mut problems = Vec::new();
    for pod in pods {
        let Some(class) = class_of(pod.spec(), objects) else {
            continue;
        };
        let mut api = pod.api().clone();
        let added = with_overhead(api.spec.get_or_insert_default(), &class);
        match added {
            Ok(true) => {
                let origin = pod.origin().to_owned();
                *pod = Pod::new(api).with_origin(&origin);
            }
            Ok(false) => {}
            Err(problem) => {
                problems.push(format!("{}: pod {}: {problem}", pod.origin(), pod.full_name()));
            }
        }
    }
    for workload in workloads {
        let name = format!("{}: {}", workload.origin, workload.full_name());
        let spec = workload.template_mut().and_then(|template| template.spec.as_mut());
        let Some(spec) = spec else { continue };
        let class = class_of(spec, objects);
        if let Some(Err(problem)) = class.map(|class| with_overhead(spec, &class)) {
            problems.push(format!("{name}: {problem}"));
        }
    }
    problems
}

fn class_of(spec: &PodSpec, objects: &ObjectMap) -> Option<std::sync::Arc<RuntimeClass>> {
    objects.runtime_class(spec.runtime_class_name.as_deref()?)
}

/// Sets the overhead. Returns whether it changed, or why the class does not allow the spec's own.
fn with_overhead(spec: &mut PodSpec, class: &RuntimeClass) -> Result<bool, String> {
    let of_class = class
        .overhead
        .as_ref()
        .and_then(|overhead| overhead.pod_fixed.as_ref())
        .filter(|fixed| !fixed.is_empty());
    let name = class.metadata.name.as_deref().unwrap_or_default();
    match (&spec.overhead, of_class) {
        (Some(own), of_class) if !own.is_empty() && Some(own) != of_class => {
            Err(format!("spec.overhead is not that of the RuntimeClass {name}: leave it out"))
        }
        (_, Some(fixed)) if spec.overhead.as_ref() != Some(fixed) => {
            spec.overhead = Some(fixed.clone());
            Ok(true)
        }
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::*;
    use crate::fixtures;

    const CLASS: &str =
        "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: vm}\nhandler: kata\n";

    fn overheads(class: &str, own: &str) -> Result<Vec<Option<String>>, Vec<String>> {
        let spec = format!("runtimeClassName: vm, containers: [{{name: c, image: i}}], {own}");
        let text = format!(
            "{CLASS}{class}---\napiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {{{spec}}}\n---\napiVersion: apps/v1\n\
             kind: DaemonSet\nmetadata: {{name: d}}\nspec:\n  selector: {{matchLabels: {{a: b}}}}\n  template:\n    \
             metadata: {{labels: {{a: b}}}}\n    spec: {{{spec}}}\n"
        );
        let mut parsed = fixtures::parsed(&text);
        let objects = fixtures::objects(parsed.objects);
        assert_eq!(handlers(&objects)["vm"], "kata");
        let problems = add_overhead(&mut parsed.pods, &mut parsed.workloads, &objects);
        if !problems.is_empty() {
            return Err(problems);
        }
        let memory = |spec: &PodSpec| {
            let overhead = spec.overhead.as_ref()?;
            Some(overhead.get("memory")?.0.clone())
        };
        let of_pods = parsed.pods.iter().map(|pod| memory(pod.spec()));
        let of_workloads = parsed.workloads.iter();
        let of_workloads = of_workloads.map(|set| memory(set.example().spec()));
        Ok(of_pods.chain(of_workloads).collect())
    }

    #[rstest]
    #[case("", "", None)]
    #[case("overhead: {podFixed: {memory: 20Mi}}\n", "", Some("20Mi"))]
    #[case("overhead: {podFixed: {memory: 20Mi}}\n", "overhead: {memory: 20Mi}", Some("20Mi"))]
    fn pods_get_overhead_of_class(
        #[case] class: &str,
        #[case] own: &str,
        #[case] expected: Option<&str>,
    ) {
        let expected = expected.map(str::to_owned);
        assert_eq!(overheads(class, own), Ok(vec![expected.clone(), expected]));
    }

    #[rstest]
    #[case("")]
    #[case("overhead: {podFixed: {memory: 20Mi}}\n")]
    fn other_overhead_is_refused(#[case] class: &str) {
        assert_eq!(
            overheads(class, "overhead: {memory: 10Mi}").unwrap_err(),
            [
                "m.yaml: pod default/p: spec.overhead is not that of the RuntimeClass vm: leave it out",
                "m.yaml: daemonset default/d: spec.overhead is not that of the RuntimeClass vm: leave it out"
            ]
        );
    }
}
