//! ◆ `/statusz` and `/flagz`: status and flags of the process, as text or as an object. Pure.
//!
//! Source: Kubernetes 1.36, k8s.io/apiserver/pkg/server/statusz, k8s.io/apiserver/pkg/server/flagz, with the gates ComponentStatusz
//! and ComponentFlagz. There, text has one of four separators, by chance.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

/// The component name of the kubelet.
const COMPONENT: &str = "kubelet";
const GROUP: &str = "config.k8s.io";
const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.";
/// The paths that the kubelet lists.
const PATHS: [&str; 5] = ["/configz", "/debug", "/flagz", "/healthz", "/metrics"];
/// Flags whose values may be secret.
const CLASSIFIED: [&str; 1] = ["manifest-url-header"];

/// The format of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Plain text.
    Text,
    /// An object of this version.
    Json(Version),
    /// The same: JSON is valid YAML.
    Yaml(Version),
}

/// The API version of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    /// Deprecated.
    V1Alpha1,
    V1Beta1,
}

impl Form {
    /// The media type.
    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; charset=utf-8",
            Self::Json(_) => "application/json",
            Self::Yaml(_) => "application/yaml",
        }
    }

    /// Whether the response has a deprecation warning.
    pub(crate) fn is_deprecated(self) -> bool {
        matches!(self, Self::Json(Version::V1Alpha1) | Self::Yaml(Version::V1Alpha1))
    }

    /// The most preferred supported format in an Accept header; an object's `kind` must be included. `None` if no format is
    /// supported.
    pub(crate) fn accepted(header: Option<&str>, kind: &str) -> Option<Self> {
        let Some(header) = header.filter(|header| !header.trim().is_empty()) else {
            return Some(Self::Text);
        };
        let mut clauses: Vec<Clause<'_>> = header.split(',').map(Clause::parse).collect();
        compact::sort_by(&mut clauses, |one, other| other.weight.total_cmp(&one.weight));
        clauses.iter().find_map(|clause| clause.form(kind))
    }
}

/// A clause of an Accept header.
struct Clause<'h> {
    media_type: &'h str,
    parameters: Vec<(&'h str, &'h str)>,
    weight: f64,
}

impl<'h> Clause<'h> {
    fn parse(text: &'h str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let media_type = parts.next().unwrap_or_default();
        let parameters: Vec<_> = parts.filter_map(|part| part.split_once('=')).collect();
        let weight = parameters.iter().find(|(name, _)| *name == "q");
        let weight = weight.and_then(|(_, value)| value.parse().ok()).unwrap_or(1.0);
        Self { media_type, parameters, weight }
    }

    fn form(&self, kind: &str) -> Option<Form> {
        let takes = |media_type: &str| {
            let (group, _) = media_type.split_once('/').unwrap_or_default();
            self.media_type == media_type
                || self.media_type == "*/*"
                || self.media_type.strip_suffix("/*") == Some(group)
        };
        let parameter = |wanted: &str| {
            let mut named = self.parameters.iter().filter(|(name, _)| *name == wanted);
            named.next().map(|(_, value)| *value)
        };
        match (parameter("as"), parameter("g"), parameter("v")) {
            (None, None, None) => takes("text/plain").then_some(Form::Text),
            (Some(found), Some(GROUP), Some(version)) if found == kind => {
                let version = match version {
                    "v1beta1" => Version::V1Beta1,
                    "v1alpha1" => Version::V1Alpha1,
                    _ => return None,
                };
                if takes("application/json") {
                    Some(Form::Json(version))
                } else {
                    takes("application/yaml").then_some(Form::Yaml(version))
                }
            }
            _ => None,
        }
    }
}

/// The response to a client that accepts no supported format.
pub(crate) fn not_acceptable() -> String {
    let message = "only the following media types are accepted: application/json, application/yaml, text/plain";
    let status = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": "NotAcceptable",
        "code": 406,
    });
    status.to_string()
}

/// `/statusz` of a process with the version `v1.36.2+crib0.1.0` and this start time.
pub(crate) fn statusz(form: Form, version: &str, started_at: Timestamp, now: Timestamp) -> String {
    let version = version.trim_start_matches('v');
    let emulated: Vec<&str> = version.split('.').take(2).collect();
    let emulated = emulated.join(".");
    let seconds = now.duration_since(started_at).as_secs().max(0);
    match form {
        Form::Text => {
            let started = started_at.strftime("%a %b %e %H:%M:%S UTC %Y");
            let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
            let up = format!("{hours} hr {minutes:02} min {:02} sec", seconds % 60);
            let paths = PATHS.join(" ");
            format!(
                "\n{COMPONENT} statusz\n{WARNING}\n\nStarted: {started}\nUp: {up}\nGo version: \nBinary version: {version}\n\
                 Emulation version: {emulated}\nPaths: {paths}\n"
            )
        }
        Form::Json(of) | Form::Yaml(of) => {
            let mut object = object(of, "Statusz");
            // There is no Go version.
            object["goVersion"] = "".into();
            object["startTime"] = started_at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into();
            object["uptimeSeconds"] = seconds.into();
            object["binaryVersion"] = version.into();
            object["emulationVersion"] = emulated.into();
            object["paths"] = PATHS.into();
            object.to_string()
        }
    }
}

/// `/flagz` of a process with these flags.
pub(crate) fn flagz(form: Form, flags: &BTreeMap<String, String>) -> String {
    match form {
        Form::Text => {
            let lines = flags.iter().map(|(name, value)| format!("{name}={value}\n"));
            format!("\n{COMPONENT} flagz\n{WARNING}\n{}", lines.collect::<String>())
        }
        Form::Json(of) | Form::Yaml(of) => {
            let mut object = object(of, "Flagz");
            object["flags"] = json!(flags);
            object.to_string()
        }
    }
}

