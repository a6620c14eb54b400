//! ◆ A name of an image for which there is a behaviour script, as the runtime's configuration gives it.

use std::str::FromStr;

use crate::formats::script::{Script, ScriptError};
use image_reference::{Reference, ReferenceError};

/// An image that acts out a script, under a name of its own: `registry.test/app:1=exit-1-after-2s`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedScript {
    /// Its name: a tag.
    pub(crate) name: Reference,
    /// What its containers do.
    pub(crate) script: Script,
}

/// Why an image cannot have a script.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NamedScriptError {
    /// There is no `=`.
    #[error("write IMAGE=SCRIPT, as in registry.test/app:1=exit-1-after-2s")]
    NoScript,
    /// Not a reference.
    #[error("{text:?} is no image reference: {why}")]
    Reference {
        /// As written.
        text: String,
        /// The reason.
        why: ReferenceError,
    },
    /// A digest belongs to a content, which a script has not.
    #[error("image {0} is named by its digest: name it by a tag")]
    Digest(String),
    /// Not a script.
    #[error("image {name}: {why}")]
    Script {
        /// The image's full name.
        name: String,
        /// The reason.
        why: ScriptError,
    },
}

impl NamedScript {
    /// The image called `name` that acts out `script`.
    ///
    /// # Errors
    /// [`NamedScriptError`], with the text that is wrong.
    pub fn new(name: &str, script: &str) -> Result<Self, NamedScriptError> {
        let name: Reference = name
            .parse()
            .map_err(|why| NamedScriptError::Reference { text: name.to_owned(), why })?;
        if name.digest.is_some() {
            return Err(NamedScriptError::Digest(name.to_string()));
        }
        match script.parse() {
            Ok(script) => Ok(Self { name, script }),
            Err(why) => Err(NamedScriptError::Script { name: name.to_string(), why }),
        }
    }
}

impl FromStr for NamedScript {
    type Err = NamedScriptError;

    fn from_str(text: &str) -> Result<Self, NamedScriptError> {
        let (name, script) = text.split_once('=').ok_or(NamedScriptError::NoScript)?;
        Self::new(name, script)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;

    use super::*;

    #[test]
    fn names_are_completed() {
        let named: NamedScript = "app=exit-1".parse().unwrap();
        assert_eq!(named.name.to_string(), "docker.io/library/app:latest");
        assert_eq!(named.script.to_string(), "exit-1");
    }

    #[rstest]
    #[case("app", "write IMAGE=SCRIPT, as in registry.test/app:1=exit-1-after-2s")]
    #[case("APP=run", "\"APP\" is no image reference: the repository must be in lower case")]
    #[case(
        "app=exit-1/fork-0",
        "image docker.io/library/app:latest: step \"fork-0\": \"0\" is not a number of processes: 1 to 1000"
    )]
    #[case(
        "a.test/app@sha256:0000000000000000000000000000000000000000000000000000000000000000=run",
        "image a.test/app@sha256:0000000000000000000000000000000000000000000000000000000000000000 is named by its digest: name it by a tag"
    )]
    fn malformed_named_script_is_refused(#[case] text: &str, #[case] want: &str) {
        assert_eq!(text.parse::<NamedScript>().unwrap_err().to_string(), want);
    }
}
