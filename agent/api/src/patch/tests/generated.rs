//! Properties of patches, over generated pods.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::super::strategic::{Schema, apply, between, schema_of};

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

fn schema() -> Schema {
    schema_of("v1", "Pod").unwrap()
}

fn patched(object: &Value, patch: &Value) -> Value {
    let mut object = object.clone();
    apply(schema(), &mut object, patch).unwrap();
    object
}

proptest! {
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
}
