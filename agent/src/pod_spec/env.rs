//! ◆ The environment of a container, and `$(VAR)` in its command and arguments.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kubelet_pods.go makeEnvironmentVariables.

mod expansion;
pub(crate) mod field;
mod file;
pub(crate) mod resource;
mod services;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use api::pod::Pod;
use compact::Map;
use k8s_openapi::api::core::v1::{
    ConfigMap, ConfigMapKeySelector, Container, EnvFromSource, EnvVarSource, FileKeySelector,
    Secret, SecretKeySelector,
};

use crate::node::Node;
use crate::objects::{ObjectKind, ObjectMap};

pub use expansion::{
    MOST_BYTES, NotUtf8, TooLong, expand, expand_bytes, expand_words, expand_words_of_bytes,
};
pub use field::FieldError;
use file::FileVariables;
pub use resource::ResourceError;

/// Why an environment cannot be built; the waiting message of a container with reason `CreateContainerConfigError`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    /// The pod was not defaulted.
    #[error("nil pod.spec.enableServiceLinks encountered, cannot construct envvars")]
    NotDefaulted,
    /// The API server has not listed its Services yet.
    #[error("services have not yet been read at least once, cannot construct envvars")]
    ServicesUnread,
    /// A field has no value.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// A resource has no value.
    #[error(transparent)]
    Resource(#[from] ResourceError),
    /// The agent has no API objects.
    #[error("couldn't get {kind} {namespace}/{name}, no kubeClient defined")]
    NoObjects {
        /// `configMap` or `secret`.
        kind: &'static str,
        /// The pod's namespace.
        namespace: String,
        /// The object.
        name: String,
    },
    /// The object does not exist.
    #[error("{kind} {name:?} not found")]
    NoObject {
        /// Its kind.
        kind: ObjectKind,
        /// The object.
        name: String,
    },
    /// Whether the object exists is unknown.
    #[error("{why}")]
    Unknown {
        /// The cause.
        why: String,
    },
    /// The object does not have the key.
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    NoKey {
        /// The key.
        key: String,
        /// `ConfigMap` or `Secret`.
        kind: &'static str,
        /// The pod's namespace.
        namespace: String,
        /// The object.
        name: String,
    },
    /// The volume with the file is not mounted.
    #[error("cannot find the volume {volume:?} referenced by FileKeyRef")]
    NoVolume {
        /// The volume.
        volume: String,
    },
    /// The file cannot be read, or is not a file of environment variables.
    #[error("couldn't parse env file")]
    File,
    /// The file does not have the variable.
    #[error("environment variable key {key:?} not found in file {path:?}")]
    NotInFile {
        /// The variable.
        key: String,
        /// The file.
        path: PathBuf,
    },
    /// The variables are too long together.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// A word of the command has a value that is no text.
    #[error(transparent)]
    NotUtf8(#[from] NotUtf8),
}

impl EnvError {
    /// True if every retry fails with this manifest; false if an object or a file may appear.
    pub(crate) fn is_of_manifest(&self) -> bool {
        match self {
            Self::NotDefaulted
            | Self::Field(_)
            | Self::Resource(_)
            | Self::NoObjects { .. }
            | Self::NoVolume { .. } => true,
            Self::ServicesUnread
            | Self::NoObject { .. }
            | Self::Unknown { .. }
            | Self::NoKey { .. }
            | Self::File
            | Self::NotInFile { .. }
            | Self::TooLong(_)
            | Self::NotUtf8(_) => false,
        }
    }
}

/// A file of environment variables in a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvFile {
    /// Its path on the node.
    pub path: PathBuf,
    /// Its content; `None` if it cannot be read.
    pub text: Option<String>,
}

/// The files that variables refer to, by volume and path in it. A file of an unmounted volume is absent.
pub type EnvFiles = Map<(String, String), EnvFile>;

/// The inputs of an environment beside the pod.
#[derive(Clone, Copy)]
pub struct EnvInputs<'a> {
    /// The node.
    pub node: &'a Node,
    /// The pod's addresses.
    pub ips: &'a [String],
    /// The API objects; `None` without an API server.
    pub objects: Option<&'a ObjectMap>,
    /// The files of variables.
    pub files: &'a EnvFiles,
}

