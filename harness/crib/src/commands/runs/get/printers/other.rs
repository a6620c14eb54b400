//! ◆ The columns of kinds with few columns. Pure.

use serde_json::Value;

use super::TableOptions;
use crib_base::columns::NONE;
use crib_base::columns::fields::{age_of, count, flag, number, since, text, text_or};

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

/// The cells of an event without `-o wide`.
pub(super) fn event(object: &Value, options: TableOptions) -> Vec<String> {
    let kind = text(object, "/involvedObject/kind").to_lowercase();
    let target = match text(object, "/involvedObject/name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    vec![
        since(object, "/lastTimestamp", options.now),
        text(object, "/type").to_owned(),
        text(object, "/reason").to_owned(),
        target,
        text(object, "/message").trim().to_owned(),
    ]
}

/// The cells of an event with `-o wide`.
pub(super) fn wide_event(object: &Value, options: TableOptions) -> Vec<String> {
    let mut cells = event(object, options);
    let message = cells.pop().unwrap_or_default();
    let component = text_or(object, "/source/component", text(object, "/reportingComponent"));
    let instance = text_or(object, "/source/host", text(object, "/reportingInstance"));
    let source = match instance.as_str() {
        "" => component,
        instance => format!("{component}, {instance}"),
    };
    cells.extend([
        text(object, "/involvedObject/fieldPath").to_owned(),
        source,
        message,
        since(object, "/firstTimestamp", options.now),
        number(object, "/count").max(1).to_string(),
        text(object, "/metadata/name").to_owned(),
    ]);
    cells
}

pub(super) fn any(object: &Value, options: TableOptions) -> Vec<String> {
    vec![age_of(object, options.now)]
}
