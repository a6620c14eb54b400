//! A client behind the recording proxy gets the same responses as without it, and the recording contains every call.

use cri::v1::{ExecSyncRequest, StreamPodSandboxesRequest};
use harness::Client;
use prost::Message as _;
use prost_reflect::{DynamicMessage, MethodDescriptor, SerializeOptions};
use proxy::{Call, Proxy};
use serde_json::Value;
use tonic::Request;

use crate::guard::malformed::{call_at, methods, valid_request};
use crate::support::*;

fn proxy(runtime: &Runtime) -> Proxy {
    let socket = runtime.socket();
    Proxy::start(&socket.with_file_name("proxy.sock"), &socket).unwrap()
}

/// A client's view of an error, without the ids of its own objects.
fn seen(status: &Status, ids: [&str; 2]) -> String {
    let mut metadata: Vec<_> = status.metadata().clone().into_headers().into_iter().collect();
    metadata.retain(|(name, _)| name.as_ref().is_none_or(|name| name != "date"));
    let details = status.details();
    let text = format!("{:?} {} {details:?} {metadata:?}", status.code(), status.message());
    ids.into_iter().fold(text, |text, id| text.replace(id, "ID"))
}

fn json(descriptor: prost_reflect::MessageDescriptor, bytes: &[u8]) -> Value {
    let message = DynamicMessage::decode(descriptor, bytes).unwrap();
    let options = SerializeOptions::new().use_proto_field_name(true);
    message.serialize_with_options(serde_json::value::Serializer, &options).unwrap()
}

/// The fields that are set in a message.
fn fields(value: &Value) -> Vec<&String> {
    value.as_object().into_iter().flat_map(|o| o.keys()).collect()
}

async fn last(proxy: &Proxy, method: &str) -> Call {
    let ended = proxy.recording().until(|calls| {
        let mut calls = calls.iter().rev().filter(|call| call.method == method);
        calls.next().filter(|call| call.end.is_some()).cloned()
    });
    tokio::time::timeout(WAIT_LIMIT, ended).await.unwrap()
}

#[tokio::test]
async fn every_call_is_answered_as_without_proxy_and_recorded() {
    let runtime = Runtime::start().await.unwrap();
    let proxy = proxy(&runtime);
    let methods = methods();
    assert_eq!(methods.len(), 43);
    let mut direct = Subject::new(&runtime).await;
    let mut through = Subject::new(&runtime).await;
    for method in methods {
        for valid in [false, true] {
            let expected = direct.call(&runtime, None, &method, valid).await;
            let found = through.call(&runtime, Some(&proxy), &method, valid).await;
            let name = format!("{} (valid: {valid})", method.name());
            let recorded = last_or_open(&proxy, &method).await;
            match (&expected, &found) {
                (Ok(expected), Ok(found)) => {
                    let expected = json(method.output(), expected);
                    let found = json(method.output(), found);
                    assert_eq!(fields(&expected), fields(&found), "{name}");
                    if found != serde_json::json!({}) {
                        assert_eq!(recorded.response(), found, "{name}");
                    }
                }
                (Err(expected), Err(found)) => {
                    let expected = seen(expected, [&direct.pod.id, &direct.container]);
                    let reported = seen(found, [&through.pod.id, &through.container]);
                    assert_eq!(expected, reported, "{name}");
                    assert_eq!(recorded.code, Some(found.code()), "{name}");
                    assert_eq!(recorded.message, found.message(), "{name}");
                }
                differing => panic!("{name}: {differing:?}"),
            }
        }
        if method.name().starts_with("Stop") || method.name().starts_with("Remove") {
            direct = Subject::new(&runtime).await;
            through = Subject::new(&runtime).await;
        }
    }
}

/// A pod and its running container, for a call that may end either.
struct Subject {
    pod: Pod,
    container: String,
}

impl Subject {
    async fn new(runtime: &Runtime) -> Self {
        let pod = runtime.pod("subject").await.unwrap();
        let container = pod.start(fixture::forever("c")).await.unwrap();
        Self { pod, container }
    }

    async fn call(
        &self,
        runtime: &Runtime,
        proxy: Option<&Proxy>,
        method: &MethodDescriptor,
        valid: bool,
    ) -> Result<Vec<u8>, Status> {
        let request = if valid {
            valid_request(runtime, &self.pod, &self.container, method)
        } else {
            DynamicMessage::new(method.input())
        };
        let socket = runtime.socket();
        let socket = proxy.map_or(socket.as_path(), Proxy::socket);
        let answer = call_at(socket, method, request.encode_to_vec()).await;
        if let Some(proxy) = proxy {
            let calls = proxy.recording().calls();
            let recorded = calls.last().unwrap();
            assert_eq!(recorded.method, method.name());
            let sent = json(method.input(), &request.encode_to_vec());
            assert_eq!(recorded.request(), sent);
        }
        answer
    }
}

/// The latest call. A stream may not have ended yet after its client has disconnected.
async fn last_or_open(proxy: &Proxy, method: &MethodDescriptor) -> Call {
    if !method.is_server_streaming() {
        return last(proxy, method.name()).await;
    }
    proxy.recording().calls().pop().unwrap()
}

