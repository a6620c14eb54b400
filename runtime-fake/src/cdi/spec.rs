//! ◆ Parses a CDI specification file (versions 0.3 to 1.0), and device names.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use serde::{Deserialize, de::IgnoredAny};

use super::scalar;
use crate::launch::Invalid;

/// The supported versions (cncf-tags/container-device-interface, SPEC.md).
const VERSIONS: [&str; 7] = ["0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0"];

/// A device's full name: `vendor/class=device`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    /// `vendor/class`.
    pub(super) kind: String,
    pub(super) device: String,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.kind, self.device)
    }
}

impl Name {
    pub(crate) fn parse(text: &str) -> Result<Self, Invalid> {
        text.split_once('=')
            .filter(|(kind, device)| is_kind(kind) && is_word(device, "_-.:"))
            .map(|(kind, device)| Self { kind: kind.to_owned(), device: device.to_owned() })
            .ok_or_else(|| {
                Invalid(format!("{text:?} does not name a device: names are vendor/class=device"))
            })
    }
}

fn is_kind(text: &str) -> bool {
    let letter_first = |word: &str| word.starts_with(|c: char| c.is_ascii_alphabetic());
    text.split_once('/').is_some_and(|(vendor, class)| {
        [vendor, class].into_iter().all(|word| letter_first(word) && is_word(word, "_-."))
    })
}

/// Starts and ends with a letter or digit; others may be in between.
fn is_word(text: &str, others: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric();
    text.starts_with(plain)
        && text.ends_with(plain)
        && text.chars().all(|c| plain(c) || others.contains(c))
}

/// The format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Yaml,
}

impl Format {
    /// The format by the file name's extension; `None` if it is not a specification.
    pub(super) fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "json" => Some(Self::Json),
            "yaml" => Some(Self::Yaml),
            _ => None,
        }
    }
}

/// A vendor's specification of the devices of a class.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Spec {
    #[serde(deserialize_with = "scalar::one")]
    cdi_version: String,
    #[serde(deserialize_with = "scalar::one")]
    pub(super) kind: String,
    #[expect(dead_code, reason = "for people and other programs")]
    annotations: Option<IgnoredAny>,
    #[serde(deserialize_with = "scalar::or_default")]
    pub(super) devices: Vec<SpecDevice>,
    /// The edits for every container with one of the devices.
    #[serde(default, deserialize_with = "scalar::or_default")]
    pub(super) container_edits: SpecEdits,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct SpecDevice {
    #[serde(deserialize_with = "scalar::one")]
    pub(super) name: String,
    #[expect(dead_code, reason = "for people and other programs")]
    annotations: Option<IgnoredAny>,
    #[serde(default, deserialize_with = "scalar::or_default")]
    pub(super) container_edits: SpecEdits,
}

