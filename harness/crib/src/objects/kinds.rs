//! ◆ Parses kinds and names in the arguments of `crib get`. Pure.
//!
//! Source: Kubernetes 1.36, the resources in pkg/registry with their short names and categories, and the resource builder of
//! cli-runtime.

use cluster::Kind;
use serde_json::Value;

/// A kind, with kubectl's names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resource {
    /// Empty for the core group.
    pub(crate) group: String,
    pub(crate) kind: String,
    plural: String,
    pub(crate) namespaced: bool,
}

/// A kind of the API: group, kind, plural, short names, and whether it is namespaced.
type ApiKind = (&'static str, &'static str, &'static str, &'static [&'static str], bool);

/// The kinds of objects in runs.
const KNOWN: [ApiKind; 20] = [
    ("", "Pod", "pods", &["po"], true),
    ("", "ReplicationController", "replicationcontrollers", &["rc"], true),
    ("", "Service", "services", &["svc"], true),
    ("apps", "DaemonSet", "daemonsets", &["ds"], true),
    ("apps", "Deployment", "deployments", &["deploy"], true),
    ("apps", "ReplicaSet", "replicasets", &["rs"], true),
    ("apps", "StatefulSet", "statefulsets", &["sts"], true),
    ("batch", "CronJob", "cronjobs", &["cj"], true),
    ("batch", "Job", "jobs", &[], true),
    ("", "ConfigMap", "configmaps", &["cm"], true),
    ("", "Secret", "secrets", &[], true),
    ("", "PersistentVolumeClaim", "persistentvolumeclaims", &["pvc"], true),
    ("", "PersistentVolume", "persistentvolumes", &["pv"], false),
    ("", "ServiceAccount", "serviceaccounts", &["sa"], true),
    ("", "Namespace", "namespaces", &["ns"], false),
    ("discovery.k8s.io", "EndpointSlice", "endpointslices", &[], true),
    ("node.k8s.io", "RuntimeClass", "runtimeclasses", &[], false),
    ("scheduling.k8s.io", "PriorityClass", "priorityclasses", &["pc"], false),
    ("certificates.k8s.io", "ClusterTrustBundle", "clustertrustbundles", &[], false),
    ("", "Event", "events", &["ev"], true),
];

/// Kinds with short names that `crib run` skips. They are known so that their lists are empty, as with kubectl, instead of an error.
const SKIPPED: [ApiKind; 10] = [
    ("autoscaling", "HorizontalPodAutoscaler", "horizontalpodautoscalers", &["hpa"], true),
    (
        "certificates.k8s.io",
        "CertificateSigningRequest",
        "certificatesigningrequests",
        &["csr"],
        false,
    ),
    ("", "LimitRange", "limitranges", &["limits"], true),
    ("", "ResourceQuota", "resourcequotas", &["quota"], true),
    ("networking.k8s.io", "Ingress", "ingresses", &["ing"], true),
    ("networking.k8s.io", "IPAddress", "ipaddresses", &["ip"], false),
    ("networking.k8s.io", "NetworkPolicy", "networkpolicies", &["netpol"], true),
    ("policy", "PodDisruptionBudget", "poddisruptionbudgets", &["pdb"], true),
    ("storage.k8s.io", "StorageClass", "storageclasses", &["sc"], false),
    ("storage.k8s.io", "VolumeAttributesClass", "volumeattributesclasses", &["vac"], false),
];

/// The number of kinds, from the first on, in the category `all`.
const IN_ALL: usize = 9;

/// The text about kinds in the help of `crib get`.
pub(crate) const HELP: &str = "Kinds: pods (po), replicationcontrollers (rc), services (svc), daemonsets (ds), deployments \
(deploy), replicasets (rs), statefulsets (sts), cronjobs (cj), jobs, configmaps (cm), secrets, persistentvolumeclaims (pvc), \
persistentvolumes (pv), serviceaccounts (sa), namespaces (ns), endpointslices, runtimeclasses, priorityclasses (pc), \
clustertrustbundles, events (ev), and any other kind of object in a run. `all` means the nine kinds from pods to jobs in \
the list of kinds. Endpoints appear as endpointslices. `crib get events` shows the events of existing pods, filters them by \
fields such as `involvedObject.name`, `reason` and `type`, and cannot watch them. `crib get` shows no objects of kinds that `crib run` skips, such as ingresses \
(ing).";

/// The requested objects.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RequestedObjects {
    /// All objects of these kinds.
    Lists(Vec<Resource>),
    /// Objects by name.
    Named(Vec<(Resource, String)>),
}

impl RequestedObjects {
    /// Whether events are among them. Runs return events only with the pods.
    pub(crate) fn have_events(&self) -> bool {
        match self {
            Self::Lists(kinds) => kinds.iter().any(Resource::is_event),
            Self::Named(names) => names.iter().any(|(kind, _)| kind.is_event()),
        }
    }
}

impl Resource {
    fn of_api((group, kind, plural, _, namespaced): &ApiKind) -> Self {
        Self {
            group: (*group).to_owned(),
            kind: (*kind).to_owned(),
            plural: (*plural).to_owned(),
            namespaced: *namespaced,
        }
    }

    fn of_object(object: &Value) -> Option<Self> {
        let text = |field: &str| object.get(field).and_then(Value::as_str);
        let kind = Kind::of(text("apiVersion")?, text("kind")?);
        let resource = kind.resource();
        let plural = resource.split_once('.').map_or(&*resource, |(plural, _)| plural);
        Some(Self {
            group: kind.group.to_string(),
            kind: kind.name.to_string(),
            plural: plural.to_owned(),
            namespaced: object.pointer("/metadata/namespace").is_some(),
        })
    }

    /// Whether these are the events of the core group.
    pub(crate) fn is_event(&self) -> bool {
        self.group.is_empty() && self.kind == "Event"
    }

    /// The plural without the group: `pods`, `deployments`.
    pub(crate) fn plural(&self) -> &str {
        &self.plural
    }

    /// The singular as in arguments: `pod`, `deployment`.
    pub(crate) fn singular(&self) -> String {
        self.kind.to_lowercase()
    }

    /// The plural as in messages: `pods`, `deployments.apps`.
    pub(crate) fn plural_name(&self) -> String {
        self.with_group(&self.plural)
    }

    /// An object's name with its kind: `pod/web`, `deployment.apps/web`.
    pub(crate) fn named(&self, name: &str) -> String {
        format!("{}/{name}", self.with_group(&self.kind.to_lowercase()))
    }

    fn with_group(&self, name: &str) -> String {
        match self.group.as_str() {
            "" => name.to_owned(),
            group => format!("{name}.{group}"),
        }
    }

    /// Whether an object is of this kind.
    pub(crate) fn has(&self, object: &Value) -> bool {
        let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default();
        let kind = Kind::of(text("apiVersion"), text("kind"));
        *kind.name == *self.kind && *kind.group == *self.group
    }

    /// Whether a word is a name of the kind: `deploy`, `Deployment`, `deployments.apps`, `deployments.v1.apps`.
    fn is_called(&self, word: &str, short: &[&str]) -> bool {
        let word = word.to_lowercase();
        let (name, group) = word.split_once('.').map_or((&*word, None), |(n, g)| (n, Some(g)));
        let in_group = group.is_none_or(|group| {
            let without_version = group.split_once('.').map(|(_, group)| group);
            group == self.group || without_version == Some(&self.group)
        });
        let is_named = name == self.plural || name == self.kind.to_lowercase();
        in_group && (is_named || short.contains(&name))
    }
}

/// The plurals of the kinds of objects in runs: `pods`, `deployments`.
pub(crate) fn plurals() -> impl Iterator<Item = &'static str> {
    KNOWN.iter().map(|(_, _, plural, _, _)| *plural)
}

