//! Compares the compiled contract with the table of facts, `cri-v1.tsv`, row by row in both directions.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;

use prost::Message as _;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    FileDescriptorSet, MethodDescriptorProto,
    field_descriptor_proto::{Label, Type},
};

const TABLE: &str = include_str!("cri-v1.tsv");
const PACKAGE: &str = ".runtime.v1.";

/// One fact, in the columns of the table: kind, parent, number, name, type, note.
type Row = [String; 6];

/// The contract's one file.
fn file() -> FileDescriptorProto {
    let set = FileDescriptorSet::decode(crate::DESCRIPTORS).unwrap();
    let [file] = <[_; 1]>::try_from(set.file).unwrap();
    file
}

/// The rows of the table. A duplicate row is an error, because a set would hide it.
fn expected() -> BTreeSet<Row> {
    let mut rows = BTreeSet::new();
    for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<String> = line.split('\t').map(str::to_owned).collect();
        let row = Row::try_from(columns)
            .unwrap_or_else(|found| panic!("{} columns, not 6: {line:?}", found.len()));
        assert!(rows.insert(row), "twice in the table: {line:?}");
    }
    rows
}

/// The rows of the compiled contract.
fn compiled() -> BTreeSet<Row> {
    let file = file();
    let redacted = redact::fields(crate::DESCRIPTORS);
    let mut rows = Vec::new();
    for service in &file.service {
        rows.extend(service.method.iter().map(|m| rpc(service.name(), m)));
    }
    for enumeration in &file.enum_type {
        rows.extend(enum_rows("", enumeration));
    }
    for message in &file.message_type {
        rows.extend(message_rows("", message, &redacted));
    }
    let count = rows.len();
    let rows: BTreeSet<Row> = rows.into_iter().collect();
    assert_eq!(rows.len(), count, "the contract has a row twice");
    rows
}

fn row(kind: &str, parent: &str, number: &str, name: &str, kind_of: &str, note: &str) -> Row {
    [kind, parent, number, name, kind_of, note].map(str::to_owned)
}

fn rpc(service: &str, method: &MethodDescriptorProto) -> Row {
    let streamed = |yes: bool| if yes { "stream " } else { "" };
    let request = format!("{}{}", streamed(method.client_streaming()), local(method.input_type()));
    let response =
        format!("{}{}", streamed(method.server_streaming()), local(method.output_type()));
    row("rpc", service, "", method.name(), &request, &response)
}

fn enum_rows(prefix: &str, enumeration: &EnumDescriptorProto) -> Vec<Row> {
    let name = format!("{prefix}{}", enumeration.name());
    enumeration
        .value
        .iter()
        .map(|value| row("enum", &name, &value.number().to_string(), value.name(), "", ""))
        .collect()
}

/// The rows of one message and its nested declarations, except the entry types of its maps.
fn message_rows(
    prefix: &str,
    message: &DescriptorProto,
    redacted: &BTreeSet<(String, i32)>,
) -> Vec<Row> {
    let name = format!("{prefix}{}", message.name());
    let mut rows = Vec::new();
    if message.field.is_empty() {
        rows.push(row("message", &name, "", "", "", ""));
    }
    for field in &message.field {
        let deprecated = field.options.as_ref().is_some_and(|o| o.deprecated());
        let secret = redacted.contains(&(name.clone(), field.number()));
        let notes: Vec<&str> = [(deprecated, "deprecated"), (secret, "debug_redact")]
            .into_iter()
            .filter_map(|(set, note)| set.then_some(note))
            .collect();
        rows.push(row(
            "field",
            &name,
            &field.number().to_string(),
            field.name(),
            &field_type(message, field),
            &notes.join(","),
        ));
    }
    let inner = format!("{name}.");
    for enumeration in &message.enum_type {
        rows.extend(enum_rows(&inner, enumeration));
    }
    for nested in message.nested_type.iter().filter(|n| !is_map_entry(n)) {
        rows.extend(message_rows(&inner, nested, redacted));
    }
    rows
}

