//! Finds the container or pod that an argument names, in any runtime: by id, name or id prefix.
//!
//! As with kubectl, a pod name selects a container: `web`, `pod/web` or `pod/NAMESPACE/web`; an object selects one of its pods:
//! `deploy/web`. In a pod, `-c` selects the container; the default is the pod's default container.

use clap::Args;
use compact::Set;
use cri::v1;
use crib_base::report::print_stderr;
use serde_json::Value;

use super::{CallError, Cri, completion};
use crate::objects::pod_containers::{
    DEFAULT_CONTAINER, DefaultContainer, all_containers, default_container,
};
use crate::objects::workload_pods::Best;

mod choice;
pub(crate) mod in_runs;

use choice::{About, MatchError, choose, is_exact};
use in_runs::{ObjectName, RunPod, pod_object};

/// The container's name, if a pod is given.
#[derive(Debug, Default, Args)]
pub(crate) struct ContainerNameArgs {
    /// Name of the container, if a pod is given
    #[arg(short = 'c', long = "container", value_name = "NAME", add = completion::containers())]
    pub(crate) container_name: Option<String>,
}

/// The contents of the runtimes.
pub(crate) struct Search<'a> {
    all: &'a [Cri],
    known: Vec<Known<'a>>,
}

/// The selected container, and its pod.
pub(crate) struct SelectedContainer<'a> {
    pub(crate) cri: &'a Cri,
    pub(crate) container: v1::Container,
    /// The pod's name and uid.
    pub(crate) pod: v1::PodSandboxMetadata,
}

/// The contents of a runtime.
struct Known<'a> {
    cri: &'a Cri,
    containers: Vec<v1::Container>,
    pods: Vec<v1::PodSandbox>,
}

/// A container and its runtime.
struct FoundContainer<'a, 'k> {
    cri: &'a Cri,
    container: &'k v1::Container,
    pod: Option<&'k v1::PodSandbox>,
    /// The names of all containers of its pod, if it was selected among several.
    others: Option<String>,
}

/// A pod and its runtime.
struct FoundPod<'a, 'k> {
    cri: &'a Cri,
    pod: &'k v1::PodSandbox,
}

/// The container that the argument names. Of several with the same name, the running one, or else the newest.
pub(crate) async fn container<'a>(
    all: &'a [Cri],
    text: &str,
) -> Result<(&'a Cri, v1::Container), CallError> {
    let known = known(all, true).await?;
    let found = resolve_container(&known, text)?;
    if let Some(others) = &found.others {
        print_stderr(&format!(
            "chose container {:?} of {others}, because it is the only running one: give an id to choose another container",
            found.name()
        ));
    }
    Ok((found.cri, found.container.clone()))
}

/// The container with this id or name, not considering names of pods.
pub(crate) async fn container_named<'a>(
    all: &'a [Cri],
    text: &str,
) -> Result<(&'a Cri, v1::Container), CallError> {
    let known = known(all, true).await?;
    let all: Vec<FoundContainer<'_, '_>> = known.iter().flat_map(containers).collect();
    match choose(&all, text, FoundContainer::about) {
        Ok(found) => Ok((found.cri, found.container.clone())),
        Err(MatchError::Ambiguous(some)) => Err(ambiguous("container", text, &some)),
        Err(MatchError::NotFound) => {
            Err(CallError::NotFound { what: "container", name: text.to_owned() })
        }
    }
}

/// The container that the arguments name: an id or name, or a pod and optionally a container name.
pub(crate) async fn container_of<'a>(
    all: &'a [Cri],
    text: &str,
    container: &ContainerNameArgs,
    namespace: Option<&str>,
    best: Best,
) -> Result<SelectedContainer<'a>, CallError> {
    let search = Search::new(all).await?;
    search.container(text, container.container_name.as_deref(), namespace, best)
}

