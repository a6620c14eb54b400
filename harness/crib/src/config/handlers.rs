//! The section `handlers:`.

use std::collections::BTreeMap;

use runtime_fake::{Config, Handler, Handlers};
use serde::Deserialize;

/// `handlers:`, by name.
#[derive(Debug, Default, Deserialize)]
#[serde(try_from = "BTreeMap<String, HandlerSection>")]
pub(crate) struct HandlersSection(Handlers);

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct HandlerSection {
    no_new_privs: bool,
    read_only_root: bool,
    seccomp_default: bool,
}

impl TryFrom<BTreeMap<String, HandlerSection>> for HandlersSection {
    type Error = String;

    fn try_from(sections: BTreeMap<String, HandlerSection>) -> Result<Self, String> {
        let mut handlers = Handlers::default();
        for (name, section) in sections {
            let handler = Handler {
                no_new_privs: section.no_new_privs,
                read_only_root: section.read_only_root,
                seccomp_default: section.seccomp_default,
            };
            handlers.add(&name, handler).map_err(|error| error.to_string())?;
        }
        Ok(Self(handlers))
    }
}

impl HandlersSection {
    pub(super) fn apply(self, config: &mut Config) {
        config.handlers = self.0;
    }
}
