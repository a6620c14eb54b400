//! ◆ The section `behave:`.

use std::collections::BTreeMap;

use image::NamedScript;
use runtime_fake::Config;
use serde::Deserialize;

/// `behave:`, scripts by the images that act them out.
#[derive(Debug, Default, Deserialize)]
#[serde(try_from = "BTreeMap<String, String>")]
pub(super) struct BehaveSection(Vec<NamedScript>);

impl TryFrom<BTreeMap<String, String>> for BehaveSection {
    type Error = String;

    fn try_from(scripts: BTreeMap<String, String>) -> Result<Self, String> {
        let named = scripts.iter().map(|(name, script)| NamedScript::new(name, script));
        let named: Result<_, _> = named.collect();
        named.map(Self).map_err(|error| error.to_string())
    }
}

impl BehaveSection {
    pub(super) fn apply(self, config: &mut Config) {
        config.scripts.extend(self.0);
    }
}
