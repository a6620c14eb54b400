//! ◆ The CSI drivers in the node's object and in its CSINode. Pure.
//!
//! Source: Kubernetes 1.36, pkg/volume/csi/nodeinfomanager/nodeinfomanager.go.

use std::collections::BTreeMap;

use compact::Set;
use csi::NodeDriver;
use serde_json::{Value, json};

/// The annotation of a node with its ID in each driver.
const NODE_IDS: &str = "csi.volume.kubernetes.io/nodeid";

/// The annotation of a CSINode with the migrated in-tree plugins, whose volumes CSI drivers handle, and their names in Kubernetes
/// 1.36. Without it the controllers use the in-tree plugins.
const MIGRATED: &str = "storage.alpha.kubernetes.io/migrated-plugins";
const PLUGINS: [&str; 7] = [
    "kubernetes.io/aws-ebs",
    "kubernetes.io/azure-disk",
    "kubernetes.io/azure-file",
    "kubernetes.io/cinder",
    "kubernetes.io/gce-pd",
    "kubernetes.io/portworx-volume",
    "kubernetes.io/vsphere-volume",
];

/// A CSINode without drivers, which the node owns.
pub(crate) fn new_csi_node(node: &Value) -> Value {
    let metadata = &node["metadata"];
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSINode",
        "metadata": {
            "name": metadata["name"],
            "annotations": {MIGRATED: PLUGINS.join(",")},
            "ownerReferences": [{
                "apiVersion": "v1",
                "kind": "Node",
                "name": metadata["name"],
                "uid": metadata["uid"],
            }],
        },
        "spec": {"drivers": []},
    })
}

/// Whether this node owns a CSINode, and not an earlier node of the same name.
pub(crate) fn is_of_node(csi_node: &Value, node: &Value) -> bool {
    let mut owners = csi_node["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    owners.any(|owner| {
        owner["kind"] == "Node"
            && owner["name"] == node["metadata"]["name"]
            && owner["uid"] == node["metadata"]["uid"]
    })
}

/// The CSINode with this driver; `None` if it is unchanged.
pub(crate) fn with_driver(csi_node: &Value, driver: &NodeDriver) -> Option<Value> {
    let keys: Set<&String> = driver.topology.keys().collect();
    let mut entry = json!({"name": driver.name, "nodeID": driver.node_id, "topologyKeys": keys});
    if let Ok(count @ 1..) = i32::try_from(driver.max_volumes.min(i64::from(i32::MAX))) {
        entry["allocatable"] = json!({"count": count});
    }
    let known = csi_node["spec"]["drivers"].as_array().cloned().unwrap_or_default();
    let (own, mut others): (Vec<Value>, Vec<Value>) =
        known.into_iter().partition(|known| known["name"] == driver.name.as_str());
    let sorted = |driver: &Value| {
        let keys = driver["topologyKeys"].as_array().into_iter().flatten();
        let keys: Set<String> = keys.filter_map(Value::as_str).map(str::to_owned).collect();
        let count = driver["allocatable"]["count"].as_i64();
        (driver["nodeID"].clone(), keys, count)
    };
    if own.len() == 1 && own.iter().all(|own| sorted(own) == sorted(&entry)) {
        return None;
    }
    others.push(entry);
    let mut changed = csi_node.clone();
    changed["spec"]["drivers"] = Value::Array(others);
    Some(changed)
}

/// The CSINode without the driver of this name; `None` if it is unchanged.
pub(crate) fn without_driver(csi_node: &Value, name: &str) -> Option<Value> {
    let known = csi_node["spec"]["drivers"].as_array()?;
    let others: Vec<Value> = known.iter().filter(|known| known["name"] != name).cloned().collect();
    if others.len() == known.len() {
        return None;
    }
    let mut changed = csi_node.clone();
    changed["spec"]["drivers"] = Value::Array(others);
    Some(changed)
}

/// The node with its ID in a driver.
pub(crate) fn with_node_id(node: &Value, driver: &str, id: &str) -> Result<Value, String> {
    changed_ids(node, |ids| {
        ids.insert(driver.to_owned(), id.to_owned());
    })
}

/// The node without its ID in a driver.
pub(crate) fn without_node_id(node: &Value, driver: &str) -> Result<Value, String> {
    changed_ids(node, |ids| {
        ids.remove(driver);
    })
}

