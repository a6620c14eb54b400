//! ◆ Kustomizations, which `kubectl kustomize` builds, and which may omit their kind. Pure.
//!
//! Source: kustomize 5, api/types/kustomization.go and api/konfig/general.go.

use std::path::Path;

use super::is_empty;
use super::tree::{Node, Value};

/// The default kind of a document.
pub(super) const KIND: &str = "Kustomization";
/// The default API version of a document.
pub(super) const VERSION: &str = "kustomize.config.k8s.io/v1beta1";

const GROUP: &str = "kustomize.config.k8s.io/";
const FILES: [&str; 3] = ["kustomization.yaml", "kustomization.yml", "Kustomization"];

/// The top-level fields that no other document has.
const FIELDS: &str = "bases buildMetadata commonAnnotations commonLabels components configMapGenerator configurations crds generatorOptions \
    generators helmChartInflationGenerator helmCharts helmGlobals imageTags images labels namePrefix nameSuffix namespace openapi patches \
    patchesJson6902 patchesStrategicMerge replacements replicas resources secretGenerator sortOptions transformers validators vars";

/// Whether the document of a file is a kustomization without a kind or an API version.
pub(super) fn is_kustomization(file: &str, document: &Node) -> bool {
    let Value::Mapping(fields) = &document.value else {
        return false;
    };
    let given = |field: &str| {
        let entry = fields.iter().find(|entry| entry.key == field);
        entry.map(|entry| &entry.value).filter(|value| !is_empty(value))
    };
    let kind = given("kind").map(Node::text);
    let version = given("apiVersion").map(Node::text);
    let is_named =
        || Path::new(file).file_name().is_some_and(|name| FILES.iter().any(|known| name == *known));
    match (kind, version) {
        (Some(Some(KIND)), None) => true,
        (None, Some(version)) => version.is_some_and(|version| version.starts_with(GROUP)),
        (None, None) => is_named() || has_only_its_fields(document),
        (Some(_), _) => false,
    }
}

fn has_only_its_fields(document: &Node) -> bool {
    let Value::Mapping(fields) = &document.value else {
        return false;
    };
    let is_own = |name: &str| FIELDS.split_whitespace().any(|field| field == name);
    let is_other = |name: &str| matches!(name, "metadata" | "kind" | "apiVersion");
    fields.iter().any(|field| is_own(&field.key))
        && fields.iter().all(|field| is_own(&field.key) || is_other(&field.key))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use crate::manifest::{Strictness, parse};

    const OWN: &str = "resources: [../base]\nnamespace: dev\ncommonLabels: {a: b}\nimages: [{name: a, newTag: b}]\npatches: [{path: p.yaml}]\nconfigMapGenerator: [{name: m, literals: [a=b]}]\n";

    #[rstest]
    #[case::fields("<stdin>", OWN, true)]
    #[case::named_file("overlays/dev/kustomization.yaml", OWN, true)]
    #[case::older_name("kustomization.yml", OWN, true)]
    #[case::name_without_extension("dev/Kustomization", OWN, true)]
    #[case::metadata("<stdin>", "metadata: {name: x}\nresources: [a.yaml]\n", true)]
    #[case::misspelt_in_named_file("kustomization.yaml", "resource: [a.yaml]\n", true)]
    #[case::misspelt("m.yaml", "resource: [a.yaml]\n", false)]
    #[case::other_fields("m.yaml", "resources: [a.yaml]\nreplicaCount: 1\n", false)]
    #[case::metadata_alone("m.yaml", "metadata: {name: x}\n", false)]
    #[case::pod_without_kind("m.yaml", "metadata: {name: x}\nspec: {containers: []}\n", false)]
    #[case::kind_alone("m.yaml", "kind: Kustomization\nresources: [a.yaml]\n", true)]
    #[case::version_alone(
        "m.yaml",
        "apiVersion: kustomize.config.k8s.io/v1beta1\nresources: [a.yaml]\n",
        true
    )]
    #[case::null_kind("m.yaml", "kind:\nresources: [a.yaml]\n", true)]
    #[case::other_version("kustomization.yaml", "apiVersion: v1\nresources: [a.yaml]\n", false)]
    #[case::other_kind("kustomization.yaml", "kind: Pod\nresources: [a.yaml]\n", false)]
    #[case::list("kustomization.yaml", "- a\n", false)]
    fn kustomization_needs_no_kind(#[case] file: &str, #[case] text: &str, #[case] expected: bool) {
        let parsed = parse(file, text, Strictness::Strict);
        let skipped: Vec<(&str, &str)> =
            parsed.skipped.iter().map(|it| (it.kind.as_str(), it.api_version.as_str())).collect();
        let whole = [("Kustomization", "kustomize.config.k8s.io/v1beta1")];
        assert_eq!(skipped, if expected { &whole[..] } else { &[] }, "{parsed:?}");
        assert_eq!(parsed.problems.is_empty(), expected, "{parsed:?}");
    }
}
