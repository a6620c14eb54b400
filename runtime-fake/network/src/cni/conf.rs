//! ◆ Parses CNI network configurations and builds the input of each plugin.

use std::fmt;

use serde_json::{Map, Value, json};

/// The supported versions of the specification, oldest first.
const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// A network: a list of plugins that run in order.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct NetworkList {
    pub(crate) name: String,
    pub(crate) version: Version,
    pub(crate) disable_check: bool,
    pub(crate) disable_gc: bool,
    pub(crate) plugins: Vec<Plugin>,
    /// The document that it was parsed from.
    pub(crate) source: Value,
}

/// One plugin of a network.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plugin {
    /// The name of its executable.
    pub(crate) kind: String,
    /// The capabilities that it declares.
    pub(crate) capabilities: Vec<String>,
    /// Its own configuration.
    config: Map<String, Value>,
}

/// A version of the specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(usize);

impl Version {
    /// The first version with CHECK.
    pub(crate) const CHECK: Self = Self(2);
    /// The first version with STATUS and GC.
    pub(crate) const STATUS: Self = Self(4);

    fn parse(text: &str) -> Option<Self> {
        VERSIONS.iter().position(|known| *known == text).map(Self)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(VERSIONS.get(self.0).copied().unwrap_or_default())
    }
}

/// Why a file is not a network configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConfError {
    /// Not JSON.
    #[error("it is not JSON: {0}")]
    Syntax(String),
    /// A field is missing or has the wrong type.
    #[error("{0}")]
    Field(String),
    /// The version is not supported.
    #[error("its cniVersion is {0:?}: one of 0.3.0, 0.3.1, 0.4.0, 1.0.0 and 1.1.0 is needed")]
    Version(String),
}