fn changed_ids(
    node: &Value,
    change: impl FnOnce(&mut BTreeMap<String, String>),
) -> Result<Value, String> {
    let text = node["metadata"]["annotations"][NODE_IDS].as_str().unwrap_or_default();
    let mut ids = match text {
        "" => BTreeMap::new(),
        text => serde_json::from_str(text).map_err(|error| {
            format!("failed to parse node's {NODE_IDS:?} annotation value ({text:?}) err={error}")
        })?,
    };
    change(&mut ids);
    let mut changed = node.clone();
    if !ids.is_empty() {
        changed["metadata"]["annotations"][NODE_IDS] = json!(json!(ids).to_string());
    } else if let Some(annotations) = changed["metadata"]["annotations"].as_object_mut() {
        annotations.remove(NODE_IDS);
    }
    Ok(changed)
}

/// The node with a driver's topology labels. Fails if a label exists with another value.
pub(crate) fn with_topology(
    node: &Value,
    topology: &BTreeMap<String, String>,
) -> Result<Value, String> {
    let mut changed = node.clone();
    for (key, value) in topology {
        let label = &mut changed["metadata"]["labels"][key];
        match label.as_str().filter(|current| *current != value.as_str()) {
            Some(current) => {
                return Err(format!(
                    "detected topology value collision: driver reported {key:?}:{value:?} but existing label is {key:?}:{current:?}"
                ));
            }
            None => *label = json!(value),
        }
    }
    Ok(changed)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn driver(name: &str) -> NodeDriver {
        NodeDriver {
            name: name.to_owned(),
            node_id: format!("{name}-n1"),
            max_volumes: 0,
            topology: BTreeMap::from([("z/zone".to_owned(), "a".to_owned())]),
        }
    }

    fn node() -> Value {
        json!({"metadata": {"name": "n1", "uid": "u1", "labels": {"theirs": "1"}}})
    }

    #[test]
    fn csi_node_belongs_to_the_node_of_its_uid() {
        let csi_node = new_csi_node(&node());
        assert!(is_of_node(&csi_node, &node()));
        let mut other = node();
        other["metadata"]["uid"] = json!("u2");
        assert!(!is_of_node(&csi_node, &other));
        assert!(!is_of_node(&json!({"metadata": {}}), &node()));
    }

    #[test]
    fn drivers_are_added_changed_and_removed_beside_others() {
        let first = with_driver(&new_csi_node(&node()), &driver("a")).unwrap();
        let both = with_driver(&first, &driver("b")).unwrap();
        assert_eq!(
            both["spec"]["drivers"][0],
            json!({"name": "a", "nodeID": "a-n1", "topologyKeys": ["z/zone"]})
        );
        assert_eq!(with_driver(&both, &driver("a")), None);
        let limited = NodeDriver { max_volumes: 1 << 40, ..driver("a") };
        let limited = with_driver(&both, &limited).unwrap();
        assert_eq!(limited["spec"]["drivers"][1]["allocatable"], json!({"count": i32::MAX}));
        assert_eq!(limited["spec"]["drivers"][0]["name"], "b");
        let without = without_driver(&limited, "a").unwrap();
        assert_eq!(without["spec"]["drivers"].as_array().unwrap().len(), 1);
        assert_eq!(without_driver(&without, "a"), None);
    }

    #[test]
    fn node_ids_are_set_and_removed() {
        let one = with_node_id(&node(), "a", "1").unwrap();
        let two = with_node_id(&one, "b", "2").unwrap();
        assert_eq!(two["metadata"]["annotations"][NODE_IDS], r#"{"a":"1","b":"2"}"#);
        assert_eq!(without_node_id(&two, "b").unwrap(), one);
        let none = without_node_id(&one, "a").unwrap();
        assert_eq!(none["metadata"]["annotations"], json!({}));
        let damaged = json!({"metadata": {"annotations": {NODE_IDS: "{"}}});
        assert!(with_node_id(&damaged, "a", "1").unwrap_err().contains("failed to parse"));
    }

    #[test]
    fn topology_labels_conflict_with_other_values() {
        let labelled = with_topology(&node(), &driver("a").topology).unwrap();
        assert_eq!(labelled["metadata"]["labels"], json!({"theirs": "1", "z/zone": "a"}));
        assert_eq!(with_topology(&labelled, &driver("a").topology).unwrap(), labelled);
        let other = BTreeMap::from([("z/zone".to_owned(), "b".to_owned())]);
        let error = with_topology(&labelled, &other).unwrap_err();
        assert!(error.contains("collision"), "{error}");
    }
}
