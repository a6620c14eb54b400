//! The grammar of faults: valid texts, and errors with their positions.
use std::time::Duration;

use rstest::rstest;
use tonic::Code;

use super::*;

fn status(code: Code, message: &str) -> Status {
    Status { code, message: message.to_owned() }
}

#[rstest]
#[case(
    "Version answer UNAVAILABLE",
    Action::Answer(status(Code::Unavailable, "a fault of the proxy"))
)]
#[case("Version answer UNKNOWN \"a b\"", Action::Answer(status(Code::Unknown, "a b")))]
#[case(
    "Version fail DEADLINE_EXCEEDED",
    Action::Fail(status(Code::DeadlineExceeded, "a fault of the proxy"))
)]
#[case(
    "Version recode NOT_FOUND OK",
    Action::Recode(Code::NotFound, status(Code::Ok, "a fault of the proxy"))
)]
#[case("Version delay 0.5", Action::Delay(Duration::from_millis(500)))]
#[case("Version hang # for ever", Action::Hang)]
#[case("Version disconnect", Action::Disconnect)]
#[case("Version stale", Action::Stale)]
#[case("Version throttle 1000", Action::Throttle(1000))]
#[case("GetContainerEvents late 2", Action::Late(Duration::from_secs(2)))]
#[case("GetContainerEvents swap", Action::Swap)]
#[case("GetContainerEvents truncate", Action::Truncate(status(Code::Ok, "")))]
#[case(
    "GetContainerEvents truncate UNKNOWN",
    Action::Truncate(status(Code::Unknown, "a fault of the proxy"))
)]
fn action_is_parsed(#[case] text: &str, #[case] expected: Action) {
    let fault: Fault = text.parse().unwrap();
    assert_eq!(fault.calls.len(), 1);
    let call = &fault.calls[0];
    assert_eq!((&call.action, &call.condition), (&expected, &None));
    assert_eq!((fault.schedule, fault.is_on), (Schedule::default(), true));
}

#[rstest]
#[case("Version drop version", Side::Response)]
#[case("Version request drop version", Side::Request)]
#[case("Version drop request.version", Side::Request)]
#[case("StopContainer drop timeout", Side::Request)]
#[case("CreateContainer request set config.labels.x \"a\"", Side::Request)]
fn altered_side_is_named_or_found(#[case] text: &str, #[case] expected: Side) {
    let fault: Fault = text.parse().unwrap();
    let Action::Alter { side, .. } = &fault.calls[0].action else {
        panic!("{fault:?}");
    };
    assert_eq!(*side, expected);
}

#[test]
fn parts_precede_action() {
    let text = "off slow-stop: StopContainer,RemoveContainer after 2 every 3 times 4 \
                probability 0.5 if request container_id = \"a b\" delay 1";
    let fault: Fault = text.parse().unwrap();
    assert_eq!(fault.name(), Some("slow-stop"));
    assert_eq!(fault.text(), text);
    assert!(!fault.is_on);
    let schedule = Schedule { after: 2, every: 3, times: Some(4), probability: 0.5 };
    assert_eq!(fault.schedule, schedule);
    let names: Vec<_> = fault.calls.iter().map(|call| call.method.name()).collect();
    assert_eq!(names, ["StopContainer", "RemoveContainer"]);
    assert!(fault.calls.iter().all(|call| call.condition.is_some()));
}

#[rstest]
#[case("List* delay 1", "ListPodSandbox", 7)]
#[case("* delay 1", "Version", 43)]
#[case("Stream*,GetContainerEvents message 2..3 lose", "StreamPodSandboxes", 7)]
fn calls_are_chosen_by_beginning(#[case] text: &str, #[case] first: &str, #[case] count: usize) {
    let fault: Fault = text.parse().unwrap();
    assert_eq!(fault.calls[0].method.name(), first);
    assert_eq!(fault.calls.len(), count);
}

#[rstest]
#[case("GetContainerEvents message 2 lose", 2..=2)]
#[case("GetContainerEvents message 2..4 lose", 2..=4)]
#[case("GetContainerEvents message 2.. lose", 2..=usize::MAX)]
fn messages_are_a_range(#[case] text: &str, #[case] expected: RangeInclusive<usize>) {
    let fault: Fault = text.parse().unwrap();
    assert_eq!(fault.calls[0].messages, Some(expected));
}

#[rstest]
#[case("StopContainer hang", true)]
#[case("StopContainer if container_id == \"x\" hang", true)]
#[case("ContainerStatus if status.id == \"x\" hang", false)]
#[case("GetContainerEvents message 2 disconnect", false)]
#[case("Version answer UNKNOWN", true)]
#[case("Version fail UNKNOWN", false)]
#[case("Version throttle 9", false)]
fn action_comes_before_or_after_runtime(#[case] text: &str, #[case] expected: bool) {
    let fault: Fault = text.parse().unwrap();
    assert_eq!(fault.calls[0].is_of_request(), expected);
}

