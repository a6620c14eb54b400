//! Checks whether a CRI runtime fulfils the protocol and its clients' needs: rules that run against any endpoint, in parallel with
//! its other clients.
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
//! Your own rules can run together with them:
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
//! Each rule has its own pods, connection and deadline. The connection goes through a recording [`proxy::Proxy`], so that a failure
//! shows its calls. Every rule names faults (see [`proxy::Fault`]) that violate it: a test verifies that the rule then fails.
//!
//! | module | content |
//! |---|---|
//! | `rules` | all rules, a module for each area; its head lists the areas' names |
//! | `rule`, `outcome`, `context`, `prelude` | a rule, its result, the context of its body, and what the rules' files share |
//! | `select`, `profile` ◆ | which rules run, and which ones a client depends on |
//! | `running` | runs rules in parallel: `run`, `prepare`, `pace` (concurrency, timeouts), `cleanup`, `dead_runs` |
//! | `directory`, `restart` | the directory of a run with its lock; restarts of the runtime |
//! | `images`, `cgroup` | the images and the cgroups of the rules |
//! | `numbers`, `fifo` | whether two measurements agree; whether processes of a container are alive |
//! | `baseline` ◆ | the expected failures of a runtime |
//! | `report` ◆ | reports: text, HTML, JSON, JUnit, SARIF; `tests/cli/tools/pages.rs` opens the page in a browser |
//! | `compare` ◆ | the differences between two reports |
//! | `document` ◆ | docs/rules.md and `crib check --explain` |
//!
//! Add a new rule to its area's module, with a fault that violates it. A rule uses any runtime, only through its socket.

mod baseline;
mod cgroup;
pub mod compare;
mod context;
mod directory;
mod document;
mod fifo;
mod images;
mod numbers;
pub mod outcome;
mod prelude;
mod profile;
pub mod report;
mod restart;
mod rule;
mod rules;
mod running;
mod select;

pub use baseline::{BadBaseline, Baseline};
pub use context::{Context, RULE_LABEL, RUN_LABEL, mark};
pub use directory::RunDirectory;
pub use document::{explanation, index};
pub use images::{ConfigurableRuntime, REGISTRY_PORT, registry_configuration};
pub use images::{ImageError, TestImages};
pub use outcome::Outcome;
pub use profile::Profile;
pub use restart::Restart;
pub use rule::{Rule, Running, Severity};
pub use rules::all;
pub use running::cleanup::{BENCH_PREFIX, remove_run};
pub use running::dead_runs::remove_dead_runs;
pub use running::run::{CutShort, Report, RuleResult, check};
pub use running::{CheckError, Options};
pub use select::{NoSuchRule, choose};
