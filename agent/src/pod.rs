//! A pod that is defaulted and validated.

use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1;

/// `metadata.uid`
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PodUid(pub String);

impl fmt::Display for PodUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A pod with its defaults filled in.
#[derive(Clone, Debug, PartialEq)]
pub struct Pod(Arc<v1::Pod>);
