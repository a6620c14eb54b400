//! The numeric fields of a message by path, and whether two measurements agree.

use compact::Map;
use prost_reflect::prost::Message;
use prost_reflect::{DynamicMessage, ReflectMessage as _, Value};
use proxy::dynamic;

/// The numeric fields of a message by path, as in `memory.working_set_bytes.value`. An unset field is missing; a field without
/// presence in the protocol is 0 if it is unset.
pub(super) type Numbers = Map<String, f64>;

/// Two measurements may differ by this factor, in addition to the slack of the field.
const FACTOR: f64 = 4.0;

/// The numeric fields of a message of this protobuf type, without lists and maps.
pub(super) fn numbers<M: Message>(name: &str, message: &M) -> Numbers {
    let mut all = Numbers::new();
    if let Some(message) = dynamic(name, &message.encode_to_vec()) {
        collect(&message, "", &mut all);
    }
    all
}

fn collect(message: &DynamicMessage, prefix: &str, all: &mut Numbers) {
    for field in message.descriptor().fields() {
        if field.is_list() || field.is_map() || !is_set(message, &field) {
            continue;
        }
        let path = match prefix {
            "" => field.name().to_owned(),
            prefix => format!("{prefix}.{}", field.name()),
        };
        let value = message.get_field(&field);
        if let Some(inner) = value.as_message() {
            collect(inner, &path, all);
        } else if let Some(number) = number(&value) {
            all.insert(path, number);
        }
    }
}

/// A field without presence counts as set.
fn is_set(message: &DynamicMessage, field: &prost_reflect::FieldDescriptor) -> bool {
    !field.supports_presence() || message.has_field(field)
}

#[expect(clippy::cast_precision_loss, reason = "measurements are compared by their magnitude")]
fn number(value: &Value) -> Option<f64> {
    match value {
        Value::I64(number) => Some(*number as f64),
        Value::U64(number) => Some(*number as f64),
        Value::F64(number) => Some(*number),
        Value::I32(number) => Some(f64::from(*number)),
        Value::U32(number) => Some(f64::from(*number)),
        Value::F32(number) => Some(f64::from(*number)),
        Value::Bool(_)
        | Value::String(_)
        | Value::Bytes(_)
        | Value::EnumNumber(_)
        | Value::Message(_)
        | Value::List(_)
        | Value::Map(_) => None,
    }
}

/// By how much a number may change between two measurements of an idle container, in addition to the factor.
fn slack(path: &str) -> f64 {
    let last = path.strip_suffix(".value").unwrap_or(path);
    match last.rsplit('.').next().unwrap_or(last) {
        // Runtimes measure every few seconds.
        "timestamp" => 60e9,
        // The CPU time of a measurement itself.
        "usage_core_nano_seconds" => 1e9,
        // A momentary rate.
        "usage_nano_cores" => 16e9,
        // A share of time in percent, and the total time in microseconds.
        "Avg10" | "Avg60" | "Avg300" => 100.0,
        "Total" => 60e6,
        // File pages come and go.
        name if name.ends_with("_bytes") => 256.0 * 1024.0,
        _ => 64.0,
    }
}

/// Whether a number stays above 0 while its container runs.
fn stays(path: &str) -> bool {
    let name = path.strip_suffix(".value").unwrap_or(path);
    let name = name.rsplit('.').next().unwrap_or(name);
    let names = [
        "rss_bytes",
        "working_set_bytes",
        "usage_bytes",
        "usage_core_nano_seconds",
        "page_faults",
        "inodes_used",
        "process_count",
    ];
    names.contains(&name)
}

/// The first difference between an earlier and a later measurement of one object: a number that is missing or far from its earlier
/// value. Numbers only in the later measurement are ignored: some runtimes measure in the background.
pub(super) fn difference(earlier: &Numbers, later: &Numbers) -> Option<String> {
    earlier.iter().find_map(|(path, before)| {
        let Some(after) = later.get(path) else {
            // A rate needs two measurements with some time between them.
            let rate = path.ends_with("usage_nano_cores.value");
            return (!rate).then(|| format!("{path} is not set"));
        };
        let (least, most) = (before.min(*after), before.max(*after));
        let near = if path.ends_with("timestamp") {
            most - least <= slack(path)
        } else {
            most <= least * FACTOR + slack(path)
        };
        let lost = *after == 0.0 && *before > 0.0 && stays(path);
        (!near || lost || least < 0.0).then(|| format!("{path} is {after}, and was {before}"))
    })
}

#[cfg(test)]
mod tests {
    use cri::v1;
    use rstest::rstest;

    use super::*;

    fn memory(change: impl FnOnce(&mut v1::MemoryUsage)) -> Numbers {
        let value = |value| Some(v1::UInt64Value { value });
        let mut memory = v1::MemoryUsage {
            timestamp: 1_800_000_000_000_000_000,
            working_set_bytes: value(1 << 20),
            page_faults: value(1000),
            ..Default::default()
        };
        change(&mut memory);
        numbers("MemoryUsage", &memory)
    }

    #[test]
    fn numbers_have_their_paths() {
        let all = memory(|_| {});
        let paths: Vec<&str> = all.keys().map(String::as_str).collect();
        let expected = ["page_faults.value", "timestamp", "working_set_bytes.value"];
        assert_eq!(paths, expected);
    }

    #[rstest]
    #[case::same(memory(|_| {}), None)]
    #[case::more(memory(|m| m.page_faults = Some(v1::UInt64Value { value: 3000 })), None)]
    #[case::new(memory(|m| m.rss_bytes = Some(v1::UInt64Value { value: 7 })), None)]
    #[case::gone(memory(|m| m.page_faults = None), Some("page_faults.value is not set"))]
    #[case::far(
        memory(|m| m.page_faults = Some(v1::UInt64Value { value: 123_456_789 })),
        Some("page_faults.value is 123456789, and was 1000")
    )]
    #[case::zero(
        memory(|m| m.working_set_bytes = Some(v1::UInt64Value { value: 0 })),
        Some("working_set_bytes.value is 0, and was 1048576")
    )]
    #[case::soon_zero(
        memory(|m| m.page_faults = Some(v1::UInt64Value { value: 0 })),
        Some("page_faults.value is 0, and was 1000")
    )]
    #[case::in_seconds(
        memory(|m| m.timestamp = 1_800_000_000),
        Some("timestamp is 1800000000, and was 1800000000000000000")
    )]
    fn difference_names_first_number(#[case] later: Numbers, #[case] expected: Option<&str>) {
        assert_eq!(difference(&memory(|_| {}), &later).as_deref(), expected);
    }
}