/// The files that a container's variables refer to, as volume and path in it.
pub fn files(container: &Container) -> impl Iterator<Item = (&str, &str)> {
    file_keys(container).map(|file| (file.volume_name.as_str(), file.path.as_str()))
}

fn file_keys(container: &Container) -> impl Iterator<Item = &FileKeySelector> {
    let sources = container.env.iter().flatten();
    sources.filter_map(|variable| variable.value_from.as_ref()?.file_key_ref.as_ref())
}

/// The variables in files, by volume and path; `None` for a file that cannot be read.
type ParsedFiles = Map<(String, String), Option<FileVariables>>;

/// Parses each file once, for the variables that the container refers to.
fn parsed(files: &EnvFiles, container: &Container) -> ParsedFiles {
    let mut wanted = BTreeMap::<(&str, &str), BTreeSet<&str>>::new();
    for file in file_keys(container) {
        let place = (file.volume_name.as_str(), file.path.as_str());
        wanted.entry(place).or_default().insert(&file.key);
    }
    let none = BTreeSet::new();
    let parsed = files.iter().map(|(place, found)| {
        let keys = wanted.get(&(place.0.as_str(), place.1.as_str())).unwrap_or(&none);
        (place.clone(), found.text.as_deref().map(|text| file::parse(text, keys)))
    });
    parsed.collect()
}

/// The environment of a container: names are unique, in the order of their last definition, then those of services. Values of Secrets
/// may be any bytes.
pub fn environment(
    pod: &Pod,
    container: &Container,
    inputs: EnvInputs<'_>,
) -> Result<Vec<(String, Vec<u8>)>, EnvError> {
    let links = pod.spec().enable_service_links;
    let links = links.ok_or(EnvError::NotDefaulted)?;
    // Pods of manifests start without an API server.
    let are_unread = inputs.objects.is_some_and(ObjectMap::services_are_unread);
    if are_unread && pod.source() == Some("api") {
        return Err(EnvError::ServicesUnread);
    }
    let services =
        inputs.objects.map(|objects| services::variables(objects, pod.namespace(), links));
    let services = services.unwrap_or_default();
    let source = Source { pod, container, inputs, files: parsed(inputs.files, container) };
    let mut variables = Variables::default();
    for from in container.env_from.iter().flatten() {
        for (name, value) in source.all(from)? {
            let prefix = from.prefix.as_deref().unwrap_or_default();
            variables.set(&format!("{prefix}{name}"), value)?;
        }
    }
    for variable in container.env.iter().flatten() {
        let literal = variable.value.as_deref().unwrap_or_default();
        let value = match &variable.value_from {
            // A literal takes precedence over a source.
            Some(from) if literal.is_empty() => source.value(from)?,
            Some(_) | None => Some(expand_bytes(literal, variables.room(), |name| {
                let own = variables.get(name).map(Vec::as_slice);
                own.or_else(|| services.get(name).map(String::as_bytes))
            })?),
        };
        if let Some(value) = value {
            variables.set(&variable.name, value)?;
        }
    }
    for (name, value) in services {
        if variables.get(&name).is_none() {
            variables.set(&name, value.into_bytes())?;
        }
    }
    Ok(variables.ordered())
}

/// Variables in the order of their last definition.
#[derive(Default)]
struct Variables {
    /// Each with the number of its last definition.
    values: BTreeMap<String, (usize, Vec<u8>)>,
    definitions: usize,
    /// The size of the names and values of all definitions, so that it also limits the work.
    bytes: usize,
}

impl Variables {
    fn set(&mut self, name: &str, value: Vec<u8>) -> Result<(), TooLong> {
        self.bytes += name.len() + value.len();
        self.definitions += 1;
        self.values.insert(name.to_owned(), (self.definitions, value));
        if self.bytes > MOST_BYTES { Err(TooLong) } else { Ok(()) }
    }

    fn get(&self, name: &str) -> Option<&Vec<u8>> {
        self.values.get(name).map(|(_, value)| value)
    }

    /// The bytes that can be added.
    fn room(&self) -> usize {
        MOST_BYTES.saturating_sub(self.bytes)
    }

