//! Tools for tests of a Container Runtime Interface server or client, and what the `crib` command shares with them.

pub mod cri_log;
pub mod fixture_image;