impl<'a> Search<'a> {
    pub(crate) async fn new(all: &'a [Cri]) -> Result<Self, CallError> {
        Ok(Self { all, known: known(all, true).await? })
    }

    /// The container with this id or name, or the container `name` of this pod.
    pub(crate) fn container(
        &self,
        text: &str,
        name: Option<&str>,
        namespace: Option<&str>,
        best: Best,
    ) -> Result<SelectedContainer<'a>, CallError> {
        if let Some(object) = ObjectName::parse(text) {
            let pod = object.best_pod(self.all, namespace, best)?;
            return self.in_run_pod(pod, name);
        }
        let all: Vec<FoundContainer<'a, '_>> = self.known.iter().flat_map(containers).collect();
        if name.is_none()
            && may_be_container(&self.known, &all, text)
            && let Some(found) = by_container(&all, text)?
        {
            let pod = found.pod.and_then(|pod| pod.metadata.clone()).unwrap_or_default();
            return Ok(SelectedContainer {
                cri: found.cri,
                container: found.container.clone(),
                pod,
            });
        }
        let pod = pod_of_container(&self.known, &in_namespace(text, namespace), name)?;
        self.in_pod(pod.cri, pod.pod, None, text, name)
    }

    /// A container of a pod of a run.
    pub(crate) fn in_run_pod(
        &self,
        pod: RunPod<'a>,
        name: Option<&str>,
    ) -> Result<SelectedContainer<'a>, CallError> {
        let sandbox = sandbox(&self.known, &pod)?;
        let text = sandbox.metadata.as_ref().map_or("", |of| of.name.as_str());
        self.in_pod(pod.cri, sandbox, Some(pod.object), text, name)
    }

    /// All created containers of a pod of a run, in their start order.
    pub(crate) fn all_in_run_pod(&self, pod: &RunPod<'a>) -> Vec<SelectedContainer<'a>> {
        let sandbox = sandbox(&self.known, pod);
        sandbox.map(|it| self.all_in_pod(pod.cri, it, Some(&pod.object))).unwrap_or_default()
    }

    /// All containers of the pod that the argument names, in their start order.
    pub(crate) fn all_of_pod(
        &self,
        text: &str,
        namespace: Option<&str>,
    ) -> Result<Vec<SelectedContainer<'a>>, CallError> {
        let pod = resolve_pod(&self.known, &in_namespace(text, namespace))?;
        let uid = pod.pod.metadata.as_ref().map_or("", |of| of.uid.as_str());
        let object = pod_object(pod.cri, uid)?;
        Ok(self.all_in_pod(pod.cri, pod.pod, object.as_ref()))
    }

    fn all_in_pod(
        &self,
        cri: &'a Cri,
        pod: &v1::PodSandbox,
        object: Option<&Value>,
    ) -> Vec<SelectedContainer<'a>> {
        let all = self.known.iter().flat_map(containers);
        let mut of_pod: Vec<FoundContainer<'a, '_>> =
            all.filter(|found| found.container.pod_sandbox_id == pod.id).collect();
        compact::sort_by_key(&mut of_pod, |found| found.container.created_at);
        let mut names: Vec<String> = object.map(all_containers).unwrap_or_default();
        for found in &of_pod {
            if !names.iter().any(|name| name == found.name()) {
                names.push(found.name().to_owned());
            }
        }
        let metadata = pod.metadata.clone().unwrap_or_default();
        let newest = |name: &String| of_pod.iter().rev().find(|found| found.name() == name);
        let selected = |found: &FoundContainer<'a, '_>| SelectedContainer {
            cri,
            container: found.container.clone(),
            pod: metadata.clone(),
        };
        names.iter().filter_map(newest).map(selected).collect()
    }

    fn in_pod(
        &self,
        cri: &'a Cri,
        pod: &v1::PodSandbox,
        object: Option<Value>,
        text: &str,
        name: Option<&str>,
    ) -> Result<SelectedContainer<'a>, CallError> {
        let all: Vec<FoundContainer<'a, '_>> = self.known.iter().flat_map(containers).collect();
        let of_pod = all.iter().filter(|found| found.container.pod_sandbox_id == pod.id);
        let of_pod: Vec<&FoundContainer<'a, '_>> = of_pod.collect();
        let metadata = pod.metadata.clone().unwrap_or_default();
        let has_several =
            of_pod.iter().any(|found| Some(found.name()) != of_pod.first().map(|it| it.name()));
        let object = match object {
            None if name.is_none() && has_several => pod_object(cri, &metadata.uid)?,
            object => object,
        };
        let default = match (name, &object) {
            (Some(_), _) => None,
            (None, Some(object)) => Some(default_container(object).map_err(CallError::Usage)?),
            (None, None) => pod
                .annotations
                .get(DEFAULT_CONTAINER)
                .map(|name| DefaultContainer { name: name.clone(), note: None }),
        };
        // A default container that was not created yet is ignored; another one may be running.
        let default = default.filter(|it| of_pod.iter().any(|found| found.name() == it.name));
        let found = only(&of_pod, text, name.or(default.as_ref().map(|it| it.name.as_str())))?;
        if let Some(note) = default.and_then(|it| it.note) {
            print_stderr(&note);
        }
        if let Some(others) = &found.others {
            print_stderr(&format!(
                "chose container {:?} of {others}, because it is the only running one: use -c to choose another container",
                found.name()
            ));
        }
        Ok(SelectedContainer { cri, container: found.container.clone(), pod: metadata })
    }
}

