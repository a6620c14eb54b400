//! Bindings of claims.
#![allow(clippy::unwrap_used)]

use rstest::rstest;
use serde_json::{Value, json};

use super::*;

/// The object `object` with the members `members`, which replace its own.
fn with(mut object: Value, members: &Value) -> Value {
    object.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
    object
}

/// A claim of 1 GiB with these fields of its spec.
fn named(name: &str, fields: &Value) -> PersistentVolumeClaim {
    let size = json!({"requests": {"storage": "1Gi"}});
    let spec = with(json!({"accessModes": ["ReadWriteOnce"], "resources": size}), fields);
    let metadata = json!({"name": name, "namespace": "default"});
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
}

fn claim(fields: &Value) -> PersistentVolumeClaim {
    named("data", fields)
}

/// A volume of 1 GiB with these fields of its spec. Its label `tier` is its name.
fn volume(name: &str, fields: &Value) -> Arc<PersistentVolume> {
    let spec = json!({
        "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/d"},
    });
    let metadata = json!({"name": name, "labels": {"tier": name}});
    let volume = json!({"metadata": metadata, "spec": with(spec, fields)});
    Arc::new(serde_json::from_value(volume).unwrap())
}

fn mismatch(mismatch: Mismatch) -> Result<Binding, Unbound> {
    Err(Unbound::Mismatch { volume: "a".to_owned(), mismatch })
}

fn to(volume: &str) -> Result<Binding, Unbound> {
    Ok(Binding::Volume(volume.to_owned()))
}

const DIRECTORY: Result<Binding, Unbound> = Ok(Binding::Directory);

#[rstest]
// Without a matching volume.
#[case(json!({}), json!([]), DIRECTORY)]
#[case(json!({"storageClassName": "fast"}), json!([]), DIRECTORY)]
#[case(json!({"storageClassName": ""}), json!([]), Err(Unbound::NoClass))]
#[case(json!({"selector": {}}), json!([]), DIRECTORY)]
#[case(json!({"selector": {"matchLabels": {"tier": "b"}}}), json!([{}]), Err(Unbound::Selector))]
#[case(json!({}), json!([{"capacity": {"storage": "1023Mi"}}]), DIRECTORY)]
#[case(json!({}), json!([{"storageClassName": "manual"}]), DIRECTORY)]
#[case(json!({}), json!([{"accessModes": ["ReadOnlyMany"]}]), DIRECTORY)]
#[case(json!({}), json!([{"volumeMode": "Block"}]), DIRECTORY)]
#[case(json!({}), json!([{"claimRef": {"namespace": "default", "name": "other"}}]), DIRECTORY)]
#[case(json!({}), json!([{"claimRef": {"namespace": "other", "name": "data"}}]), DIRECTORY)]
// A matching volume.
#[case(json!({}), json!([{}]), to("a"))]
#[case(json!({"storageClassName": ""}), json!([{}]), to("a"))]
#[case(json!({"storageClassName": "manual"}), json!([{"storageClassName": "manual"}]), to("a"))]
#[case(json!({"volumeMode": "Filesystem"}), json!([{}]), to("a"))]
#[case(json!({"selector": {"matchLabels": {"tier": "b"}}}), json!([{}, {}]), to("b"))]
#[case(json!({"selector": {"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["a"]}]}}), json!([{}, {}]), to("b"))]
// The best match: the fewest modes, then the smallest.
#[case(json!({}), json!([{"capacity": {"storage": "3Gi"}}, {"capacity": {"storage": "2Gi"}}]), to("b"))]
#[case(json!({}), json!([{"accessModes": ["ReadWriteOnce", "ReadWriteMany"]}, {"capacity": {"storage": "9Gi"}}]), to("b"))]
// A volume that is reserved for the claim.
#[case(json!({}), json!([{}, {"claimRef": {"name": "data"}}]), to("b"))]
#[case(json!({}), json!([{"claimRef": {"namespace": "default", "name": "data"}, "storageClassName": "x"}]), to("a"))]
#[case(json!({}), json!([{"claimRef": {"name": "data"}, "capacity": {"storage": "1"}}]), mismatch(Mismatch::Capacity))]
#[case(json!({"volumeName": "b"}), json!([{}, {}]), to("b"))]
#[case(json!({"volumeName": "z"}), json!([{}]), Err(Unbound::NoVolume("z".to_owned())))]
#[case(json!({"volumeName": "a"}), json!([{"accessModes": ["ReadOnlyMany"]}]), mismatch(Mismatch::AccessModes))]
#[case(json!({"volumeName": "a"}), json!([{"storageClassName": "x"}]), mismatch(Mismatch::Class))]
#[case(json!({"volumeName": "a"}), json!([{"volumeMode": "Block"}]), mismatch(Mismatch::VolumeMode))]
#[case(json!({"volumeName": "a"}), json!([{"claimRef": {"name": "other"}}]), Err(Unbound::Taken {
    volume: "a".to_owned(), claim: ClaimName::new("default", "other"),
}))]
fn claims_are_bound_to_the_best_volume_that_fits(
    #[case] fields: Value,
    #[case] volumes: Value,
    #[case] expected: Result<Binding, Unbound>,
) {
    let names = ["a", "b"];
    let volumes: Vec<_> = volumes
        .as_array()
        .unwrap()
        .iter()
        .zip(names)
        .map(|(fields, name)| volume(name, fields))
        .collect();
    assert_eq!(bind(&claim(&fields), &volumes, &Bound::new()), expected);
}

#[test]
fn bound_volume_stays_with_its_claim() {
    let volumes = [volume("a", &json!({})), volume("b", &json!({"capacity": {"storage": "5Gi"}}))];
    let bound = |name: &str| Bound::from([("a".to_owned(), ClaimName::new("default", name))]);
    assert_eq!(bind(&claim(&json!({})), &volumes, &bound("other")), to("b"));
    let better = [volume("a", &json!({"capacity": {"storage": "5Gi"}})), volume("b", &json!({}))];
    assert_eq!(bind(&claim(&json!({})), &better, &bound("data")), to("a"));
}

#[test]
fn claims_that_name_a_volume_are_bound_first() {
    let claims = [claim(&json!({})), named("z", &json!({"volumeName": "a"}))];
    let volumes = [volume("a", &json!({}))];
    let (all, bound) = bind_all(claims.map(Arc::new).to_vec(), &volumes, Bound::new());
    let of = |name: &str| all[&ClaimName::new("default", name)].clone();
    assert_eq!((of("z"), of("data")), (to("a"), DIRECTORY));
    assert_eq!(bound["a"], ClaimName::new("default", "z"));
}
