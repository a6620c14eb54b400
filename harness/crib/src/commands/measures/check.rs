//! `crib check`: checks a runtime's conformance to the CRI.

mod compare;

use std::io::{self, IsTerminal as _};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use check::report::{self, brief, brief_failure, causes, failure, line, summary, word};
use check::{
    Baseline, CheckError, ConfigurableRuntime, CutShort, Options, Profile, Report, Restart, Rule,
    RuleResult, Severity, registry_configuration,
};
use compact::Set;
use crib_base::logging::{self, LogArgs, LogLevel};
use crib_base::named_text;
use crib_base::report::chain;
use crib_base::terminal_text::escape_json;
use indicatif::{ProgressBar, ProgressStyle};
use tokio_util::sync::CancellationToken;

use crate::client::Endpoints;
use crate::commands::measures::interruptible;
use crate::commands::prelude::*;
use crate::reported::{Destination, ensure_distinct, ensure_writable, write_file};

/// The lowest severity whose failures make the check fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum FailOn {
    /// Rules of severity must, which the kubelet needs.
    Must,
    /// Also rules of severity should, which features of some clients need.
    #[default]
    Should,
    /// Every rule.
    May,
}

/// The client whose rules are checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Client {
    /// Rules that the kubelet depends on.
    Kubelet,
    /// Rules that crictl depends on.
    Crictl,
    /// Every rule.
    #[default]
    Full,
}

/// A runtime for which `--print-config` has a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Configurable {
    Containerd,
    Crio,
}

/// A report format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    Html,
    Json,
    Junit,
    Sarif,
}

/// Check a runtime's conformance to the CRI
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Examples:
  crib check --runtime-endpoint unix:///run/containerd/containerd.sock
  crib check --select container --skip CRI-CTR-017
  crib check --profile kubelet --report html=check.html --report json=check.json
  crib check --select must --report junit=check.xml --trace calls.jsonl
  crib check --print-config crio
  crib check --explain CRI-CTR-017
  crib check --restart-command 'systemctl restart containerd'
  crib check compare old.json check.json

--select, --skip and --explain accept a rule id (CRI-CTR-017), a prefix of rule ids (CRI-CTR), a severity, an area, a \
tag or a call (StopContainer). --list prints the rules; --explain prints a rule, its source (such as the CRI \
specification) and the faults that the rule detects. docs/check.md shows how to check a runtime.

Each rule uses only pods that it creates, so other clients can use the runtime at the same time. At the end, the check \
removes its own pods, and the pods of earlier checks that were killed. Containers run the image of --image. Without --image, \
the check builds an image from programs of this machine and serves it from its own registry, at 127.0.0.1 without TLS. At \
SIGINT or SIGTERM, the check removes its pods and exits early; at a second signal, it exits immediately.

Exit codes:
    0  no rule failed whose severity is at least --fail-on
    1  a rule failed whose severity is at least --fail-on, or an object that the check created could not be removed
    2  bad usage
    3  no runtime was found, the runtime does not answer, or containers have no image
  130  interrupted by a signal, or because standard output was closed")]
pub(crate) struct CheckArgs {
    #[command(subcommand)]
    command: Option<CheckCommand>,
    /// Run only the rules that this client depends on
    #[arg(long, value_enum, default_value_t)]
    profile: Client,
    /// Run only the rules with this id, severity, area, tag or call; repeatable, or separated by commas
    #[arg(long, value_name = "WORD", value_delimiter = ',')]
    select: Vec<String>,
    /// Skip the rules with this id, severity, area, tag or call; repeatable, or separated by commas
    #[arg(long, value_name = "WORD", value_delimiter = ',')]
    skip: Vec<String>,
    /// Fail if a rule of this or a higher severity fails
    #[arg(long, value_enum, default_value_t)]
    fail_on: FailOn,
    /// List the rules without running them
    #[arg(long)]
    list: bool,
    /// Explain the rules with this id, severity, area, tag or call, without running them; repeatable, or separated by commas
    #[arg(long, value_name = "WORD", value_delimiter = ',', conflicts_with = "list")]
    explain: Vec<String>,
    /// Image of the containers, which must contain a shell [default: an image built from programs of this machine]
    #[arg(long, value_name = "NAME")]
    image: Option<String>,
    /// Port at 127.0.0.1 of the image registry that `crib check` starts [default: a free port; 5055 with --print-config]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    registry_port: Option<u16>,
    /// Print the configuration with which this runtime can pull from the registry of `crib check`, and exit; use the same
    /// --registry-port for the check
    #[arg(long, value_enum, value_name = "RUNTIME")]
    print_config: Option<Configurable>,
    /// Number of rules that run in parallel, not counting rules that have run for 10 s or longer
    #[arg(long, value_name = "N", default_value = "8")]
    parallel: NonZeroUsize,
    /// Timeout of each rule
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    deadline: Duration,
    /// Shell command that restarts the runtime and returns when the old process has ended [default: none; rules about
    /// restarts are skipped]
    #[arg(long, value_name = "COMMAND")]
    restart_command: Option<String>,
    /// File of known failures to ignore; each line has a rule id, a tab and an explanation
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// For each failed rule, print complete values and all requests and responses
    #[arg(short, long)]
    verbose: bool,
    /// Write a report: html=FILE, json=FILE, junit=FILE or sarif=FILE; repeatable
    #[arg(long, value_name = "FORM=FILE")]
    report: Vec<Destination<Form>>,
    /// Write all CRI calls to this file, one JSON object per line
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) connection: Endpoints,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
enum CheckCommand {
    Compare(compare::CompareArgs),
}

