//! ◆ The kinds of documents that a manifest may contain, and how other kinds are handled. Pure.

use super::object::Object;
use super::tree::{Node, Position, Value};
use super::{Loader, decode, full_path, is_empty, kustomization, validate};

/// The kinds that are decoded, with their API versions.
const KINDS: [(&str, &str); 20] = [
    ("Pod", "v1"),
    ("ConfigMap", "v1"),
    ("Secret", "v1"),
    ("Service", "v1"),
    ("Endpoints", "v1"),
    ("EndpointSlice", "discovery.k8s.io/v1"),
    ("Namespace", "v1"),
    ("ServiceAccount", "v1"),
    ("PersistentVolumeClaim", "v1"),
    ("PersistentVolume", "v1"),
    ("Job", "batch/v1"),
    ("CronJob", "batch/v1"),
    ("Deployment", "apps/v1"),
    ("ReplicaSet", "apps/v1"),
    ("ReplicationController", "v1"),
    ("DaemonSet", "apps/v1"),
    ("StatefulSet", "apps/v1"),
    ("RuntimeClass", "node.k8s.io/v1"),
    ("PriorityClass", "scheduling.k8s.io/v1"),
    ("ClusterTrustBundle", "certificates.k8s.io/v1beta1"),
];

/// The other kinds of the API groups of [`KINDS`]. A kind of such a group that is in neither list is misspelled.
const OTHERS: [(&str, &str); 10] = [
    ("Binding", "v1"),
    ("ComponentStatus", "v1"),
    ("Event", "v1"),
    ("LimitRange", "v1"),
    ("Node", "v1"),
    ("PodTemplate", "v1"),
    ("ResourceQuota", "v1"),
    ("ControllerRevision", "apps/v1"),
    ("CertificateSigningRequest", "certificates.k8s.io/v1beta1"),
    ("PodCertificateRequest", "certificates.k8s.io/v1beta1"),
];

/// The events of a helm release at which a hook runs when a chart is installed.
const INSTALL_HOOKS: [&str; 3] = ["pre-install", "post-install", "crd-install"];

/// A document that is not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Its kind.
    pub kind: String,
    /// Its API version.
    pub api_version: String,
    /// Its name; may be empty.
    pub name: String,
    /// The file given to [`super::parse`].
    pub file: String,
    /// Its first line, from 1.
    pub line: usize,
    /// The events of a helm release that its hook waits for, if it is skipped for that reason.
    pub helm_hook: Option<String>,
}

