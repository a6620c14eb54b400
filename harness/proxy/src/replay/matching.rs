//! ◆ Finds the recorded call that matches a request, or the nearest one and the differences.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use crate::recorded::RecordedCall;

/// The maximum length of a value in an error message.
const SHOWN: usize = 60;

/// The calls of a recording, and how often each request has been received.
#[derive(Debug)]
pub(super) struct Recording {
    calls: Vec<RecordedCall>,
    received: BTreeMap<String, usize>,
}

/// No recorded call matches a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mismatch {
    method: String,
    nearest: Option<(usize, Difference)>,
}

/// A difference between two requests.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Difference {
    path: String,
    recorded: String,
    received: String,
}

impl Recording {
    pub(super) fn new(calls: Vec<RecordedCall>) -> Self {
        Self { calls, received: BTreeMap::new() }
    }

    /// The index of the call that matches a request: the n-th equal request gets the n-th such call, or else the last one.
    pub(super) fn find(&mut self, method: &str, request: &Value) -> Result<usize, Mismatch> {
        let of_method = || {
            let calls = self.calls.iter().enumerate();
            calls.filter(|(_, call)| call.method == method)
        };
        let equal: Vec<_> = of_method()
            .filter(|(_, call)| call.request == *request)
            .map(|(place, _)| place)
            .collect();
        if let Some(last) = equal.last() {
            let received = self.received.entry(format!("{method} {request}")).or_default();
            let place = equal.get(*received).unwrap_or(last);
            *received += 1;
            return Ok(*place);
        }
        let nearest = of_method()
            .map(|(_, call)| (call.line, differences(&call.request, request)))
            .min_by_key(|(_, differences)| differences.len());
        Err(Mismatch {
            method: method.to_owned(),
            nearest: nearest.and_then(|(line, differences)| {
                let first = differences.into_iter().next();
                first.map(|first| (line, first))
            }),
        })
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let method = &self.method;
        let Some((line, difference)) = &self.nearest else {
            return write!(f, "the recording has no {method}");
        };
        let Difference { path, recorded, received } = difference;
        write!(
            f,
            "no recorded {method} has this request: the nearest, in line {line}, differs in {path}: \
             recorded {recorded}, received {received}"
        )
    }
}

/// The differences between two requests, in the order of their fields.
fn differences(recorded: &Value, received: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    compare(Some(recorded), Some(received), String::new(), &mut found);
    found
}

fn compare(
    recorded: Option<&Value>,
    received: Option<&Value>,
    path: String,
    found: &mut Vec<Difference>,
) {
    if recorded == received {
        return;
    }
    match (recorded, received) {
        (Some(Value::Object(recorded)), Some(Value::Object(received))) => {
            let mut names: Vec<_> = recorded.keys().chain(received.keys()).collect();
            names.sort();
            names.dedup();
            for name in names {
                let dot = if path.is_empty() { "" } else { "." };
                let path = format!("{path}{dot}{name}");
                compare(recorded.get(name), received.get(name), path, found);
            }
        }
        (Some(Value::Array(recorded)), Some(Value::Array(received))) => {
            for place in 0..recorded.len().max(received.len()) {
                let path = format!("{path}[{place}]");
                compare(recorded.get(place), received.get(place), path, found);
            }
        }
        (recorded, received) => {
            found.push(Difference { path, recorded: shown(recorded), received: shown(received) })
        }
    }
}

fn shown(value: Option<&Value>) -> String {
    let Some(value) = value else {
        return "nothing".to_owned();
    };
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        None => text,
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn recording() -> Recording {
        let line = |method: &str, request: Value| {
            json!({"t_start": 0, "method": method, "request": request}).to_string()
        };
        let lines = [
            line("Version", json!({})),
            line("ContainerStatus", json!({"container_id": "a"})),
            line("ContainerStatus", json!({"container_id": "b", "verbose": true})),
            line("ContainerStatus", json!({"container_id": "a"})),
            line("ExecSync", json!({"cmd": ["sh", "-c", "x"], "container_id": "a"})),
        ];
        Recording::new(RecordedCall::parse_all(&lines.join("\n")).unwrap())
    }

    #[test]
    fn equal_requests_get_their_answers_in_order_and_then_the_last() {
        let mut recording = recording();
        let mut find = |request| recording.find("ContainerStatus", &request).unwrap();
        let a = || json!({"container_id": "a"});
        assert_eq!([find(a()), find(a()), find(a())], [1, 3, 3]);
        assert_eq!(find(json!({"container_id": "b", "verbose": true})), 2);
    }

    #[rstest]
    #[case("Status", json!({}), "the recording has no Status")]
    #[case("ContainerStatus", json!({"container_id": "c"}),
        "no recorded ContainerStatus has this request: the nearest, in line 2, differs in container_id: recorded \"a\", received \"c\"")]
    #[case("ContainerStatus", json!({"container_id": "b"}),
        "no recorded ContainerStatus has this request: the nearest, in line 2, differs in container_id: recorded \"a\", received \"b\"")]
    #[case("ContainerStatus", json!({"container_id": "c", "verbose": true}),
        "no recorded ContainerStatus has this request: the nearest, in line 3, differs in container_id: recorded \"b\", received \"c\"")]
    #[case("ExecSync", json!({"cmd": ["sh", "-c"], "container_id": "a"}),
        "no recorded ExecSync has this request: the nearest, in line 5, differs in cmd[2]: recorded \"x\", received nothing")]
    fn mismatch_names_nearest_call_and_first_difference(
        #[case] method: &str,
        #[case] request: Value,
        #[case] expected: &str,
    ) {
        let mismatch = recording().find(method, &request).unwrap_err();
        assert_eq!(mismatch.to_string(), expected);
    }

    #[test]
    fn long_values_are_cut_in_sentence() {
        let long = shown(Some(&json!("é".repeat(100))));
        assert_eq!(long.chars().count(), SHOWN + 1);
        assert!(long.ends_with('…'));
    }
}
