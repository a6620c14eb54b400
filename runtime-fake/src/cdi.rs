//! The Container Device Interface: devices by name, described by files that their vendors install.
//!
//! A file says what a container needs for a device: nodes, mounts, variables, groups. The files are read again for each
//! container that asks for a device, so that what was installed a moment ago is known.

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

/// The beginning of an annotation's key whose value names devices.
const ANNOTATION: &str = "cdi.k8s.io/";

/// The devices that `config` names, in its field and in its annotations, each once.
pub(crate) fn names(config: &ContainerConfig) -> Result<Vec<Name>, Invalid> {
    let field = config.cdi_devices.iter().map(|d| d.name.as_str());
    let mut annotations: Vec<_> = config
        .annotations
        .iter()
        .filter(|(key, _)| key.starts_with(ANNOTATION))
        .collect();
    annotations.sort();
    let values = annotations.iter().flat_map(|(_, value)| value.split(','));
    let mut names = Vec::new();
    for text in field.chain(values) {
        let name = Name::parse(text.trim())?;
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

/// What the files in `directories` say about `names`. A later directory is stronger than an earlier one.
pub(crate) fn edits(directories: &[PathBuf], names: &[Name]) -> Result<Edits, Invalid> {
    if names.is_empty() {
        return Ok(Edits::default());
    }
    let mut registry = Registry::default();
    for (strength, directory) in directories.iter().enumerate() {
        // One that is not there holds nothing.
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
