//! Prints statistics: as a document at once, or as a table of what changed between two samples.

use std::time::Duration;

use crib_base::exit::Exit;

use super::CallError;
use super::output::{Document, Form, print_message};

/// How often to sample, and how to print.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sampling {
    /// Go on until a signal.
    pub(crate) watch: bool,
    /// The time between two samples.
    pub(crate) interval: Duration,
    pub(crate) output: Form,
}

impl Sampling {
    /// Prints what `measure` returns, a message of the contract called `name`; `table` prints the second of two samples.
    pub(crate) async fn print<T: prost::Message>(
        self,
        name: &str,
        measure: impl AsyncFn() -> Result<T, CallError>,
        table: impl Fn(&T, &T) -> Result<(), CallError>,
    ) -> Result<Exit, CallError> {
        let mut before = None;
        loop {
            let now = measure().await?;
            match (self.output, &before) {
                (Form::Json, _) => print_message(name, &now, Document::Json)?,
                (Form::Yaml, _) => print_message(name, &now, Document::Yaml)?,
                // The use of a processor is a difference: one sample has none.
                (Form::Table, None) => {
                    before = Some(now);
                    tokio::time::sleep(self.interval).await;
                    continue;
                }
                (Form::Table, Some(before)) => table(before, &now)?,
            }
            if !self.watch {
                return Ok(Exit::Success);
            }
            before = Some(now);
            tokio::time::sleep(self.interval).await;
        }
    }
}
