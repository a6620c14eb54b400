//! Tests of rules: what a client receives through the proxy, and what the runtime receives.
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cri::v1;
use prost_reflect::prost::Message as _;
use rstest::rstest;
use tonic::Code;

use super::frames::Frame;
use super::{Proxy, Replay};

mod ends;
mod writes;

use ends::{ProxiedRuntime, call, connect};

const EVENTS: &str = "/runtime.v1.RuntimeService/GetContainerEvents";
const STATUS: &str = "/runtime.v1.RuntimeService/ContainerStatus";
const VERSION: &str = "/runtime.v1.RuntimeService/Version";

fn framed(message: &impl prost_reflect::prost::Message) -> Vec<u8> {
    Frame::of(&message.encode_to_vec()).bytes.to_vec()
}

/// A runtime with four events.
fn events(_: &str, _: &[u8]) -> Vec<Vec<u8>> {
    let event =
        |id: &str| v1::ContainerEventResponse { container_id: id.to_owned(), ..Default::default() };
    ["a", "b", "c", "d"].map(|id| framed(&event(id))).into()
}

/// A runtime whose containers have the requested ids; container `x` has exited.
fn statuses(_: &str, request: &[u8]) -> Vec<Vec<u8>> {
    let request = v1::ContainerStatusRequest::decode(&request[5..]).unwrap();
    let state = match request.container_id.as_str() {
        "x" => v1::ContainerState::ContainerExited,
        _ => v1::ContainerState::ContainerCreated,
    };
    let status =
        v1::ContainerStatus { id: request.container_id, state: state.into(), ..Default::default() };
    let response = v1::ContainerStatusResponse { status: Some(status), ..Default::default() };
    vec![framed(&response)]
}

/// A runtime that counts the calls of Version.
fn counting() -> impl Fn(&str, &[u8]) -> Vec<Vec<u8>> + Send + Sync {
    let calls = AtomicU64::new(0);
    move |_, _| {
        let number = calls.fetch_add(1, Ordering::Relaxed) + 1;
        vec![framed(&v1::VersionResponse { version: number.to_string(), ..Default::default() })]
    }
}

fn status_of(id: &str) -> Vec<u8> {
    framed(&v1::ContainerStatusRequest { container_id: id.to_owned(), verbose: false })
}

#[rstest]
#[case("GetContainerEvents message 2 lose", "a c d", Code::Ok)]
#[case("GetContainerEvents message 2..3 repeat", "a b b c c d", Code::Ok)]
#[case("GetContainerEvents message 3.. lose", "a b", Code::Ok)]
#[case("GetContainerEvents swap", "b a d c", Code::Ok)]
#[case("GetContainerEvents message 2 swap", "a c b d", Code::Ok)]
#[case("GetContainerEvents message 4 swap", "a b c d", Code::Ok)]
#[case("GetContainerEvents message 1 late 1000", "b c d a", Code::Ok)]
#[case("GetContainerEvents message 2 delay 0.01", "a b c d", Code::Ok)]
#[case("GetContainerEvents if container_id == \"b\" truncate", "a", Code::Ok)]
#[case("GetContainerEvents message 3 truncate ABORTED", "a b", Code::Aborted)]
#[case("GetContainerEvents if container_id in [\"a\", \"c\"] lose", "b d", Code::Ok)]
#[case(
    "GetContainerEvents message 2 if container_id != \"a\" set container_id \"z\"",
    "a b z d",
    Code::Ok
)]
#[case(
    "GetContainerEvents if container_event_type == \"CONTAINER_CREATED_EVENT\" lose",
    "",
    Code::Ok
)]
#[case(
    "GetContainerEvents if not container_event_type == \"CONTAINER_CREATED_EVENT\" lose",
    "a b c d",
    Code::Ok
)]
#[case("GetContainerEvents recode OK ABORTED", "a b c d", Code::Aborted)]
#[case("GetContainerEvents fail ABORTED", "", Code::Aborted)]
#[case("GetContainerEvents throttle 10000", "a b c d", Code::Ok)]
#[case("GetContainerEvents after 1 lose", "a b c d", Code::Ok)]
#[case("off GetContainerEvents lose", "a b c d", Code::Ok)]
#[case("GetContainerEvents message 1 lose\nGetContainerEvents message 1 repeat", "b c d", Code::Ok)]
#[tokio::test]
async fn rule_alters_stream(#[case] rules: &str, #[case] expected: &str, #[case] code: Code) {
    let ends = ProxiedRuntime::start(rules, events);
    let seen = ends.call(EVENTS, framed(&v1::GetEventsRequest {})).await.unwrap();
    let ids = seen.messages().into_iter().map(|message| {
        let event = v1::ContainerEventResponse::decode(message).unwrap();
        event.container_id
    });
    let ids: Vec<_> = ids.collect();
    assert_eq!((ids.join(" ").as_str(), seen.code), (expected, code));
}