/// The class of a document.
enum Found<'n> {
    /// An object that is decoded.
    Known(&'n str),
    /// A list; items without a kind have this kind.
    List(Option<&'n str>),
    /// An object that is not run.
    Other,
}

impl Loader<'_> {
    /// One document: an object, a list of them, or nothing.
    pub(super) fn document(&mut self, root: &Node) {
        if is_empty(root) {
            return;
        }
        if kustomization::is_kustomization(self.file, root) {
            let whole = with_type(root, kustomization::VERSION, kustomization::KIND);
            self.skip(&whole, None);
            return;
        }
        self.node(root, "", None);
    }

    /// An object, or a list of objects, at `path`. Without a kind it is of kind `default`.
    fn node(&mut self, node: &Node, path: &str, default: Option<&str>) {
        let found = self.kind(node, path, default);
        self.parsed.documents += usize::from(!matches!(found, Some(Found::List(_))));
        match found {
            Some(Found::Known(kind)) => self.object(kind, node, path),
            Some(Found::List(default_kind)) => self.list(node, path, default_kind),
            Some(Found::Other) => self.skip(node, None),
            None => {}
        }
    }

    /// The items of a list. Lists among them are flattened, as kubectl does.
    fn list(&mut self, node: &Node, path: &str, default: Option<&str>) {
        let field = full_path(path, "items");
        let Some(items) = node.get("items") else {
            self.problem(node.place, &field, "missing: expected a list of objects");
            return;
        };
        let Value::Sequence(objects) = &items.value.value else {
            self.problem(items.value.place, &field, "expected a list of objects");
            return;
        };
        for (index, item) in objects.iter().enumerate() {
            self.node(item, &format!("{field}[{index}]"), default);
        }
        self.parsed.has_empty_list |= objects.is_empty();
    }

    fn object(&mut self, kind: &str, node: &Node, path: &str) {
        let mut node = with_kind(node, kind);
        self.generate_name(kind, &mut node);
        let node = &node;
        if let Some(hook) = helm_hook(node) {
            let events: Vec<&str> = hook.split(',').map(str::trim).collect();
            if !events.iter().any(|event| INSTALL_HOOKS.contains(event)) {
                self.skip(node, Some(hook.to_owned()));
                return;
            }
            let message = format!(
                "helm runs this hook at {hook}; crib runs it together with all other objects"
            );
            let field = full_path(path, "metadata.annotations");
            self.warning(node.locate("metadata.annotations"), &field, &message);
        }
        match kind {
            "ConfigMap" => self.config_map(node, path),
            "Secret" => self.secret(node, path),
            "Service" => {
                let wrap = |service| Object::Service(Box::new(service));
                self.namespaced(node, path, wrap, |_, service| {
                    validate::service::apply_defaults(service);
                    validate::service::service(service)
                });
            }
            "Endpoints" => {
                let wrap = |endpoints| Object::Endpoints(Box::new(endpoints));
                self.namespaced(node, path, wrap, |_, it| validate::endpoints::endpoints(it));
            }
            "EndpointSlice" => {
                let wrap = |slice| Object::EndpointSlice(Box::new(slice));
                self.namespaced(node, path, wrap, |_, it| validate::endpoints::endpoint_slice(it));
            }
            "Namespace" => {
                self.cluster_scoped(node, path, Object::Namespace, |_, it| {
                    validate::objects::namespace(it)
                });
            }
            "ServiceAccount" => self.plain_object(node, path, Object::ServiceAccount),
            "PersistentVolumeClaim" => self.persistent_volume_claim(node, path),
            "PersistentVolume" => self.persistent_volume(node, path),
            "RuntimeClass" => {
                let wrap = |class| Object::RuntimeClass(Box::new(class));
                self.cluster_scoped(node, path, wrap, |_, it| validate::objects::runtime_class(it));
            }
            "PriorityClass" => {
                let wrap = |class| Object::PriorityClass(Box::new(class));
                self.cluster_scoped(node, path, wrap, |_, it| {
                    validate::objects::priority_class(it)
                });
            }
            "ClusterTrustBundle" => {
                let wrap = Object::ClusterTrustBundle;
                self.cluster_scoped(node, path, wrap, |_, it| validate::trust_bundle::check(it));
            }
            "Job" => self.job(node, path),
            "CronJob" => self.cron_job(node, path),
            "Deployment" => self.deployment(node, path),
            "ReplicaSet" => self.replica_set(node, path),
            "ReplicationController" => self.replication_controller(node, path),
            "DaemonSet" => self.daemon_set(node, path),
            "StatefulSet" => self.stateful_set(node, path),
            _ => self.pod(node, path),
        }
    }

    fn skip(&mut self, node: &Node, helm_hook: Option<String>) {
        self.left_out.push((node.place, node.last_place()));
        let text = |field: &str| {
            let entry = node.get(field);
            let text = entry.and_then(|entry| entry.value.text());
            text.unwrap_or_default().to_owned()
        };
        let metadata = node.get("metadata");
        let name = metadata.and_then(|metadata| metadata.value.get("name"));
        let name = name.and_then(|name| name.value.text()).unwrap_or_default();
        self.parsed.skipped.push(Skipped {
            kind: text("kind"),
            api_version: text("apiVersion"),
            name: name.to_owned(),
            file: self.file.to_owned(),
            line: node.place.line,
            helm_hook,
        });
    }

    /// Checks apiVersion and kind. Items of a typed list without a kind are of kind `default`.
    fn kind<'n>(
        &mut self,
        node: &'n Node,
        path: &str,
        default: Option<&'n str>,
    ) -> Option<Found<'n>> {
        if !matches!(node.value, Value::Mapping(_)) {
            self.problem(
                node.place,
                path,
                "expected an object with apiVersion and kind, such as a Pod",
            );
            return None;
        }
        let field = |name: &str| full_path(path, name);
        let text = |name: &str| node.get(name).map(|entry| (entry.value.place, entry.value.text()));
        let kind = match text("kind") {
            Some((_, Some(kind))) if !kind.is_empty() => Some(kind),
            Some((place, _)) => {
                self.problem(place, &field("kind"), "expected the name of a kind");
                return None;
            }
            None => default,
        };
        let wanted = kind.and_then(version_of);
        let version = match text("apiVersion") {
            Some((_, Some(version))) if !version.is_empty() => version,
            Some((place, _)) => {
                let expected = format!("expected {}", wanted.unwrap_or("v1"));
                self.problem(place, &field("apiVersion"), &expected);
                return None;
            }
            None if default.is_some() && default == kind => wanted.unwrap_or("v1"),
            None => {
                let missing = format!("missing: expected {}", wanted.unwrap_or("v1"));
                self.problem(node.place, &field("apiVersion"), &missing);
                if kind.is_none() {
                    self.missing_kind(node, &field("kind"));
                }
                return None;
            }
        };
        let Some(kind) = kind else {
            self.missing_kind(node, &field("kind"));
            return None;
        };
        let place_of = |name: &str| text(name).map_or(node.place, |(place, _)| place);
        self.classify(kind, version, wanted, &field, &place_of)
    }

    fn missing_kind(&mut self, node: &Node, field: &str) {
        let missing = format!("missing: expected {}", names());
        self.problem(node.place, field, &missing);
    }

    /// Classifies an object by its kind and version.
    fn classify<'n>(
        &mut self,
        kind: &'n str,
        version: &str,
        wanted: Option<&str>,
        field: &dyn Fn(&str) -> String,
        place_of: &dyn Fn(&str) -> Position,
    ) -> Option<Found<'n>> {
        if let Some(wanted) = wanted {
            if version == wanted {
                return Some(match item_kind(kind) {
                    _ if kind == "List" => Found::List(None),
                    Some(item) => Found::List(Some(item)),
                    None => Found::Known(kind),
                });
            }
            // Another group may have a kind with the same name, but an old version of this group is an error.
            let old = [
                "apps/",
                "batch/",
                "certificates.k8s.io/",
                "discovery.k8s.io/",
                "extensions/",
                "node.k8s.io/",
                "scheduling.k8s.io/",
            ];
            if !version.contains('/') || old.iter().any(|group| version.starts_with(group)) {
                let message = format!("expected {wanted} for kind {kind}, found {version:?}");
                self.problem(place_of("apiVersion"), &field("apiVersion"), &message);
                return None;
            }
            return Some(Found::Other);
        }
        if OTHERS.contains(&(kind, version)) {
            return Some(Found::Other);
        }
        let is_own_group = !version.contains('/') || KINDS.iter().any(|(_, own)| *own == version);
        if is_own_group {
            let known = KINDS.iter().map(|(kind, _)| *kind);
            let known: Vec<&str> = known.chain(["List"]).collect();
            let message = match decode::nearest_name(kind, &known) {
                Some(near) => format!("kind {kind:?} is not known, did you mean {near:?}?"),
                None => format!("kind {kind:?} is not known, expected {}", names()),
            };
            self.problem(place_of("kind"), &field("kind"), &message);
            return None;
        }
        Some(Found::Other)
    }
}

