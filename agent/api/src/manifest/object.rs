//! Objects in manifests that pods refer to, and namespaces.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::ByteString;
use k8s_openapi::Metadata;
use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use k8s_openapi::api::core::v1::{
    ConfigMap, Endpoints, Namespace, PersistentVolume, PersistentVolumeClaim, Secret, Service,
    ServiceAccount,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::scalar::{Plain, decode_base64, plain as meaning};
use super::tree::{Node, Value};
use super::{FieldError, Loader, full_path, validate};

/// An object that pods refer to.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// A ConfigMap.
    ConfigMap(ConfigMap),
    /// A Secret.
    Secret(Secret),
    /// A Service.
    Service(Box<Service>),
    /// Endpoints.
    Endpoints(Box<Endpoints>),
    /// An EndpointSlice.
    EndpointSlice(Box<EndpointSlice>),
    /// A Namespace. Pods do not require it.
    Namespace(Namespace),
    /// A ServiceAccount. Pods may refer to any.
    ServiceAccount(ServiceAccount),
    /// A PersistentVolumeClaim.
    PersistentVolumeClaim(Box<PersistentVolumeClaim>),
    /// A PersistentVolume.
    PersistentVolume(Box<PersistentVolume>),
    /// A RuntimeClass.
    RuntimeClass(Box<RuntimeClass>),
    /// A PriorityClass.
    PriorityClass(Box<PriorityClass>),
    /// A ClusterTrustBundle.
    ClusterTrustBundle(ClusterTrustBundle),
}

impl Object {
    /// Kind, namespace and name: `configmap default/settings`.
    #[must_use]
    pub fn full_name(&self) -> String {
        let (kind, metadata) = self.kind_and_metadata();
        let name = metadata.name.as_deref().unwrap_or_default();
        if self.is_in_namespace() {
            let namespace = metadata.namespace.as_deref().unwrap_or("default");
            format!("{kind} {namespace}/{name}")
        } else {
            format!("{kind} {name}")
        }
    }

    fn is_in_namespace(&self) -> bool {
        !matches!(
            self,
            Self::Namespace(_)
                | Self::PersistentVolume(_)
                | Self::RuntimeClass(_)
                | Self::PriorityClass(_)
                | Self::ClusterTrustBundle(_)
        )
    }

    pub(super) fn kind_and_metadata(&self) -> (&'static str, &ObjectMeta) {
        match self {
            Self::ConfigMap(map) => ("configmap", &map.metadata),
            Self::Secret(secret) => ("secret", &secret.metadata),
            Self::Service(service) => ("service", &service.metadata),
            Self::Endpoints(endpoints) => ("endpoints", &endpoints.metadata),
            Self::EndpointSlice(slice) => ("endpointslice", &slice.metadata),
            Self::Namespace(namespace) => ("namespace", &namespace.metadata),
            Self::ServiceAccount(account) => ("serviceaccount", &account.metadata),
            Self::PersistentVolumeClaim(claim) => ("persistentvolumeclaim", &claim.metadata),
            Self::PersistentVolume(volume) => ("persistentvolume", &volume.metadata),
            Self::RuntimeClass(class) => ("runtimeclass", &class.metadata),
            Self::PriorityClass(class) => ("priorityclass", &class.metadata),
            Self::ClusterTrustBundle(bundle) => ("clustertrustbundle", &bundle.metadata),
        }
    }
}

pub(super) fn in_namespace(metadata: &mut ObjectMeta) {
    let namespace = metadata.namespace.get_or_insert_default();
    if namespace.is_empty() {
        "default".clone_into(namespace);
    }
}

