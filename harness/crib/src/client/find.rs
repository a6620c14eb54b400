//! Which container or pod a user means, in any runtime: by its id, the beginning of one, or its name.
//!
//! A container is also meant by the name of its pod, as with kubectl: `web`, `pod/web` or `pod/NAMESPACE/web`, with `-c` where the pod has several.

use std::collections::BTreeSet;

use clap::Args;
use cri::v1;
use crib_base::report::say;

use super::{CallError, Cri, human, select};

/// Which container, where a pod is given.
#[derive(Debug, Default, Args)]
pub(crate) struct ContainerNameArgs {
    /// Name of the container, where a pod is given
    #[arg(short = 'c', long = "container", value_name = "NAME")]
    container_name: Option<String>,
}

/// What a runtime has.
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
    /// The names of all containers of its pod, if it was chosen among several.
    others: Option<String>,
}

/// A pod and its runtime.
struct FoundPod<'a, 'k> {
    cri: &'a Cri,
    pod: &'k v1::PodSandbox,
}

/// The container that is meant. Of several with the name, the one that runs; else the newest.
pub(crate) async fn container<'a>(
    all: &'a [Cri],
    text: &str,
) -> Result<(&'a Cri, v1::Container), CallError> {
    container_of(all, text, &ContainerNameArgs::default()).await
}

/// The container with an id or name; a pod's name is none of a container's.
pub(crate) async fn container_named<'a>(
    all: &'a [Cri],
    text: &str,
) -> Result<(&'a Cri, v1::Container), CallError> {
    let known = known(all, true).await?;
    let all: Vec<FoundContainer<'_, '_>> = known.iter().flat_map(containers).collect();
    match choose(&all, text, FoundContainer::about) {
        Ok(found) => Ok((found.cri, found.container.clone())),
        Err(Miss::Several(some)) => Err(ambiguous("container", text, &some)),
        Err(Miss::Nothing) => Err(CallError::NotFound { what: "container", name: text.to_owned() }),
    }
}

/// The container that is meant, where its name may be given beside its pod.
pub(crate) async fn container_of<'a>(
    all: &'a [Cri],
    text: &str,
    container: &ContainerNameArgs,
) -> Result<(&'a Cri, v1::Container), CallError> {
    let known = known(all, true).await?;
    let found = meant_container(&known, text, container.container_name.as_deref())?;
    if let Some(others) = &found.others {
        say(&format!(
            "chose container {:?} of {others}, for it alone runs: -c chooses another one",
            found.name()
        ));
    }
    Ok((found.cri, found.container.clone()))
}

/// The pod that is meant. Of several with the name, the one that is ready; else the newest.
pub(crate) async fn pod<'a>(
    all: &'a [Cri],
    text: &str,
) -> Result<(&'a Cri, v1::PodSandbox), CallError> {
    let known = known(all, false).await?;
    let found = meant_pod(&known, text)?;
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

fn meant_container<'a, 'k>(
    known: &'k [Known<'a>],
    text: &str,
    name: Option<&str>,
) -> Result<FoundContainer<'a, 'k>, CallError> {
    let all: Vec<FoundContainer<'a, 'k>> = known.iter().flat_map(containers).collect();
    if name.is_none() && !is_pod(text) {
        match choose(&all, text, FoundContainer::about) {
            Ok(found) => return Ok(found.copy()),
            Err(Miss::Several(some)) => return Err(ambiguous("container", text, &some)),
            Err(Miss::Nothing) => {}
        }
    }
    let pod = match meant_pod(known, text) {
        // Without a sign that a pod is meant, a container was looked for.
        Err(CallError::NotFound { name: text, .. }) if name.is_none() && !is_pod(&text) => {
            let what = "container";
            return Err(CallError::NotFound { what, name: text });
        }
        pod => pod?,
    };
    let of_pod = |found: &&FoundContainer<'_, '_>| found.container.pod_sandbox_id == pod.pod.id;
    let of_pod: Vec<&FoundContainer<'a, 'k>> = all.iter().filter(of_pod).collect();
    only(&of_pod, text, name)
}

/// The container of a pod that has the name; without one the pod's only container. Of those that ran one after another under
/// the same name, the last.
fn only<'a, 'k>(
    of_pod: &[&FoundContainer<'a, 'k>],
    text: &str,
    name: Option<&str>,
) -> Result<FoundContainer<'a, 'k>, CallError> {
    let wanted = |found: &&&FoundContainer<'_, '_>| name.is_none_or(|name| found.name() == name);
    let mut fit: Vec<&FoundContainer<'a, 'k>> = of_pod.iter().filter(wanted).copied().collect();
    // Init containers that have ended are not meant while another one runs.
    if name.is_none() && fit.iter().any(|found| found.runs()) {
        fit.retain(|found| found.runs());
    }
    fit.sort_by_key(|found| std::cmp::Reverse(found.container.created_at));
    let known: BTreeSet<&str> = of_pod.iter().map(|found| found.name()).collect();
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
            let names: BTreeSet<&str> = fit.iter().map(|found| found.name()).collect();
            Err(CallError::Ambiguous {
                what: "container",
                name: text.to_owned(),
                candidates: names.iter().map(|name| format!("-c {name}")).collect(),
            })
        }
    }
}

