//! `crib explain-run`: explains what `crib run` would do with manifests, without running them.

use std::path::PathBuf;

use crib_base::args::Output;
use crib_base::dirs::VolumesDirArgs;
use crib_run::{ManifestArgs, load};

use self::model::Explained;

use crate::commands::prelude::*;

mod claims;
mod model;
mod services;
mod text;

/// Show what `crib run` would start, pull and mount, and which manifest fields have no effect
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  crib explain-run pod.yaml
  helm template chart | crib explain-run -
  crib explain-run --output json pods/ | jq -r '.pods[].containers[].image'

`crib explain-run` starts, pulls and changes nothing. Exit codes:
    0  `crib run` would accept the manifests
    2  bad usage, or `crib run` would reject the manifests")]
pub(crate) struct ExplainRunArgs {
    /// Manifests: files, directories of *.yaml, *.yml and *.json files, or - for standard input
    #[arg(value_name = "FILE|DIR|-", required_unless_present = "filename")]
    manifests: Vec<PathBuf>,
    /// Manifests: a file, a directory or -, as in kubectl; repeatable
    #[arg(long, short = 'f', value_name = "FILE|DIR|-")]
    filename: Vec<PathBuf>,
    #[command(flatten)]
    how: ManifestArgs,
    #[command(flatten)]
    volumes: VolumesDirArgs,
    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: Output,
}

/// Prints the explanation.
pub(crate) fn run(args: &ExplainRunArgs) -> Exit {
    let manifests = [args.manifests.as_slice(), &args.filename].concat();
    let mut inputs = match load(&manifests, args.how) {
        Ok(inputs) => inputs,
        Err(problems) => {
            problems.iter().for_each(|problem| print_stderr(problem));
            return Exit::BadInput;
        }
    };
    match args.volumes.directory() {
        Ok(directory) => inputs.volumes_dir = directory,
        Err(problem) if !inputs.claims.is_empty() => {
            print_stderr(&problem);
            return Exit::BadInput;
        }
        Err(_) => {}
    }
    let explained = Explained::of(&inputs);
    finish(async {
        match args.output {
            Output::Text => print(&text::of(&explained))?,
            Output::Json => {
                let json = serde_json::to_string(&explained).map_err(|error| CallError::Io {
                    doing: "write the answer".to_owned(),
                    source: error.into(),
                })?;
                print_json(&json)?;
            }
        }
        Ok(Exit::Success)
    })
}
