//! ◆ JSON merge patches (RFC 7386, now RFC 7396): null removes a field, and a list replaces a list. Pure.

use serde_json::Value;

use super::Object;

/// Applies a patch to a value.
pub fn apply(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        target.clone_from(patch);
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Object::new());
    }
    let Value::Object(fields) = target else { return };
    for (name, value) in patch {
        if value.is_null() {
            fields.remove(name);
        } else {
            apply(fields.entry(name).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::apply;

    /// The examples of RFC 7386, appendix A, and a few more.
    #[rstest]
    #[case::changes_a_field(json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"}))]
    #[case::adds_a_field(json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"}))]
    #[case::removes_the_only_field(json!({"a": "b"}), json!({"a": null}), json!({}))]
    #[case::removes_a_field(json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"}))]
    #[case::replaces_a_list(json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"}))]
    #[case::sets_a_list(json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]}))]
    #[case::merges_a_nested_object(
        json!({"a": {"b": "c"}}),
        json!({"a": {"b": "d", "c": null}}),
        json!({"a": {"b": "d"}}),
    )]
    #[case::replaces_a_list_of_objects(json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]}))]
    #[case::replaces_a_root_list(json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"]))]
    #[case::replaces_an_object_by_a_list(json!({"a": "b"}), json!(["c"]), json!(["c"]))]
    #[case::replaces_an_object_by_null(json!({"a": "foo"}), json!(null), json!(null))]
    #[case::replaces_an_object_by_a_string(json!({"a": "foo"}), json!("bar"), json!("bar"))]
    #[case::keeps_a_null_field(json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1}))]
    #[case::replaces_a_list_by_an_object(json!([1, 2]), json!({"a": "b", "c": null}), json!({"a": "b"}))]
    #[case::drops_nulls_of_added_objects(
        json!({}),
        json!({"a": {"bb": {"ccc": null}}}),
        json!({"a": {"bb": {}}}),
    )]
    #[case::replaces_a_scalar_by_an_object(json!({"a": 1}), json!({"a": {"b": 2}}), json!({"a": {"b": 2}}))]
    #[case::does_nothing_if_empty(json!({"a": 1}), json!({}), json!({"a": 1}))]
    fn apply_follows_rfc_7386(
        #[case] mut target: Value,
        #[case] patch: Value,
        #[case] expected: Value,
    ) {
        apply(&mut target, &patch);
        assert_eq!(target, expected);
    }
}
