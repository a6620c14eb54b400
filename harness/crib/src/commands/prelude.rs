//! Common imports of the commands: arguments, exit codes, the client, and output.

pub(crate) use std::time::Duration;

pub(crate) use clap::{Args, Subcommand, ValueEnum};
pub(crate) use cri::v1;
pub(crate) use crib_base::args::duration;
pub(crate) use crib_base::exit::Exit;
pub(crate) use crib_base::report::print_stderr;

pub(crate) use crate::client::output::{escape_control, print, print_json};
pub(crate) use crate::client::{CallError, Connection, Cri, each, find, finish, human, with_codes};