    fn ordered(self) -> Vec<(String, Vec<u8>)> {
        let numbered = self.values.into_iter();
        let numbered = numbered.map(|(name, (number, value))| (number, (name, value)));
        let by_number: BTreeMap<usize, (String, Vec<u8>)> = numbered.collect();
        by_number.into_values().collect()
    }
}

/// The sources of a container's variables.
struct Source<'a> {
    pod: &'a Pod,
    container: &'a Container,
    inputs: EnvInputs<'a>,
    files: ParsedFiles,
}

impl Source<'_> {
    /// All entries of an object; none if it is optional and missing.
    fn all(&self, from: &EnvFromSource) -> Result<BTreeMap<String, Vec<u8>>, EnvError> {
        if let Some(map) = &from.config_map_ref {
            let found = self.config_map(&map.name, map.optional)?;
            let entries = found.iter().flat_map(|map| map.data.iter().flatten());
            Ok(entries.map(|(key, value)| (key.clone(), value.clone().into_bytes())).collect())
        } else if let Some(secret) = &from.secret_ref {
            let found = self.secret(&secret.name, secret.optional)?;
            let entries = found.iter().flat_map(|secret| secret.data.iter().flatten());
            Ok(entries.map(|(key, value)| (key.clone(), value.0.clone())).collect())
        } else {
            Ok(BTreeMap::new())
        }
    }

    /// The value of a variable; `None` if an optional source is missing: the variable is not set.
    fn value(&self, from: &EnvVarSource) -> Result<Option<Vec<u8>>, EnvError> {
        let EnvInputs { node, ips, .. } = self.inputs;
        if let Some(field) = &from.field_ref {
            Ok(Some(field::value(self.pod, ips, node, field)?.into_bytes()))
        } else if let Some(wanted) = &from.resource_field_ref {
            let value = resource::value(self.pod, self.container, node, wanted)?;
            Ok(Some(value.into_bytes()))
        } else if let Some(ConfigMapKeySelector { key, name, optional }) = &from.config_map_key_ref
        {
            let Some(map) = self.config_map(name, *optional)? else {
                return Ok(None);
            };
            let value = map.data.as_ref().and_then(|data| data.get(key));
            let value = value.map(|value| value.clone().into_bytes());
            self.entry("ConfigMap", name, value, key, *optional)
        } else if let Some(SecretKeySelector { key, name, optional }) = &from.secret_key_ref {
            let Some(secret) = self.secret(name, *optional)? else {
                return Ok(None);
            };
            let value = secret.data.as_ref().and_then(|data| data.get(key));
            let value = value.map(|value| value.0.clone());
            self.entry("Secret", name, value, key, *optional)
        } else if let Some(file) = &from.file_key_ref
            && node.features.env_files
        {
            self.in_file(file)
        } else {
            Ok(Some(Vec::new()))
        }
    }

    fn objects(&self, kind: &'static str, name: &str) -> Result<&ObjectMap, EnvError> {
        self.inputs.objects.ok_or_else(|| EnvError::NoObjects {
            kind,
            namespace: self.pod.namespace().to_owned(),
            name: name.to_owned(),
        })
    }

    /// A ConfigMap; `None` if it is optional and missing.
    fn config_map(
        &self,
        name: &str,
        optional: Option<bool>,
    ) -> Result<Option<Arc<ConfigMap>>, EnvError> {
        let objects = self.objects("configMap", name)?;
        match objects.config_map(self.pod.namespace(), name) {
            Some(map) => Ok(Some(map)),
            None => self.missing(objects, ObjectKind::ConfigMap, name, optional),
        }
    }

    /// A Secret; `None` if it is optional and missing.
    fn secret(&self, name: &str, optional: Option<bool>) -> Result<Option<Arc<Secret>>, EnvError> {
        let objects = self.objects("secret", name)?;
        match objects.secret(self.pod.namespace(), name) {
            Some(secret) => Ok(Some(secret)),
            None => self.missing(objects, ObjectKind::Secret, name, optional),
        }
    }

    /// The result for an object that was not found.
    fn missing<T>(
        &self,
        objects: &ObjectMap,
        kind: ObjectKind,
        name: &str,
        optional: Option<bool>,
    ) -> Result<Option<T>, EnvError> {
        if let Some(why) = objects.unknown(kind, self.pod.namespace(), name) {
            return Err(EnvError::Unknown { why: why.to_owned() });
        }
        if optional == Some(true) {
            return Ok(None);
        }
        let name = name.to_owned();
        Err(EnvError::NoObject { kind, name })
    }

    /// One entry of an object.
    fn entry(
        &self,
        kind: &'static str,
        name: &str,
        value: Option<Vec<u8>>,
        key: &str,
        optional: Option<bool>,
    ) -> Result<Option<Vec<u8>>, EnvError> {
        match value {
            None if optional != Some(true) => Err(EnvError::NoKey {
                key: key.to_owned(),
                kind,
                namespace: self.pod.namespace().to_owned(),
                name: name.to_owned(),
            }),
            found => Ok(found),
        }
    }

    /// A variable of a file. An empty value counts as missing.
    fn in_file(&self, wanted: &FileKeySelector) -> Result<Option<Vec<u8>>, EnvError> {
        let place = (wanted.volume_name.clone(), wanted.path.clone());
        let file = self.inputs.files.get(&place);
        let file = file.ok_or_else(|| EnvError::NoVolume { volume: wanted.volume_name.clone() })?;
        let variables = self.files.get(&place).and_then(Option::as_ref).ok_or(EnvError::File)?;
        let value = variables.value(&wanted.key).map_err(|_| EnvError::File)?;
        if !value.is_empty() {
            Ok(Some(value.as_bytes().to_vec()))
        } else if wanted.optional == Some(true) {
            Ok(None)
        } else {
            Err(EnvError::NotInFile { key: wanted.key.clone(), path: file.path.clone() })
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::fixtures;

    /// With a Service for an API server that is known from elsewhere.
    #[rstest]
    #[case::static_pod("file", true, true)]
    #[case::before_the_list("api", true, false)]
    #[case::after_the_list("api", false, true)]
    fn pods_of_an_api_server_need_its_services(
        #[case] source: &str,
        #[case] unread: bool,
        #[case] has_environment: bool,
    ) {
        let pod = fixtures::pod(json!({
            "metadata": {
                "name": "p",
                "namespace": "default",
                "uid": "u",
                "annotations": {"kubernetes.io/config.source": source},
            },
            "spec": {"enableServiceLinks": false, "containers": [{"name": "c"}]},
        }));
        let mut objects = ObjectMap::default();
        let service = json!({
            "metadata": {"name": "kubernetes", "namespace": "default"},
            "spec": {"clusterIP": "10.0.0.1"},
        });
        objects.insert_service(serde_json::from_value(service).unwrap());
        if unread {
            objects.set_services_unread();
        }
        let (node, files) = (Node::new("n", "/r", "/l"), EnvFiles::default());
        let inputs = EnvInputs { node: &node, ips: &[], objects: Some(&objects), files: &files };
        let variables = environment(&pod, &pod.spec().containers[0], inputs);
        if has_environment {
            let host = ("KUBERNETES_SERVICE_HOST".to_owned(), b"10.0.0.1".to_vec());
            assert_eq!(variables, Ok(vec![host]));
        } else {
            let error = variables.unwrap_err();
            assert!(!error.is_of_manifest(), "the container is started later");
            assert_eq!(
                error.to_string(),
                "services have not yet been read at least once, cannot construct envvars"
            );
        }
    }

    #[rstest]
    #[case(true, "value")]
    #[case(false, "")]
    fn variable_of_a_file_is_empty_without_its_gate(#[case] is_on: bool, #[case] expected: &str) {
        let file = json!({"volumeName": "v", "path": "f", "key": "KEY"});
        let env = json!([{"name": "OF_FILE", "valueFrom": {"fileKeyRef": file}}]);
        let containers = json!([{"name": "c", "env": env}]);
        let spec = json!({"enableServiceLinks": false, "containers": containers});
        let pod = fixtures::pod_of("u", "p", spec);
        let text = Some("KEY='value'\n".to_owned());
        let place = ("v".to_owned(), "f".to_owned());
        let files: EnvFiles =
            [(place, EnvFile { path: "/v/f".into(), text })].into_iter().collect();
        let mut node = Node::new("n", "/r", "/l");
        node.features.env_files = is_on;
        let inputs = EnvInputs { node: &node, ips: &[], objects: None, files: &files };
        let variables = environment(&pod, &pod.spec().containers[0], inputs);
        assert_eq!(variables, Ok(vec![("OF_FILE".to_owned(), expected.as_bytes().to_vec())]));
    }

    #[test]
    fn bytes_of_secrets_are_unchanged() {
        let secret = json!({
            "metadata": {"name": "s", "namespace": "default"},
            "data": {"KEY": "/4A="},
        });
        let from_key = json!({"secretKeyRef": {"name": "s", "key": "KEY"}});
        let env = json!([
            {"name": "OF_KEY", "valueFrom": from_key},
            {"name": "IN_TEXT", "value": "<$(OF_KEY)>"},
        ]);
        let from = json!([{"secretRef": {"name": "s"}}]);
        let containers = json!([{"name": "c", "env": env, "envFrom": from}]);
        let spec = json!({"enableServiceLinks": false, "containers": containers});
        let pod = fixtures::pod_of("u", "p", spec);
        let mut objects = ObjectMap::default();
        objects.insert_secret(serde_json::from_value(secret).unwrap());
        let (node, files) = (Node::new("n", "/r", "/l"), EnvFiles::default());
        let inputs = EnvInputs { node: &node, ips: &[], objects: Some(&objects), files: &files };
        let variables = environment(&pod, &pod.spec().containers[0], inputs).unwrap();
        let expected = [
            ("KEY", b"\xff\x80".to_vec()),
            ("OF_KEY", b"\xff\x80".to_vec()),
            ("IN_TEXT", b"<\xff\x80>".to_vec()),
        ];
        assert_eq!(variables, expected.map(|(name, value)| (name.to_owned(), value)));
    }

    #[test]
    fn variables_that_replace_each_other_are_limited_together() {
        let long = json!({"name": "LONG", "value": "x".repeat(MOST_BYTES / 16)});
        let again = json!({"name": "AGAIN", "value": "$(LONG)$(LONG)"});
        let env: Vec<_> = std::iter::once(long).chain(vec![again; 8]).collect();
        let containers = json!([{"name": "c", "env": env}]);
        let spec = json!({"enableServiceLinks": false, "containers": containers});
        let pod = fixtures::pod_of("u", "p", spec);
        let (node, files) = (Node::new("n", "/r", "/l"), EnvFiles::default());
        let inputs = EnvInputs { node: &node, ips: &[], objects: None, files: &files };
        let variables = environment(&pod, &pod.spec().containers[0], inputs);
        assert_eq!(variables, Err(EnvError::TooLong(TooLong)));
    }

    #[test]
    fn variables_are_in_the_order_of_their_last_definitions() {
        let env = json!([
            {"name": "A", "value": "1"},
            {"name": "B", "value": "$(A)2"},
            {"name": "A", "value": "$(B)3"},
        ]);
        let containers = json!([{"name": "c", "env": env}]);
        let spec = json!({"enableServiceLinks": false, "containers": containers});
        let pod = fixtures::pod_of("u", "p", spec);
        let (node, files) = (Node::new("n", "/r", "/l"), EnvFiles::default());
        let inputs = EnvInputs { node: &node, ips: &[], objects: None, files: &files };
        let variables = environment(&pod, &pod.spec().containers[0], inputs).unwrap();
        let expected = [("B", "12"), ("A", "123")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.as_bytes().to_vec()));
        assert_eq!(variables, expected);
    }

    /// Each variable would be ten times as long as the one before.
    #[test]
    fn variables_that_refer_to_each_other_fill_no_memory() {
        let value = |number: usize| match number.checked_sub(1) {
            Some(before) => format!("$(V{before})").repeat(10),
            None => "0123456789".to_owned(),
        };
        let env: Vec<_> = (0..12)
            .map(|number| json!({"name": format!("V{number}"), "value": value(number)}))
            .collect();
        let containers = json!([{"name": "c", "env": env}]);
        let spec = json!({"enableServiceLinks": false, "containers": containers});
        let pod = fixtures::pod_of("u", "p", spec);
        let (node, files) = (Node::new("n", "/r", "/l"), EnvFiles::default());
        let inputs = EnvInputs { node: &node, ips: &[], objects: None, files: &files };
        let variables = environment(&pod, &pod.spec().containers[0], inputs);
        assert_eq!(variables, Err(EnvError::TooLong(TooLong)));
    }
}
