//! ◆ Why a pod was inspected or changed: causes of the pod as a whole and of its containers, from which the cause of each
//! transition is chosen. Pure.

use crate::reporting::report::ContainerPhase;

/// The causes, in the order in which they were noticed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Causes(Vec<Cause>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Cause {
    subject: Subject,
    text: String,
}

/// The subject of a cause.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Subject {
    Pod,
    /// The pod's new sandbox, in which it starts.
    Sandbox,
    /// A container, and the state that the cause led to.
    Container(String, ContainerPhase),
}

impl Subject {
    fn is_of_pod(&self) -> bool {
        match self {
            Self::Pod | Self::Sandbox => true,
            Self::Container(..) => false,
        }
    }
}

impl Causes {
    /// A cause of the pod as a whole.
    pub(crate) fn pod(text: impl Into<String>) -> Self {
        Self(vec![Cause { subject: Subject::Pod, text: text.into() }])
    }

    /// The pod starts in a new sandbox, for the plan's reason.
    pub(crate) fn new_sandbox(reason: &str) -> Self {
        Self(vec![Cause { subject: Subject::Sandbox, text: format!("new sandbox: {reason}") }])
    }

    /// A cause of a container's new state.
    pub(crate) fn container(name: &str, state: ContainerPhase, text: impl Into<String>) -> Self {
        Self(vec![Cause { subject: Subject::Container(name.to_owned(), state), text: text.into() }])
    }

    /// A container was started, for the plan's reason.
    pub(crate) fn started(name: &str, reason: &str) -> Self {
        Self::container(name, ContainerPhase::Running, format!("started: {reason}"))
    }

    /// A container was stopped, for the plan's reason.
    pub(crate) fn stopped(name: &str, reason: &str) -> Self {
        Self::container(name, ContainerPhase::Terminated, format!("stopped: {reason}"))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether there is a cause of the pod as a whole.
    pub(crate) fn is_of_pod(&self) -> bool {
        self.0.iter().any(|cause| cause.subject.is_of_pod())
    }

    /// Whether there is a cause of this container.
    pub(crate) fn is_about(&self, name: &str) -> bool {
        let of =
            |subject: &Subject| matches!(subject, Subject::Container(about, _) if about == name);
        self.0.iter().any(|cause| of(&cause.subject))
    }

    /// The causes without the pod's start, which is not why it ended.
    #[must_use]
    pub(crate) fn of_end(&self) -> Self {
        let others = self.0.iter().filter(|cause| cause.subject != Subject::Sandbox);
        Self(others.cloned().collect())
    }

    /// Adds causes that are not in the list yet.
    pub(crate) fn add(&mut self, more: Self) {
        for cause in more.0 {
            if !self.0.contains(&cause) {
                self.0.push(cause);
            }
        }
    }

    /// These causes followed by `more`.
    #[must_use]
    pub(crate) fn and(mut self, more: Self) -> Self {
        self.add(more);
        self
    }

    /// Why the pod changed: its own causes, or else those of its containers.
    pub(crate) fn of_pod(&self) -> String {
        let own = self.texts(Subject::is_of_pod);
        if !own.is_empty() {
            return own;
        }
        let mut named: Vec<String> = Vec::new();
        for cause in &self.0 {
            if let Subject::Container(name, state) = &cause.subject {
                let text = format!("{name} {}", self.of_container(name, *state));
                if !named.contains(&text) {
                    named.push(text);
                }
            }
        }
        named.join(", ")
    }

    /// Why a container changed to a state. Without a cause, a container started or ended by itself; a container waits because of an
    /// action on it, or on the pod.
    pub(crate) fn of_container(&self, name: &str, state: ContainerPhase) -> String {
        let own = self.texts(|subject| {
            matches!(subject, Subject::Container(about, to) if about == name && *to == state)
        });
        if !own.is_empty() {
            return own;
        }
        match state {
            ContainerPhase::Running => "started".to_owned(),
            ContainerPhase::Terminated => "exited".to_owned(),
            ContainerPhase::Waiting => {
                let own = self.texts(
                    |subject| matches!(subject, Subject::Container(about, _) if about == name),
                );
                if own.is_empty() { self.of_pod() } else { own }
            }
        }
    }

    fn texts(&self, about: impl Fn(&Subject) -> bool) -> String {
        let texts: Vec<&str> = self
            .0
            .iter()
            .filter(|cause| about(&cause.subject))
            .map(|cause| cause.text.as_str())
            .collect();
        // A cause with a reason makes a bare event redundant.
        let has_reason = texts.iter().any(|text| text.contains(": "));
        let parts = texts.into_iter().filter(|text| !has_reason || text.contains(": "));
        parts.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn causes() -> Causes {
        Causes::container("a", ContainerPhase::Running, "started")
            .and(Causes::started("a", "for the first time"))
            .and(Causes::started("b", "init container a is done"))
            .and(Causes::container("c", ContainerPhase::Terminated, "exited"))
    }

    #[test]
    fn container_transition_has_cause_of_its_container_and_state() {
        let of = |name, state| causes().of_container(name, state);
        assert_eq!(of("a", ContainerPhase::Running), "started: for the first time");
        assert_eq!(of("b", ContainerPhase::Running), "started: init container a is done");
        assert_eq!(of("c", ContainerPhase::Terminated), "exited");
    }

    #[test]
    fn container_transition_does_not_take_the_cause_of_another() {
        let of = |name, state| causes().of_container(name, state);
        assert_eq!(of("a", ContainerPhase::Terminated), "exited");
        assert_eq!(of("c", ContainerPhase::Running), "started");
    }

    #[test]
    fn pod_transition_prefers_causes_of_pod() {
        assert_eq!(
            Causes::container("c", ContainerPhase::Terminated, "exited").of_pod(),
            "c exited"
        );
        let both = causes().and(Causes::pod("new sandbox: the pod had none"));
        assert_eq!(both.of_pod(), "new sandbox: the pod had none");
        assert_eq!(both.of_container("d", ContainerPhase::Waiting), both.of_pod());
    }

    #[test]
    fn repeated_cause_is_kept_once() {
        assert_eq!(Causes::pod("x").and(Causes::pod("x")), Causes::pod("x"));
    }
}
