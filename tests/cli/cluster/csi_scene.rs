//! A cluster node with a CSI driver, and claims bound to its volumes.

use std::path::PathBuf;

use cluster::{Key, Kind, Part};
use jiff::Timestamp;

use super::api_server::ApiServer;
use super::csi_driver::{CsiDriver, DRIVER};
use super::joined::{Joined, pod};
use crate::command::*;

/// A node with a registered driver.
pub(crate) struct Scene {
    pub(crate) joined: Joined,
    pub(crate) driver: CsiDriver,
    agent: Option<Running>,
    /// The arguments of agents.
    arguments: Vec<String>,
    pub(crate) root: PathBuf,
}

impl Scene {
    /// Creates a node whose CSIDriver object has this spec.
    pub(crate) async fn new(spec: Value) -> Self {
        Self::with(spec, Vec::new()).await
    }

    /// Like [`Self::new`], with further arguments of the agent.
    pub(crate) async fn with(spec: Value, arguments: Vec<String>) -> Self {
        let joined = Joined::new(ApiServer::start()).await;
        let agent = Some(joined.agent(&references(&arguments)));
        joined.wait_for_ready_node().await;
        let root = joined.place.path("root");
        let mut driver = CsiDriver::new(&joined.place, &root);
        let object = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER}, "spec": spec});
        joined.server.store().create(object, Timestamp::now()).unwrap();
        driver.come();
        driver.wait_for("NotifyRegistrationStatus", 1).await;
        Self { joined, driver, agent, arguments, root }
    }

    pub(crate) fn create(&self, object: Value) -> Value {
        let created = self.joined.server.store().create(object, Timestamp::now()).unwrap();
        created.value.clone()
    }

    /// Creates a claim bound to a volume of the driver; both have this name.
    pub(crate) fn bound(&self, name: &str, csi: Value) {
        self.bound_in_mode("Filesystem", name, csi);
    }

    /// Like [`Self::bound`], with this `volumeMode`.
    pub(crate) fn bound_in_mode(&self, mode: &str, name: &str, csi: Value) {
        let claim = self.create(json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "default"},
            "spec": {"accessModes": ["ReadWriteOnce"], "volumeMode": mode, "volumeName": name, "resources": {"requests": {"storage": "1Gi"}}},
        }));
        let key = Key::new(Kind::of("v1", "PersistentVolumeClaim"), "default", name);
        let store = self.joined.server.store();
        let bind = store.change(&key, Part::Status, |claim| {
            claim["status"] = json!({"phase": "Bound"});
            Ok(())
        });
        bind.unwrap();
        let mut source = json!({"driver": DRIVER, "volumeHandle": format!("handle-{name}")});
        source.as_object_mut().unwrap().extend(csi.as_object().unwrap().clone());
        self.create(json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "mountOptions": ["noatime"], "volumeMode": mode,
                "csi": source,
                "claimRef": {"namespace": "default", "name": name, "uid": claim["metadata"]["uid"]},
            },
        }));
    }

    /// A cluster-scoped object in storage.k8s.io.
    pub(crate) fn storage(&self, kind: &str, name: &str) -> Value {
        self.joined.object(Kind::of("storage.k8s.io/v1", kind), "", name)
    }

    pub(crate) fn volumes_in_use(&self) -> Value {
        self.joined.node()["status"]["volumesInUse"].clone()
    }

    pub(crate) async fn kill_agent(&mut self) {
        let agent = self.agent.take().unwrap();
        agent.signal(Signal::SIGKILL);
        agent.end().await;
    }

    pub(crate) fn start_agent(&mut self) {
        self.agent = Some(self.joined.agent(&references(&self.arguments)));
    }

    /// Asserts that nothing is mounted, and that no directory of the driver is left.
    pub(crate) fn assert_clean(&self) {
        assert_eq!(self.driver.mounted(), Vec::<PathBuf>::new());
        let staged = self.root.join("plugins/kubernetes.io/csi").join(DRIVER);
        let left: Vec<_> = std::fs::read_dir(staged).into_iter().flatten().flatten().collect();
        assert!(left.is_empty(), "{left:?}");
    }

    /// The mounts of driver volumes in all processes' mount namespaces.
    pub(crate) fn mounts_of_processes(&self) -> Vec<String> {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        // A process that has exited has no mounts.
        let tables = processes
            .filter_map(|process| std::fs::read_to_string(process.path().join("mountinfo")).ok());
        let root = self.root.to_str().unwrap().to_owned();
        let is_volume = |line: &&str| line.contains(&root) && line.contains("kubernetes.io");
        let found = tables.flat_map(|table| {
            table.lines().filter(is_volume).map(str::to_owned).collect::<Vec<_>>()
        });
        found.collect()
    }

    /// Deletes a pod, and waits until it and its volumes are gone.
    pub(crate) async fn delete(&self, name: &str) {
        self.joined.delete_pod(name, Some(1));
        self.joined.wait_until_gone(name).await;
    }

    pub(crate) async fn end(mut self) {
        let agent = self.agent.take().unwrap();
        self.joined.end(agent).await;
    }
}

fn references(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

/// A pod that runs this script, with the claim's volume at `/v`.
pub(crate) fn with_claim(name: &str, claim: &str, script: &str) -> String {
    pod(name, script)
        + "    volumeMounts: [{name: v, mountPath: /v}]\n"
        + &format!("  volumes: [{{name: v, persistentVolumeClaim: {{claimName: {claim}}}}}]\n")
}

/// Reads the volume's name, and keeps running.
pub(crate) const READS: &str = "test $(cat /v/name) = handle-data && exec sleep 3600";

pub(crate) fn not_attached() -> Value {
    json!({"attachRequired": false, "podInfoOnMount": true})
}