/// The type of a field as the table writes it: `repeated T`, `map<K,V>`, `optional T`, `T`.
fn field_type(message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let base = base_type(field);
    match field.label() {
        Label::Required => format!("required {base}"),
        Label::Optional if field.proto3_optional() || field.oneof_index.is_some() => {
            format!("optional {base}")
        }
        Label::Optional => base,
        Label::Repeated => {
            let own = format!("{}.", message.name());
            let entry = base
                .strip_prefix(&own)
                .and_then(|entry| message.nested_type.iter().find(|n| n.name() == entry))
                .filter(|nested| is_map_entry(nested));
            match entry.map(|entry| entry.field.as_slice()) {
                Some([key, value]) => format!("map<{},{}>", base_type(key), base_type(value)),
                _ => format!("repeated {base}"),
            }
        }
    }
}

fn base_type(field: &FieldDescriptorProto) -> String {
    if matches!(field.r#type(), Type::Message | Type::Enum) {
        return local(field.type_name()).to_owned();
    }
    let scalar = field.r#type().as_str_name();
    scalar.strip_prefix("TYPE_").unwrap().to_ascii_lowercase()
}

fn is_map_entry(message: &DescriptorProto) -> bool {
    message.options.as_ref().is_some_and(|o| o.map_entry())
}

/// A type of this package without the package's name.
fn local(type_name: &str) -> &str {
    type_name.strip_prefix(PACKAGE).unwrap_or_else(|| panic!("{type_name} is not of this package"))
}

/// Reads the field option `debug_redact`, which `prost_types` omits, with the needed part of `descriptor.proto`.
mod redact {
    use std::collections::BTreeSet;

    use prost::Message;

    #[derive(Clone, PartialEq, Message)]
    struct Set {
        #[prost(message, repeated, tag = "1")]
        file: Vec<File>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct File {
        #[prost(message, repeated, tag = "4")]
        message_type: Vec<Type>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Type {
        #[prost(string, tag = "1")]
        name: String,
        #[prost(message, repeated, tag = "2")]
        field: Vec<Field>,
        #[prost(message, repeated, tag = "3")]
        nested_type: Vec<Self>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Field {
        #[prost(int32, tag = "3")]
        number: i32,
        #[prost(message, optional, tag = "8")]
        options: Option<Options>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Options {
        #[prost(bool, tag = "16")]
        debug_redact: bool,
    }

    /// The redacted fields of a descriptor set: message (with its enclosing messages) and field number.
    pub(super) fn fields(descriptors: &[u8]) -> BTreeSet<(String, i32)> {
        let mut found = BTreeSet::new();
        for file in Set::decode(descriptors).unwrap().file {
            for message in &file.message_type {
                walk("", message, &mut found);
            }
        }
        found
    }

    fn walk(prefix: &str, message: &Type, found: &mut BTreeSet<(String, i32)>) {
        let name = format!("{prefix}{}", message.name);
        for field in &message.field {
            if field.options.as_ref().is_some_and(|o| o.debug_redact) {
                found.insert((name.clone(), field.number));
            }
        }
        let inner = format!("{name}.");
        for nested in &message.nested_type {
            walk(&inner, nested, found);
        }
    }
}

#[test]
fn the_contract_is_the_table() {
    let (expected, compiled) = (expected(), compiled());
    let lines = |rows: BTreeSet<&Row>| -> String {
        rows.iter().map(|row| format!("  {}\n", row.join(" ").trim_end())).collect()
    };
    let missing = lines(expected.difference(&compiled).collect());
    let additional = lines(compiled.difference(&expected).collect());
    assert!(
        missing.is_empty() && additional.is_empty(),
        "cri.proto differs from cri-v1.tsv\nonly in the table:\n{missing}only in the contract:\n{additional}"
    );
}

#[test]
fn the_contract_has_43_calls_in_package_runtime_v1() {
    let file = file();
    assert_eq!(file.package(), "runtime.v1");
    assert_eq!(file.syntax(), "proto3");
    let calls: usize = file.service.iter().map(|s| s.method.len()).sum();
    assert_eq!(calls, 43);
}

/// `proto/compiler/build.rs` names the messages whose Debug form `redact.rs` writes; this test fails when that list is out of date.
#[test]
fn every_message_with_a_secret_has_a_debug_form_by_hand() {
    let messages: BTreeSet<String> =
        redact::fields(crate::DESCRIPTORS).into_iter().map(|(message, _)| message).collect();
    assert_eq!(messages, BTreeSet::from(["AuthConfig".to_owned()]));
}