/// Runs the rules, lists them, or compares reports.
pub(crate) async fn run(args: &CheckArgs) -> Result<Exit, CallError> {
    match &args.command {
        Some(CheckCommand::Compare(args)) => compare::run(args),
        None => check(args).await,
    }
}

async fn check(args: &CheckArgs) -> Result<Exit, CallError> {
    if let Some(runtime) = args.print_config {
        let port = args.registry_port.unwrap_or(check::REGISTRY_PORT);
        let runtime = match runtime {
            Configurable::Containerd => ConfigurableRuntime::Containerd,
            Configurable::Crio => ConfigurableRuntime::Crio,
        };
        print(registry_configuration(runtime, port).trim_end())?;
        return Ok(Exit::Success);
    }
    if !args.explain.is_empty() {
        return explain(&args.explain);
    }
    let profile = match args.profile {
        Client::Kubelet => Profile::Kubelet,
        Client::Crictl => Profile::Crictl,
        Client::Full => Profile::Full,
    };
    // Selecting a rule outside the profile is not an error.
    let mut rules = check::choose(&check::all(), &args.select, &args.skip)
        .map_err(|error| CallError::Usage(error.to_string()))?;
    rules.retain(|rule| profile.has(rule));
    if rules.is_empty() {
        let none = "no rule is left: --profile, --select and --skip exclude all rules";
        return Err(CallError::Usage(none.to_owned()));
    }
    if args.list {
        for rule in rules {
            print(&listed(rule))?;
        }
        return Ok(Exit::Success);
    }
    let baseline = match &args.baseline {
        Some(file) => known(file)?,
        None => Baseline::default(),
    };
    let reports = args.report.iter().map(|report| &report.file);
    ensure_distinct(reports.clone().chain(&args.trace))?;
    let writable = reports.chain(&args.trace).map(|file| ensure_writable(file));
    let _fifos = writable.collect::<Result<Vec<_>, _>>()?;
    let (runtime, images) = args.connection.sockets()?;
    let options = Options {
        runtime,
        images,
        image: args.image.clone(),
        registry_port: args.registry_port,
        rules,
        parallel: args.parallel.get(),
        deadline: args.deadline,
        wait_limit: args.deadline / 3,
        restart: args.restart_command.as_deref().map(Restart::command),
        faults: Vec::new(),
    };
    logging::to_stderr(LogArgs { log_format: None, log_level: Some(LogLevel::Warn) });
    let interrupt = CancellationToken::new();
    let bar = bar(options.rules.len());
    // On a terminal, the progress bar replaces the lines of results.
    let mut lines = Lines { live: !io::stdout().is_terminal(), printed: Set::new() };
    let (mut failed, mut written) = (0, Ok(()));
    let checking = check::check(options, interrupt.clone(), |result| {
        if lines.live && written.is_ok() {
            written = lines.print(result);
            if written.is_err() {
                interrupt.cancel();
            }
        }
        failed += usize::from(word(result) == "fail");
        bar.inc(1);
        bar.set_message(format!("{failed} failed, {} ended", result.rule.id));
    });
    let report = match interruptible(checking, "check", &bar, &interrupt).await? {
        None => return Ok(Exit::Interrupted),
        Some(Ok(report)) => report,
        Some(Err(error)) => {
            print_stderr(&escape_control(&brief(&chain(&error))));
            return Ok(match error {
                CheckError::NoRuntime(_) | CheckError::NoImage(_) => Exit::NoRuntime,
                CheckError::Interrupted => Exit::Interrupted,
                CheckError::Io { .. } => Exit::Failed,
            });
        }
    };
    written?;
    show(&report, &mut lines, &baseline, args.verbose)?;
    write(args, &report, &baseline)?;
    let severity = match args.fail_on {
        FailOn::Must => Severity::Must,
        FailOn::Should => Severity::Should,
        FailOn::May => Severity::May,
    };
    let fails = || baseline.fails(&report, severity) || !report.left.is_empty();
    Ok(match report.cut_short {
        Some(CutShort::Interrupted) => Exit::Interrupted,
        Some(CutShort::RuntimeGone(_)) => Exit::NoRuntime,
        None if fails() => Exit::Failed,
        None => Exit::Success,
    })
}

