//! Common imports of the rules' files: the context, the comparisons, the sources, and the configurations of pods and containers.

pub(crate) use std::time::Duration;

pub(crate) use cri::v1::{self, ContainerState, NamespaceMode, PodSandboxState};
pub(crate) use harness::fixture;
pub(crate) use harness::fixture_image::{ImageBuilder, Layer};
pub(crate) use harness::pod::Pod;
pub(crate) use tonic::{Code, Status};

pub(crate) use crate::context::Context;
pub(crate) use crate::outcome::{
    Outcome, Verdict, diverges, ensure, equal, equal_output, failed, has_message, includes, joined,
    present, refused, refused_with, skipped, unsupported,
};
pub(crate) use crate::rule::sources::*;
pub(crate) use crate::rule::{ALONE, RESTART, Rule, rules};
