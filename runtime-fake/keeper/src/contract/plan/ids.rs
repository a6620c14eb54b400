//! The id mappings of a user namespace.

use serde::{Deserialize, Serialize};

/// A range of ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinuxIdMapping {
    /// The first id in the user namespace.
    #[serde(rename = "inside")]
    pub container_id: u32,
    /// The first id on the host.
    #[serde(rename = "outside")]
    pub host_id: u32,
    /// The number of ids.
    #[serde(rename = "count")]
    pub size: u32,
}

/// The id mappings of a user namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdMappings {
    /// Users.
    #[serde(rename = "uids")]
    pub uid_mappings: Vec<LinuxIdMapping>,
    /// Groups.
    #[serde(rename = "gids")]
    pub gid_mappings: Vec<LinuxIdMapping>,
}

impl IdMappings {
    /// The host's user and group that are root in the namespace.
    pub fn root(&self) -> (u32, u32) {
        let root = |maps: &[LinuxIdMapping]| maps.first().map_or(0, |map| map.host_id);
        (root(&self.uid_mappings), root(&self.gid_mappings))
    }

    /// The host's owner of a file that has `uid` and `gid` in the namespace; none for an id without a mapping.
    pub fn shift(&self, uid: u32, gid: u32) -> Option<(u32, u32)> {
        let shift = |maps: &[LinuxIdMapping], id: u32| {
            let map = maps
                .iter()
                .find(|map| id.checked_sub(map.container_id).is_some_and(|at| at < map.size))?;
            Some(map.host_id + (id - map.container_id))
        };
        Some((shift(&self.uid_mappings, uid)?, shift(&self.gid_mappings, gid)?))
    }
}
