//! ◆ Messages about documents that are skipped. Pure.

use std::path::Path;

use api::manifest::Skipped;
use compact::Map;

const KUSTOMIZATION: &str = "Kustomization";

/// The messages about kustomizations: other documents next to one are its parts, and may be incomplete.
pub(crate) fn kustomizations(skipped: &[Skipped]) -> Vec<String> {
    let found = skipped.iter().filter(|object| object.kind == KUSTOMIZATION);
    sentences(&found.cloned().collect::<Vec<_>>())
}

/// A message for each kind that is skipped, and for each hook of helm.
pub(crate) fn sentences(skipped: &[Skipped]) -> Vec<String> {
    let (hooks, others): (Vec<_>, Vec<_>) =
        skipped.iter().partition(|object| object.helm_hook.is_some());
    let mut kinds: Map<(&str, &str), Vec<&Skipped>> = Map::new();
    for object in others {
        let kind = (object.kind.as_str(), object.api_version.as_str());
        kinds.entry(kind).or_default().push(object);
    }
    let of_kind = |((kind, version), objects): ((&str, &str), Vec<&Skipped>)| {
        let file = objects.first().map_or("", |first| first.file.as_str());
        let place = objects.first().map(|first| place(first));
        let more = match objects.len() {
            0 | 1 => String::new(),
            count => format!(" ({count} objects)"),
        };
        let place = place.unwrap_or_default();
        let why = why(kind, file);
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

/// Why a kind in this file is skipped, and what to do.
fn why(kind: &str, file: &str) -> String {
    match kind {
        KUSTOMIZATION => format!(
            "crib does not build kustomizations: run `kubectl kustomize {} | crib run -`",
            directory(file)
        ),
        _ => "this kind needs a cluster".to_owned(),
    }
}

/// The directory of a file for a command line; a placeholder if it would need quoting.
fn directory(file: &str) -> String {
    let path = Path::new(file).parent().and_then(Path::to_str);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '-' | '_');
    match path {
        Some("") if file != "<stdin>" => ".".to_owned(),
        Some(path) if !path.is_empty() && path.chars().all(is_plain) => path.to_owned(),
        Some(_) | None => "DIRECTORY".to_owned(),
    }
}

fn place(object: &Skipped) -> String {
    format!("{}:{}", object.file, object.line)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

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

    #[rstest]
    #[case("kustomization.yaml", ".")]
    #[case("./kustomization.yaml", ".")]
    #[case("/srv/overlays/dev-1/kustomization.yaml", "/srv/overlays/dev-1")]
    #[case("../base/kustomization.yaml", "../base")]
    #[case("<stdin>", "DIRECTORY")]
    #[case("my overlay/kustomization.yaml", "DIRECTORY")]
    fn command_has_directory_of_kustomization(#[case] file: &str, #[case] expected: &str) {
        assert_eq!(directory(file), expected);
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
                "m.yaml:9: kind Ingress (g/v1) is skipped: this kind needs a cluster",
                "m.yaml:1: kind Kustomization (g/v1) is skipped: crib does not build kustomizations: run `kubectl kustomize . | crib run -`",
                "m.yaml:3: kind Role (g/v1) is skipped (2 objects): this kind needs a cluster",
                "m.yaml:20: Pod check is skipped: it is a helm hook for test",
            ]
        );
    }
}
