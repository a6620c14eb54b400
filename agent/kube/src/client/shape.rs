//! ◆ The shape of the API server's answers. Other files set fields of objects by index, which panics if the value that has the
//! field is neither an object nor null; no API server sends such a value.

use serde_json::Value;

use super::error::ApiError;

/// Returns an answer that is an object, or a list of objects.
///
/// # Errors
///
/// If it has another shape: see [`object`].
pub(super) fn answer(answer: Value) -> Result<Value, ApiError> {
    check(&answer, "the answer")?;
    match &answer["items"] {
        Value::Null => {}
        Value::Array(items) => items.iter().try_for_each(|item| check(item, "an item"))?,
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            return Err(ApiError::Malformed("items is not an array".to_owned()));
        }
    }
    Ok(answer)
}

/// Returns an object whose `metadata`, labels, annotations, `spec` and `status` are objects, null or missing.
///
/// # Errors
///
/// If it has another shape.
pub(super) fn object(object: Value) -> Result<Value, ApiError> {
    check(&object, "the object").map(|()| object)
}

fn check(object: &Value, what: &str) -> Result<(), ApiError> {
    if !object.is_object() {
        return Err(ApiError::Malformed(format!("{what} is not an object")));
    }
    let metadata = &object["metadata"];
    let fields = [
        ("metadata", metadata),
        ("metadata.labels", &metadata["labels"]),
        ("metadata.annotations", &metadata["annotations"]),
        ("spec", &object["spec"]),
        ("status", &object["status"]),
    ];
    let is_wrong = |(_, value): &(&str, &Value)| !value.is_null() && !value.is_object();
    match fields.into_iter().find(is_wrong) {
        Some((field, _)) => Err(ApiError::Malformed(format!("{field} of {what} is not an object"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::empty(json!({}))]
    #[case::null_fields(json!({"metadata": null, "spec": null, "status": null, "items": null}))]
    #[case::null_maps(json!({"metadata": {"labels": null, "annotations": null}}))]
    #[case::node(json!({"metadata": {"name": "n", "labels": {"a": "b"}, "annotations": {}}, "spec": {}, "status": {}}))]
    #[case::list(json!({"metadata": {}, "items": [{"metadata": {"name": "a"}}, {}]}))]
    #[case::other_fields(json!({"data": 1, "handler": "h"}))]
    fn answers_of_api_servers_are_accepted(#[case] value: Value) {
        assert_eq!(answer(value.clone()).ok(), Some(value));
    }

    #[rstest]
    #[case::null(json!(null), "the answer is not an object")]
    #[case::number(json!(1), "the answer is not an object")]
    #[case::array(json!([]), "the answer is not an object")]
    #[case::metadata(json!({"metadata": "x"}), "metadata of the answer is not an object")]
    #[case::labels(json!({"metadata": {"labels": [1]}}), "metadata.labels of the answer is not an object")]
    #[case::annotations(json!({"metadata": {"annotations": 1}}), "metadata.annotations of the answer is not an object")]
    #[case::spec(json!({"spec": true}), "spec of the answer is not an object")]
    #[case::status(json!({"status": "Success"}), "status of the answer is not an object")]
    #[case::items(json!({"items": {}}), "items is not an array")]
    #[case::item(json!({"items": [{}, "x"]}), "an item is not an object")]
    #[case::labels_of_item(json!({"items": [{"metadata": {"labels": "x"}}]}), "metadata.labels of an item is not an object")]
    fn other_answers_are_malformed(#[case] value: Value, #[case] problem: &str) {
        let error = answer(value).map_err(|error| error.to_string());
        assert_eq!(error, Err(format!("the API server's answer cannot be read: {problem}")));
    }

    #[test]
    fn fields_of_a_checked_object_can_be_set() {
        for value in [json!({}), json!({"metadata": null, "spec": null, "status": null})] {
            let mut node = object(value).unwrap_or_default();
            node["metadata"]["labels"]["a"] = json!("b");
            node["metadata"]["annotations"]["a"] = json!("b");
            node["spec"]["a"] = json!("b");
            node["status"]["a"] = json!("b");
            assert_eq!(node["metadata"]["labels"], json!({"a": "b"}));
        }
    }
}
