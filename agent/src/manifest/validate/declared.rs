//! The volumes that a pod declares, as the rest of its manifest may refer to them.

use std::collections::BTreeMap;

/// What a container may do with a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A claim: it may be a block device.
    Claim,
    /// Anything else.
    Other,
}

/// The volumes of a pod by name.
pub(super) type Volumes = BTreeMap<String, Kind>;
