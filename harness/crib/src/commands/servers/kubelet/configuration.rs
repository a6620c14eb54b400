//! The configuration of `crib kubelet`, merged from a kubelet's defaults, the file, the drop-in directory and the flags.
//!
//! Source: Kubernetes 1.36, cmd/kubelet/app/server.go (NewKubeletCommand, mergeKubeletConfigurations, kubeletConfigFlagPrecedence).

use std::fs;
use std::path::{Path, PathBuf};

use agent::local_node::kubelet_config::{
    ConfigFile, Document, field, normalized, overlay, parse, set, with_defaults,
};
use crib_base::named_text;
use serde_json::Value;

use super::GivenFlags;
use super::flags::{Kind, Target, flags};
use super::values::value;

/// The maximum number of files in the drop-in directory.
const MOST_FILES: usize = 1000;

/// The defaults without a configuration file, which are those of the kubelet's flags.
const WITHOUT_FILE: [(&str, &str); 4] = [
    ("authentication.anonymous.enabled", "true"),
    ("authentication.webhook.enabled", "false"),
    ("authorization.mode", "\"AlwaysAllow\""),
    ("readOnlyPort", "10255"),
];

/// The merged configuration, and the unknown fields of its files.
pub(super) fn read(given: &GivenFlags) -> Result<(Document, Vec<String>), String> {
    let path = |name: &str| {
        let last = given.get(name).and_then(|texts| texts.last());
        last.filter(|text| !text.is_empty()).map(PathBuf::from)
    };
    let mut unknown = Vec::new();
    let mut document = match path("config") {
        Some(path) => {
            let ConfigFile { document, unknown: of_file } = read_file("--config", &path)?;
            unknown.extend(of_file);
            let document = normalized(&document)
                .map_err(|error| format!("--config {}: {error}", path.display()))?;
            with_defaults(&document)
        }
        None => {
            let mut document = with_defaults(&Document::new());
            for (field, text) in WITHOUT_FILE {
                set(&mut document, field, serde_json::from_str(text).unwrap_or_default());
            }
            lay_flags_over(&mut document, given)?;
            document
        }
    };
    if let Some(directory) = path("config-dir") {
        for path in parts(&directory)? {
            let part = read_file("--config-dir", &path)?;
            overlay(&mut document, &part.document);
            unknown.extend(part.unknown);
        }
        let merged = normalized(&document).map_err(|error| format!("--config-dir: {error}"))?;
        document = with_defaults(&merged);
    }
    lay_flags_over(&mut document, given)?;
    Ok((document, unknown))
}

fn read_file(flag: &str, path: &Path) -> Result<ConfigFile, String> {
    let text = named_text::read_text(path)
        .map_err(|error| format!("failed to read {flag} {}: {error}", path.display()))?;
    parse(&text).map_err(|error| format!("{flag} {}: {error}", path.display()))
}

