//! ◆ Cells of kubectl's tables that several commands show. Pure.

pub mod age;
pub mod fields;
pub mod pod_summary;

/// The cell for an empty value.
pub const NONE: &str = "<none>";