#[rstest]
#[case("Dance hang", 1, "the CRI has no call \"Dance\"")]
#[case(
    "Version,ContainerStats,StopContaner hang",
    24,
    "the CRI has no call \"StopContaner\": did you mean \"StopContainer\"?"
)]
#[case("", 1, "the CRI has no call \"\"")]
#[case("Version", 8, "an action is missing")]
#[case("Version sing", 9, "unknown action \"sing\"")]
#[case("Version hnag", 9, "unknown action \"hnag\": did you mean \"hang\"?")]
#[case("Version after x hang", 15, "\"x\" is not a number of calls")]
#[case("Version every 0 hang", 9, "`every` needs a number above 0")]
#[case("Version after 1 after 2 hang", 17, "`after` is given twice")]
#[case("Version probability 1.5 hang", 9, "a probability is between 0 and 1")]
#[case("Version probability nan hang", 9, "a probability is between 0 and 1")]
#[case(
    "Version message 1 lose",
    19,
    "`message` applies only to streams, and Version is not a stream"
)]
#[case(
    "GetContainerEvents message 0 lose",
    28,
    "\"0\" is not a message number or range, such as 1, 2..4 or 3.."
)]
#[case(
    "GetContainerEvents message 1 fail UNKNOWN",
    30,
    "`fail` ends a call, not a message: use `truncate`"
)]
#[case("Version swap", 9, "`swap` applies only to streams, and Version is not a stream")]
#[case(
    "GetContainerEvents stale",
    20,
    "`stale` applies only to unary calls, and GetContainerEvents is a stream"
)]
#[case(
    "Version if runtime_name == \"x\" swallow",
    32,
    "`swallow` acts before the response exists: its condition cannot refer to the response"
)]
#[case("Version if runtime_name hang", 25, "==, !=, in or prefix is missing after the field")]
#[case("Version drop version..x", 22, "version has no fields")]
#[case(
    "Version drop runtime_nme",
    14,
    "neither VersionRequest nor VersionResponse has a field \"runtime_nme\": did you mean \"runtime_name\"?"
)]
#[case("Version drop version b", 22, "unexpected \"b\"")]
#[case("Version hang on", 14, "unexpected \"on\"")]
#[case(
    "Version answer NOTFOUND",
    16,
    "\"NOTFOUND\" is not a gRPC code, such as NOT_FOUND: did you mean \"NOT_FOUND\"?"
)]
#[case("Version set version", 20, "a JSON value is missing")]
#[case(
    "Version set version 5",
    21,
    "5 is not a value of version: invalid type: integer `5`, expected a string"
)]
#[case("Version request hang", 9, "`request` and `response` can precede only `drop` and `set`")]
#[case("Version delay -1", 15, "a number of seconds from 0 to 86400 is needed")]
#[case("Version delay 1e300", 15, "a number of seconds from 0 to 86400 is needed")]
#[case(
    "Version answer OK",
    16,
    "`answer` needs a code other than OK: use `swallow` for an empty response"
)]
#[case(
    "Version fail OK \"x\"",
    14,
    "`fail` needs a code other than OK: use `swallow` for an empty response"
)]
#[case("Version throttle 0", 18, "0 bytes per second is not allowed: use `hang`")]
#[case(
    "ListImages,Version drop images",
    25,
    "neither VersionRequest nor VersionResponse has a field \"images\""
)]
fn bad_fault_is_refused_with_place_and_reason(
    #[case] text: &str,
    #[case] column: usize,
    #[case] why: &str,
) {
    let error = text.parse::<Fault>().unwrap_err();
    let expected = format!("invalid fault {text:?}, column {column}: {why}");
    assert_eq!(error.to_string(), expected);
}

/// No similar name is suggested: with a name of this length, the comparison would take minutes.
#[rstest]
#[case::call("", " hang")]
#[case::action("Version ", "")]
#[case::number("Version after ", "")]
#[case::range("GetContainerEvents message ", "")]
#[case::code("Version answer ", "")]
#[case::field("Version if ", " == 1 hang")]
#[case::inner_field("ContainerStatus if status.", " == 1 hang")]
#[case::enum_value("ContainerStatus set status.state \"", "\"")]
#[case::typed_value("ContainerStatus set status.exit_code \"", "\"")]
#[case::text_value("Version if version == \"x\" and version prefix [\"", "\"] hang")]
#[case::unquoted_value("Version set version ", "")]
#[case::trailing("Version hang ", "")]
fn error_of_huge_word_is_short(#[case] before: &str, #[case] after: &str) {
    let text = format!("{before}{}{after}", "x".repeat(400_000));
    let error = text.parse::<Fault>().unwrap_err();
    assert!(error.to_string().len() < 2000, "{before}");
    assert!(text.parse::<RuleSet>().unwrap_err().to_string().len() < 1000, "{before}");
}