/// The edits to a container.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct SpecEdits {
    #[serde(deserialize_with = "scalar::list")]
    pub(super) env: Vec<String>,
    #[serde(deserialize_with = "scalar::or_default")]
    pub(super) device_nodes: Vec<SpecNode>,
    #[serde(deserialize_with = "scalar::or_default")]
    pub(super) mounts: Vec<SpecMount>,
    #[serde(deserialize_with = "scalar::or_default")]
    pub(super) hooks: Vec<SpecHook>,
    #[serde(deserialize_with = "scalar::list")]
    pub(super) additional_gids: Vec<u32>,
    pub(super) intel_rdt: Option<serde_json::Value>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct SpecNode {
    #[serde(deserialize_with = "scalar::one")]
    pub(super) path: PathBuf,
    #[serde(default, deserialize_with = "scalar::maybe")]
    pub(super) host_path: Option<PathBuf>,
    #[serde(rename = "type", default, deserialize_with = "scalar::maybe")]
    pub(super) kind: Option<String>,
    #[serde(default, deserialize_with = "scalar::maybe")]
    pub(super) major: Option<u32>,
    #[serde(default, deserialize_with = "scalar::maybe")]
    pub(super) minor: Option<u32>,
    #[serde(default, deserialize_with = "scalar::maybe")]
    pub(super) file_mode: Option<u32>,
    #[serde(default, deserialize_with = "scalar::maybe")]
    pub(super) permissions: Option<String>,
    #[serde(default, deserialize_with = "scalar::maybe")]
    pub(super) uid: Option<u32>,
    #[serde(default, deserialize_with = "scalar::maybe")]
    pub(super) gid: Option<u32>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct SpecMount {
    #[serde(deserialize_with = "scalar::one")]
    pub(super) host_path: String,
    #[serde(deserialize_with = "scalar::one")]
    pub(super) container_path: String,
    #[serde(rename = "type", default, deserialize_with = "scalar::one")]
    pub(super) kind: String,
    #[serde(default, deserialize_with = "scalar::list")]
    pub(super) options: Vec<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SpecHook {
    #[serde(deserialize_with = "scalar::one")]
    pub(super) hook_name: String,
    #[serde(deserialize_with = "scalar::one")]
    pub(super) path: String,
}

/// Parses a file. The error is the reason for its rejection.
pub(super) fn parse(text: &str, format: Format) -> Result<Spec, String> {
    let spec: Spec = match format {
        Format::Json => serde_json::from_str(text).map_err(|e| e.to_string())?,
        Format::Yaml => {
            let read = serde_saphyr::from_str_with_options(text, scalar::options());
            read.map_err(|e: serde_saphyr::Error| e.without_snippet().to_string())?
        }
    };
    if !VERSIONS.contains(&spec.cdi_version.as_str()) {
        return Err(format!(
            "cdiVersion {:?} is not known: {} to {}",
            spec.cdi_version,
            VERSIONS[0],
            VERSIONS[VERSIONS.len() - 1]
        ));
    }
    if !is_kind(&spec.kind) {
        return Err(format!("kind {:?} is not vendor/class", spec.kind));
    }
    if spec.devices.is_empty() {
        return Err("it has no devices".to_owned());
    }
    for (index, device) in spec.devices.iter().enumerate() {
        if !is_word(&device.name, "_-.:") {
            return Err(format!("{:?} is not a device's name", device.name));
        }
        if spec.devices[..index].iter().any(|d| d.name == device.name) {
            return Err(format!("the device {:?} is there twice", device.name));
        }
    }
    Ok(spec)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("vendor.com/gpu=0", true)]
    #[case("vendor.com/gpu=all", true)]
    #[case("vendor.com/net-device.x_y=eth0:1", true)]
    #[case("vendor.com/gpu", false)]
    #[case("vendor.com=gpu", false)]
    #[case("vendor.com/gpu=", false)]
    #[case("/gpu=0", false)]
    #[case("1vendor/gpu=0", false)]
    #[case("vendor/gpu=0/1", false)]
    #[case("", false)]
    fn device_names_are_validated(#[case] text: &str, #[case] good: bool) {
        assert_eq!(Name::parse(text).map(|n| n.to_string()).ok(), good.then(|| text.to_owned()));
    }

    const YAML: &str = "
cdiVersion: \"0.6.0\"
kind: vendor.com/gpu
annotations: {what: ever}
devices:
- name: \"0\"
  containerEdits:
    deviceNodes:
    - {path: /dev/gpu0, type: c, major: 195, minor: 0, fileMode: 432, permissions: rw}
containerEdits:
  env: [A=b]
  mounts:
  - {hostPath: /lib/gpu.so, containerPath: /lib/gpu.so, options: [ro, bind]}
";

    #[test]
    fn specifications_parse_from_yaml_and_json() {
        let spec = parse(YAML, Format::Yaml).unwrap();
        assert_eq!(spec.devices[0].container_edits.device_nodes[0].file_mode, Some(0o660));
        let json = r#"{"cdiVersion": "1.0.0", "kind": "v/c", "devices": [{"name": "d", "containerEdits": {"env": ["A=b"]}}]}"#;
        assert_eq!(parse(json, Format::Json).unwrap().kind, "v/c");
    }

    #[test]
    fn yaml_file_parses_as_in_other_readers() {
        let text = "
cdiVersion: 0.6.0
kind: vendor.com/gpu
annotations:
containerEdits: ~
devices:
- name: 010
  annotations: {on: yes}
  containerEdits: &edits
    hooks:
    mounts: null
    deviceNodes: [{path: /dev/gpu, hostPath: , fileMode: 0640, uid: 0x10, gid: 010}]
    additionalGids: [0o17, 010]
- name: 2
  containerEdits: *edits
";
        let spec = parse(text, Format::Yaml).unwrap();
        let edits = &spec.devices[1].container_edits;
        let node = &edits.device_nodes[0];
        assert_eq!((&spec.devices[0].name[..], &spec.devices[1].name[..]), ("8", "2"));
        assert_eq!((node.file_mode, node.uid, node.gid), (Some(0o640), Some(16), Some(8)));
        assert_eq!(
            (edits.additional_gids.as_slice(), &node.host_path),
            ([15, 8].as_slice(), &None)
        );
    }

    #[rstest]
    #[case::future("0.6.0", "9.0.0", "cdiVersion \"9.0.0\" is not known")]
    #[case::old("0.6.0", "0.2.0", "cdiVersion \"0.2.0\" is not known")]
    #[case::kind("vendor.com/gpu", "gpu", "kind \"gpu\" is not vendor/class")]
    #[case::name("name: \"0\"", "name: \"a b\"", "\"a b\" is not a device's name")]
    #[case::quoted("432", "'0640'", "a number from 0 to 4294967295, without quotes")]
    #[case::twice("kind:", "cdiVersion: 0.6.0\nkind:", "duplicate")]
    #[case::misspelt("permissions", "permission", "permission")]
    #[case::nonsense(YAML, "nonsense", "expected mapping start at line 1, column 1")]
    fn parse_error_names_the_mistake(
        #[case] good: &str,
        #[case] bad: &str,
        #[case] expected: &str,
    ) {
        let error = parse(&YAML.replace(good, bad), Format::Yaml).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}
