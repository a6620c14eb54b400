//! Malformed requests for every call, generated from the protobuf descriptors, so that new calls and fields are covered.
//!
//! Each request has exactly one bad field, so that the checks of the other fields do not hide it.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "kinds of fields that a bad value has nothing to do with"
)]

use std::path::Path;

use bytes::{Buf as _, BufMut as _};
use prost::Message as _;
use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor,
    MethodDescriptor, ReflectMessage as _, Value,
};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use crate::support::*;

/// A codec that passes requests and responses through as bytes.
#[derive(Debug, Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;
    fn encoder(&mut self) -> Self {
        Self
    }
    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;
    fn encode(&mut self, item: Vec<u8>, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;
    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining()).to_vec()))
    }
}

fn pool() -> DescriptorPool {
    DescriptorPool::decode(cri::DESCRIPTORS).unwrap()
}

pub(crate) fn methods() -> Vec<MethodDescriptor> {
    let pool = pool();
    let services: Vec<_> = pool.services().collect();
    services.iter().flat_map(|service| service.methods().collect::<Vec<_>>()).collect()
}

/// The first message of a response, if it arrives soon.
pub(crate) async fn call(
    runtime: &Runtime,
    method: &MethodDescriptor,
    request: Vec<u8>,
) -> Result<Vec<u8>, Status> {
    call_at(&runtime.socket(), method, request).await
}

/// Like [`call`], through a socket.
pub(crate) async fn call_at(
    socket: &Path,
    method: &MethodDescriptor,
    request: Vec<u8>,
) -> Result<Vec<u8>, Status> {
    let socket = socket.to_owned();
    let connector = tower::service_fn(move |_| {
        let socket = socket.clone();
        async move {
            let stream = tokio::net::UnixStream::connect(socket).await?;
            Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(stream))
        }
    });
    let endpoint = tonic::transport::Endpoint::from_static("http://localhost");
    let mut grpc = tonic::client::Grpc::new(endpoint.connect_with_connector_lazy(connector))
        .max_decoding_message_size(64 << 20);
    let path = format!("/{}/{}", method.parent_service().full_name(), method.name());
    let path = path.parse().unwrap();
    let request = tonic::Request::new(request);
    let answer = async {
        grpc.ready().await.unwrap();
        if !method.is_server_streaming() {
            return Ok(grpc.unary(request, path, Raw).await?.into_inner());
        }
        let mut stream = grpc.server_streaming(request, path, Raw).await?.into_inner();
        // An event stream may stay silent. The others respond soon, even on a busy machine.
        let first = tokio::time::timeout(Duration::from_secs(2), stream.message()).await;
        Ok(first.unwrap_or(Ok(None))?.unwrap_or_default())
    };
    tokio::time::timeout(Duration::from_secs(60), answer)
        .await
        .unwrap_or_else(|_| panic!("{} did not answer", method.name()))
}

/// The reason why a response does not help a client, if any.
fn why_unhelpful(answer: &Result<Vec<u8>, Status>) -> Option<String> {
    let error = answer.as_ref().err()?;
    let ours = [Code::Unknown, Code::Internal, Code::Unavailable, Code::Cancelled];
    let length = error.message().len();
    let is_valid = !ours.contains(&error.code()) && (10..4096).contains(&length);
    let start: String = error.message().chars().take(300).collect();
    (!is_valid).then(|| format!("{:?}, {length} bytes: {start}", error.code()))
}

/// The paths of all leaf fields of a message.
fn leaf_fields(
    message: &MessageDescriptor,
    above: &[FieldDescriptor],
    into: &mut Vec<Vec<FieldDescriptor>>,
) {
    for field in message.fields() {
        let path = [above, std::slice::from_ref(&field)].concat();
        match field.kind() {
            Kind::Message(inner) if !field.is_map() => leaf_fields(&inner, &path, into),
            _ => into.push(path),
        }
    }
}

/// A kind of invalid value.
#[derive(Debug, Clone, Copy)]
enum Bad {
    Text(&'static str),
    Long,
    Number(i64),
}

impl Bad {
    fn value(self, kind: &Kind) -> Option<Value> {
        let text = match self {
            Self::Text(text) => text.to_owned(),
            Self::Long => "x".repeat(1 << 20),
            Self::Number(number) => {
                return match kind {
                    Kind::Int64 | Kind::Sint64 => Some(Value::I64(number)),
                    Kind::Int32 => Some(Value::I32(i32::try_from(number).unwrap_or(i32::MIN))),
                    Kind::Enum(_) => {
                        Some(Value::EnumNumber(i32::try_from(number).unwrap_or(i32::MIN)))
                    }
                    Kind::Uint64 => Some(Value::U64(u64::MAX)),
                    Kind::Uint32 => Some(Value::U32(u32::MAX)),
                    _ => None,
                };
            }
        };
        match kind {
            Kind::String => Some(Value::String(text)),
            Kind::Bytes => Some(Value::Bytes(text.into())),
            _ => None,
        }
    }

