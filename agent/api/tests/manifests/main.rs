//! Compares the table of supported fields with the fields of Kubernetes 1.36, and keeps docs/manifests.md up to date.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a table that is wrong has to fail the test")]

mod document;
mod schema;

use api::manifest::fields::{self, Support};
use compact::{Map, Set};
use schema::Schema;

/// Environment variable that makes the test update docs/manifests.md.
const UPDATE_DOCUMENT: &str = "CRIB_UPDATE_DOCS";

/// The types of the values in `roots`, as far as their fields have an effect.
fn reached(schema: &Schema, roots: &[&'static str]) -> Set<&'static str> {
    let mut reached = Set::new();
    let mut left = roots.to_vec();
    while let Some(name) = left.pop() {
        if !reached.insert(name) {
            continue;
        }
        for (field, of) in schema.get(name).into_iter().flatten() {
            let is_looked_at =
                matches!(fields::support(name, field), None | Some(Support::Done(_)));
            left.extend(of.filter(|_| is_looked_at));
        }
    }
    reached
}

#[test]
fn table_has_every_field_of_every_type_once() {
    let (schema, roots) = schema::of_kinds();
    let wanted: Map<&str, Set<&str>> = reached(&schema, &roots)
        .into_iter()
        .map(|name| {
            let names = schema[name].iter().map(|(field, _)| *field);
            (name, names.collect())
        })
        .collect();
    let mut found: Map<&str, Set<&str>> = Map::new();
    for known in fields::types() {
        let names = found.entry(known.name).or_default();
        assert!(names.is_empty(), "{} is in the table twice", known.name);
        let others = known.others.iter().flat_map(|fields| fields.names.split_whitespace());
        for field in known.done.split_whitespace().chain(others) {
            assert!(names.insert(field), "{}.{field} is in the table twice", known.name);
        }
    }
    for (name, names) in &wanted {
        assert_eq!(found.get(name), Some(names), "{name}");
    }
    let unused: Vec<&&str> = found.keys().filter(|name| !wanted.contains_key(*name)).collect();
    assert!(unused.is_empty(), "nothing has these types: {unused:?}");
}

#[test]
fn remarks_of_fields_are_not_empty() {
    for known in fields::types() {
        for fields in known.others {
            let (Support::Done(remark)
            | Support::NoEffect(remark)
            | Support::Warned(remark)
            | Support::Refused(remark)) = fields.support;
            let is_sentence = !remark.trim().is_empty() && remark.trim() == remark;
            assert!(is_sentence, "{}.{}: {remark:?}", known.name, fields.names);
        }
    }
}

#[test]
fn errors_state_a_remedy() {
    for known in fields::types() {
        for fields in known.others {
            if let Support::Refused(reason) = fields.support {
                let instead = reason.split_once(": ").map(|(_, instead)| instead);
                let verb = instead.and_then(|instead| instead.split(' ').next());
                let verbs = ["copy", "leave", "mount", "put", "use"];
                assert!(
                    verb.is_some_and(|verb| verbs.contains(&verb)),
                    "{}.{}: {reason}",
                    known.name,
                    fields.names
                );
            }
        }
    }
}

#[test]
fn document_is_up_to_date() {
    let (_, roots) = schema::of_kinds();
    let text = document::text(&roots);
    if std::env::var_os(UPDATE_DOCUMENT).is_some() {
        std::fs::write(document::path(), &text).unwrap();
    }
    let present = std::fs::read_to_string(document::path()).unwrap_or_default();
    let differs = present.lines().zip(text.lines()).position(|(a, b)| a != b);
    assert!(
        present == text,
        "docs/manifests.md is out of date from line {differs:?} on: run this test with {UPDATE_DOCUMENT}=1 to update it"
    );
}
