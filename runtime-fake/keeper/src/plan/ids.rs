//! The ids of a user namespace.

use serde::{Deserialize, Serialize};

/// Some ids in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinuxIdMapping {
    /// The first one inside.
    #[serde(rename = "inside")]
    pub container_id: u32,
    /// The first one outside.
    #[serde(rename = "outside")]
    pub host_id: u32,
    /// How many.
    #[serde(rename = "count")]
    pub size: u32,
}

/// The ids of a user namespace.
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
    /// The user and the group that are root inside.
    pub fn root(&self) -> (u32, u32) {
        let root = |maps: &[LinuxIdMapping]| maps.first().map_or(0, |map| map.host_id);
        (root(&self.uid_mappings), root(&self.gid_mappings))
    }

    /// What a file of `uid` and `gid` belongs to when it is the namespace's own; none for an id that is not mapped.
    pub fn shift(&self, uid: u32, gid: u32) -> Option<(u32, u32)> {
        let shift = |maps: &[LinuxIdMapping], id: u32| {
            let map = maps.iter().find(|map| {
                id.checked_sub(map.container_id)
                    .is_some_and(|at| at < map.size)
            })?;
            Some(map.host_id + (id - map.container_id))
        };
        Some((
            shift(&self.uid_mappings, uid)?,
            shift(&self.gid_mappings, gid)?,
        ))
    }
}
