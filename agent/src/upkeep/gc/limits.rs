//! ◆ Selects the dead containers of the whole node that exceed its limits of number or age.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kuberuntime/kuberuntime_gc.go evictContainers. The workers keep one ended attempt of each
//! container (see [`super::garbage`]), so that with the default limits nothing is left to remove.

use std::time::Duration;

use api::pod::PodUid;
use compact::Map;
use jiff::{SignedDuration, Timestamp};

use crate::cri::{ListedContainer, ListedState};

/// How many dead containers are kept, as set by a kubelet's flags `maximum-dead-containers-per-container`,
/// `maximum-dead-containers` and `minimum-container-ttl-duration`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadContainerLimits {
    /// The maximum number of attempts of each container of a pod; negative: unlimited.
    pub per_container: i64,
    /// The maximum number of containers of the node; negative: unlimited.
    pub in_all: i64,
    /// The minimum time that a container is kept after its creation.
    pub min_age: Duration,
}

impl Default for DeadContainerLimits {
    fn default() -> Self {
        Self { per_container: 1, in_all: -1, min_age: Duration::ZERO }
    }
}

impl DeadContainerLimits {
    /// The number of ended attempts of each container of a live pod that its worker keeps (pod_container_deletor.go).
    pub(super) fn kept_by_worker(self) -> usize {
        usize::try_from(self.per_container).unwrap_or(1).max(1)
    }

    /// Whether the workers enforce these limits, so that nothing else is to be removed.
    pub(crate) fn are_kept_by_workers(self) -> bool {
        self.in_all < 0 && self.per_container != 0
    }
}

/// The containers to remove, in order.
pub(crate) fn excess<'a>(
    containers: impl IntoIterator<Item = &'a ListedContainer>,
    limits: DeadContainerLimits,
    now: Timestamp,
) -> Vec<&'a ListedContainer> {
    let min_age = SignedDuration::try_from(limits.min_age).unwrap_or(SignedDuration::MAX);
    let mut attempts: Map<(&PodUid, &str), Vec<&ListedContainer>> = Map::new();
    for container in containers {
        let is_old = now.duration_since(container.created_at) >= min_age;
        if container.state != ListedState::Running && is_old {
            let unit = (&container.pod.uid, container.name.as_str());
            attempts.entry(unit).or_default().push(container);
        }
    }
    for unit in attempts.values_mut() {
        newest_first(unit);
    }
    let mut removed = Vec::new();
    if let Ok(most) = usize::try_from(limits.per_container) {
        keep(&mut attempts, most, &mut removed);
    }
    let Ok(most) = usize::try_from(limits.in_all) else {
        return removed;
    };
    attempts.retain(|_, unit| !unit.is_empty());
    let count = |attempts: &Map<_, Vec<_>>| attempts.values().map(Vec::len).sum::<usize>();
    if count(&attempts) > most {
        let share = (most / attempts.len()).max(1);
        keep(&mut attempts, share, &mut removed);
    }
    let mut rest: Vec<&ListedContainer> = attempts.into_values().flatten().collect();
    newest_first(&mut rest);
    remove_oldest(&mut rest, most, &mut removed);
    removed
}

fn newest_first(containers: &mut [&ListedContainer]) {
    compact::sort_by_key(containers, |container| std::cmp::Reverse(container.created_at));
}

/// Keeps this many attempts of each container.
fn keep<'a>(
    attempts: &mut Map<(&PodUid, &str), Vec<&'a ListedContainer>>,
    most: usize,
    removed: &mut Vec<&'a ListedContainer>,
) {
    for unit in attempts.values_mut() {
        remove_oldest(unit, most, removed);
    }
}

