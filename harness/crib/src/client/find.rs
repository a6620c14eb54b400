//! Which container or pod a user means: by its id, the beginning of one, or its name.

use cri::v1;

use super::{CallError, Cri, select};

/// The container that is meant. Of several with the name, the one that runs; else the newest.
pub(crate) async fn container(cri: &Cri, text: &str) -> Result<v1::Container, CallError> {
    let all = cri.runtime.containers(v1::ContainerFilter::default());
    let all = cri.call("ListContainers", all).await?;
    let found = choose(&all, text, |container| {
        let runs = container.state() == v1::ContainerState::ContainerRunning;
        let name = container
            .metadata
            .as_ref()
            .map_or("", |of| of.name.as_str());
        (&container.id, name, runs, container.created_at)
    });
    found.cloned().map_err(|miss| miss.of("container", text))
}

/// The pod that is meant. Of several with the name, the one that is ready; else the newest.
pub(crate) async fn pod(cri: &Cri, text: &str) -> Result<v1::PodSandbox, CallError> {
    let all = cri.runtime.pods(v1::PodSandboxFilter::default());
    let all = cri.call("ListPodSandbox", all).await?;
    let found = choose(&all, text, |pod| {
        let ready = pod.state() == v1::PodSandboxState::SandboxReady;
        let name = pod.metadata.as_ref().map_or("", |of| of.name.as_str());
        (&pod.id, name, ready, pod.created_at)
    });
    found.cloned().map_err(|miss| miss.of("pod", text))
}

/// Why nothing is meant.
#[derive(Debug, PartialEq, Eq)]
enum Miss {
    Nothing,
    Several,
}

impl Miss {
    fn of(self, what: &'static str, name: &str) -> CallError {
        let name = name.to_owned();
        match self {
            Self::Nothing => CallError::NotFound { what, name },
            Self::Several => CallError::Ambiguous { what, name },
        }
    }
}

/// `about` gives the id, the name, whether it lives, and when it was made.
fn choose<'a, T>(
    all: &'a [T],
    text: &str,
    about: impl Fn(&'a T) -> (&'a str, &'a str, bool, i64),
) -> Result<&'a T, Miss> {
    let ids: Vec<(&str, &T)> = all.iter().map(|item| (about(item).0, item)).collect();
    let named: Vec<&T> = all.iter().filter(|item| about(item).1 == text).collect();
    match select::by_id(&ids, text, |(id, _)| id) {
        Ok(Some((_, item))) => return Ok(item),
        Err(()) if named.is_empty() => return Err(Miss::Several),
        Ok(None) | Err(()) => {}
    }
    let mut living = named.iter().filter(|item| about(item).2);
    match (living.next(), living.next()) {
        (Some(_), Some(_)) => Err(Miss::Several),
        (Some(one), None) => Ok(one),
        (None, _) => {
            let newest = named.into_iter().max_by_key(|item| about(item).3);
            newest.ok_or(Miss::Nothing)
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("abc1", Ok(1))]
    #[case("abc", Err(Miss::Several))]
    #[case("web", Ok(2))]
    #[case("old", Ok(5))]
    #[case("twice", Err(Miss::Several))]
    #[case("ff", Ok(7))]
    #[case("none", Err(Miss::Nothing))]
    #[case("", Err(Miss::Nothing))]
    fn container_lookup_prefers_id_prefix_then_running_then_newest(
        #[case] text: &str,
        #[case] expected: Result<i64, Miss>,
    ) {
        let all = [
            ("abc1", "web", false, 1),
            ("abc2", "web", true, 2),
            ("d3", "old", false, 4),
            ("d4", "old", false, 5),
            ("e1", "twice", true, 6),
            ("ffe1", "twice", true, 7),
        ];
        let found = choose(&all, text, |item| *item);
        assert_eq!(found.map(|item| item.3), expected);
    }
}