/// The files `*.conf` below a directory, sorted by path.
fn parts(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let mut open = vec![directory.to_owned()];
    let mut files = Vec::new();
    while let Some(directory) = open.pop() {
        let failed =
            |error| format!("failed to read --config-dir {}: {error}", directory.display());
        for entry in fs::read_dir(&directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let is_directory = entry.file_type().map_err(failed)?.is_dir();
            if is_directory {
                open.push(entry.path());
            } else if entry.file_name().to_string_lossy().ends_with(".conf") {
                files.push(entry.path());
            }
            if files.len() + open.len() > MOST_FILES {
                return Err(format!("--config-dir: there are more than {MOST_FILES} files"));
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Sets the fields of the given flags. Feature gates are merged.
fn lay_flags_over(document: &mut Document, given: &GivenFlags) -> Result<(), String> {
    for flag in flags() {
        let (Target::Field(name), Some(texts)) = (flag.target, given.get(flag.name)) else {
            continue;
        };
        let value = value(flag.kind, texts).map_err(|error| format!("--{}: {error}", flag.name))?;
        if flag.kind == Kind::Gates {
            let gates = Document::from_iter([(name.to_owned(), value)]);
            overlay(document, &gates);
            continue;
        }
        // For a field without a default, an empty value means not set. --seccomp-default can only enable its field.
        let is_unset = value == "" && field(name).is_some_and(|it| it.default.is_empty());
        if flag.name == "seccomp-default" && value == false {
            continue;
        }
        set(document, name, if is_unset { Value::Null } else { value });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use agent::local_node::kubelet_config::check;
    use rstest::rstest;
    use serde_json::json;

    use super::super::tests::given;
    use super::*;

    const HEAD: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";

    fn config(line: &str) -> Value {
        let (document, _) = read(&given(line)).unwrap();
        check(&document).unwrap();
        Value::Object(document)
    }

    #[test]
    fn flags_precede_directory_and_directory_precedes_file() {
        let place = tempfile::tempdir().unwrap();
        let write = |path: &str, fields: &str| {
            let path = place.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{HEAD}{fields}\n")).unwrap();
        };
        write(
            "config.yaml",
            "maxPods: 1\nport: 1\npodsPerCore: 1\nsyncFrequency: 1s\nfeatureGates: {MemoryQoS: true, NodeSwap: true}",
        );
        write("d/20.conf", "maxPods: 20\nport: 20\npodsPerCore: 20");
        write("d/10.conf", "maxPods: 10\nport: 10\nfileCheckFrequency: 10s");
        write("d/15/a.conf", "port: 15\nfileCheckFrequency: 15s");
        write("d/30.yaml", "maxPods: 30");
        let line = format!(
            "--config {0}/config.yaml --config-dir {0}/d --max-pods=99 --feature-gates MemoryQoS=false --sync-frequency 0",
            place.path().display()
        );
        let config = config(&line);
        assert_eq!(config["maxPods"], 99);
        assert_eq!((&config["port"], &config["podsPerCore"]), (&json!(20), &json!(20)));
        assert_eq!(config["fileCheckFrequency"], "15s");
        assert_eq!(config["syncFrequency"], "0s", "a flag's zero is no default");
        assert_eq!(config["featureGates"], json!({"MemoryQoS": false, "NodeSwap": true}));
        assert_eq!(config["authorization"]["mode"], "Webhook");
    }

    #[test]
    fn kubelet_without_file_has_the_defaults_of_its_flags() {
        let alone = config("--max-pods 7 --container-runtime-endpoint unix:///s --tls-cert-file=");
        assert_eq!(alone["authorization"]["mode"], "AlwaysAllow");
        assert_eq!(alone["authentication"]["anonymous"]["enabled"], true);
        assert_eq!((&alone["readOnlyPort"], &alone["maxPods"]), (&json!(10255), &json!(7)));
        assert_eq!(alone["containerRuntimeEndpoint"], "unix:///s");
        let strict = config("--authorization-mode=Webhook --anonymous-auth=f --read-only-port 0");
        assert_eq!(strict["authorization"]["mode"], "Webhook");
        assert_eq!(strict["authentication"]["anonymous"]["enabled"], false);
        assert_eq!(strict["readOnlyPort"], 0);
    }

    #[rstest]
    #[case("--port 0", "port: 0 is not between 1 and 65535")]
    #[case("--container-runtime-endpoint=", "containerRuntimeEndpoint: it is empty")]
    #[case(
        "--cpu-manager-policy dynamic",
        "cpuManagerPolicy: \"dynamic\" is not one of none, static"
    )]
    #[case("--log-json-split-stream", "logging.options.json: it needs featureGates")]
    fn flags_are_validated_as_fields(#[case] line: &str, #[case] words: &str) {
        let (document, _) = read(&given(line)).unwrap();
        let problems = check(&document).unwrap_err().to_string();
        assert!(problems.contains(words), "{problems}");
    }

    #[rstest]
    #[case("--config /nowhere", "failed to read --config /nowhere")]
    #[case("--config-dir /nowhere", "failed to read --config-dir /nowhere")]
    #[case("--max-pods many", "--max-pods: \"many\" is not a number")]
    #[case("--fail-swap-on=yes", "--fail-swap-on: \"yes\" is not true or false")]
    fn what_cannot_be_read_is_named(#[case] line: &str, #[case] words: &str) {
        let problem = read(&given(line)).unwrap_err();
        assert!(problem.contains(words), "{problem}");
    }
}