/// The API version of a supported kind, or of a list of it.
fn version_of(kind: &str) -> Option<&'static str> {
    if kind == "List" {
        return Some("v1");
    }
    let kind = item_kind(kind).unwrap_or(kind);
    let known = KINDS.iter().find(|(known, _)| *known == kind);
    known.map(|(_, version)| *version)
}

/// The kind of the items of a typed list, such as `Pod` for `PodList`.
fn item_kind(kind: &str) -> Option<&str> {
    let item = kind.strip_suffix("List")?;
    KINDS.iter().any(|(known, _)| *known == item).then_some(item)
}

/// The supported kinds, for messages.
fn names() -> String {
    let kinds: Vec<&str> = KINDS.iter().map(|(kind, _)| *kind).collect();
    format!("{}, List", kinds.join(", "))
}

/// The annotation with which helm delays an object until an event of a release.
fn helm_hook(node: &Node) -> Option<&str> {
    let metadata = &node.get("metadata")?.value;
    let annotations = &metadata.get("annotations")?.value;
    annotations.get("helm.sh/hook")?.value.text()
}

/// Adds apiVersion and kind, which an item of a typed list may omit but the type requires.
fn with_kind(node: &Node, kind: &str) -> Node {
    with_type(node, version_of(kind).unwrap_or("v1"), kind)
}

/// Adds this apiVersion and this kind, unless the object has its own.
fn with_type(node: &Node, version: &str, kind: &str) -> Node {
    let mut node = node.clone();
    let place = node.place;
    if let Value::Mapping(entries) = &mut node.value {
        for (key, text) in [("apiVersion", version), ("kind", kind)] {
            entries.retain(|entry| entry.key != key || !is_empty(&entry.value));
            if entries.iter().all(|entry| entry.key != key) {
                let value =
                    Node { place, value: Value::Scalar { text: text.to_owned(), plain: false } };
                entries.push(super::tree::Entry { key: key.to_owned(), key_place: place, value });
            }
        }
    }
    node
}

#[cfg(test)]
#[path = "kinds/tests.rs"]
mod tests;