/// The sandbox of a pod of a run.
pub(crate) async fn sandbox_of(all: &[Cri], pod: &RunPod<'_>) -> Result<v1::PodSandbox, CallError> {
    let known = known(all, false).await?;
    sandbox(&known, pod).cloned()
}

fn sandbox<'k>(known: &'k [Known<'_>], pod: &RunPod<'_>) -> Result<&'k v1::PodSandbox, CallError> {
    let all = known.iter().flat_map(|known| &known.pods);
    let own = all.filter(|it| it.metadata.as_ref().is_some_and(|of| of.uid == pod.uid()));
    let best =
        own.max_by_key(|it| (it.state() == v1::PodSandboxState::SandboxReady, it.created_at));
    best.ok_or_else(|| CallError::NotFound {
        what: "sandbox of pod",
        name: crate::objects::metadata(&pod.object, "name").to_owned(),
    })
}

/// The pod that the argument names. Of several with the same name, the ready one, or else the newest.
pub(crate) async fn pod<'a>(
    all: &'a [Cri],
    text: &str,
) -> Result<(&'a Cri, v1::PodSandbox), CallError> {
    let known = known(all, false).await?;
    let found = resolve_pod(&known, text)?;
    Ok((found.cri, found.pod.clone()))
}

async fn known(all: &[Cri], with_containers: bool) -> Result<Vec<Known<'_>>, CallError> {
    let mut known = Vec::new();
    for cri in all {
        let answer = async {
            let containers = match with_containers {
                true => {
                    let all = cri.runtime.containers(v1::ContainerFilter::default());
                    cri.call("ListContainers", all).await?
                }
                false => Vec::new(),
            };
            let pods = cri.runtime.pods(v1::PodSandboxFilter::default());
            let pods = cri.call("ListPodSandbox", pods).await?;
            Ok((containers, pods))
        };
        if let Some((containers, pods)) = cri.unless_ended(answer.await)? {
            known.push(Known { cri, containers, pods });
        }
    }
    Ok(known)
}

