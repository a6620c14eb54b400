//! ◆ Names of objects with `metadata.generateName` and no name. Pure.
//!
//! Source: Kubernetes 1.36, apiserver/pkg/storage/names/generate.go. Its five characters are random; here they depend on the file,
//! so that rereading a file yields the same objects.

use compact::Map;

use super::tree::{Entry, Node, Value};
use super::{Loader, is_empty};
use crate::generated_names::generated_name;

/// The number of generated names for each kind and prefix.
pub(super) type Generated = Map<(String, String), usize>;

impl Loader<'_> {
    /// Sets the name of an object that has only `generateName`.
    pub(super) fn generate_name(&mut self, kind: &str, node: &mut Node) {
        let Value::Mapping(fields) = &mut node.value else {
            return;
        };
        let Some(metadata) = fields.iter_mut().find(|field| field.key == "metadata") else {
            return;
        };
        let given = |field: &str| metadata.value.get(field).map(|entry| &entry.value);
        let has_name = given("name").is_some_and(|name| !is_empty(name) && name.text() != Some(""));
        let prefix = given("generateName").filter(|prefix| !has_name && !is_empty(prefix));
        let Some((text, place)) = prefix.and_then(|prefix| Some((prefix.text()?, prefix.place)))
        else {
            return;
        };
        if text.is_empty() {
            return;
        }
        let prefix = text.to_owned();
        // Documents of another kind or prefix do not change the name.
        let number = self.generated.entry((kind.to_owned(), prefix.clone())).or_default();
        let text = generated_name(&prefix, &format!("{number}\0{kind}\0{}", self.file));
        *number += 1;
        if let Value::Mapping(entries) = &mut metadata.value.value {
            entries.retain(|entry| entry.key != "name");
            let value = Node { place, value: Value::Scalar { text, plain: false } };
            entries.push(Entry { key: "name".to_owned(), key_place: place, value });
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use compact::Set;
    use rstest::rstest;

    use crate::manifest::{Parsed, Strictness, parse};

    fn strict(file: &str, text: &str) -> Parsed {
        parse(file, text, Strictness::Strict)
    }

    /// A document of a kind.
    fn document(kind: &str, metadata: &str) -> String {
        let containers = "containers: [{name: c, image: i}]";
        let template =
            format!("template: {{metadata: {{labels: {{a: b}}}}, spec: {{{containers}}}}}");
        let set = format!("spec: {{selector: {{matchLabels: {{a: b}}}}, {template}}}");
        let job = template.replace("containers:", "restartPolicy: Never, containers:");
        let (version, rest) = match kind {
            "Pod" => ("v1", format!("spec: {{{containers}}}")),
            "Job" => ("batch/v1", format!("spec: {{{job}}}")),
            "CronJob" => (
                "batch/v1",
                format!("spec: {{schedule: '* * * * *', jobTemplate: {{spec: {{{job}}}}}}}"),
            ),
            "Deployment" | "ReplicaSet" | "DaemonSet" | "StatefulSet" => ("apps/v1", set),
            "Service" => ("v1", "spec: {ports: [{port: 80}]}".to_owned()),
            "PersistentVolumeClaim" => (
                "v1",
                "spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}"
                    .to_owned(),
            ),
            "PriorityClass" => ("scheduling.k8s.io/v1", "value: 1".to_owned()),
            _ => ("v1", String::new()),
        };
        format!("apiVersion: {version}\nkind: {kind}\nmetadata: {metadata}\n{rest}\n---\n")
    }

    /// The names of all parsed objects.
    fn names(parsed: &Parsed) -> Vec<String> {
        assert_eq!(parsed.problems, []);
        let pods = parsed.pods.iter().map(|pod| pod.name().to_owned());
        let workloads = parsed.workloads.iter().map(|workload| workload.name().to_owned());
        let objects = parsed.objects.iter().map(|object| {
            let name = object.full_name();
            name.rsplit([' ', '/']).next().unwrap().to_owned()
        });
        pods.chain(workloads).chain(objects).collect()
    }

    /// Whether a name is the prefix and five generated characters.
    fn is_generated(name: &str, prefix: &str) -> bool {
        let suffix = name.strip_prefix(prefix).unwrap_or_default();
        suffix.len() == 5 && suffix.chars().all(|c| "bcdfghjklmnpqrstvwxz2456789".contains(c))
    }

    #[rstest]
    #[case("Pod")]
    #[case("Job")]
    #[case("CronJob")]
    #[case("Deployment")]
    #[case("ReplicaSet")]
    #[case("DaemonSet")]
    #[case("StatefulSet")]
    #[case("ConfigMap")]
    #[case("Secret")]
    #[case("Service")]
    #[case("Namespace")]
    #[case("ServiceAccount")]
    #[case("PersistentVolumeClaim")]
    #[case("PriorityClass")]
    fn object_of_any_kind_gets_a_name(#[case] kind: &str) {
        let found = names(&strict("m.yaml", &document(kind, "{generateName: work-}")));
        assert!(matches!(&found[..], [name] if is_generated(name, "work-")), "{found:?}");
    }

    #[rstest]
    #[case::absent("{generateName: work-}", "work-")]
    #[case::empty("{name: '', generateName: work-}", "work-")]
    #[case::null("{name: , generateName: work-}", "work-")]
    #[case::without_hyphen("{generateName: work}", "work")]
    fn prefix_counts_without_a_name(#[case] metadata: &str, #[case] prefix: &str) {
        let found = names(&strict("m.yaml", &document("Pod", metadata)));
        assert!(matches!(&found[..], [name] if is_generated(name, prefix)), "{found:?}");
    }

    #[rstest]
    #[case::both("{name: work, generateName: work-}")]
    #[case::empty_prefix("{name: work, generateName: ''}")]
    #[case::null_prefix("{name: work, generateName: }")]
    fn name_takes_precedence_over_generate_name(#[case] metadata: &str) {
        assert_eq!(names(&strict("m.yaml", &document("Pod", metadata))), ["work"]);
    }

    #[rstest]
    #[case(57)]
    #[case(58)]
    #[case(59)]
    #[case(100)]
    fn prefix_is_cut(#[case] length: usize) {
        let metadata = format!("{{generateName: {}}}", "x".repeat(length));
        let found = names(&strict("m.yaml", &document("ConfigMap", &metadata)));
        assert!(is_generated(&found[0], &"x".repeat(length.min(58))), "{found:?}");
    }

    #[rstest]
    #[case::none("{}", &["metadata.name"])]
    #[case::empty_prefix("{generateName: ''}", &["metadata.name"])]
    #[case::number("{generateName: 1}", &["metadata.generateName"])]
    #[case::invalid_prefix("{generateName: A_}", &["metadata.generateName", "metadata.name"])]
    fn object_without_name_and_valid_prefix_is_refused(
        #[case] metadata: &str,
        #[case] expected: &[&str],
    ) {
        let parsed = strict("m.yaml", &document("ConfigMap", metadata));
        let paths: Vec<&str> =
            parsed.problems.iter().map(|problem| problem.path.as_str()).collect();
        assert_eq!(paths, expected, "{:?}", parsed.problems);
    }

    #[test]
    fn name_depends_on_file_kind_and_number_only() {
        let pod = document("Pod", "{generateName: a-}");
        let first = names(&strict("m.yaml", &pod));
        // Other documents, and other fields of the document, do not change the name.
        let changed = pod.replace("image: i", "image: other");
        for beside in ["Pod", "ConfigMap"] {
            let other = document(beside, "{generateName: b-}");
            let found = names(&strict("m.yaml", &(other + &changed)));
            assert!(found.contains(&first[0]), "{found:?} {first:?}");
        }
        assert_ne!(names(&strict("other.yaml", &pod)), first);
        let prefix = "{generateName: a-}";
        let kinds =
            document("Pod", prefix) + &document("ConfigMap", prefix) + &document("Job", prefix);
        let many = strict("m.yaml", &(pod.repeat(100) + &kinds));
        let distinct: Set<String> = names(&many).into_iter().collect();
        assert_eq!(distinct.len(), 103);
        assert!(distinct.contains(&first[0]));
    }

    #[test]
    fn items_of_lists_get_names() {
        let text = "apiVersion: v1\nkind: ConfigMapList\nitems: [{metadata: {generateName: a-}}, {metadata: {generateName: a-}}]\n";
        let found = names(&strict("m.yaml", text));
        assert!(found.len() == 2 && found[0] != found[1], "{found:?}");
        assert!(found.iter().all(|name| is_generated(name, "a-")), "{found:?}");
    }

    #[test]
    fn skipped_hook_has_its_name() {
        let metadata = "{generateName: check-, annotations: {helm.sh/hook: test}}";
        let parsed = strict("m.yaml", &document("Pod", metadata));
        assert!(is_generated(&parsed.skipped[0].name, "check-"), "{:?}", parsed.skipped);
    }
}