/// An object's name with the shortest name of its kind: `pod/web`, `deploy/web`.
pub(crate) fn kind_and_name(object: &Value) -> Option<String> {
    let resource = Resource::of_object(object)?;
    let known = KNOWN.iter().find(|known| known.0 == resource.group && known.1 == resource.kind);
    let singular = resource.singular();
    // "pod" is more common than "po".
    let short = known.and_then(|known| known.3.first()).filter(|short| **short != "po");
    let kind = short.map_or(singular.as_str(), |short| short);
    Some(format!("{kind}/{}", super::metadata(object, "name")))
}

/// Like [`kind_and_name`], for objects of kinds that have pods.
pub(crate) fn kinds_with_pods(object: &Value) -> Option<String> {
    let kind = object.get("kind").and_then(Value::as_str)?;
    let is_one = KNOWN.iter().take(IN_ALL).any(|known| known.1 == kind && kind != "Pod");
    is_one.then(|| kind_and_name(object)).flatten()
}

/// The kinds that a word names: one, or a category.
fn resources(word: &str, objects: &[&Value]) -> Result<Vec<Resource>, String> {
    if word == "all" {
        return Ok(KNOWN.iter().take(IN_ALL).map(Resource::of_api).collect());
    }
    let mut others = objects.iter().filter_map(|object| {
        Resource::of_object(object).filter(|resource| resource.is_called(word, &[]))
    });
    let found = named(word, &KNOWN).or_else(|| named(word, &SKIPPED)).or_else(|| others.next());
    found.map(|resource| vec![resource]).ok_or_else(|| match word.to_lowercase().as_str() {
        "ep" | "endpoints" => {
            "Endpoints appear as EndpointSlices in a run: use endpointslices".to_owned()
        }
        _ => format!("the server doesn't have a resource type {word:?}"),
    })
}