#[rstest]
#[case("Version after 2 answer UNAVAILABLE", "1 2 UNAVAILABLE UNAVAILABLE")]
#[case("Version every 2 answer UNAVAILABLE", "1 UNAVAILABLE 2 UNAVAILABLE")]
#[case("Version times 1 fail UNAVAILABLE", "UNAVAILABLE 2 3 4")]
#[case("Version after 1 times 1 swallow", "1  2 3")]
#[case("Version after 2 stale", "1 2 2 2")]
#[case("Version stale", "1 1 1 1")]
#[case("Version after 3 recode OK NOT_FOUND \"no\"", "1 2 3 NOTFOUND")]
#[case("Version if version == \"3\" fail ABORTED", "1 2 ABORTED 4")]
#[case("Version times 1 if version in [\"2\", \"3\"] set version \"x\"", "1 x 3 4")]
#[case("Version if request.version == \"q\" and version == \"2\" lose", "1 NOTHING 3 4")]
#[case("Version if version == \"2\" recode OK ABORTED", "1 ABORTED 3 4")]
#[case("Version if request.version == \"other\" hang", "1 2 3 4")]
#[case("Version request set version \"w\"", "1 2 3 4")]
#[tokio::test]
async fn rule_applies_to_calls_that_meet_it(#[case] rules: &str, #[case] expected: &str) {
    let ends = ProxiedRuntime::start(rules, counting());
    let mut client = connect(&ends.socket()).await;
    let request = framed(&v1::VersionRequest { version: "q".to_owned() });
    let mut seen = Vec::new();
    for _ in 0..4 {
        let answer = call(&mut client, VERSION, request.clone()).await.unwrap();
        seen.push(if answer.code != Code::Ok {
            format!("{:?}", answer.code).to_uppercase()
        } else if let Some(message) = answer.messages().pop() {
            v1::VersionResponse::decode(message).unwrap().version
        } else {
            "NOTHING".to_owned()
        });
    }
    assert_eq!(seen.join(" "), expected);
    let of_runtime = ends.got();
    let altered = of_runtime.iter().all(|(_, body)| body[7..] == *b"w");
    assert_eq!(altered, rules.contains("request set"), "{of_runtime:?}");
}

#[rstest]
#[case(
    "ContainerStatus if status.state == \"CONTAINER_EXITED\" set status.state \"CONTAINER_RUNNING\"",
    "x",
    1
)]
#[case(
    "ContainerStatus if status.state == \"CONTAINER_CREATED\" set status.state \"CONTAINER_RUNNING\"",
    "x",
    2
)]
#[case(
    "ContainerStatus if status.state == \"CONTAINER_CREATED\" set status.state \"CONTAINER_RUNNING\"",
    "y",
    1
)]
#[case("ContainerStatus if container_id prefix \"y\" drop status.state", "x", 2)]
#[case("ContainerStatus if container_id prefix \"x\" drop status.state", "x", 0)]
#[tokio::test]
async fn condition_on_state_counts_default_as_value(
    #[case] rules: &str,
    #[case] id: &str,
    #[case] expected: i32,
) {
    let ends = ProxiedRuntime::start(rules, statuses);
    let seen = ends.call(STATUS, status_of(id)).await.unwrap();
    let message = seen.messages().remove(0);
    let status = v1::ContainerStatusResponse::decode(message).unwrap().status.unwrap();
    assert_eq!((status.id.as_str(), status.state), (id, expected));
}