/// Keeps the first `most`, and removes the others, last first.
fn remove_oldest<'a>(
    containers: &mut Vec<&'a ListedContainer>,
    most: usize,
    removed: &mut Vec<&'a ListedContainer>,
) {
    let kept = most.min(containers.len());
    removed.extend(containers.drain(kept..).rev());
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::fixtures;
    use crate::observed::{ContainerId, SandboxId};

    /// Containers, each as `pod/name@second`; with `+` it is running, with `?` its state is unknown, with `.` it was not started.
    fn listed(text: &str) -> Vec<ListedContainer> {
        let one = |text: &str| {
            let (name, second) = text.split_once('@').unwrap_or((text, "0"));
            let (pod, name) = name.split_once('/').unwrap_or(("p", name));
            let digits = second.trim_end_matches(['+', '?', '.']);
            let state = match second.chars().last() {
                Some('+') => ListedState::Running,
                Some('?') => ListedState::Unknown,
                Some('.') => ListedState::Created,
                Some(_) | None => ListedState::Exited,
            };
            let second: i64 = digits.parse().unwrap_or_default();
            ListedContainer {
                id: ContainerId::new(format!("{pod}/{name}@{digits}")),
                sandbox_id: SandboxId::new("s"),
                pod: fixtures::pod_ref(pod, pod),
                name: name.to_owned(),
                state,
                created_at: Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second),
            }
        };
        text.split_whitespace().map(one).collect()
    }

    #[rstest]
    #[case::nothing("", (1, -1, 0), "")]
    #[case::one_of_each("p/a@1 p/a@2 p/a@3 p/b@1", (1, -1, 0), "p/a@1 p/a@2")]
    #[case::running_ones_do_not_count("p/a@1 p/a@2 p/a@3+", (1, -1, 0), "p/a@1")]
    #[case::the_newest_counts_started_or_not("p/a@1 p/a@2. p/a@3?", (1, -1, 0), "p/a@1 p/a@2")]
    #[case::of_each_pod("p/a@1 q/a@2", (1, -1, 0), "")]
    #[case::none_at_all("p/a@1 q/a@2+", (0, -1, 0), "p/a@1")]
    #[case::two("p/a@1 p/a@2 p/a@3", (2, -1, 0), "p/a@1")]
    #[case::any_number("p/a@1 p/a@2 p/a@3", (-1, -1, 0), "")]
    #[case::young_ones_do_not_count("p/a@1 p/a@40 p/a@50 p/a@60", (1, -1, 55), "p/a@1")]
    #[case::fits_in_all("p/a@1 p/a@2 q/b@3", (-1, 3, 0), "")]
    #[case::equal_shares("p/a@1 p/a@2 p/a@3 p/a@4 q/b@5", (-1, 4, 0), "p/a@1 p/a@2")]
    #[case::at_least_one_of_each("p/a@1 p/a@2 q/b@3 r/c@4", (-1, 3, 0), "p/a@1")]
    #[case::then_the_oldest("p/a@1 p/a@2 q/b@3 r/c@4", (-1, 2, 0), "p/a@1 p/a@2")]
    #[case::no_dead_container("p/a@1 q/b@2 q/b@3+", (1, 0, 0), "p/a@1 q/b@2")]
    fn oldest_dead_containers_go(
        #[case] containers: &str,
        #[case] (per_container, in_all, min_age): (i64, i64, u64),
        #[case] expected: &str,
    ) {
        let containers = listed(containers);
        let limits =
            DeadContainerLimits { per_container, in_all, min_age: Duration::from_secs(min_age) };
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(96);
        let removed = excess(&containers, limits, now);
        let removed: Vec<&str> = removed.iter().map(|seen| seen.id.as_str()).collect();
        assert_eq!(removed.join(" "), expected);
    }

    #[rstest]
    #[case(1, -1, 1, true)]
    #[case(3, -1, 3, true)]
    #[case(-1, -1, 1, true)]
    #[case(0, -1, 1, false)]
    #[case(1, 100, 1, false)]
    fn workers_keep_the_newest_attempt(
        #[case] per_container: i64,
        #[case] in_all: i64,
        #[case] kept: usize,
        #[case] all: bool,
    ) {
        let limits =
            DeadContainerLimits { per_container, in_all, ..DeadContainerLimits::default() };
        assert_eq!(limits.kept_by_worker(), kept);
        assert_eq!(limits.are_kept_by_workers(), all);
    }
}
