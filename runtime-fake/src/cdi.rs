//! The Container Device Interface: resolves device names through specification files that vendors install.
//!
//! A specification lists what a container needs for a device: nodes, mounts, variables, groups. The files are read again for each
//! container that requests a device, so that a newly installed file takes effect.

mod edit;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod resolve;
mod scalar;
mod spec;

use std::{fs, path::PathBuf};

use cri::v1::ContainerConfig;

pub(crate) use edit::{PlanEdits, ProcessEdits};
pub(crate) use resolve::{Edits, NodeEdit};
use resolve::{Registry, edits_of};
use spec::Name;

use crate::launch::Invalid;

/// The key prefix of annotations whose values name devices.
const ANNOTATION: &str = "cdi.k8s.io/";

/// The devices that `config` names, in its field and in its annotations, without duplicates.
pub(crate) fn names(config: &ContainerConfig) -> Result<Vec<Name>, Invalid> {
    let field = "CDI_devices".to_owned();
    let devices = config.cdi_devices.iter().map(|device| (field.clone(), device.name.as_str()));
    let mut annotations: Vec<_> =
        config.annotations.iter().filter(|(key, _)| key.starts_with(ANNOTATION)).collect();
    annotations.sort();
    let values = annotations.iter().flat_map(|(key, value)| {
        value.split(',').map(move |text| (format!("the annotation {key:?}"), text))
    });
    let mut names = Vec::new();
    for (field, text) in devices.chain(values) {
        let name = Name::parse(text.trim())
            .map_err(|Invalid(problem)| Invalid(format!("{field}: {problem}")))?;
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

/// The edits for `names` from the specification files in `directories`. A later directory takes precedence over
/// an earlier one.
pub(crate) fn edits(directories: &[PathBuf], names: &[Name]) -> Result<Edits, Invalid> {
    if names.is_empty() {
        return Ok(Edits::default());
    }
    let mut registry = Registry::default();
    for (strength, directory) in directories.iter().enumerate() {
        // A missing directory has no specifications.
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        paths.sort();
        for path in paths {
            let Some(format) = spec::Format::of(&path) else {
                continue;
            };
            match fs::read_to_string(&path) {
                Ok(text) => registry.add(strength, &path, spec::parse(&text, format)),
                Err(error) => registry.add(strength, &path, Err(error.to_string())),
            }
        }
    }
    edits_of(&registry, names)
}

#[cfg(test)]
mod tests {
    use cri::v1::CdiDevice;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::field(&["bad"], &[], "CDI_devices: \"bad\" does not name a device")]
    #[case::annotation(
        &["a/b=c"],
        &[("cdi.k8s.io/x", "a/b=c,worse")],
        "the annotation \"cdi.k8s.io/x\": \"worse\" does not name a device"
    )]
    fn invalid_device_name_is_reported_with_its_field(
        #[case] devices: &[&str],
        #[case] annotations: &[(&str, &str)],
        #[case] expected: &str,
    ) {
        let owned = |&(key, value): &(&str, &str)| (key.to_owned(), value.to_owned());
        let config = ContainerConfig {
            cdi_devices: devices.iter().map(|&name| CdiDevice { name: name.to_owned() }).collect(),
            annotations: annotations.iter().map(owned).collect(),
            ..Default::default()
        };
        let Invalid(problem) = names(&config).unwrap_err();
        assert!(problem.starts_with(expected), "{problem}");
    }
}
