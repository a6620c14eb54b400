//! Why the state of a pod or container is unknown: pure.

use std::fmt;

/// The reason. The pod or container is left as it is, for its client to decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UnknownReason {
    /// Its record is unreadable: its state was derived otherwise, and the record is not replaced.
    Record(String),
    /// Its keeper cannot be reached.
    Keeper(String),
}

impl fmt::Display for UnknownReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Record(why) => write!(f, "its record {why}"),
            Self::Keeper(why) => write!(f, "its keeper cannot be asked: {why}"),
        }
    }
}
