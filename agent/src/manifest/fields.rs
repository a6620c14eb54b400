//! ◆ What is done about each field of a manifest: one table, by which manifests are checked and docs/manifests.md is written.

mod containers;
mod objects;
mod pods;
mod storage;
mod volumes;
mod workloads;

/// What is done about a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// It has its effect; the text adds something.
    Done(&'static str),
    /// It is accepted without a word, because nothing that it could change exists here; the text says what is missing.
    NoEffect(&'static str),
    /// It has no effect, and the text is a warning.
    Warned(&'static str),
    /// The pod is refused; the text says why.
    Refused(&'static str),
}

/// A field with its name in manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Such as `hostNetwork`.
    pub name: &'static str,
    /// What is done about it.
    pub support: Support,
}

/// A type of Kubernetes' API, such as `PodSpec`, and all its fields.
#[derive(Clone, Copy, Debug)]
pub struct Type {
    /// Its name in the API.
    pub name: &'static str,
    /// The fields that have their effect and need no word, separated by spaces.
    pub done: &'static str,
    /// The other fields.
    pub others: &'static [Field],
}

/// The types that manifests consist of, from pods to the details of their parts.
pub fn types() -> impl Iterator<Item = &'static Type> {
    [
        pods::TYPES,
        containers::TYPES,
        volumes::TYPES,
        storage::TYPES,
        workloads::TYPES,
        objects::TYPES,
    ]
    .into_iter()
    .flatten()
}

/// What is done about a field; `None` if the type is not in the table, or has no such field.
#[must_use]
pub fn support(type_name: &str, field: &str) -> Option<Support> {
    let found = types().find(|known| known.name == type_name)?;
    let other = found.others.iter().find(|other| other.name == field);
    let done = || found.done.split_whitespace().any(|done| done == field);
    other
        .map(|other| other.support)
        .or_else(|| done().then_some(Support::Done("")))
}

/// A type whose fields all have their effect.
const fn all(name: &'static str, done: &'static str) -> Type {
    some(name, done, &[])
}

const fn some(name: &'static str, done: &'static str, others: &'static [Field]) -> Type {
    Type { name, done, others }
}

const fn done(name: &'static str, remark: &'static str) -> Field {
    Field {
        name,
        support: Support::Done(remark),
    }
}

const fn no_effect(name: &'static str, missing: &'static str) -> Field {
    Field {
        name,
        support: Support::NoEffect(missing),
    }
}

const fn warned(name: &'static str, warning: &'static str) -> Field {
    Field {
        name,
        support: Support::Warned(warning),
    }
}

const fn refused(name: &'static str, reason: &'static str) -> Field {
    Field {
        name,
        support: Support::Refused(reason),
    }
}