/// Whether an argument may name a container: a pod's name is not treated as a prefix of a container id.
fn may_be_container(known: &[Known<'_>], all: &[FoundContainer<'_, '_>], text: &str) -> bool {
    let is_name = |pod: &v1::PodSandbox| pod.metadata.as_ref().is_some_and(|of| of.name == text);
    let is_container = || all.iter().any(|found| is_exact(&found.about(), text));
    !is_pod(text) && (!known.iter().flat_map(|known| &known.pods).any(is_name) || is_container())
}

/// The container with this id or name, if any.
fn by_container<'a, 'k>(
    all: &[FoundContainer<'a, 'k>],
    text: &str,
) -> Result<Option<FoundContainer<'a, 'k>>, CallError> {
    match choose(all, text, FoundContainer::about) {
        Ok(found) => Ok(Some(found.copy())),
        Err(MatchError::Ambiguous(some)) => Err(ambiguous("container", text, &some)),
        Err(MatchError::NotFound) => Ok(None),
    }
}

/// The pod to search for a container.
fn pod_of_container<'a, 'k>(
    known: &'k [Known<'a>],
    text: &str,
    name: Option<&str>,
) -> Result<FoundPod<'a, 'k>, CallError> {
    match resolve_pod(known, text) {
        // Unless the argument must be a pod, the error is about a missing container.
        Err(CallError::NotFound { name: text, .. }) if name.is_none() && !is_pod(&text) => {
            Err(CallError::NotFound { what: "container", name: text })
        }
        pod => pod,
    }
}

fn resolve_container<'a, 'k>(
    known: &'k [Known<'a>],
    text: &str,
) -> Result<FoundContainer<'a, 'k>, CallError> {
    let all: Vec<FoundContainer<'a, 'k>> = known.iter().flat_map(containers).collect();
    if may_be_container(known, &all, text)
        && let Some(found) = by_container(&all, text)?
    {
        return Ok(found);
    }
    let pod = pod_of_container(known, text, None)?;
    let of_pod = |found: &&FoundContainer<'_, '_>| found.container.pod_sandbox_id == pod.pod.id;
    let of_pod: Vec<&FoundContainer<'a, 'k>> = all.iter().filter(of_pod).collect();
    only(&of_pod, text, None)
}

/// The pod's container of this name; without a name, its only container. Of several attempts with the same name, the last.
fn only<'a, 'k>(
    of_pod: &[&FoundContainer<'a, 'k>],
    text: &str,
    name: Option<&str>,
) -> Result<FoundContainer<'a, 'k>, CallError> {
    let wanted = |found: &&&FoundContainer<'_, '_>| name.is_none_or(|name| found.name() == name);
    let mut fit: Vec<&FoundContainer<'a, 'k>> = of_pod.iter().filter(wanted).copied().collect();
    // Exited init containers are ignored while another container runs.
    if name.is_none() && fit.iter().any(|found| found.runs()) {
        fit.retain(|found| found.runs());
    }
    compact::sort_by_key(&mut fit, |found| std::cmp::Reverse(found.container.created_at));
    let known: Set<&str> = of_pod.iter().map(|found| found.name()).collect();
    let known: Vec<String> = known.into_iter().map(str::to_owned).collect();
    let Some(newest) = fit.first() else {
        return Err(match name.filter(|_| !known.is_empty()) {
            Some(name) => {
                CallError::NoSuchContainer { pod: text.to_owned(), name: name.to_owned(), known }
            }
            None => CallError::NotFound { what: "container in pod", name: text.to_owned() },
        });
    };
    match fit.iter().all(|found| found.name() == newest.name()) {
        true => Ok(FoundContainer {
            others: (name.is_none() && known.len() > 1).then(|| known.join(", ")),
            ..newest.copy()
        }),
        false => {
            let names: Set<&str> = fit.iter().map(|found| found.name()).collect();
            Err(CallError::Ambiguous {
                what: "container",
                name: text.to_owned(),
                candidates: names.iter().map(|name| format!("-c {name}")).collect(),
            })
        }
    }
}

