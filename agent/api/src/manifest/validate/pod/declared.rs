//! The volumes that a pod declares, for checking references to them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Volume;

/// The valid volumes of a pod by name.
pub(crate) type Volumes<'a> = BTreeMap<&'a str, &'a Volume>;
