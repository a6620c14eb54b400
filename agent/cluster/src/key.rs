//! ◆ The key of an object. Pure.

use std::fmt;
use std::sync::Arc;

use crate::kind::Kind;

/// The key of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace; empty for kinds without namespaces.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

impl Key {
    /// The key of an object. The namespace is empty for kinds without namespaces.
    #[must_use]
    pub fn new(kind: Kind, namespace: &str, name: &str) -> Self {
        Self { kind, namespace: namespace.into(), name: name.into() }
    }

    /// The key of a pod.
    #[must_use]
    pub fn pod(namespace: &str, name: &str) -> Self {
        Self::new(Kind::pod(), namespace, name)
    }
}

impl fmt::Display for Key {
    /// `Pod default/web`, `Node n1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.namespace {
            "" => write!(f, "{} {}", self.kind, self.name),
            namespace => write!(f, "{} {namespace}/{}", self.kind, self.name),
        }
    }
}
