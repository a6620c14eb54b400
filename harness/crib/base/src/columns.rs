//! ◆ What the tables of kubectl say of objects: the cells that several commands show. Pure.

pub mod age;
pub mod fields;
pub mod pod_summary;

/// What is shown where there is nothing.
pub const NONE: &str = "<none>";