#[tokio::test]
async fn stale_answers_are_those_of_equal_requests() {
    let ends = ProxiedRuntime::start("ContainerStatus stale", statuses);
    for id in ["x", "y", "x", "y"] {
        let seen = ends.call(STATUS, status_of(id)).await.unwrap();
        let message = seen.messages().remove(0);
        let answer = v1::ContainerStatusResponse::decode(message).unwrap();
        assert_eq!(answer.status.unwrap().id, id);
    }
    assert_eq!(ends.got().len(), 2);
}

/// Field number 1000, which the protocol does not have.
const UNKNOWN_FIELD: [u8; 5] = [0xc2, 0x3e, 2, b'h', b'i'];

fn frame_with_unknown_field(message: &impl prost_reflect::prost::Message) -> Vec<u8> {
    let message = [&message.encode_to_vec()[..], &UNKNOWN_FIELD].concat();
    Frame::of(&message).bytes.to_vec()
}

#[rstest]
#[case::no_rules("")]
#[case::rule_for_another_call("Status hang")]
#[case::conditions_that_do_not_hold(
    "ContainerStatus if status.id == \"other\" set status.reason \"x\"\n\
     ContainerStatus if status.id == \"other\" fail ABORTED\n\
     ContainerStatus if container_id == \"other\" request set verbose true\n\
     ContainerStatus drop status.reason"
)]
#[tokio::test]
async fn unknown_field_and_broken_bytes_pass_unchanged(#[case] rules: &str) {
    let request = frame_with_unknown_field(&v1::ContainerStatusRequest {
        container_id: "c".to_owned(),
        verbose: false,
    });
    // Fields out of order, an unknown field, and the beginning of a message that is never completed.
    let answer = [
        frame_with_unknown_field(&v1::ContainerStatusResponse::default()),
        vec![0, 0, 0, 0, 9, 1, 2],
    ]
    .concat();
    let sent = answer.clone();
    let ends = ProxiedRuntime::start(rules, move |_, _| vec![sent.clone()]);
    let seen = ends.call(STATUS, request.clone()).await.unwrap();
    assert_eq!((&seen.body[..], seen.code), (&answer[..], Code::Ok));
    assert_eq!(ends.got(), [(STATUS.to_owned(), request.into())]);
}

#[tokio::test]
async fn unknown_field_survives_alteration_of_another() {
    let answer = frame_with_unknown_field(&v1::VersionResponse::default());
    let ends = ProxiedRuntime::start("Version set version \"x\"", move |_, _| vec![answer.clone()]);
    let seen = ends.call(VERSION, vec![0; 5]).await.unwrap();
    let message = seen.messages().remove(0);
    assert_eq!(&message[..3], b"\x0a\x01x");
    assert_eq!(&message[3..], UNKNOWN_FIELD);
}

#[tokio::test]
async fn unknown_call_passes_every_rule_unchanged() {
    let path = "/runtime.v9.Future/Call";
    let answer = [vec![0, 0, 0, 0, 2, 1, 2], vec![3, 0, 0, 0, 1, 9]];
    let sent = answer.to_vec();
    let ends = ProxiedRuntime::start("* hang", move |_, _| sent.clone());
    let request = vec![0, 0, 0, 0, 3, 1, 2, 3];
    let seen = ends.call(path, request.clone()).await.unwrap();
    assert_eq!((&seen.body[..], seen.code), (&answer.concat()[..], Code::Ok));
    assert_eq!(ends.got(), [(path.to_owned(), request.into())]);
}

#[tokio::test]
async fn status_message_of_rule_reaches_client_and_recording() {
    let ends = ProxiedRuntime::start("Version answer ABORTED \"100% é\"", counting());
    let seen = ends.call(VERSION, vec![0; 5]).await.unwrap();
    assert_eq!((seen.code, seen.message.as_str()), (Code::Aborted, "100% é"));
    let call = ends.proxy.recording().calls().remove(0);
    assert_eq!(call.code, Some(Code::Aborted));
    assert_eq!(call.message, "100% é");
    assert!(ends.got().is_empty());
}

