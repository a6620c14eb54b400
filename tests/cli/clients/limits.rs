//! Limits of pods if an ordinary user cannot create cgroups.

use crate::command::*;
use crate::runs::run::pod;

/// Runs `crib` as an ordinary user.
async fn as_user(place: &Place, args: &[&str]) -> Ended {
    place.end(place.as_ordinary_user(place.command(args))).await
}

fn limited(place: &Place) -> String {
    let manifest = pod("p", "head -c 200M /dev/zero | tail -c 200M | wc -c")
        .replace("    command", "    resources: {limits: {memory: 32Mi}}\n    command");
    place.file("p.yaml", &manifest)
}

#[tokio::test]
async fn run_warns_once_of_limits_that_are_not_applied() {
    // If root runs the tests, no cgroups are delegated to the ordinary user.
    if !nix::unistd::geteuid().is_root() {
        harness::needs!(NoCgroups);
    }
    let place = Place::new();
    let manifest = limited(&place);
    let ended = as_user(&place, &["run", "--quiet", &manifest]).await.exits(0);
    let warning = "crib: warning: limits of memory are not applied to pod default/p: ";
    assert_eq!(ended.out, "p/main | 209715200\n");
    ended.err_begins(warning);
    assert!(ended.err.ends_with("systemd-run --user --scope -p Delegate=yes crib run …\n"));
    assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);

    let ended = as_user(&place, &["run", "--quiet", "--strict", &manifest]).await.exits(3);
    assert_eq!(ended.out, "");
    let refusal = "crib: --strict: limits of memory are not applied to pod default/p: ";
    ended.err_begins(refusal);
}

#[tokio::test]
async fn run_does_not_warn_of_limits_without_limits() {
    let place = Place::new();
    place.file("p.yaml", &pod("p", "echo done"));
    let manifest = place.path("p.yaml");
    let args = ["run", "--strict", manifest.to_str().unwrap()];
    let ended = as_user(&place, &args).await.exits(0);
    assert!(!ended.err.contains("limits"), "{}", ended.err);
    ended.err_begins("crib: isolation: ");
}

/// Each container alone is below the limit; together they exceed it.
#[tokio::test]
async fn limit_of_pod_holds_for_all_its_containers() {
    harness::needs!(Cgroups);
    let place = Place::new();
    let script = "held=$(head -c 40M /dev/zero | tr '\\\\0' x); touch /v/$0; until [ -e /v/a ] && [ -e /v/b ]; do sleep 0.05; done";
    let container = |name: &str| {
        format!(
            "  - {{name: {name}, image: crib.local/host, command: [bash, -c, \"{script}\", {name}], volumeMounts: [{{name: v, mountPath: /v}}]}}\n"
        )
    };
    let manifest = |resources: &str, containers: &[&str]| {
        let containers: String = containers.iter().map(|name| container(name)).collect();
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n  restartPolicy: Never\n  volumes: [{{name: v, emptyDir: {{}}}}]\n\
             {resources}  containers:\n{containers}"
        )
    };
    let run = async |text: String| {
        let file = place.file("p.yaml", &text);
        let args = ["run", "--strict", "--timeout", "60s", &file];
        place.crib(&args).await
    };
    let both = ["a", "b"];
    let limited = run(manifest("  resources: {limits: {memory: 64Mi}}\n", &both)).await.exits(1);
    limited.err_has("OOMKilled");
    run(manifest("  resources: {limits: {memory: 256Mi}}\n", &both)).await.exits(0);
}
