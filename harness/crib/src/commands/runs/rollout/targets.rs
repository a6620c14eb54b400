//! The workloads that the arguments of `crib rollout` name.

use std::path::PathBuf;

use serde_json::Value;

use crate::client::completion;
use crate::client::run_objects::{Found, RunObjects, all_in_manifests, named, of_kind};
use crate::commands::prelude::*;
use crate::objects::kinds::{RequestedObjects, requested};
use crate::objects::metadata;
use crate::objects::selectors::Labels;

/// The options that select workloads.
#[derive(Debug, Args)]
pub(super) struct TargetArgs {
    /// Deployments, DaemonSets or StatefulSets; kinds without names mean all of their objects
    #[arg(
        required_unless_present = "filename",
        value_name = "KIND/NAME|KIND",
        add = completion::kinds_and_objects()
    )]
    objects: Vec<String>,
    /// Use the objects of these manifests; repeatable
    #[arg(long, short = 'f', value_name = "FILE|DIR|-", conflicts_with_all = ["objects", "selector"])]
    filename: Vec<PathBuf>,
    /// Filter by labels: `app=web,tier!=db`, `app in (web, api)`, `app`, `!app`
    #[arg(short = 'l', long)]
    selector: Option<Labels>,
    /// Namespace of the objects
    #[arg(short, long, default_value = "default")]
    pub(super) namespace: String,
}

impl TargetArgs {
    /// The objects, and errors for missing ones.
    pub(super) fn find<'r>(
        &self,
        runs: &'r [RunObjects],
    ) -> Result<(Vec<Found<'r>>, Vec<CallError>), CallError> {
        if !self.filename.is_empty() {
            return all_in_manifests(&self.filename, runs, &self.namespace);
        }
        let all: Vec<&Value> = runs.iter().flat_map(|run| &run.objects).collect();
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        match requested(&self.objects, &all).map_err(CallError::Usage)? {
            RequestedObjects::Named(_) if self.selector.is_some() => {
                let problem = "name cannot be provided when a selector is specified";
                return Err(CallError::Usage(problem.to_owned()));
            }
            RequestedObjects::Named(names) => {
                for (resource, name) in &names {
                    match named(runs, resource, &self.namespace, name) {
                        Ok(one) => found.push(one),
                        Err(error @ CallError::NoObject { .. }) => missing.push(error),
                        Err(error) => return Err(error),
                    }
                }
            }
            RequestedObjects::Lists(resources) => {
                let labels = self.selector.clone().unwrap_or_default();
                for resource in &resources {
                    found.extend(of_kind(runs, resource).into_iter().filter(|found| {
                        metadata(found.object, "namespace") == self.namespace
                            && labels.match_object(found.object)
                    }));
                }
            }
        }
        Ok((found, missing))
    }
}
