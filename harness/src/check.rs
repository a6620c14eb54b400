//! Checks whether a CRI runtime keeps the promises of the protocol, and what its clients need: rules that run against any
//! endpoint, beside its other users.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use harness::check::{self, Options};
//! use tokio_util::sync::CancellationToken;
//!
//! let options = Options::new("/run/containerd/containerd.sock".as_ref());
//! let report = check::check(options, CancellationToken::new(), |_| {}).await?;
//! for result in report.results.iter().filter(|result| result.outcome.is_err()) {
//!     println!("{} {:?}", result.rule.id, result.outcome);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Each rule has pods, a connection and a deadline of its own. The connection goes through a recording [`crate::Proxy`], so a
//! failure shows its calls. Every rule names faults (see [`crate::proxy::Fault`]) that it catches: a test runs it against them.
//!
//! | file | what |
//! |---|---|
//! | `outcome` | how a rule ends |
//! | `context` | what the body of a rule has |
//! | `images` | images from a registry of this process |
//! | `rule` | a rule |
//! | `rules` | all of them, a file for each area |
//! | `select` ◆ | which rules run |
//! | `cleanup` | removes what was made |
//! | `run` | runs rules |
//! | `document` ◆ | the page that describes them |
//! | `baseline` ◆ | the known failures of a runtime |
//! | `report` | reports: text, JSON, JUnit, TAP |

mod baseline;
mod cleanup;
mod context;
mod document;
mod images;
pub mod outcome;
pub mod report;
mod rule;
mod rules;
mod run;
mod select;

pub use baseline::{BadBaseline, Baseline};
pub use context::{Context, RULE_LABEL, RUN_LABEL};
pub use document::document;
pub use outcome::Outcome;
pub use rule::{Rule, Running, Severity};
pub use rules::all;
pub use run::{CheckError, Options, Report, RuleResult, check};
pub use select::{NoSuchRule, choose};
