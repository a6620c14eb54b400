//! Why the runtime does not know how a pod or container is: pure.

use std::fmt;

/// What keeps it from knowing. The pod or container is left as it is, for its client to decide.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UnknownReason {
    /// Its record cannot be read: what is told of it was found otherwise. Nothing is written in the record's place.
    Record(String),
    /// Its keeper cannot be asked.
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
