//! The volumes that a pod declares, for checking references to them.

use std::collections::BTreeMap;

/// What a container may do with a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A persistent volume claim, which may be a block device.
    Claim,
    /// Anything else.
    Other,
}

/// The volumes of a pod by name.
pub(super) type Volumes = BTreeMap<String, Kind>;
