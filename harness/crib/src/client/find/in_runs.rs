//! Finds pods in the objects of runs: the pods of `deploy/web` or with given labels.

use std::sync::Arc;

use crib_base::run_socket::Request;
use serde_json::Value;

use crate::client::{CallError, Cri};
use crate::objects::kinds::{self, Resource};
use crate::objects::metadata;
use crate::objects::selectors::Labels;
use crate::objects::workload_pods::{Best, pods_of, sort};

/// A pod of a run.
pub(crate) struct RunPod<'a> {
    pub(crate) cri: &'a Cri,
    pub(crate) object: Value,
}

/// An object argument: `deploy/web`, `deploy/shop/web`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ObjectName<'t> {
    resource: Resource,
    namespace: Option<&'t str>,
    name: &'t str,
}

/// The objects of a run, at one time.
pub(crate) struct ObjectsOfRun<'a> {
    cri: &'a Cri,
    objects: Arc<Vec<Value>>,
}

/// An object, and all objects of its run.
pub(crate) struct ObjectInRun<'a> {
    cri: &'a Cri,
    pub(crate) object: Value,
    pub(crate) objects: Arc<Vec<Value>>,
}

/// An object of a run, and its pods.
pub(crate) struct PodsOfObject<'a> {
    pub(crate) object: Value,
    /// The best pod first.
    pub(crate) pods: Vec<RunPod<'a>>,
}

impl RunPod<'_> {
    pub(crate) fn uid(&self) -> &str {
        metadata(&self.object, "uid")
    }
}

impl<'a> ObjectsOfRun<'a> {
    fn found(&self, object: &Value) -> ObjectInRun<'a> {
        let objects = Arc::clone(&self.objects);
        ObjectInRun { cri: self.cri, object: object.clone(), objects }
    }
}

impl<'t> ObjectName<'t> {
    /// Parses an argument that names an object other than a pod.
    pub(crate) fn parse(text: &'t str) -> Option<Self> {
        let (kind, rest) = text.split_once('/')?;
        let resource = kinds::single(kind)?;
        let (namespace, name) = match rest.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, rest),
        };
        (resource.kind != "Pod").then_some(Self { resource, namespace, name })
    }

    fn is(&self, object: &Value, namespace: Option<&str>) -> bool {
        let namespace = self.namespace.or(namespace);
        self.resource.has(object)
            && metadata(object, "name") == self.name
            && (!self.resource.namespaced
                || namespace.is_none_or(|requested| metadata(object, "namespace") == requested))
    }

    /// The kind of the object.
    pub(crate) fn resource(&self) -> &Resource {
        &self.resource
    }

    /// The object and its pods. Fails if several objects match; the error lists namespaces or runs that distinguish them.
    pub(crate) fn pods<'a>(
        &self,
        all: &'a [Cri],
        namespace: Option<&str>,
        best: Best,
    ) -> Result<PodsOfObject<'a>, CallError> {
        let ObjectInRun { cri, object, objects } = self.find(&of_runs(all)?, namespace)?;
        let pods = pods_of(&object, &objects, best).map_err(CallError::Usage)?;
        let pods = pods.into_iter().cloned().map(|object| RunPod { cri, object }).collect();
        Ok(PodsOfObject { object, pods })
    }

    /// The object and the objects of its run. Fails if several objects match, like [`Self::pods`].
    pub(crate) fn find<'a>(
        &self,
        runs: &[ObjectsOfRun<'a>],
        namespace: Option<&str>,
    ) -> Result<ObjectInRun<'a>, CallError> {
        let (mut found, mut candidates) = (None, Vec::new());
        for run in runs {
            for object in run.objects.iter().filter(|object| self.is(object, namespace)) {
                candidates.push((metadata(object, "namespace").to_owned(), run.cri.choice()));
                found = Some(run.found(object));
            }
        }
        let name = || self.resource.named(self.name);
        match (found, candidates.len()) {
            (Some(found), 1) => Ok(found),
            (None, _) => {
                let (resource, name) = (self.resource.plural_name(), self.name.to_owned());
                Err(CallError::NoObject { resource, name })
            }
            (Some(_), _) => {
                let first = candidates.first().map(|(namespace, _)| namespace.clone());
                let is_one = candidates.iter().all(|(other, _)| Some(other) == first.as_ref());
                let candidate = |(namespace, choice): &(String, String)| match is_one {
                    true => choice.clone(),
                    false => format!("{}/{namespace}/{}", self.resource.singular(), self.name),
                };
                let candidates = candidates.iter().map(candidate).collect();
                Err(CallError::Ambiguous { what: "object", name: name(), candidates })
            }
        }
    }

    /// The best pod of the object.
    pub(crate) fn best_pod<'a>(
        &self,
        all: &'a [Cri],
        namespace: Option<&str>,
        best: Best,
    ) -> Result<RunPod<'a>, CallError> {
        self.best_of(self.pods(all, namespace, best)?.pods)
    }

    /// The first of these pods.
    pub(crate) fn best_of<'a>(&self, pods: Vec<RunPod<'a>>) -> Result<RunPod<'a>, CallError> {
        let mut pods = pods.into_iter();
        pods.next().ok_or_else(|| CallError::NoPods(self.resource.named(self.name)))
    }
}

