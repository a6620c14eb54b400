//! Compares patches with the results of Kubernetes 1.36.2.
//!
//! `apply.jsonl` and `diff.jsonl` are the data of Kubernetes' own tests, whose objects are of a type made for them.
//! Source: staging/src/k8s.io/apimachinery/pkg/util/strategicpatch/patch_test.go. `kinds.jsonl` has generated objects of
//! built-in kinds, and the outcomes that its packages `api` and `apimachinery` computed.

use serde_json::Value;

use super::super::schema::{TypeSchema, list, object, replaced, retained, set};
use super::super::strategic::{Schema, apply, between};
use super::schema;

static MERGE_ITEM: TypeSchema = TypeSchema(&[
    list("mergingList", "name", &MERGE_ITEM),
    set("mergingIntList"),
    list("mergeItemPtr", "name", &MERGE_ITEM),
    replaced("replacingItem"),
    retained(object("retainKeysMap", &RETAIN_KEYS_ITEM)),
    retained(list("retainKeysMergingList", "name", &MERGE_ITEM)),
]);

static RETAIN_KEYS_ITEM: TypeSchema =
    TypeSchema(&[list("mergingList", "name", &MERGE_ITEM), set("mergingIntList")]);

const SCHEMA: Schema = Schema::of_type(&MERGE_ITEM);

/// Runs each line of a file, and lists those that fail.
fn replay(lines: &str, case: impl Fn(&Value) -> Result<(), String>) {
    let failures: Vec<String> = lines
        .lines()
        .filter_map(|line| {
            let input: Value = serde_json::from_str(line).unwrap();
            case(&input).err().map(|difference| format!("{difference}\n{line}"))
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

fn same(what: &str, found: &Value, expected: &Value) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}: found {found}, expected {expected}"))
}

fn patched(schema: Schema, object: &Value, patch: &Value) -> Result<Value, String> {
    let mut object = object.clone();
    match apply(schema, &mut object, patch) {
        Ok(()) => Ok(object),
        Err(error) => Err(format!("{:?}", error.problem)),
    }
}

#[test]
fn patches_are_applied_as_in_kubernetes() {
    replay(include_str!("kubernetes/apply.jsonl"), |case| {
        let outcome = patched(SCHEMA, &case["object"], &case["patch"]);
        match (outcome, case["error"].as_str()) {
            (Ok(found), None) => same("result", &found, &case["result"]),
            (Err(problem), Some(expected)) if problem.starts_with(expected) => Ok(()),
            (outcome, expected) => Err(format!("found {outcome:?}, expected error {expected:?}")),
        }
    });
}

#[test]
fn patches_are_computed_as_in_kubernetes() {
    replay(include_str!("kubernetes/diff.jsonl"), |case| {
        let (original, modified, current) =
            (&case["original"], &case["modified"], &case["current"]);
        let two_way = between(SCHEMA, original, modified).unwrap();
        same("two-way patch", &two_way, &case["two_way"])?;
        let expected = case.get("two_way_result").unwrap_or(modified);
        same("result of two-way patch", &patched(SCHEMA, original, &two_way)?, expected)?;
        let applied = patched(SCHEMA, current, &case["three_way"])?;
        same("result of the patch of kubectl apply", &applied, &case["result"])
    });
}

#[test]
fn built_in_kinds_are_patched_as_in_kubernetes() {
    replay(include_str!("kubernetes/kinds.jsonl"), |case| {
        let schema = schema(case);
        let (original, modified, current) =
            (&case["original"], &case["modified"], &case["current"]);
        let two_way = between(schema, original, modified).unwrap();
        same("two-way patch", &two_way, &case["two_way"])?;
        same("result of two-way patch", &patched(schema, original, &two_way)?, modified)?;
        let other = patched(schema, current, &two_way)?;
        same("two-way patch of another object", &other, &case["other_result"])?;
        let applied = patched(schema, current, &case["three_way"])?;
        same("result of the patch of kubectl apply", &applied, &case["result"])
    });
}