fn meant_pod<'a, 'k>(known: &'k [Known<'a>], text: &str) -> Result<FoundPod<'a, 'k>, CallError> {
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
        Err(Miss::Nothing) => Err(CallError::NotFound { what: "pod", name: text.to_owned() }),
        Err(Miss::Several(some)) => Err(ambiguous("pod", text, &some)),
    }
}

/// What a text says of a pod: `web`, `shop/web`, `pod/shop/web`.
pub(crate) fn namespace_and_name(text: &str) -> (Option<&str>, &str) {
    let bare = pod_name(text);
    match bare.split_once('/') {
        Some((namespace, name)) => (Some(namespace), name),
        None => (None, bare),
    }
}

/// Whether a text says that it is a pod's.
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
            lives: self.runs(),
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
            lives: self.pod.state() == v1::PodSandboxState::SandboxReady,
            created: self.pod.created_at,
            place: full_name(self.pod),
        }
    }
}

/// A pod as people name it.
fn full_name(pod: &v1::PodSandbox) -> String {
    let metadata = pod.metadata.clone().unwrap_or_default();
    format!("{}/{}", metadata.namespace, metadata.name)
}

/// What the choice depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct About<'a> {
    id: &'a str,
    name: &'a str,
    /// Whether it runs, or is ready.
    lives: bool,
    created: i64,
    /// Where it is, to tell it from others.
    place: String,
}

/// Why nothing is meant.
#[derive(Debug, PartialEq, Eq)]
enum Miss {
    Nothing,
    /// The ids and places of what could be meant.
    Several(Vec<String>),
}

fn ambiguous(what: &'static str, text: &str, candidates: &[String]) -> CallError {
    CallError::Ambiguous { what, name: text.to_owned(), candidates: candidates.to_vec() }
}

fn choose<'a, T>(
    all: &'a [T],
    text: &str,
    about: impl Fn(&'a T) -> About<'a>,
) -> Result<&'a T, Miss> {
    let several = |some: Vec<About<'_>>| {
        let candidate = |of: About<'_>| format!("{} ({})", human::id(of.id, false), of.place);
        Miss::Several(some.into_iter().map(candidate).collect())
    };
    let all: Vec<(About<'a>, &'a T)> = all.iter().map(|item| (about(item), item)).collect();
    let named: Vec<&(About<'a>, &T)> = all.iter().filter(|(of, _)| of.name == text).collect();
    match select::by_id(&all, text, |(of, _)| of.id) {
        Ok(Some((_, item))) => return Ok(item),
        Err(()) if named.is_empty() => {
            let fit = all.iter().filter(|(of, _)| of.id.starts_with(text));
            return Err(several(fit.map(|(of, _)| of.clone()).collect()));
        }
        Ok(None) | Err(()) => {}
    }
    let living: Vec<_> = named.iter().filter(|(of, _)| of.lives).collect();
    match living.as_slice() {
        [(_, one)] => Ok(one),
        [] => {
            let newest = named.into_iter().max_by_key(|(of, _)| of.created);
            newest.map(|(_, item)| *item).ok_or(Miss::Nothing)
        }
        some => Err(several(some.iter().map(|(of, _)| of.clone()).collect())),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("abc1", Ok(1))]
    #[case("abc", Err("abc1 (n/p), abc2 (n/p)"))]
    #[case("web", Ok(2))]
    #[case("old", Ok(5))]
    #[case("twice", Err("e1 (n/p), ffe1 (n/p)"))]
    #[case("ff", Ok(7))]
    #[case("none", Err(""))]
    #[case("", Err(""))]
    fn lookup_prefers_id_prefix_then_running_then_newest(
        #[case] text: &str,
        #[case] expected: Result<i64, &str>,
    ) {
        let all = [
            ("abc1", "web", false, 1),
            ("abc2", "web", true, 2),
            ("d3", "old", false, 4),
            ("d4", "old", false, 5),
            ("e1", "twice", true, 6),
            ("ffe1", "twice", true, 7),
        ];
        let found = choose(&all, text, |(id, name, lives, created)| About {
            id,
            name,
            lives: *lives,
            created: *created,
            place: "n/p".to_owned(),
        });
        let found = found.map(|item| item.3).map_err(|miss| match miss {
            Miss::Nothing => String::new(),
            Miss::Several(some) => some.join(", "),
        });
        assert_eq!(found, expected.map_err(str::to_owned));
    }

    #[rstest]
    #[case("pod/web", true, "web")]
    #[case("po/n/web", true, "n/web")]
    #[case("web", false, "web")]
    fn prefix_says_that_a_pod_is_meant(#[case] text: &str, #[case] is: bool, #[case] name: &str) {
        assert_eq!((is_pod(text), pod_name(text)), (is, name));
    }
}