#[rstest]
#[case("Version disconnect", 0)]
#[case("Version if version == \"1\" disconnect", 1)]
#[tokio::test]
async fn disconnected_client_can_connect_again(#[case] rules: &str, #[case] reached: usize) {
    let ends = ProxiedRuntime::start(&rules.replace("Version ", "Version times 1 "), counting());
    let mut client = connect(&ends.socket()).await;
    assert_eq!(call(&mut client, VERSION, vec![0; 5]).await, None);
    assert_eq!(ends.got().len(), reached);
    assert!(client.ready().await.is_err(), "its connection has ended");
    assert_eq!(ends.call(VERSION, vec![0; 5]).await.unwrap().code, Code::Ok);
    let connections = ends.proxy.recording().calls();
    let connections: Vec<_> = connections.iter().map(|call| call.connection).collect();
    assert_eq!(connections, [1, 2]);
}

#[rstest]
#[case("Version hang", 0)]
#[case("Version if version == \"1\" hang", 1)]
#[tokio::test]
async fn hanging_call_has_no_answer_until_it_is_given_up(
    #[case] rules: &str,
    #[case] reached: usize,
) {
    let ends = ProxiedRuntime::start(rules, counting());
    let mut client = connect(&ends.socket()).await;
    let mut calling = Box::pin(call(&mut client, VERSION, vec![0; 5]));
    let reaches = ends.proxy.recording().until(|calls| {
        let call = calls.first()?;
        let is_far = reached == 0 || !call.responses().is_empty();
        (is_far && !call.request().is_null()).then_some(())
    });
    tokio::select! {
        seen = &mut calling => panic!("{seen:?}"),
        () = reaches => {}
    }
    drop(calling);
    assert_eq!(ends.got().len(), reached);
    let ended = ends.proxy.recording().until(|calls| calls.first()?.code);
    ended.await;
}

#[rstest]
#[case("Version delay 0.2")]
#[case("Version if version == \"1\" delay 0.2")]
#[case("Version throttle 40")]
#[tokio::test]
async fn answer_is_late(#[case] rules: &str) {
    let ends = ProxiedRuntime::start(rules, counting());
    let began = Instant::now();
    let seen = ends.call(VERSION, vec![0; 5]).await.unwrap();
    assert!(began.elapsed() >= Duration::from_millis(190));
    assert_eq!(seen.messages().len(), 1);
}

#[tokio::test]
async fn switched_rule_applies_only_while_it_is_on() {
    let ends = ProxiedRuntime::start("off lossy: GetContainerEvents lose", events);
    let request = || framed(&v1::GetEventsRequest {});
    let count = async || ends.call(EVENTS, request()).await.unwrap().messages().len();
    assert_eq!(count().await, 4);
    ends.proxy.rules().switch("lossy", true).unwrap();
    assert_eq!(count().await, 0);
    ends.proxy.rules().switch("lossy", false).unwrap();
    assert_eq!(count().await, 4);
    assert_eq!(ends.proxy.rules().list()[0].applied, 1);
}

#[tokio::test]
async fn ended_calls_are_handed_out_once() {
    let ends = ProxiedRuntime::start("", counting());
    for _ in 0..3 {
        ends.call(VERSION, vec![0; 5]).await.unwrap();
    }
    let mut calls = Vec::new();
    while calls.len() < 3 {
        calls.extend(ends.proxy.recording().next_ended().await);
    }
    assert_eq!(calls.len(), 3);
    assert!(ends.proxy.recording().calls().is_empty());
}

#[tokio::test]
async fn sockets_are_accessible_only_to_their_owner() {
    let directory = tempfile::tempdir().unwrap();
    let (listen, replay) = (directory.path().join("p"), directory.path().join("r"));
    let _proxy = Proxy::start(&listen, Path::new("/nowhere/s")).unwrap();
    let _replay = Replay::start(&replay, Vec::new(), false).unwrap();
    for socket in [listen, replay] {
        let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", socket.display());
    }
}
