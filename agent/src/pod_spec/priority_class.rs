//! ◆ The priorities that PriorityClasses give to their pods. Pure.
//!
//! Source: Kubernetes 1.36, plugin/pkg/admission/priority and pkg/apis/scheduling.

use api::manifest::Workload;
use api::pod::{Pod, SYSTEM_CLASSES};
use compact::Map;
use k8s_openapi::api::core::v1::PodSpec;

use crate::objects::ObjectMap;

/// Problems with the PriorityClasses of pods, as sentences.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PriorityWarnings {
    /// Priorities that differ from those of their classes.
    pub problems: Vec<String>,
    /// Classes that do not exist.
    pub unknown: Vec<String>,
}

/// The priorities of classes.
struct Classes {
    by_name: Map<String, i32>,
    /// The class of pods without one.
    default: Option<String>,
}

/// Sets the priorities of pods and pod templates from their classes.
#[must_use]
pub fn add_priority(
    pods: &mut [Pod],
    workloads: &mut [Workload],
    objects: &ObjectMap,
) -> PriorityWarnings {
    let classes = Classes::of(objects);
    let (mut warnings, mut unknown) =
        (PriorityWarnings::default(), Map::<String, Vec<String>>::new());
    let mut note = |owner: String, origin: &str, found: Result<(), Refusal>| {
        match found {
        Ok(()) => {}
        Err(Refusal::Unknown(class)) => unknown.entry(class).or_default().push(owner),
        Err(Refusal::Priority(class)) => warnings.problems.push(format!(
            "{origin}: {owner}: spec.priority is not that of the PriorityClass {class}: leave it out"
        )),
    }
    };
    for pod in pods {
        let mut api = pod.api().clone();
        let found = classes.give(api.spec.get_or_insert_default());
        let origin = pod.origin().to_owned();
        if api != *pod.api() {
            *pod = Pod::new(api).with_origin(&origin);
        }
        note(format!("pod {}", pod.full_name()), &origin, found);
    }
    for workload in workloads {
        let (name, origin) = (workload.full_name(), workload.origin.clone());
        let template = workload.template_mut();
        if let Some(spec) = template.and_then(|template| template.spec.as_mut()) {
            note(name, &origin, classes.give(spec));
        }
    }
    let unknown = unknown.into_iter().map(|(class, owners)| {
        let (owners, verb) = (owners.join(", "), if owners.len() == 1 { "names" } else { "name" });
        format!(
            "priorityClassName of {owners} {verb} the PriorityClass {class:?}, which is not in the manifests, and which an API \
             server would refuse: add the PriorityClass, or leave priorityClassName out"
        )
    });
    warnings.unknown = unknown.collect();
    warnings
}

/// Why an API server rejects a pod.
#[derive(Debug)]
enum Refusal {
    /// The class does not exist.
    Unknown(String),
    /// The pod has another priority than this class.
    Priority(String),
}

impl Classes {
    fn of(objects: &ObjectMap) -> Self {
        let given = objects.priority_classes();
        // Of several, the API server takes the class with the lowest priority.
        let default = given
            .iter()
            .filter(|class| class.global_default == Some(true))
            .min_by_key(|class| class.value.unwrap_or_default())
            .and_then(|class| class.metadata.name.clone());
        let given = given.iter().map(|class| {
            let name = class.metadata.name.clone().unwrap_or_default();
            (name, class.value.unwrap_or_default())
        });
        let system = SYSTEM_CLASSES.map(|(name, value)| (name.to_owned(), value));
        Self { by_name: system.into_iter().chain(given).collect(), default }
    }

    /// Sets the priority of a pod's spec, unless its class does not exist, or it has another priority.
    fn give(&self, spec: &mut PodSpec) -> Result<(), Refusal> {
        let own = spec.priority_class_name.as_deref();
        let Some(name) = own.filter(|name| !name.is_empty()).or(self.default.as_deref()) else {
            return Ok(());
        };
        let Some(value) = self.by_name.get(name) else {
            return Err(Refusal::Unknown(name.to_owned()));
        };
        if spec.priority.is_some_and(|priority| priority != *value) {
            return Err(Refusal::Priority(name.to_owned()));
        }
        let name = name.to_owned();
        spec.priority = Some(*value);
        spec.priority_class_name = Some(name);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::*;
    use crate::fixtures;

    const CLASSES: &str = "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: fast}\nvalue: 1000\n---\n\
                           apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: low}\nvalue: -5\n";
    const DEFAULT: &str = "globalDefault: true\n";

    /// The priorities of a pod and of a DaemonSet's pods with this spec, and the warnings.
    fn resolve(classes: &str, spec: &str) -> (Vec<Option<i32>>, PriorityWarnings) {
        let spec = format!("{{containers: [{{name: c, image: i}}], {spec}}}");
        let text = format!(
            "{classes}---\napiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {spec}\n---\napiVersion: apps/v1\n\
             kind: DaemonSet\nmetadata: {{name: d}}\nspec:\n  selector: {{matchLabels: {{a: b}}}}\n  template:\n    \
             metadata: {{labels: {{a: b}}}}\n    spec: {spec}\n"
        );
        let mut parsed = fixtures::parsed(&text);
        let objects = fixtures::objects(parsed.objects);
        let warnings = add_priority(&mut parsed.pods, &mut parsed.workloads, &objects);
        let examples = parsed.workloads.iter().map(Workload::example);
        let all = parsed.pods.iter().cloned().chain(examples);
        (all.map(|pod| pod.spec().priority).collect(), warnings)
    }

    #[rstest]
    #[case::none("", "", None)]
    #[case::own("", "priority: 7", Some(7))]
    #[case::class("", "priorityClassName: fast", Some(1000))]
    #[case::class_and_same("", "priorityClassName: fast, priority: 1000", Some(1000))]
    #[case::system("", "priorityClassName: system-node-critical", Some(2_000_001_000))]
    #[case::default_class(DEFAULT, "", Some(-5))]
    #[case::class_before_default(DEFAULT, "priorityClassName: fast", Some(1000))]
    fn pods_get_priority_of_class(
        #[case] more: &str,
        #[case] spec: &str,
        #[case] expected: Option<i32>,
    ) {
        let (priorities, warnings) = resolve(&format!("{CLASSES}{more}"), spec);
        assert_eq!(priorities, [expected, expected]);
        assert_eq!(warnings, PriorityWarnings::default());
    }

    #[test]
    fn unknown_class_is_named_once() {
        let (priorities, warnings) = resolve(CLASSES, "priorityClassName: other, priority: 3");
        assert_eq!(priorities, [Some(3), Some(3)]);
        assert_eq!(warnings.problems, [""; 0]);
        assert_eq!(
            warnings.unknown,
            [
                "priorityClassName of pod default/p, daemonset default/d name the PriorityClass \"other\", which is not in the \
              manifests, and which an API server would refuse: add the PriorityClass, or leave priorityClassName out"
            ]
        );
    }

    #[test]
    fn priority_of_another_class_is_refused() {
        let (_, warnings) = resolve(CLASSES, "priorityClassName: fast, priority: 3");
        assert_eq!(
            warnings.problems,
            [
                "m.yaml: pod default/p: spec.priority is not that of the PriorityClass fast: leave it out",
                "m.yaml: daemonset default/d: spec.priority is not that of the PriorityClass fast: leave it out"
            ]
        );
    }
}
