//! ◆ The columns of kinds with few columns. Pure.

use serde_json::Value;

use super::TableOptions;
use crib_base::columns::NONE;
use crib_base::columns::fields::{age_of, count, flag, number, text, text_or};

pub(super) fn config_map(object: &Value, options: TableOptions) -> Vec<String> {
    let entries = count(object, "/data") + count(object, "/binaryData");
    vec![entries.to_string(), age_of(object, options.now)]
}

pub(super) fn secret(object: &Value, options: TableOptions) -> Vec<String> {
    let kind = text(object, "/type").to_owned();
    vec![kind, count(object, "/data").to_string(), age_of(object, options.now)]
}

pub(super) fn namespace(object: &Value, options: TableOptions) -> Vec<String> {
    vec![text(object, "/status/phase").to_owned(), age_of(object, options.now)]
}

pub(super) fn runtime_class(object: &Value, options: TableOptions) -> Vec<String> {
    vec![text(object, "/handler").to_owned(), age_of(object, options.now)]
}

pub(super) fn priority_class(object: &Value, options: TableOptions) -> Vec<String> {
    vec![
        number(object, "/value").to_string(),
        flag(object, "/globalDefault").to_string(),
        age_of(object, options.now),
        // The API server sets the default.
        text_or(object, "/preemptionPolicy", "PreemptLowerPriority"),
    ]
}

pub(super) fn cluster_trust_bundle(object: &Value, _: TableOptions) -> Vec<String> {
    vec![text_or(object, "/spec/signerName", NONE)]
}

pub(super) fn any(object: &Value, options: TableOptions) -> Vec<String> {
    vec![age_of(object, options.now)]
}
