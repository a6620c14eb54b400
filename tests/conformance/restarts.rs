//! What survives restarts, kills and power cuts.

pub(crate) mod checkpoint;
pub(crate) mod churn;
pub(crate) mod power_cut;
pub(crate) mod records;
pub(crate) mod recovery;
