//! `crib run` with documents that are not pods: lists, objects next to pods, and unsupported kinds.

use crate::command::*;
use crate::runs::run::pod;

/// helm's output for a chart: comments, empty documents, and kinds of a cluster.
fn chart() -> String {
    let pod = pod("p", "echo from the pod").replace("apiVersion: v1\n", "");
    let item = pod.replace('\n', "\n  ");
    format!(
        "---\n# Source: chart/templates/empty.yaml\n---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: web}}\n\
         ---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: api}}\n---\napiVersion: v1\nkind: List\nitems:\n\
         - apiVersion: v1\n  kind: Namespace\n  metadata: {{name: apps}}\n- apiVersion: v1\n  kind: ServiceAccount\n  metadata: \
         {{name: robot}}\n- apiVersion: v1\n  kind: Service\n  metadata: {{name: web}}\n  spec: {{ports: [{{port: 80}}]}}\n\
         - apiVersion: v1\n  {item}\n---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: check\n  annotations: \
         {{helm.sh/hook: test}}\nspec: {{containers: [{{name: c, image: none}}]}}\n"
    )
}

#[tokio::test]
async fn run_skips_kinds_of_a_cluster_with_one_warning_each() {
    let place = Place::new();
    let manifest = place.file("chart.yaml", &chart());
    let ended = place.crib(&["run", "-f", &manifest]).await.exits(0);
    assert_eq!(ended.out, "p/main | from the pod\n");
    let warnings: Vec<&str> =
        ended.err.lines().filter(|line| line.contains("is skipped")).collect();
    assert_eq!(
        warnings,
        [
            format!(
                "crib: warning: {manifest}:4: kind Ingress (networking.k8s.io/v1) is skipped (2 objects): this kind needs a cluster"
            ),
            format!(
                "crib: warning: {manifest}:37: Pod check is skipped: it is a helm hook for test"
            ),
        ],
        "{}",
        ended.err
    );
}

#[tokio::test]
async fn run_strict_refuses_kinds_of_a_cluster() {
    let place = Place::new();
    let manifest = place.file("chart.yaml", &chart());
    let ended = place.crib(&["run", "--strict", &manifest]).await.exits(2);
    let refused = format!(
        "crib: --strict: {manifest}:4: kind Ingress (networking.k8s.io/v1) is skipped (2 objects): this kind needs a cluster\n"
    );
    ended.err_has(&refused);
    assert_eq!(ended.out, "");
}

/// A kustomization needs no kind, and may be among other manifests.
#[tokio::test]
async fn kustomization_is_skipped_with_the_command_that_builds_it() {
    let place = Place::new();
    let file = place.file("dev/kustomization.yaml", "namespace: dev\nresources: [pod.yaml]\n");
    let directory = place.path("dev").display().to_string();
    let reported = format!(
        "{file}:1: kind Kustomization (kustomize.config.k8s.io/v1beta1) is skipped: crib does not build kustomizations: run \
         `kubectl kustomize {directory} | crib run -`\n"
    );
    let ended = place.crib(&["run", &file]).await.exits(2);
    assert_eq!(
        ended.err,
        format!("crib: {reported}crib: no pod in the manifests: nothing to run\n")
    );
    place.file("dev/pod.yaml", &pod("p", "echo from the pod"));
    let ended = place.crib(&["run", &directory]).await.exits(0);
    assert_eq!(ended.out, "p/main | from the pod\n");
    assert_eq!(
        ended.err.matches(&format!("crib: warning: {reported}")).count(),
        1,
        "{}",
        ended.err
    );
    place
        .crib(&["run", "--strict", &directory])
        .await
        .exits(2)
        .err_has(&format!("--strict: {reported}"));
}

#[tokio::test]
async fn run_refuses_urls_and_misspelt_kinds() {
    let place = Place::new();
    let manifest = place.file("p.yaml", &pod("p", "exit 0").replace("Pod", "Pdo"));
    let url = "https://example.com/pod.yaml";
    let ended = place.crib(&["run", &manifest, "-f", url]).await.exits(2);
    for words in [
        "https://example.com/pod.yaml: URLs are not supported",
        "p.yaml:2:7: kind: kind \"Pdo\" is not known, did you mean \"Pod\"?",
    ] {
        assert!(ended.err.contains(words), "{words}: {}", ended.err);
    }
}
