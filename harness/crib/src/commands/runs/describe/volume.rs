//! ◆ Volumes of a pod in the format of `kubectl describe`. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, ProjectedVolumeSource, Volume};

use super::lines::Lines;

type Field = (String, String);

/// Adds a volume; its name has this indent.
pub(super) fn add(lines: &mut Lines, indent: usize, volume: &Volume) {
    lines.line(indent, &format!("{}:", volume.name));
    let (kind, fields, items) = source(volume);
    if kind.is_empty() {
        return lines.line(2, "<unknown>");
    }
    lines.field(4, "Type", kind);
    lines.block(4, &fields);
    if let Some(source) = &volume.csi {
        lines.values(4, "VolumeAttributes", &attributes(source.volume_attributes.as_ref()));
    }
    if !items.is_empty() {
        lines.line(4, "Items:");
        items.iter().for_each(|item| lines.line(6, item));
    }
}

/// The maximum length of an attribute.
const ATTRIBUTE_LENGTH: usize = 140;

/// The attributes of a CSI volume; kubectl indents them like keys.
fn attributes(attributes: Option<&BTreeMap<String, String>>) -> Vec<String> {
    let line = |(key, value): (&String, &String)| {
        let text = format!("{key}={value}");
        match text.len() > ATTRIBUTE_LENGTH {
            true => format!("    {}...", &text[..text.floor_char_boundary(ATTRIBUTE_LENGTH)]),
            false => format!("    {text}"),
        }
    };
    attributes.into_iter().flatten().map(line).collect()
}

/// The type of the volume (empty if it is unknown), its fields, and the items of a downwardAPI volume.
fn source(volume: &Volume) -> (&'static str, Vec<Field>, Vec<String>) {
    let (kind, fields) = if let Some(source) = &volume.host_path {
        let fields = vec![
            field("Path", &source.path),
            field("HostPathType", source.type_.as_deref().unwrap_or_default()),
        ];
        ("HostPath (bare host directory volume)", fields)
    } else if let Some(source) = &volume.empty_dir {
        let limit = source.size_limit.as_ref().map(|limit| limit.0.as_str());
        let fields = vec![
            field("Medium", source.medium.as_deref().unwrap_or_default()),
            field("SizeLimit", limit.unwrap_or("<unset>")),
        ];
        let kind = "EmptyDir (a temporary directory that shares a pod's lifetime)";
        (kind, fields)
    } else if let Some(source) = &volume.config_map {
        let fields = vec![field("Name", &source.name), optional(source.optional)];
        ("ConfigMap (a volume populated by a ConfigMap)", fields)
    } else if let Some(source) = &volume.secret {
        let name = source.secret_name.as_deref().unwrap_or_default();
        let fields = vec![field("SecretName", name), optional(source.optional)];
        ("Secret (a volume populated by a Secret)", fields)
    } else if let Some(source) = &volume.persistent_volume_claim {
        let fields =
            vec![field("ClaimName", &source.claim_name), flag("ReadOnly", source.read_only)];
        let kind =
            "PersistentVolumeClaim (a reference to a PersistentVolumeClaim in the same namespace)";
        (kind, fields)
    } else if let Some(source) = &volume.csi {
        let fields = vec![
            field("Driver", &source.driver),
            field("FSType", source.fs_type.as_deref().unwrap_or_default()),
            flag("ReadOnly", source.read_only),
        ];
        ("CSI (a Container Storage Interface (CSI) volume source)", fields)
    } else if let Some(source) = &volume.image {
        let fields = vec![
            field("Reference", source.reference.as_deref().unwrap_or_default()),
            field("PullPolicy", source.pull_policy.as_deref().unwrap_or_default()),
        ];
        ("Image (a container image or OCI artifact)", fields)
    } else if let Some(source) = &volume.projected {
        let kind = "Projected (a volume that contains injected data from multiple sources)";
        (kind, projected(source))
    } else if let Some(source) = &volume.downward_api {
        let items = source.items.iter().flatten().map(item).collect();
        let kind = "DownwardAPI (a volume populated by information about the pod)";
        return (kind, Vec::new(), items);
    } else if volume.ephemeral.is_some() {
        let kind = "EphemeralVolume (an inline specification for a volume that gets created and deleted with the pod)";
        (kind, Vec::new())
    } else {
        ("", Vec::new())
    };
    (kind, fields, Vec::new())
}

