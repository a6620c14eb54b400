//! What an API server knows of objects: manifests are decoded, defaulted and validated; labels are selected, quantities
//! summed, objects patched. Pure: no tasks, files, processes or clocks.

pub mod duration;
pub mod generated_names;
pub mod hash;
pub mod manifest;
pub mod manifest_set;
pub mod patch;
pub mod pod;
pub mod pod_update;
pub mod priority_class;
pub mod qos;
pub mod quantity;
pub mod selector;
pub mod totals;
