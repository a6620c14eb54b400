//! What happens to objects whose owners are deleted.

use cluster::garbage::plan;
use cluster::{DeleteOptions, Part, Propagation, Selection};
use rstest::rstest;
use serde_json::json;

use super::*;

fn owned(name: &str, owners: &[&Object], blocks: bool) -> Value {
    let references: Vec<Value> = owners
        .iter()
        .map(|owner| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": owner.key.name, "uid": owner.uid(), "blockOwnerDeletion": blocks}))
        .collect();
    with(&config_map(name), "/metadata/ownerReferences", json!(references))
}

/// Collects until there is nothing to do; returns the names of the remaining objects.
fn collect(store: &Store) -> Vec<String> {
    for _ in 0..50 {
        let steps = plan(&store.list(&Selection::default()).items);
        if steps.is_empty() {
            let items = store.list(&Selection::default()).items;
            return items.iter().map(|object| object.key.name.to_string()).collect();
        }
        for step in steps {
            // A step that conflicts with an earlier one is planned again.
            let _ = step.take(store, at(9));
        }
    }
    panic!("the collection has no end");
}

#[rstest]
#[case::background(Propagation::Background, &["other"])]
#[case::foreground(Propagation::Foreground, &["other"])]
#[case::orphan(Propagation::Orphan, &["child", "grandchild", "other"])]
fn dependents_are_deleted_with_their_owner(
    #[case] propagation: Propagation,
    #[case] left: &[&str],
) {
    let store = store();
    let owner = create(&store, config_map("owner"));
    let child = create(&store, owned("child", &[&owner], true));
    create(&store, owned("grandchild", &[&child], true));
    create(&store, config_map("other"));
    assert_eq!(collect(&store).len(), 4);
    let options = DeleteOptions { propagation, ..DeleteOptions::default() };
    let deleted = store.delete(&owner.key, &options, at(5)).unwrap();
    assert_eq!(deleted.removed, propagation == Propagation::Background);
    assert_eq!(collect(&store), left);
    let orphan = store.get(&child.key);
    assert!(orphan.is_err() || orphan.unwrap().owners().count() == 0);
}

#[test]
fn foreground_deletion_removes_the_owner_last() {
    let store = store();
    let owner = create(&store, config_map("owner"));
    let child = create(
        &store,
        with(&owned("child", &[&owner], true), "/metadata/finalizers", json!(["a/b"])),
    );
    let options = DeleteOptions { propagation: Propagation::Foreground, ..Default::default() };
    store.delete(&owner.key, &options, at(5)).unwrap();
    assert_eq!(collect(&store), ["child", "owner"]);
    let held = store.get(&child.key).unwrap();
    assert!(held.is_terminating());
    let others: Vec<&str> = held.finalizers().filter(|name| *name != "a/b").collect();
    store.update(with(&held.value, "/metadata/finalizers", json!(others)), Part::Main).unwrap();
    assert_eq!(collect(&store), [""; 0]);
}

#[test]
fn object_with_another_owner_stays() {
    let store = store();
    let (one, other) = (create(&store, config_map("one")), create(&store, config_map("two")));
    let child = create(&store, owned("child", &[&one, &other], false));
    store.delete(&one.key, &DeleteOptions::default(), at(5)).unwrap();
    assert_eq!(collect(&store), ["child", "two"]);
    let owners = store.get(&child.key).unwrap();
    assert_eq!(owners.owners().map(|(uid, _)| uid).collect::<Vec<_>>(), [other.uid()]);
}
