//! Checks whether a CRI runtime keeps the promises of the protocol, and what its clients need: rules that run against any
//! endpoint, beside its other users.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use check::{Options};
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
//! Rules of your own run beside them:
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use check::outcome::{Verdict, equal};
//! use check::{Baseline, Context, Options, Rule, Severity};
//! # use tokio_util::sync::CancellationToken;
//!
//! static OWN: Rule = Rule {
//!     id: "OUR-CTR-001",
//!     severity: Severity::Must,
//!     says: "A container sees the host name of its pod.",
//!     source: "our scheduler",
//!     tags: &[],
//!     calls: &["CreateContainer"],
//!     faults: &[],
//!     body: |context| Box::pin(sees_host_name(context)),
//! };
//!
//! async fn sees_host_name(context: &Context) -> Verdict {
//!     let output = context.output(context.script("c", "hostname")).await?;
//!     equal("the output of hostname", output.trim(), "checked")
//! }
//!
//! let mut options = Options::new("/run/containerd/containerd.sock".as_ref());
//! options.rules.push(&OWN);
//! let report = check::check(options, CancellationToken::new(), |_| {}).await?;
//! assert!(!Baseline::default().fails(&report, Severity::Should));
//! # Ok(())
//! # }
//! ```
//!
//! Each rule has pods, a connection and a deadline of its own. The connection goes through a recording [`proxy::Proxy`], so a
//! failure shows its calls. Every rule names faults (see [`proxy::Fault`]) that it catches: a test runs it against them.
//!
//! | file | what |
//! |---|---|
//! | `outcome` | how a rule ends |
//! | `context` | what the body of a rule has |
//! | `cgroup` | the control group of the pods |
//! | `images` | images from a registry of this process |
//! | `configuration` ◆ | how a runtime is to be configured for them |
//! | `numbers` | whether two measurements agree |
//! | `rule` | a rule |
//! | `prelude` | what the files of rules have in common |
//! | `rules` | all of them, a file for each area |
//! | `select` ◆ | which rules run |
//! | `directory` | the directory of a run, whose lock tells whether it lives |
//! | `cleanup` | removes what was made |
//! | `restart` | how the runtime is restarted |
//! | `options` ◆ | what a check is asked to do, and why it cannot begin |
//! | `prepare` | what is asked of the runtime before the first rule |
//! | `pace` | how many rules run at once, and how long they wait |
//! | `run` | runs rules |
//! | `document` ◆ | the pages that describe them |
//! | `baseline` ◆ | the known failures of a runtime |
//! | `profile` ◆ | which rules a client depends on |
//! | `report` ◆ | reports: text, HTML, JSON, JUnit, SARIF |
//! | `compare` ◆ | what differs between two reports |

mod baseline;
mod cgroup;
pub mod compare;
mod configuration;
mod context;
mod document;
mod held;
mod images;
mod numbers;
pub mod outcome;
mod prelude;
mod profile;
pub mod report;
mod rule;
mod rules;
mod running;
mod select;

pub use baseline::{BadBaseline, Baseline};
pub use configuration::{ConfigurableRuntime, REGISTRY_PORT, registry_configuration};
pub use context::{Context, RULE_LABEL, RUN_LABEL, mark};
pub use document::{explanation, index};
pub use images::{ImageError, TestImages};
pub use outcome::Outcome;
pub use profile::Profile;
pub use rule::{Rule, Running, Severity};
pub use rules::all;
pub use running::cleanup::{BENCH_PREFIX, remove_run};
pub use running::dead_runs::remove_dead_runs;
pub use running::directory::RunDirectory;
pub use running::options::{CheckError, Options};
pub use running::restart::Restart;
pub use running::run::{CutShort, Report, RuleResult, check};
pub use select::{NoSuchRule, choose};