    fn of(self, field: &FieldDescriptor) -> Option<Value> {
        if field.is_map() {
            let Kind::Message(entry) = field.kind() else {
                return None;
            };
            let (key, value) = (entry.map_entry_key_field(), entry.map_entry_value_field());
            let (Some(Value::String(key)), Some(value)) =
                (self.value(&key.kind()), self.value(&value.kind()))
            else {
                return None;
            };
            return Some(Value::Map([(MapKey::String(key), value)].into()));
        }
        let one = self.value(&field.kind())?;
        Some(if field.is_list() { Value::List(vec![one]) } else { one })
    }
}

/// Sets the field at a path, and creates missing messages on the path.
fn set_field(message: &mut DynamicMessage, path: &[FieldDescriptor], value: Value) {
    let [field, rest @ ..] = path else { return };
    if rest.is_empty() {
        message.set_field(field, value);
        return;
    }
    let inner = match message.get_field_mut(field) {
        Value::List(list) => {
            if list.is_empty() {
                let Kind::Message(kind) = field.kind() else {
                    return;
                };
                list.push(Value::Message(DynamicMessage::new(kind)));
            }
            list.first_mut()
        }
        one => Some(one),
    };
    if let Some(Value::Message(inner)) = inner {
        set_field(inner, rest, value);
    }
}

/// A valid request for a call; empty for calls that need no fields.
pub(crate) fn valid_request(
    runtime: &Runtime,
    pod: &Pod,
    container: &str,
    method: &MethodDescriptor,
) -> DynamicMessage {
    let mut request = DynamicMessage::new(method.input());
    let merged = match method.name() {
        "RunPodSandbox" => v1::RunPodSandboxRequest {
            config: Some(runtime.sandbox(&fixture::unique("p"))),
            ..Default::default()
        }
        .encode_to_vec(),
        "CreateContainer" => v1::CreateContainerRequest {
            pod_sandbox_id: pod.id.clone(),
            config: Some(fixture::script(&fixture::unique("c"), "true")),
            sandbox_config: Some(pod.config.clone()),
        }
        .encode_to_vec(),
        "ExecSync" => v1::ExecSyncRequest {
            container_id: container.to_owned(),
            cmd: vec!["true".to_owned()],
            timeout: 10,
        }
        .encode_to_vec(),
        _ => Vec::new(),
    };
    request.merge(merged.as_slice()).unwrap();
    for (name, id) in [("pod_sandbox_id", pod.id.as_str()), ("container_id", container)] {
        if request.descriptor().get_field_by_name(name).is_some() {
            request.set_field_by_name(name, Value::String(id.to_owned()));
        }
    }
    request
}

/// Removes the object that a request with a bad field created.
async fn remove_created(runtime: &Runtime, method: &MethodDescriptor, answer: &[u8]) {
    let made = DynamicMessage::decode(method.output(), answer).unwrap();
    let id = |name| made.get_field_by_name(name).unwrap().as_str().unwrap().to_owned();
    match method.name() {
        "RunPodSandbox" => runtime.client.remove_pod(&id("pod_sandbox_id")).await.unwrap(),
        "CreateContainer" => runtime.client.remove(&id("container_id")).await.unwrap(),
        _ => {}
    }
}

async fn running(runtime: &Runtime) -> (Pod, String) {
    let pod = runtime.pod(&fixture::unique("pod")).await.unwrap();
    let id = pod.start(fixture::forever("c")).await.unwrap();
    (pod, id)
}

#[tokio::test]
async fn every_call_answers_empty_and_undecodable_requests() {
    let runtime = Runtime::with().start().await.unwrap();
    let (_pod, id) = running(&runtime).await;
    let methods = methods();
    assert_eq!(methods.len(), 43);
    for method in methods {
        let answer = call(&runtime, &method, Vec::new()).await;
        assert_eq!(why_unhelpful(&answer), None, "{}", method.name());
        // Bytes that are not a valid message.
        let answer = call(&runtime, &method, vec![0xff; 64]).await;
        assert!(answer.is_err(), "{}", method.name());
    }
    assert_eq!(runtime.client.sh(&id, "echo fine").await.unwrap(), "fine\n");
}

#[rstest]
#[case::slashes(Bad::Text("../../../etc/x"))]
#[case::nul(Bad::Text("a\0b"))]
#[case::lines(Bad::Text("a\nb é🦀 %s%n"))]
#[case::long(Bad::Long)]
#[case::negative(Bad::Number(-1))]
#[case::least(Bad::Number(i64::MIN))]
#[case::most(Bad::Number(i64::MAX))]
#[tokio::test]
async fn every_call_answers_bad_value_in_each_field(#[case] bad: Bad) {
    let runtime = Runtime::with().start().await.unwrap();
    let (mut pod, mut container) = running(&runtime).await;
    let (mut tried, mut unhelpful_ones) = (0, Vec::new());
    for method in methods() {
        let mut paths = Vec::new();
        leaf_fields(&method.input(), &[], &mut paths);
        for path in paths {
            let Some(value) = path.last().and_then(|field| bad.of(field)) else {
                continue;
            };
            let mut request = valid_request(&runtime, &pod, &container, &method);
            set_field(&mut request, &path, value);
            let names: Vec<_> = path.iter().map(|field| field.name().to_owned()).collect();
            let what = format!("{} with {bad:?} as {}", method.name(), names.join("."));
            let answer = call(&runtime, &method, request.encode_to_vec()).await;
            unhelpful_ones.extend(why_unhelpful(&answer).map(|why| format!("{what}: {why}")));
            if let Ok(answer) = answer {
                remove_created(&runtime, &method, &answer).await;
            }
            tried += 1;
            // The call may have stopped or removed the container.
            if runtime.client.sh(&container, "true").await.is_err() {
                (pod, container) = running(&runtime).await;
            }
        }
    }
    assert!(tried > 30, "{tried} requests");
    assert!(unhelpful_ones.is_empty(), "{unhelpful_ones:#?}");
    assert_eq!(runtime.client.sh(&container, "echo fine").await.unwrap(), "fine\n");
}
