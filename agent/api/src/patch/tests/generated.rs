//! Properties of patches, over generated pods.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::super::lists;
use super::super::merge;
use super::super::schema::{FieldSchema, Strategy as PatchStrategy, TypeSchema};
use super::super::strategic::{Schema, apply, between, three_way};

const NAMES: &[&str] = &["a", "b", "c", "d", "e"];

/// Some names, each at most once, in any order.
fn names() -> impl Strategy<Value = Vec<&'static str>> {
    prop::sample::subsequence(NAMES, 0..=NAMES.len()).prop_shuffle()
}

/// A list with one element for each of some names.
fn elements<S: Strategy<Value = Value>>(
    element: impl Fn(&'static str) -> S + 'static,
) -> impl Strategy<Value = Value> {
    names().prop_flat_map(move |names| {
        let elements: Vec<S> = names.into_iter().map(&element).collect();
        elements.prop_map(Value::Array)
    })
}

/// An object with some of the fields.
fn object(fields: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    let fields: Vec<_> = fields
        .into_iter()
        .map(|(name, value)| prop::option::of(value).prop_map(move |value| (name, value)))
        .collect();
    fields
        .prop_map(|fields| {
            let set =
                fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
            Value::Object(set.collect::<Map<_, _>>())
        })
        .boxed()
}

/// An object with some of the fields, and with a merge key.
fn keyed(
    key: &'static str,
    value: Value,
    fields: Vec<(&'static str, BoxedStrategy<Value>)>,
) -> BoxedStrategy<Value> {
    object(fields)
        .prop_map(move |mut object| {
            object[key] = value.clone();
            object
        })
        .boxed()
}

fn scalar() -> BoxedStrategy<Value> {
    prop_oneof![Just(json!("x")), Just(json!("y")), Just(json!(1)), Just(json!(true))].boxed()
}

fn container(name: &'static str) -> BoxedStrategy<Value> {
    let env = elements(|name| keyed("name", json!(name), vec![("value", scalar())]));
    let ports = elements(|name| {
        let number = 8000 + u32::from(name.as_bytes()[0]);
        keyed("containerPort", json!(number), vec![("protocol", scalar()), ("name", scalar())])
    });
    let args = prop::collection::vec(scalar(), 0..3).prop_map(Value::from);
    keyed(
        "name",
        json!(name),
        vec![
            ("image", scalar()),
            ("env", env.boxed()),
            ("ports", ports.boxed()),
            ("args", args.boxed()),
            ("resources", object(vec![("limits", scalar()), ("requests", scalar())])),
        ],
    )
}

fn volume(name: &'static str) -> BoxedStrategy<Value> {
    let source = || object(vec![("path", scalar()), ("items", scalar())]);
    keyed("name", json!(name), vec![("hostPath", source()), ("emptyDir", source())])
}

fn pod() -> BoxedStrategy<Value> {
    let finalizers = || names().prop_map(Value::from).boxed();
    let owners = elements(|name| keyed("uid", json!(name), vec![("kind", scalar())]));
    let labels = NAMES.iter().map(|name| (*name, scalar())).collect();
    let tolerations = elements(|name| Just(json!({"key": name})));
    let metadata = object(vec![
        ("labels", object(labels)),
        ("finalizers", finalizers()),
        ("ownerReferences", owners.boxed()),
    ]);
    let spec = object(vec![
        ("nodeName", scalar()),
        ("containers", elements(container).boxed()),
        ("volumes", elements(volume).boxed()),
        ("tolerations", tolerations.boxed()),
        ("securityContext", object(vec![("fsGroup", scalar()), ("sysctls", finalizers())])),
    ]);
    object(vec![("metadata", metadata), ("spec", spec)])
}

fn pod_type() -> &'static TypeSchema {
    lists::type_of("v1", "Pod").unwrap()
}

fn schema() -> Schema {
    Schema::of_type(pod_type())
}

fn patched(object: &Value, patch: &Value) -> Value {
    let mut object = object.clone();
    apply(schema(), &mut object, patch).unwrap();
    object
}

/// Whether an object contains everything that a patch sets, in the places where the patch sets it.
fn has(object: &Value, wanted: &Value, fields: &'static TypeSchema) -> bool {
    match (object, wanted) {
        (Value::Object(found), Value::Object(wanted)) => wanted.iter().all(|(name, wanted)| {
            found.get(name).is_some_and(|found| field_has(found, wanted, fields.field(name)))
        }),
        (found, wanted) => found == wanted,
    }
}

fn field_has(found: &Value, wanted: &Value, field: FieldSchema) -> bool {
    match (found, wanted, field.strategy) {
        (Value::Array(found), Value::Array(wanted), PatchStrategy::Merge) => {
            wanted.iter().all(|wanted| match field.merge_key {
                None => found.contains(wanted),
                Some(key) => found
                    .iter()
                    .any(|found| found[key] == wanted[key] && has(found, wanted, field.fields)),
            })
        }
        (found, wanted, _) => has(found, wanted, field.fields),
    }
}

/// The names of the containers and the finalizers, in order.
fn order(pod: &Value) -> Vec<(&str, &Value)> {
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    let finalizers = pod["metadata"]["finalizers"].as_array().into_iter().flatten();
    let containers = containers.map(|container| ("container", &container["name"]));
    containers.chain(finalizers.map(|name| ("finalizer", name))).collect()
}

proptest! {
    #[test]
    fn merge_patch_turns_the_old_value_into_the_new(old in pod(), new in pod()) {
        let patch = merge::between(&old, &new);
        let mut patched = old.clone();
        merge::apply(&mut patched, &patch);
        prop_assert_eq!(&patched, &new);
        prop_assert_eq!(merge::between(&new, &patched), json!({}));
    }

    #[test]
    fn two_way_patch_turns_the_old_object_into_the_new(old in pod(), new in pod()) {
        let patch = between(schema(), &old, &new).unwrap();
        prop_assert_eq!(patched(&old, &patch), new);
    }

    #[test]
    fn two_way_patch_of_equal_objects_is_empty(object in pod()) {
        prop_assert_eq!(between(schema(), &object, &object).unwrap(), json!({}));
    }

    #[test]
    fn patch_applied_twice_is_applied_once(old in pod(), new in pod(), object in pod()) {
        let patch = between(schema(), &old, &new).unwrap();
        let once = patched(&object, &patch);
        prop_assert_eq!(patched(&once, &patch), once);
    }

    #[test]
    fn three_way_patch_sets_all_that_is_configured(
        original in pod(),
        modified in pod(),
        current in pod(),
    ) {
        let patch = three_way(schema(), &original, &modified, &current).unwrap();
        let result = patched(&current, &patch);
        prop_assert!(has(&result, &modified, pod_type()), "{result} lacks some of {modified}");
        let ours = order(&modified);
        let mut found = order(&result);
        found.retain(|name| ours.contains(name));
        prop_assert_eq!(found, ours, "in the order of the configuration");
    }

    #[test]
    fn three_way_patch_without_drift_turns_the_old_object_into_the_new(
        old in pod(),
        new in pod(),
    ) {
        let patch = three_way(schema(), &old, &new, &old).unwrap();
        prop_assert_eq!(patched(&old, &patch), new);
    }

    #[test]
    fn three_way_patch_of_the_result_changes_nothing(
        original in pod(),
        modified in pod(),
        current in pod(),
    ) {
        let patch = three_way(schema(), &original, &modified, &current).unwrap();
        let result = patched(&current, &patch);
        let again = three_way(schema(), &modified, &modified, &result).unwrap();
        prop_assert_eq!(patched(&result, &again), result);
    }

    #[test]
    fn three_way_patch_removes_labels_no_longer_configured(
        original in pod(),
        modified in pod(),
        current in pod(),
    ) {
        let patch = three_way(schema(), &original, &modified, &current).unwrap();
        let result = patched(&current, &patch);
        for name in NAMES {
            let label = |pod: &Value| pod["metadata"]["labels"].get(name).cloned();
            if label(&original).is_some() && label(&modified).is_none() {
                prop_assert_eq!(label(&result), None);
            }
        }
    }
}