/// The objects of the runs.
pub(crate) fn of_runs(all: &[Cri]) -> Result<Vec<ObjectsOfRun<'_>>, CallError> {
    let mut runs = Vec::new();
    for cri in all {
        runs.push(ObjectsOfRun { cri, objects: Arc::new(objects(cri)?) });
    }
    Ok(runs)
}

/// The objects of a kind with these labels in a namespace, or in all namespaces, by run.
pub(crate) fn of_kind<'a>(
    runs: &[ObjectsOfRun<'a>],
    resource: &Resource,
    labels: &Labels,
    namespace: Option<&str>,
) -> Vec<ObjectInRun<'a>> {
    let namespace = namespace.filter(|_| resource.namespaced);
    let mut found = Vec::new();
    for run in runs {
        let is_selected = |object: &&Value| {
            resource.has(object)
                && namespace.is_none_or(|wanted| metadata(object, "namespace") == wanted)
                && labels.match_object(object)
        };
        found.extend(run.objects.iter().filter(is_selected).map(|object| run.found(object)));
    }
    found
}

/// The pods with these labels in a namespace, or in all namespaces, by run, the best pod of each run first.
pub(crate) fn with_labels<'a>(
    all: &'a [Cri],
    labels: &Labels,
    namespace: Option<&str>,
    best: Best,
) -> Result<Vec<RunPod<'a>>, CallError> {
    let mut found = Vec::new();
    for cri in all {
        let objects = objects(cri)?;
        let is_selected = |object: &&Value| {
            object.get("kind").and_then(Value::as_str) == Some("Pod")
                && namespace.is_none_or(|wanted| metadata(object, "namespace") == wanted)
                && labels.match_object(object)
        };
        let mut pods: Vec<&Value> = objects.iter().filter(is_selected).collect();
        sort(&mut pods, best);
        found.extend(pods.into_iter().map(|object| RunPod { cri, object: object.clone() }));
    }
    Ok(found)
}

/// The pods of this name in a namespace, or in all namespaces.
pub(crate) fn pods_named<'a>(
    all: &'a [Cri],
    name: &str,
    namespace: Option<&str>,
) -> Result<Vec<RunPod<'a>>, CallError> {
    let mut pods = with_labels(all, &Labels::default(), namespace, Best::ForLogs)?;
    pods.retain(|pod| metadata(&pod.object, "name") == name);
    Ok(pods)
}

/// The pod with this uid; `None` if the runtime belongs to no run.
pub(crate) fn pod_object(cri: &Cri, uid: &str) -> Result<Option<Value>, CallError> {
    let mut objects = objects(cri)?.into_iter();
    Ok(objects.find(|object| {
        object.get("kind").and_then(Value::as_str) == Some("Pod") && metadata(object, "uid") == uid
    }))
}

fn objects(cri: &Cri) -> Result<Vec<Value>, CallError> {
    let answer = cri.call_run(Request::Objects)?;
    Ok(answer.unwrap_or_default().objects)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("deploy/web", Some("deployment.apps/web in any"))]
    #[case("rs/web", Some("replicaset.apps/web in any"))]
    #[case("statefulset/shop/db", Some("statefulset.apps/db in shop"))]
    #[case("jobs.batch/migrate", Some("job.batch/migrate in any"))]
    #[case("svc/web", Some("service/web in any"))]
    #[case("cronjob/tick", Some("cronjob.batch/tick in any"))]
    #[case("pod/web", None)]
    #[case("shop/web", None)]
    #[case("deploy,rs/web", None)]
    #[case("all/web", None)]
    #[case("web", None)]
    fn kinds_with_pods_are_recognised(#[case] text: &str, #[case] expected: Option<&str>) {
        let found = ObjectName::parse(text).map(|found| {
            let name = found.resource.named(found.name);
            format!("{name} in {}", found.namespace.unwrap_or("any"))
        });
        assert_eq!(found.as_deref(), expected);
    }
}