impl Loader<'_> {
    /// Writes the base64 of a field in its canonical form, which the types require but an API server does not. Values that are not
    /// base64 are reported and removed. Plain text belongs into the field `plain`.
    fn base64(&mut self, node: &Node, path: &str, field: &str, plain: &str) -> Node {
        let mut node = node.clone();
        let Value::Mapping(fields) = &mut node.value else {
            return node;
        };
        let found = fields.iter_mut().find(|entry| entry.key == field);
        let Some(Value::Mapping(entries)) = found.map(|entry| &mut entry.value.value) else {
            return node;
        };
        let mut wrong = Vec::new();
        entries.retain_mut(|entry| {
            let Value::Scalar { text, plain } = &mut entry.value.value else {
                return true;
            };
            // A number, a boolean or null.
            if *plain && !matches!(meaning(text), Plain::Text(_)) {
                return true;
            }
            match decode_base64(text) {
                Some(bytes) => {
                    *text = STANDARD.encode(bytes);
                    true
                }
                None => {
                    wrong.push((entry.value.place, format!("{field}.{}", entry.key)));
                    false
                }
            }
        });
        for (place, field) in wrong {
            let message = format!("expected base64: put plain text into {plain}");
            self.problem(place, &full_path(path, &field), &message);
        }
        node
    }

    pub(super) fn config_map(&mut self, node: &Node, path: &str) {
        let node = &self.base64(node, path, "binaryData", "data");
        self.namespaced(node, path, Object::ConfigMap, |_, map| validate::objects::config_map(map));
    }

    /// `stringData` replaces entries of `data`.
    pub(super) fn secret(&mut self, node: &Node, path: &str) {
        let node = &self.base64(node, path, "data", "stringData");
        self.namespaced(node, path, Object::Secret, |_, secret| {
            let kind = secret.type_.get_or_insert_default();
            if kind.is_empty() {
                "Opaque".clone_into(kind);
            }
            for (key, text) in secret.string_data.take().unwrap_or_default() {
                let data = secret.data.get_or_insert_default();
                data.insert(key, ByteString(text.into_bytes()));
            }
            validate::objects::secret(secret)
        });
    }

    /// An object whose metadata only is checked.
    pub(super) fn plain_object<T>(&mut self, node: &Node, path: &str, wrap: fn(T) -> Object)
    where
        T: DeserializeOwned + Serialize + Metadata<Ty = ObjectMeta>,
    {
        let check = |object: &mut T| validate::objects::metadata_only(object.metadata());
        self.namespaced(node, path, wrap, |_, object| check(object));
    }

    /// A namespaced object; `check` completes it, and returns its errors.
    pub(super) fn namespaced<T>(
        &mut self,
        node: &Node,
        path: &str,
        wrap: impl FnOnce(T) -> Object,
        check: impl FnOnce(&mut Self, &mut T) -> Vec<FieldError>,
    ) where
        T: DeserializeOwned + Serialize + Metadata<Ty = ObjectMeta>,
    {
        self.checked(node, path, wrap, |loader, object| {
            in_namespace(object.metadata_mut());
            check(loader, object)
        });
    }

    /// An object of a kind without namespaces. A namespace in its manifest is removed, as by an API server (Kubernetes 1.36,
    /// EnsureObjectNamespaceMatchesRequestNamespace).
    pub(super) fn cluster_scoped<T>(
        &mut self,
        node: &Node,
        path: &str,
        wrap: impl FnOnce(T) -> Object,
        check: impl FnOnce(&mut Self, &mut T) -> Vec<FieldError>,
    ) where
        T: DeserializeOwned + Serialize + Metadata<Ty = ObjectMeta>,
    {
        self.checked(node, path, wrap, |loader, object| {
            object.metadata_mut().namespace = None;
            check(loader, object)
        });
    }

    /// An object; `check` completes it, and returns its errors.
    fn checked<T: DeserializeOwned + Serialize>(
        &mut self,
        node: &Node,
        path: &str,
        wrap: impl FnOnce(T) -> Object,
        check: impl FnOnce(&mut Self, &mut T) -> Vec<FieldError>,
    ) {
        let Some((mut object, sound)) = self.decoded::<T>(node, path) else {
            return;
        };
        let errors = check(self, &mut object);
        self.errors(node, path, errors, sound);
        self.parsed.objects.push(wrap(object));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::super::{Parsed, Strictness, parse};
    use super::*;

    fn strict(text: &str) -> Parsed {
        parse("m.yaml", text, Strictness::Strict)
    }

    #[test]
    fn objects_of_documents_and_lists_are_decoded() {
        let text = "apiVersion: v1
kind: ConfigMap
metadata: {name: m}
data: {a: alpha}
binaryData: {b: AAEC}
---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Secret
  metadata: {name: s, namespace: ns}
  data: {x: eA==, z: eA==}
  stringData: {z: text}
";
        let parsed = strict(text);
        assert_eq!(parsed.problems, []);
        let names: Vec<String> = parsed.objects.iter().map(Object::full_name).collect();
        assert_eq!(names, ["configmap default/m", "secret ns/s"]);
        let Object::Secret(secret) = &parsed.objects[1] else {
            panic!("{:?}", parsed.objects);
        };
        let data = secret.data.as_ref().unwrap();
        assert_eq!((data["x"].0.as_slice(), data["z"].0.as_slice()), (&b"x"[..], &b"text"[..]));
        assert_eq!(secret.type_.as_deref(), Some("Opaque"));
    }

    #[test]
    fn base64_may_have_line_breaks_and_trailing_bits() {
        let text = "apiVersion: v1
kind: Secret
metadata: {name: s}
data:
  a: |
    aGVs
    bG8=
---
apiVersion: v1
kind: ConfigMap
metadata: {name: m}
binaryData: {b: \"AA\\r\\nEC\", c: AAF=}
";
        let parsed = strict(text);
        assert_eq!(parsed.problems, []);
        let [Object::Secret(secret), Object::ConfigMap(map)] = &parsed.objects[..] else {
            panic!("{:?}", parsed.objects);
        };
        assert_eq!(secret.data.as_ref().unwrap()["a"].0, b"hello");
        let data = map.binary_data.as_ref().unwrap();
        assert_eq!((data["b"].0.as_slice(), data["c"].0.as_slice()), (&[0, 1, 2][..], &[0, 1][..]));
    }

    #[rstest]
    #[case("ConfigMap", "metadata: {name: A}", "metadata.name")]
    #[case("ConfigMap", "metadata: {}", "metadata.name")]
    #[case("ConfigMap", "metadata: {name: m}\ndata: {a/b: x}", "data[a/b]")]
    #[case("ConfigMap", "metadata: {name: m}\ndate: {}", "date")]
    #[case("ConfigMap", "metadata: {name: m}\ndata: {a: x}\nbinaryData: {a: AAEC}", "data[a]")]
    #[case("Secret", "metadata: {name: s}\ndata: {a: 'no base64'}", "data.a")]
    #[case("Secret", "metadata: {name: s}\ndata: {a: plain-text}", "data.a")]
    #[case("Secret", "metadata: {name: s}\ndata: {a: 1234}", "data.a")]
    #[case("ConfigMap", "metadata: {name: m}\nbinaryData: {a: abc}", "binaryData.a")]
    #[case("Secret", "metadata: {name: s}\ntype: kubernetes.io/ssh-auth", "data[ssh-privatekey]")]
    #[case(
        "Secret",
        "metadata: {name: s}\ntype: kubernetes.io/tls\nstringData: {tls.crt: x}",
        "data[tls.key]"
    )]
    #[case(
        "Secret",
        "metadata: {name: s}\ntype: kubernetes.io/dockerconfigjson\nstringData: {.dockerconfigjson: x}",
        "data[.dockerconfigjson]"
    )]
    fn invalid_objects_are_refused(#[case] kind: &str, #[case] rest: &str, #[case] path: &str) {
        let parsed = strict(&format!("apiVersion: v1\nkind: {kind}\n{rest}\n"));
        let paths: Vec<&str> = parsed.problems.iter().map(|p| p.path.as_str()).collect();
        assert_eq!(paths, [path], "{:?}", parsed.problems);
    }
}
