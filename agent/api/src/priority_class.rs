//! ◆ The PriorityClasses of every cluster.
//!
//! Source: Kubernetes 1.36, pkg/apis/scheduling/v1/helpers.go.

/// Their names and priorities.
pub const SYSTEM_CLASSES: [(&str, i32); 2] =
    [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)];
