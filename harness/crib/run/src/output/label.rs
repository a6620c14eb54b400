//! The identity of a container among all pods of a run.

/// The container of a log.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Label {
    /// `namespace/name` of the pod.
    pub(crate) pod: String,
    /// The container.
    pub(crate) container: String,
}