impl NetworkList {
    /// Parses a list of plugins (`.conflist`) or a single plugin.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, ConfError> {
        let source: Value =
            serde_json::from_slice(text).map_err(|error| ConfError::Syntax(error.to_string()))?;
        Self::read(source)
    }

    /// Parses a value saved from [`NetworkList::source`].
    pub(crate) fn read(source: Value) -> Result<Self, ConfError> {
        let field = |message: &str| ConfError::Field(message.to_owned());
        let top = source.as_object().ok_or_else(|| field("it is not a JSON object"))?;
        let name = top
            .get("name")
            .and_then(Value::as_str)
            .filter(|name| !name.is_empty())
            .ok_or_else(|| field("it has no name"))?
            .to_owned();
        let plain = |name: &str| !name.contains(['/', '\0']) && !name.starts_with('.');
        if !plain(&name) {
            return Err(field("its name has a slash, or begins with a dot"));
        }
        let plugins: Vec<Map<String, Value>> = match top.get("plugins") {
            None => vec![top.clone()],
            Some(Value::Array(plugins)) => plugins
                .iter()
                .map(|plugin| plugin.as_object().cloned())
                .collect::<Option<_>>()
                .ok_or_else(|| field("one of its plugins is not a JSON object"))?,
            Some(_) => return Err(field("its plugins are not a list")),
        };
        let plugins = plugins
            .into_iter()
            .map(|config| {
                let kind = config.get("type").and_then(Value::as_str);
                let kind = kind
                    .filter(|kind| !kind.is_empty() && plain(kind))
                    .ok_or_else(|| field("one of its plugins has no type, or one with a slash"))?;
                let declared = config.get("capabilities").and_then(Value::as_object);
                let declared = declared.into_iter().flatten();
                Ok(Plugin {
                    kind: kind.to_owned(),
                    capabilities: declared
                        .filter(|(_, on)| on.as_bool() == Some(true))
                        .map(|(name, _)| name.clone())
                        .collect(),
                    config,
                })
            })
            .collect::<Result<Vec<_>, ConfError>>()?;
        if plugins.is_empty() {
            return Err(field("it has no plugins"));
        }
        let flag = |name: &str| top.get(name).and_then(Value::as_bool) == Some(true);
        Ok(Self {
            name,
            version: version(top)?,
            disable_check: flag("disableCheck"),
            disable_gc: flag("disableGC"),
            plugins,
            source,
        })
    }

    /// The configuration for a plugin's standard input. `runtime` has the pod's runtime configuration, by capability.
    pub(crate) fn input(
        &self,
        plugin: &Plugin,
        previous: Option<&Value>,
        runtime: &Map<String, Value>,
        extra: Map<String, Value>,
    ) -> Value {
        let mut config = plugin.config.clone();
        // For the runtime, not for plugins (CNI specification 1.0, section 3).
        config.remove("capabilities");
        config.insert("name".to_owned(), json!(self.name));
        config.insert("cniVersion".to_owned(), json!(self.version.to_string()));
        let told: Map<String, Value> = runtime
            .iter()
            .filter(|(name, _)| plugin.capabilities.contains(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        if !told.is_empty() {
            config.insert("runtimeConfig".to_owned(), Value::Object(told));
        }
        if let Some(previous) = previous {
            config.insert("prevResult".to_owned(), previous.clone());
        }
        config.extend(extra);
        Value::Object(config)
    }
}

/// The highest supported version that the configuration lists (`cniVersions` since 1.1), or its only one.
fn version(top: &Map<String, Value>) -> Result<Version, ConfError> {
    let listed = top.get("cniVersions").and_then(Value::as_array);
    let single = top.get("cniVersion").and_then(Value::as_str);
    let words = listed.into_iter().flatten().filter_map(Value::as_str).chain(single);
    words
        .filter_map(Version::parse)
        .max()
        .ok_or_else(|| ConfError::Version(single.unwrap_or_default().to_owned()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    const LIST: &str = r#"{"cniVersion": "1.0.0", "name": "net", "plugins": [
        {"type": "bridge", "ipam": {"type": "host-local"}},
        {"type": "portmap", "capabilities": {"portMappings": true, "other": false}}]}"#;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn input_has_own_plugin_and_declared_capabilities() {
        let list = NetworkList::parse(LIST.as_bytes()).unwrap();
        let runtime = object(json!({"portMappings": [1], "other": 2, "dns": 3}));
        let input =
            |plugin, previous| list.input(&list.plugins[plugin], previous, &runtime, Map::new());
        assert_eq!(
            input(0, None),
            json!({"type": "bridge", "ipam": {"type": "host-local"}, "name": "net", "cniVersion": "1.0.0"})
        );
        assert_eq!(
            input(1, Some(&json!({"ips": []}))),
            json!({"type": "portmap", "name": "net", "cniVersion": "1.0.0",
                "prevResult": {"ips": []}, "runtimeConfig": {"portMappings": [1]}})
        );
    }

    #[test]
    fn single_configuration_is_list_of_one() {
        let text = r#"{"cniVersion": "0.3.1", "name": "one", "type": "ptp", "mtu": 1400}"#;
        let list = NetworkList::parse(text.as_bytes()).unwrap();
        let input = list.input(&list.plugins[0], None, &Map::new(), Map::new());
        assert_eq!(
            input,
            json!({"cniVersion": "0.3.1", "name": "one", "type": "ptp", "mtu": 1400})
        );
        assert!(list.version < Version::CHECK);
    }

    #[test]
    fn list_uses_highest_common_version() {
        let text = r#"{"cniVersion": "0.4.0", "cniVersions": ["0.4.0", "1.1.0", "9.0.0"], "name": "n", "type": "t"}"#;
        let list = NetworkList::parse(text.as_bytes()).unwrap();
        assert_eq!(list.version, Version::STATUS);
    }

    #[rstest]
    #[case("{", "it is not JSON")]
    #[case("[]", "not a JSON object")]
    #[case(r#"{"cniVersion": "1.0.0", "type": "t"}"#, "has no name")]
    #[case(r#"{"cniVersion": "1.0.0", "name": "../x", "type": "t"}"#, "its name has a slash")]
    #[case(
        r#"{"cniVersion": "1.0.0", "name": "n", "type": "../../bin/sh"}"#,
        "no type, or one with a slash"
    )]
    #[case(r#"{"cniVersion": "1.0.0", "name": "n", "plugins": []}"#, "has no plugins")]
    #[case(r#"{"cniVersion": "0.2.0", "name": "n", "type": "t"}"#, "its cniVersion is \"0.2.0\"")]
    #[case(r#"{"name": "n", "type": "t"}"#, "its cniVersion is \"\"")]
    fn invalid_configuration_is_rejected(#[case] text: &str, #[case] part: &str) {
        let error = NetworkList::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}
