//! ◆ What of the manifests is not run, in words. Pure.

use std::collections::BTreeMap;

use api::manifest::Skipped;

/// A sentence for each kind that is skipped, and for each hook of helm.
pub(super) fn sentences(skipped: &[Skipped]) -> Vec<String> {
    let (hooks, others): (Vec<_>, Vec<_>) =
        skipped.iter().partition(|object| object.helm_hook.is_some());
    let mut kinds: BTreeMap<(&str, &str), Vec<&Skipped>> = BTreeMap::new();
    for object in others {
        let kind = (object.kind.as_str(), object.api_version.as_str());
        kinds.entry(kind).or_default().push(object);
    }
    let of_kind = |((kind, version), objects): ((&str, &str), Vec<&Skipped>)| {
        let place = objects.first().map(|first| place(first));
        let more = match objects.len() {
            0 | 1 => String::new(),
            count => format!(", {count} of them"),
        };
        let place = place.unwrap_or_default();
        let why = why(kind);
        format!("{place}: kind {kind} ({version}) is skipped{more}: {why}")
    };
    let of_hook = |object: &Skipped| {
        let hook = object.helm_hook.as_deref().unwrap_or_default();
        let (kind, name, place) = (&object.kind, &object.name, place(object));
        format!("{place}: {kind} {name} is skipped: it is a helm hook for {hook}")
    };
    let kinds = kinds.into_iter().map(of_kind);
    kinds.chain(hooks.into_iter().map(of_hook)).collect()
}

/// Why a kind is not run, and what to do.
fn why(kind: &str) -> &'static str {
    match kind {
        "ReplicationController" => "write a ReplicaSet or a Deployment instead",
        "Kustomization" => "it is not applied here: run `kubectl kustomize DIRECTORY | crib run -`",
        _ => "it is not run without a cluster",
    }
}

fn place(object: &Skipped) -> String {
    format!("{}:{}", object.file, object.line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skipped(kind: &str, name: &str, line: usize, hook: Option<&str>) -> Skipped {
        Skipped {
            kind: kind.to_owned(),
            api_version: "g/v1".to_owned(),
            name: name.to_owned(),
            file: "m.yaml".to_owned(),
            line,
            helm_hook: hook.map(str::to_owned),
        }
    }

    #[test]
    fn each_kind_is_named_once_and_each_hook() {
        let objects = [
            skipped("Role", "a", 3, None),
            skipped("Ingress", "a", 9, None),
            skipped("Kustomization", "", 1, None),
            skipped("Role", "b", 12, None),
            skipped("Pod", "check", 20, Some("test")),
        ];
        assert_eq!(
            sentences(&objects),
            [
                "m.yaml:9: kind Ingress (g/v1) is skipped: it is not run without a cluster",
                "m.yaml:1: kind Kustomization (g/v1) is skipped: it is not applied here: run `kubectl kustomize DIRECTORY | crib run -`",
                "m.yaml:3: kind Role (g/v1) is skipped, 2 of them: it is not run without a cluster",
                "m.yaml:20: Pod check is skipped: it is a helm hook for test",
            ]
        );
    }
}
