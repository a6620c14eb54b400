//! ◆ How each field of a manifest is supported: one table, from which manifests are checked and docs/manifests.md is generated.

mod containers;
mod objects;
mod pods;
mod storage;
mod workloads;

/// How a field is supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Support {
    /// It has its effect; the text is an additional remark.
    Done(&'static str),
    /// It is silently accepted, because nothing that it could change exists here; the text names what is missing.
    NoEffect(&'static str),
    /// It has no effect, and the text is a warning.
    Warned(&'static str),
    /// The pod is rejected; the text is the reason.
    Refused(&'static str),
}

/// Fields with the same support.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields {
    /// Their names in manifests, such as `hostNetwork`, separated by spaces.
    pub names: &'static str,
    /// How they are supported.
    pub support: Support,
}

/// A type of Kubernetes' API, such as `PodSpec`, and all its fields.
#[derive(Clone, Copy, Debug)]
pub struct Type {
    /// Its name in the API.
    pub name: &'static str,
    /// The fields that have their effect without a remark, separated by spaces.
    pub done: &'static str,
    /// The other fields.
    pub others: &'static [Fields],
}

/// The types in manifests, from pods to the details of their parts.
pub fn types() -> impl Iterator<Item = &'static Type> {
    [pods::TYPES, containers::TYPES, storage::TYPES, workloads::TYPES, objects::TYPES]
        .into_iter()
        .flatten()
}

/// How a field is supported; `None` if the type is not in the table, or has no such field.
#[must_use]
pub fn support(type_name: &str, field: &str) -> Option<Support> {
    let found = types().find(|known| known.name == type_name)?;
    let is_among = |names: &str| names.split_whitespace().any(|name| name == field);
    let other = found.others.iter().find(|other| is_among(other.names));
    let done = || is_among(found.done);
    other.map(|other| other.support).or_else(|| done().then_some(Support::Done("")))
}

/// A type whose fields all have their effect.
const fn all(name: &'static str, done: &'static str) -> Type {
    some(name, done, &[])
}

const fn some(name: &'static str, done: &'static str, others: &'static [Fields]) -> Type {
    Type { name, done, others }
}

const fn done(names: &'static str, remark: &'static str) -> Fields {
    Fields { names, support: Support::Done(remark) }
}

const fn no_effect(names: &'static str, missing: &'static str) -> Fields {
    Fields { names, support: Support::NoEffect(missing) }
}

const fn warned(names: &'static str, warning: &'static str) -> Fields {
    Fields { names, support: Support::Warned(warning) }
}

const fn refused(names: &'static str, reason: &'static str) -> Fields {
    Fields { names, support: Support::Refused(reason) }
}