fn resolve_pod<'a, 'k>(known: &'k [Known<'a>], text: &str) -> Result<FoundPod<'a, 'k>, CallError> {
    let (namespace, name) = namespace_and_name(text);
    let all = known.iter().flat_map(|known| {
        let cri = known.cri;
        known.pods.iter().map(move |pod| FoundPod { cri, pod })
    });
    let in_namespace = |found: &FoundPod<'_, '_>| {
        let metadata = found.pod.metadata.as_ref();
        namespace.is_none_or(|wanted| metadata.is_some_and(|of| of.namespace == wanted))
    };
    let all: Vec<FoundPod<'a, 'k>> = all.filter(in_namespace).collect();
    match choose(&all, name, FoundPod::about) {
        Ok(FoundPod { cri, pod }) => Ok(FoundPod { cri, pod }),
        Err(MatchError::NotFound) => {
            Err(CallError::NotFound { what: "pod", name: text.to_owned() })
        }
        Err(MatchError::Ambiguous(some)) => Err(ambiguous("pod", text, &some)),
    }
}

/// The namespace and name in an argument for a pod: `web`, `shop/web`, `pod/shop/web`.
pub(crate) fn namespace_and_name(text: &str) -> (Option<&str>, &str) {
    let bare = pod_name(text);
    match bare.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, bare),
    }
}

/// The argument with the namespace, if one is given and the argument has none.
pub(crate) fn in_namespace(text: &str, namespace: Option<&str>) -> String {
    match (namespace, namespace_and_name(text)) {
        (Some(namespace), (None, name)) => format!("pod/{namespace}/{name}"),
        (None, _) | (_, (Some(_), _)) => text.to_owned(),
    }
}

/// Whether an argument can only name a pod.
fn is_pod(text: &str) -> bool {
    pod_name(text) != text
}

fn pod_name(text: &str) -> &str {
    ["pod/", "pods/", "po/"]
        .into_iter()
        .find_map(|prefix| text.strip_prefix(prefix))
        .unwrap_or(text)
}

fn containers<'a, 'k>(known: &'k Known<'a>) -> impl Iterator<Item = FoundContainer<'a, 'k>> {
    known.containers.iter().map(|container| FoundContainer {
        cri: known.cri,
        container,
        pod: known.pods.iter().find(|pod| pod.id == container.pod_sandbox_id),
        others: None,
    })
}

impl<'k> FoundContainer<'_, 'k> {
    fn copy(&self) -> Self {
        Self { others: None, ..*self }
    }

    fn name(&self) -> &'k str {
        let metadata = self.container.metadata.as_ref();
        metadata.map_or("", |of| of.name.as_str())
    }

    fn runs(&self) -> bool {
        self.container.state() == v1::ContainerState::ContainerRunning
    }

    fn about(&self) -> About<'_> {
        About {
            id: &self.container.id,
            name: self.name(),
            is_live: self.runs(),
            created: self.container.created_at,
            place: self.pod.map_or_else(String::new, full_name),
        }
    }
}

impl FoundPod<'_, '_> {
    fn about(&self) -> About<'_> {
        About {
            id: &self.pod.id,
            name: self.pod.metadata.as_ref().map_or("", |of| of.name.as_str()),
            is_live: self.pod.state() == v1::PodSandboxState::SandboxReady,
            created: self.pod.created_at,
            place: full_name(self.pod),
        }
    }
}

fn ambiguous(what: &'static str, text: &str, candidates: &[String]) -> CallError {
    CallError::Ambiguous { what, name: text.to_owned(), candidates: candidates.to_vec() }
}

/// The pod as `NAMESPACE/NAME`.
fn full_name(pod: &v1::PodSandbox) -> String {
    let metadata = pod.metadata.clone().unwrap_or_default();
    format!("{}/{}", metadata.namespace, metadata.name)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("pod/web", true, "web")]
    #[case("po/n/web", true, "n/web")]
    #[case("web", false, "web")]
    fn prefix_says_that_a_pod_is_meant(#[case] text: &str, #[case] is: bool, #[case] name: &str) {
        assert_eq!((is_pod(text), pod_name(text)), (is, name));
    }
}
