//! The ids of a user namespace.

use serde::{Deserialize, Serialize};

/// Some ids in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdMap {
    /// The first one inside.
    pub inside: u32,
    /// The first one outside.
    pub outside: u32,
    /// How many.
    pub count: u32,
}

/// The ids of a user namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdMaps {
    /// Users.
    pub uids: Vec<IdMap>,
    /// Groups.
    pub gids: Vec<IdMap>,
}

impl IdMaps {
    /// The user and the group that are root inside.
    pub fn root(&self) -> (u32, u32) {
        let root = |maps: &[IdMap]| maps.first().map_or(0, |map| map.outside);
        (root(&self.uids), root(&self.gids))
    }

    /// What a file of `uid` and `gid` belongs to when it is the namespace's own; none for an id that is not mapped.
    pub fn shift(&self, uid: u32, gid: u32) -> Option<(u32, u32)> {
        let shift = |maps: &[IdMap], id: u32| {
            let map = maps
                .iter()
                .find(|map| id.checked_sub(map.inside).is_some_and(|at| at < map.count))?;
            Some(map.outside + (id - map.inside))
        };
        Some((shift(&self.uids, uid)?, shift(&self.gids, gid)?))
    }
}