fn projected(source: &ProjectedVolumeSource) -> Vec<Field> {
    let mut fields = Vec::new();
    for part in source.sources.iter().flatten() {
        if let Some(secret) = &part.secret {
            fields.extend([field("SecretName", &secret.name), optional(secret.optional)]);
        }
        if let Some(map) = &part.config_map {
            fields.extend([field("ConfigMapName", &map.name), optional(map.optional)]);
        }
        if part.downward_api.is_some() {
            fields.push(flag("DownwardAPI", Some(true)));
        }
        if let Some(token) = &part.service_account_token {
            let seconds = token.expiration_seconds.unwrap_or(3600).to_string();
            fields.push(field("TokenExpirationSeconds", &seconds));
        }
    }
    fields
}

fn item(file: &DownwardAPIVolumeFile) -> String {
    let field = file.field_ref.as_ref().map(|field| &field.field_path);
    let resource = file.resource_field_ref.as_ref();
    let what = field.or(resource.map(|resource| &resource.resource));
    let what = what.map(String::as_str).unwrap_or_default();
    format!("{what} -> {}", file.path)
}

fn field(key: &str, value: &str) -> Field {
    (key.to_owned(), value.to_owned())
}

fn flag(key: &str, value: Option<bool>) -> Field {
    field(key, &value.unwrap_or_default().to_string())
}

fn optional(value: Option<bool>) -> Field {
    flag("Optional", value)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(
        r#"{"name": "v", "emptyDir": {"medium": "Memory"}}"#,
        &["  v:", "    Type:       EmptyDir (a temporary directory that shares a pod's lifetime)", "    Medium:     Memory", "    SizeLimit:  <unset>"]
    )]
    #[case(
        r#"{"name": "v", "hostPath": {"path": "/srv"}}"#,
        &["  v:", "    Type:          HostPath (bare host directory volume)", "    Path:          /srv", "    HostPathType:"]
    )]
    #[case(
        r#"{"name": "v", "configMap": {"name": "m", "optional": true}}"#,
        &["  v:", "    Type:      ConfigMap (a volume populated by a ConfigMap)", "    Name:      m", "    Optional:  true"]
    )]
    #[case(
        r#"{"name": "v", "secret": {"secretName": "s"}}"#,
        &["  v:", "    Type:        Secret (a volume populated by a Secret)", "    SecretName:  s", "    Optional:    false"]
    )]
    #[case(
        r#"{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}"#,
        &["  v:", "    Type:       PersistentVolumeClaim (a reference to a PersistentVolumeClaim in the same namespace)", "    ClaimName:  c", "    ReadOnly:   false"]
    )]
    #[case(
        r#"{"name": "v", "image": {"reference": "r:1", "pullPolicy": "Always"}}"#,
        &["  v:", "    Type:        Image (a container image or OCI artifact)", "    Reference:   r:1", "    PullPolicy:  Always"]
    )]
    #[case(
        r#"{"name": "v", "downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}}"#,
        &["  v:", "    Type:  DownwardAPI (a volume populated by information about the pod)", "    Items:", "      metadata.labels -> l"]
    )]
    #[case(
        r#"{"name": "v", "projected": {"sources": [{"configMap": {"name": "m"}}, {"serviceAccountToken": {"path": "t", "expirationSeconds": 700}}, {"downwardAPI": {}}]}}"#,
        &["  v:", "    Type:                    Projected (a volume that contains injected data from multiple sources)", "    ConfigMapName:           m", "    Optional:                false", "    TokenExpirationSeconds:  700", "    DownwardAPI:             true"]
    )]
    #[case(
        r#"{"name": "v", "csi": {"driver": "d.example.com", "fsType": "ext4", "readOnly": true}}"#,
        &["  v:", "    Type:              CSI (a Container Storage Interface (CSI) volume source)", "    Driver:            d.example.com", "    FSType:            ext4", "    ReadOnly:          true", "    VolumeAttributes:  <none>"]
    )]
    #[case(
        r#"{"name": "v", "csi": {"driver": "d", "volumeAttributes": {"b": "2", "a": "1"}}}"#,
        &["  v:", "    Type:              CSI (a Container Storage Interface (CSI) volume source)", "    Driver:            d", "    FSType:", "    ReadOnly:          false", "    VolumeAttributes:      a=1", "                           b=2"]
    )]
    #[case(r#"{"name": "v", "nfs": {"server": "h", "path": "/"}}"#, &["  v:", "  <unknown>"])]
    fn volume_shows_its_source(#[case] volume: &str, #[case] expected: &[&str]) {
        let mut lines = Lines::default();
        add(&mut lines, 2, &serde_json::from_str(volume).unwrap());
        assert_eq!(lines.aligned(), expected);
    }

    #[test]
    fn long_attribute_is_shortened() {
        let long = BTreeMap::from([("k".to_owned(), "ä".repeat(100))]);
        let expected = format!("    k={}...", "ä".repeat(69));
        assert_eq!(attributes(Some(&long)), [expected]);
    }
}