#[tokio::test]
async fn large_messages_and_long_errors_pass_proxy() {
    let runtime = Runtime::start().await.unwrap();
    let proxy = proxy(&runtime);
    let client = Client::new(proxy.socket());
    let mut config = runtime.sandbox("large");
    config.annotations = [("note".to_owned(), "x".repeat(12 << 20))].into();
    let pod = Pod::run(&client, config).await.unwrap();
    let mut streamed = client
        .runtime
        .clone()
        .stream_pod_sandboxes(StreamPodSandboxesRequest::default())
        .await
        .unwrap()
        .into_inner();
    let first = streamed.message().await.unwrap().unwrap();
    assert_eq!(first.pod_sandboxes[0].annotations["note"].len(), 12 << 20);
    let missing = format!("é{}", "m".repeat(3000));
    let direct = runtime.client.container(&missing).await.unwrap_err();
    let through = client.container(&missing).await.unwrap_err();
    assert_eq!(seen(&direct, ["-", "-"]), seen(&through, ["-", "-"]));
    assert_eq!(last(&proxy, "ContainerStatus").await.message, direct.message());
    client.remove_pod(&pod.id).await.unwrap();
}

#[tokio::test]
async fn deadline_passes_proxy_and_is_recorded() {
    let runtime = Runtime::start().await.unwrap();
    let proxy = proxy(&runtime);
    let pod = runtime.pod("p").await.unwrap();
    let container = pod.start(fixture::forever("c")).await.unwrap();
    let mut request = Request::new(ExecSyncRequest {
        container_id: container,
        cmd: vec!["sleep".to_owned(), "1000".to_owned()],
        timeout: 0,
    });
    request.set_timeout(Duration::from_millis(700));
    let mut client = Client::new(proxy.socket()).runtime;
    client.exec_sync(request).await.unwrap_err();
    let call = last(&proxy, "ExecSync").await;
    assert_eq!(call.deadline, Some(Duration::from_millis(700)));
    let took = call.end.unwrap() - call.start;
    assert!((0.6..10.0).contains(&took), "{took}");
}

#[tokio::test]
async fn call_that_client_gives_up_is_cancelled_at_runtime() {
    let runtime = Runtime::start().await.unwrap();
    let proxy = proxy(&runtime);
    let client = Client::new(proxy.socket());
    let pod = runtime.pod("p").await.unwrap();
    let container = pod.start(fixture::forever("c")).await.unwrap();
    let word = fixture::unique("given-up");
    let script = format!("touch /tmp/{word}; exec sleep 1000");
    let requested = client.exec(&container, ["/bin/sh", "-c", &script], 0);
    let started = eventually(WAIT_LIMIT, "the exec to start", async || {
        let test = ["/bin/sh", "-c", &format!("test -e /tmp/{word}")].map(str::to_owned);
        match runtime.client.exec(&container, test, 10).await {
            Ok(answer) if answer.exit_code == 0 => Ok(Ok::<_, Status>(())),
            answer => Err(answer),
        }
    });
    tokio::select! {
        answer = requested => panic!("{answer:?}"),
        started = started => started.unwrap(),
    }
    assert_eq!(last(&proxy, "ExecSync").await.code, Some(Code::Cancelled));
}

#[tokio::test]
async fn events_are_recorded_with_their_times() {
    let runtime = Runtime::start().await.unwrap();
    let proxy = proxy(&runtime);
    let client = Client::new(proxy.socket());
    let mut events = harness::Events::subscribe(&client).await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let first = events.next().await.unwrap();
    assert_eq!(first.container_id, pod.id);
    let calls = proxy.recording().calls();
    let call = calls.iter().find(|call| call.method == "GetContainerEvents").unwrap();
    assert_eq!(call.code, None, "it goes on");
    let message = call.responses().remove(0);
    assert_eq!(message.value["container_id"], pod.id.as_str());
    assert!(message.at >= call.start);
    drop(events);
    drop(client);
    assert_eq!(last(&proxy, "GetContainerEvents").await.code, Some(Code::Cancelled));
}

#[tokio::test]
async fn restart_of_runtime_breaks_connections_like_without_proxy() {
    let mut runtime = Runtime::with().durable().start().await.unwrap();
    let proxy = proxy(&runtime);
    let client = Client::new(proxy.socket());
    let mut events = client.events().await.unwrap();
    let mut direct = runtime.client.events().await.unwrap();
    runtime.kill9().await;
    let expected = direct.message().await.unwrap_err().code();
    let found = events.message().await.unwrap_err().code();
    assert_eq!(found, expected);
    let expected = Client::new(&runtime.socket()).version().await.unwrap_err();
    let found = client.version().await.unwrap_err();
    assert_eq!(found.code(), expected.code());
    runtime.restart().await.unwrap();
    client.version().await.unwrap();
}

#[tokio::test]
async fn faults_of_runtime_affect_only_its_clients() {
    let faults = ["ListPodSandbox after 1 answer ABORTED \"no\""];
    let runtime = Runtime::start().with_faults(faults).await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let list = async |client: &Client| client.pods(Default::default()).await;
    let first = list(&runtime.client).await.unwrap();
    assert!(first.iter().any(|one| one.id == pod.id));
    let client = Client::new(&runtime.socket());
    let refused = list(&client).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::Aborted, "no"));
    let direct = Client::new(&runtime.direct_socket());
    list(&direct).await.unwrap();
    let recording = runtime.proxy().unwrap().recording();
    let listed = |call: &&Call| call.method == "ListPodSandbox";
    assert_eq!(recording.calls().iter().filter(listed).count(), 2);
    runtime.client.remove_pod(&pod.id).await.unwrap();
}

#[tokio::test]
async fn runtime_with_invalid_fault_is_not_started() {
    let error = Runtime::start().with_faults(["Version hnag"]).await.unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.ends_with("unknown action \"hnag\": did you mean \"hang\"?"), "{cause}");
}
