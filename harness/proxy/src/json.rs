//! Decodes recorded messages by protobuf descriptors, with protobuf's JSON mapping and the protocol's field names.

use std::sync::OnceLock;

use prost_reflect::prost::Message as _;
use prost_reflect::{
    DescriptorPool, DynamicMessage, Kind, MessageDescriptor, MethodDescriptor, ReflectMessage as _,
    SerializeOptions, Value as Field,
};
use serde_json::Value;

use super::frames::Frame;

/// The replacement for a secret.
const REDACTED: &str = "(redacted)";
/// The field number of `debug_redact` in the options of a field (descriptor.proto).
const DEBUG_REDACT: u32 = 16;

/// The method for the path of a request, `/runtime.v1.RuntimeService/Version`.
pub(super) fn method(path: &str) -> Option<MethodDescriptor> {
    let (service, name) = path.strip_prefix('/')?.split_once('/')?;
    let service = pool()?.get_service_by_name(service)?;
    service.methods().find(|method| method.name() == name)
}

/// All methods of the protocol.
pub(super) fn methods() -> Vec<MethodDescriptor> {
    let services = pool().into_iter().flat_map(DescriptorPool::services);
    services.flat_map(|service| service.methods().collect::<Vec<_>>()).collect()
}

/// Decodes the message in a frame; `None` if it is compressed or malformed.
pub(super) fn message(descriptor: MessageDescriptor, frame: &Frame) -> Option<DynamicMessage> {
    let readable = Some(&frame.message).filter(|_| !frame.compressed)?;
    DynamicMessage::decode(descriptor, readable.clone()).ok()
}

/// Decodes a message of this protobuf type.
pub fn dynamic(name: &str, bytes: &[u8]) -> Option<DynamicMessage> {
    let descriptor = pool()?.get_message_by_name(&format!("runtime.v1.{name}"))?;
    DynamicMessage::decode(descriptor, bytes).ok()
}

/// Encodes a message for sending.
pub(super) fn encode(message: &DynamicMessage) -> Vec<u8> {
    message.encode_to_vec()
}

/// A text that is the same for equal messages, even if they encode maps in different orders. It contains secrets.
pub(super) fn canonical(message: &DynamicMessage) -> String {
    serde_json::to_value(message).map_or_else(|_| String::new(), |value| value.to_string())
}

/// The request path of a method.
pub(super) fn path(method: &MethodDescriptor) -> String {
    format!("/{}/{}", method.parent_service().full_name(), method.name())
}

/// Decodes a message to JSON: fields with their default value are omitted, 64-bit integers are strings, bytes are base64, and
/// secrets are replaced.
pub(super) fn decode(descriptor: MessageDescriptor, bytes: &[u8]) -> Result<Value, String> {
    let message = DynamicMessage::decode(descriptor, bytes).map_err(|error| error.to_string())?;
    value(message)
}

/// Converts a decoded message to JSON, like [`decode`].
fn value(mut message: DynamicMessage) -> Result<Value, String> {
    redact(&mut message);
    let options = SerializeOptions::new().use_proto_field_name(true);
    message
        .serialize_with_options(serde_json::value::Serializer, &options)
        .map_err(|error| error.to_string())
}

fn pool() -> Option<&'static DescriptorPool> {
    static POOL: OnceLock<Option<DescriptorPool>> = OnceLock::new();
    POOL.get_or_init(|| DescriptorPool::decode(cri::DESCRIPTORS).ok()).as_ref()
}

/// Replaces the fields that the protocol marks as secret, at any depth.
fn redact(message: &mut DynamicMessage) {
    let fields: Vec<_> =
        message.descriptor().fields().filter(|field| message.has_field(field)).collect();
    for field in fields {
        let options = field.options();
        let secret = options
            .get_field_by_number(DEBUG_REDACT)
            .is_some_and(|value| value.as_bool() == Some(true));
        if secret {
            message.set_field(&field, Field::String(REDACTED.to_owned()));
        } else if !field.is_list()
            && !field.is_map()
            && matches!(field.kind(), Kind::Message(_))
            && let Field::Message(inner) = message.get_field_mut(&field)
        {
            redact(inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn messages_have_the_form_of_the_json_mapping() {
        let method = method("/runtime.v1.RuntimeService/StopContainer").unwrap();
        // container_id: "c", timeout: 30
        let value = decode(method.input(), b"\x0a\x01c\x10\x1e").unwrap();
        assert_eq!(value, json!({"container_id": "c", "timeout": "30"}));
        assert_eq!(decode(method.input(), b"").unwrap(), json!({}));
        decode(method.input(), b"\x0a\xff").unwrap_err();
    }

    #[test]
    fn secrets_are_replaced() {
        let method = method("/runtime.v1.ImageService/PullImage").unwrap();
        // auth: { username: "u", password: "p" }
        let value = decode(method.input(), b"\x12\x06\x0a\x01u\x12\x01p").unwrap();
        let expected = json!({"auth": {"username": "u", "password": REDACTED}});
        assert_eq!(value, expected);
    }

    #[test]
    fn unknown_paths_have_no_method() {
        for path in ["", "/", "/a/b", "/runtime.v1.RuntimeService/None"] {
            assert!(method(path).is_none(), "{path}");
        }
    }
}
