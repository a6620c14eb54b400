//! ◆ The Services of a run, which stay as they were at its start.
//!
//! Their addresses are leased before the agent starts, and pods have them in their variables.

use std::sync::Arc;

use agent::objects::{ObjectMap, Objects as _};
use k8s_openapi::api::core::v1::Service;

/// The Services at the start.
pub(super) struct FixedServices {
    /// As the manifests have them.
    written: Vec<Arc<Service>>,
    /// With their addresses and node ports.
    served: Vec<Arc<Service>>,
    /// The Services of the last manifests differ from those.
    differ: bool,
}

impl FixedServices {
    pub(super) fn new(written: Vec<Arc<Service>>, served: Vec<Arc<Service>>) -> Self {
        Self {
            written,
            served,
            differ: false,
        }
    }

    /// Puts these Services in place of the ones that changed manifests have. Returns a warning when those begin to differ.
    #[must_use]
    pub(super) fn keep(&mut self, objects: &mut ObjectMap) -> Option<String> {
        let differ = objects.all_services() != self.written;
        objects.set_services(self.served.iter().cloned());
        let begin = differ && !std::mem::replace(&mut self.differ, differ);
        self.differ = differ;
        begin.then(|| {
            "warning: Services stay as they were at the start: run the manifests again to change them".to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn service(name: &str, address: Option<&str>) -> Arc<Service> {
        let service =
            serde_json::json!({"metadata": {"name": name}, "spec": {"clusterIP": address}});
        Arc::new(serde_json::from_value(service).unwrap())
    }

    fn objects(services: &[Arc<Service>]) -> ObjectMap {
        let mut objects = ObjectMap::default();
        objects.set_services(services.iter().cloned());
        objects
    }

    #[test]
    fn services_stay_and_a_difference_is_told_once() {
        let (written, served) = (service("db", None), service("db", Some("10.0.0.9")));
        let mut fixed = FixedServices::new(vec![written.clone()], vec![served.clone()]);
        let mut same = objects(std::slice::from_ref(&written));
        assert_eq!(fixed.keep(&mut same), None);
        assert_eq!(same.all_services(), std::slice::from_ref(&served));
        let mut keep = |services: &[Arc<Service>]| {
            let mut changed = objects(services);
            let warned = fixed.keep(&mut changed).is_some();
            assert_eq!(changed.all_services(), std::slice::from_ref(&served));
            warned
        };
        let another = [written.clone(), service("web", None)];
        assert!(keep(&another));
        assert!(!keep(&another));
        assert!(!keep(&[written]));
        assert!(keep(&[]));
    }
}