fn named(word: &str, kinds: &[ApiKind]) -> Option<Resource> {
    let mut kinds = kinds.iter();
    let found = kinds.find(|kind| Resource::of_api(kind).is_called(word, kind.3));
    found.map(Resource::of_api)
}

/// The kind that a word names, if it names one kind only; considers the kinds of objects in runs.
pub(crate) fn single(word: &str) -> Option<Resource> {
    named(word, &KNOWN)
}

/// The kinds in a list such as `pods,svc`, without duplicates.
fn list(words: &str, objects: &[&Value]) -> Result<Vec<Resource>, String> {
    let mut all = Vec::new();
    for word in words.split(',').filter(|word| !word.is_empty()) {
        for resource in resources(word, objects)? {
            if !all.contains(&resource) {
                all.push(resource);
            }
        }
    }
    match all.as_slice() {
        [] => Err("name a kind, such as pods".to_owned()),
        _ => Ok(all),
    }
}

/// Parses the arguments; `objects` are the objects of the runs.
pub(crate) fn requested(args: &[String], objects: &[&Value]) -> Result<RequestedObjects, String> {
    if args.iter().any(|arg| arg.contains('/')) {
        let mut all = Vec::new();
        for arg in args {
            let Some((kind, name)) = arg.split_once('/') else {
                return Err(format!(
                    "{arg:?} is not KIND/NAME: give all arguments as KIND/NAME, or one kind followed by names"
                ));
            };
            if kind.is_empty() || name.is_empty() || name.contains('/') {
                return Err(format!("{arg:?} is not KIND/NAME"));
            }
            let kinds = list(kind, objects)?;
            all.extend(kinds.into_iter().map(|kind| (kind, name.to_owned())));
        }
        return Ok(RequestedObjects::Named(all));
    }
    let (kinds, names) = args.split_first().map_or(("", args), |(kinds, names)| (kinds, names));
    let kinds = list(kinds, objects)?;
    if names.is_empty() {
        return Ok(RequestedObjects::Lists(kinds));
    }
    let of_kind = |kind: Resource| names.iter().map(move |name| (kind.clone(), name.clone()));
    Ok(RequestedObjects::Named(kinds.into_iter().flat_map(of_kind).collect()))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn shown(args: &str) -> Result<String, String> {
        let object = json!({
            "apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w", "namespace": "default"},
        });
        let names = match requested(&words(args), &[&object])? {
            RequestedObjects::Lists(kinds) => {
                kinds.iter().map(Resource::plural_name).collect::<Vec<_>>()
            }
            RequestedObjects::Named(all) => {
                all.iter().map(|(kind, name)| kind.named(name)).collect()
            }
        };
        Ok(names.join(" "))
    }

    #[rstest]
    #[case::plural("pods", "pods")]
    #[case::singular("deployment", "deployments.apps")]
    #[case::short("sts", "statefulsets.apps")]
    #[case::core("rc a", "replicationcontroller/a")]
    #[case::upper_case("CronJob", "cronjobs.batch")]
    #[case::group("deployments.apps", "deployments.apps")]
    #[case::version("deployments.v1.apps", "deployments.apps")]
    #[case::list("po,svc,pods", "pods services")]
    #[case::events("ev", "events")]
    #[case::custom("widgets", "widgets.example.com")]
    #[case::skipped(
        "ing,hpa,pdb,netpol,sc",
        "ingresses.networking.k8s.io horizontalpodautoscalers.autoscaling poddisruptionbudgets.policy \
         networkpolicies.networking.k8s.io storageclasses.storage.k8s.io"
    )]
    #[case::skipped_core(
        "quota/a limits/b csr/c ip/d vac/e",
        "resourcequota/a limitrange/b certificatesigningrequest.certificates.k8s.io/c ipaddress.networking.k8s.io/d \
         volumeattributesclass.storage.k8s.io/e"
    )]
    #[case::category(
        "all",
        "pods replicationcontrollers services daemonsets.apps deployments.apps replicasets.apps statefulsets.apps cronjobs.batch jobs.batch"
    )]
    #[case::names("rs a b", "replicaset.apps/a replicaset.apps/b")]
    #[case::names_of_kinds("po,svc web", "pod/web service/web")]
    #[case::list_with_slash("po,svc/a", "pod/a service/a")]
    #[case::slashes("po/a job/b pc/c", "pod/a job.batch/b priorityclass.scheduling.k8s.io/c")]
    fn kinds_and_names_are_those_of_kubectl(#[case] args: &str, #[case] expected: &str) {
        assert_eq!(shown(args).as_deref(), Ok(expected));
    }

    #[rstest]
    #[case("deploy", Some("deployments.apps"))]
    #[case("ing", None)]
    #[case("all", None)]
    fn single_kind_is_one_of_objects_in_runs(#[case] word: &str, #[case] expected: Option<&str>) {
        assert_eq!(single(word).map(|kind| kind.plural_name()).as_deref(), expected);
    }

    #[rstest]
    #[case::endpoints("ep", "Endpoints appear as EndpointSlices in a run: use endpointslices")]
    #[case::unknown("pdo", "the server doesn't have a resource type \"pdo\"")]
    #[case::wrong_group("pods.apps", "the server doesn't have a resource type \"pods.apps\"")]
    #[case::mixed(
        "pods pod/web",
        "\"pods\" is not KIND/NAME: give all arguments as KIND/NAME, or one kind followed by names"
    )]
    #[case::namespace("pod/shop/web", "\"pod/shop/web\" is not KIND/NAME")]
    #[case::no_name("pod/", "\"pod/\" is not KIND/NAME")]
    #[case::nothing(",", "name a kind, such as pods")]
    fn other_arguments_are_refused(#[case] args: &str, #[case] expected: &str) {
        assert_eq!(shown(args).unwrap_err(), expected);
    }
}