fn explain(words: &[String]) -> Result<Exit, CallError> {
    let rules = check::choose(&check::all(), words, &[])
        .map_err(|error| CallError::Usage(error.to_string()))?;
    let texts: Vec<String> = rules.into_iter().map(check::explanation).collect();
    print(texts.join("\n\n").trim_end())?;
    Ok(Exit::Success)
}

fn listed(rule: &Rule) -> String {
    format!(
        "{} {:6} {}\n    {}; {}; {}",
        rule.id,
        rule.severity,
        rule.says,
        rule.area(),
        rule.tags.join(", "),
        rule.calls.join(", ")
    )
}

/// A progress bar on a terminal.
fn bar(rules: usize) -> ProgressBar {
    let bar = ProgressBar::new(u64::try_from(rules).unwrap_or(u64::MAX));
    match ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

fn known(file: &Path) -> Result<Baseline, CallError> {
    let text = named_text::read_text(file).map_err(|error| {
        CallError::Usage(format!("failed to read the baseline {}: {error}", file.display()))
    })?;
    let baseline = Baseline::parse(&text).map_err(|error| {
        CallError::Usage(format!("invalid baseline {}: {error}", file.display()))
    })?;
    for id in baseline.unknown(&check::all()) {
        print_stderr(&format!(
            "baseline {} has {id:?}, which is not a rule id: `crib check --list` shows all ids",
            file.display()
        ));
    }
    Ok(baseline)
}

/// Prints lines that may contain text from the runtime; escapes control characters.
fn print_lines(text: &str) -> Result<(), CallError> {
    print(&text.lines().map(escape_control).collect::<Vec<_>>().join("\n"))
}

/// Prints the line of each result once.
struct Lines {
    /// Whether lines are printed as soon as a rule has ended.
    live: bool,
    /// The ids of the rules whose lines were printed.
    printed: Set<&'static str>,
}

impl Lines {
    fn print(&mut self, result: &RuleResult) -> Result<(), CallError> {
        match self.printed.insert(result.rule.id) {
            true => print_lines(&line(result)),
            false => Ok(()),
        }
    }
}

fn show(
    report: &Report,
    lines: &mut Lines,
    baseline: &Baseline,
    verbose: bool,
) -> Result<(), CallError> {
    report.results.iter().try_for_each(|result| lines.print(result))?;
    let causes = causes(report);
    if !causes.is_empty() {
        print("")?;
        print_lines(&causes)?;
    }
    let failure = if verbose { failure } else { brief_failure };
    let repeated = report::repeated(report);
    let shown = |one: &&RuleResult| word(one) == "fail" && !repeated.contains(one.rule.id);
    for result in report.results.iter().filter(shown) {
        print("")?;
        print_lines(&failure(&report.command, result))?;
        if let Some(why) = baseline.explanation(result.rule.id) {
            print_lines(&format!("  known     {why}"))?;
        }
    }
    for id in baseline.outdated(report) {
        print(&format!("\n{id} passes: remove it from the baseline"))?;
    }
    print("")?;
    print_lines(&summary(report))
}

/// A JSON file, safe to print on a terminal.
fn document(value: &serde_json::Value) -> String {
    escape_json(&format!("{value:#}\n")).into_owned()
}

fn write(args: &CheckArgs, report: &Report, baseline: &Baseline) -> Result<(), CallError> {
    for Destination { form, file } in &args.report {
        let text = match form {
            Form::Html => report::html(report, baseline),
            Form::Json => document(&report::json(report)),
            Form::Junit => report::junit(report, baseline),
            Form::Sarif => document(&report::sarif(report, baseline)),
        };
        write_file(file, &text)?;
    }
    match &args.trace {
        Some(file) => write_file(file, &escape_json(&report::trace(report))),
        None => Ok(()),
    }
}
