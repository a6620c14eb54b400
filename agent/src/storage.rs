//! Volumes, and the directories of claims.

pub mod claims;
pub mod volumes;