fn object(version: Version, kind: &str) -> Value {
    let version = match version {
        Version::V1Alpha1 => "v1alpha1",
        Version::V1Beta1 => "v1beta1",
    };
    let version = format!("{GROUP}/{version}");
    json!({"kind": kind, "apiVersion": version, "metadata": {"name": COMPONENT}})
}

/// The flags of a command line without other arguments, and their values.
pub(crate) fn flags(arguments: impl IntoIterator<Item = String>) -> BTreeMap<String, String> {
    let mut flags = BTreeMap::new();
    let mut arguments = arguments.into_iter().peekable();
    while let Some(argument) = arguments.next() {
        let Some(flag) = argument.strip_prefix("--") else {
            continue;
        };
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => {
                let next = arguments.next_if(|next| !next.starts_with("--"));
                (flag, next.unwrap_or_else(|| "true".to_owned()))
            }
        };
        let value = if CLASSIFIED.contains(&name) { "CLASSIFIED".to_owned() } else { value };
        // A repeated flag has all its values.
        let known: &mut String = flags.entry(name.to_owned()).or_default();
        if !known.is_empty() {
            known.push(',');
        }
        known.push_str(&value);
    }
    flags
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    const AS: &str = "application/json;as=Statusz;v=v1beta1;g=config.k8s.io";

    #[rstest]
    #[case::nothing(None, Some(Form::Text))]
    #[case::empty(Some(""), Some(Form::Text))]
    #[case::anything(Some("*/*"), Some(Form::Text))]
    #[case::text(Some("text/*"), Some(Form::Text))]
    #[case::object(Some(AS), Some(Form::Json(Version::V1Beta1)))]
    #[case::old_object(
        Some("application/yaml;v=v1alpha1;g=config.k8s.io;as=Statusz"),
        Some(Form::Yaml(Version::V1Alpha1))
    )]
    #[case::any_object(
        Some("*/*; as=Statusz; v=v1beta1; g=config.k8s.io"),
        Some(Form::Json(Version::V1Beta1))
    )]
    #[case::second(Some("image/png, text/plain"), Some(Form::Text))]
    #[case::weights(
        Some("text/plain;q=0.5,application/json;as=Statusz;v=v1beta1;g=config.k8s.io"),
        Some(Form::Json(Version::V1Beta1))
    )]
    #[case::plain_json(Some("application/json"), None)]
    #[case::another_kind(Some("application/json;as=Flagz;v=v1beta1;g=config.k8s.io"), None)]
    #[case::another_version(Some("application/json;as=Statusz;v=v1;g=config.k8s.io"), None)]
    #[case::protobuf(
        Some("application/vnd.kubernetes.protobuf;as=Statusz;v=v1beta1;g=config.k8s.io"),
        None
    )]
    fn form_is_first_accepted_by_client(
        #[case] header: Option<&str>,
        #[case] expected: Option<Form>,
    ) {
        assert_eq!(Form::accepted(header, "Statusz"), expected);
    }

    #[test]
    fn status_has_version_and_time() {
        let at = |text: &str| text.parse().unwrap();
        let (started, now) = (at("2026-11-09T06:05:04.5Z"), at("2026-11-10T07:08:09Z"));
        let version = "v1.36.2+crib0.1.0";
        let text = statusz(Form::Text, version, started, now);
        let lines: Vec<&str> = text.lines().skip(4).collect();
        let expected = [
            "Started: Mon Nov  9 06:05:04 UTC 2026",
            "Up: 25 hr 03 min 04 sec",
            "Go version: ",
            "Binary version: 1.36.2+crib0.1.0",
            "Emulation version: 1.36",
            "Paths: /configz /debug /flagz /healthz /metrics",
        ];
        assert_eq!(lines, expected);
        assert!(text.starts_with("\nkubelet statusz\nWarning: "), "{text}");
        let object = statusz(Form::Json(Version::V1Beta1), version, started, now);
        let object: Value = serde_json::from_str(&object).unwrap();
        assert_eq!(object["apiVersion"], "config.k8s.io/v1beta1");
        assert_eq!(object["metadata"]["name"], "kubelet");
        assert_eq!(
            (&object["uptimeSeconds"], &object["startTime"]),
            (&json!(90184), &json!("2026-11-09T06:05:04Z"))
        );
    }

    #[test]
    fn flagz_lists_given_flags() {
        let line = "crib agent --kubeconfig /k --adopt-node --port=0 --manifests a --manifests b --manifest-url-header X:secret --v";
        let flags = flags(line.split(' ').map(str::to_owned));
        let text = flagz(Form::Text, &flags);
        let (_, lines) = text.split_once("only.\n").unwrap();
        let expected = "adopt-node=true\nkubeconfig=/k\nmanifest-url-header=CLASSIFIED\nmanifests=a,b\nport=0\nv=true\n";
        assert_eq!(lines, expected);
        let object = flagz(Form::Yaml(Version::V1Alpha1), &flags);
        let object: Value = serde_json::from_str(&object).unwrap();
        assert_eq!((&object["kind"], &object["flags"]["port"]), (&json!("Flagz"), &json!("0")));
    }

    proptest! {
        #[test]
        fn any_header_is_read_without_a_panic(text in "[a-z/*;,=q0-9. ]{0,40}") {
            let _ = Form::accepted(Some(&text), "Statusz");
        }
    }
}
