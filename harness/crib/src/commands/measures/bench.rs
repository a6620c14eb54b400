//! `crib bench`: benchmarks a CRI runtime, or compares two.

mod report;

use std::io::{self, IsTerminal as _};

use bench::{BenchError, Effort, Endpoint, Options, Report, Section};
use crib_base::args::{Output, UnixEndpoint};
use crib_base::report::chain;
use crib_base::terminal_text::escape_json;
use indicatif::{ProgressBar, ProgressStyle};
use tokio_util::sync::CancellationToken;

use crate::client::Endpoints;
use crate::commands::measures::interruptible;
use crate::commands::prelude::*;
use crate::reported::{Destination, ensure_distinct, ensure_writable, write_file};

/// A report format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    Html,
    Json,
    Markdown,
}

/// Output options of the results.
#[derive(Clone, Debug, Args)]
struct Results {
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    /// Write a report: html=FILE, json=FILE or markdown=FILE; repeatable
    #[arg(long, value_name = "FORM=FILE")]
    report: Vec<Destination<Form>>,
}

/// Benchmark a CRI runtime, or compare two runtimes
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Examples:
  crib bench --runtime-endpoint unix:///run/containerd/containerd.sock --quick
  crib bench --vs unix:///run/containerd/containerd.sock --report html=bench.html
  crib bench --select growth,density --sizes 10,100,1000 --pods 100
  crib bench report bench.json --report markdown=performance.md
  crib bench compare old.json new.json

Sections:
  startup     the time until crib's own daemon answers its first call
  calls       each call of a pod's lifecycle, and the kernel operations of a container without a runtime
  throughput  complete pod lifecycles per second, with several pods in parallel (--concurrency)
  growth      the same calls as in the section calls, while many other pods run (--sizes)
  density     memory (PSS) of all processes that the runtime started for its pods (--pods)
  events      the latency of container events
  pulls       pulls of an image with one large layer, and of an image with many small layers
  logs        the throughput of container output to the log

With --vs, each round measures both runtimes, one after the other, and the ratio of the two runtimes is the median of the \
rounds' ratios. If the machine has other load, only the ratios of two runtimes are meaningful. docs/performance.md shows \
results and describes the JSON output.

At the end, the benchmark removes its own pods, and the pods of earlier benchmarks that were killed. Containers run the \
image of --image. Without --image, the benchmark builds an image from programs of this machine and serves it from its own \
registry, at 127.0.0.1 without TLS. At SIGINT or SIGTERM, the benchmark removes its pods and exits early; at a second \
signal, it exits immediately.

Exit codes:
    0  no call failed; notes in the output name the values that could not be measured
    1  a call failed, so the section with this call is incomplete
    2  bad usage
    3  no runtime was found, the runtime does not answer, or containers have no image
  130  interrupted by a signal, or because standard output was closed")]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    command: Option<BenchCommand>,
    /// Endpoint of a second runtime to compare with; each round measures both runtimes
    #[arg(long, value_name = "unix:///PATH")]
    vs: Option<UnixEndpoint>,
    /// Measure only these sections; repeatable, or separated by commas
    #[arg(long, value_name = "SECTION", value_delimiter = ',')]
    select: Vec<Section>,
    /// Do not measure these sections; repeatable, or separated by commas
    #[arg(long, value_name = "SECTION", value_delimiter = ',')]
    skip: Vec<Section>,
    /// Measure each section briefly (a few seconds in total), to test the benchmark itself; the results are not meaningful
    #[arg(long)]
    quick: bool,
    /// Number of times that each call is measured; slow calls are measured less often [default: 50]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,
    /// For the section growth: numbers of other pods that run during the calls [default: 10,100]
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    sizes: Vec<u16>,
    /// For the section density: number of pods [default: 50]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pods: Option<u16>,
    /// For the section throughput: numbers of parallel pods [default: 1,2,4,8,16]
    #[arg(long, value_name = "N,N", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..))]
    concurrency: Vec<u16>,
    /// Timeout of each call
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    deadline: Duration,
    /// Image of the containers, which must contain a shell [default: an image built from programs of this machine]
    #[arg(long, value_name = "NAME")]
    image: Option<String>,
    /// Port at 127.0.0.1 of the image registry that `crib bench` starts [default: a free port]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    registry_port: Option<u16>,
    #[command(flatten)]
    results: Results,
    #[command(flatten)]
    pub(crate) connection: Endpoints,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
enum BenchCommand {
    Compare(report::CompareArgs),
    Report(report::ReportArgs),
}

/// Benchmarks runtimes, prints an earlier benchmark, or compares two.
pub(crate) async fn run(args: &BenchArgs) -> Result<Exit, CallError> {
    match &args.command {
        Some(BenchCommand::Compare(args)) => report::compare_reports(args),
        Some(BenchCommand::Report(args)) => report::run(args),
        None => bench(args).await,
    }
}

async fn bench(args: &BenchArgs) -> Result<Exit, CallError> {
    let sections = sections(&args.select, &args.skip)?;
    ensure_distinct(args.results.report.iter().map(|report| &report.file))?;
    let writable = args.results.report.iter().map(|report| ensure_writable(&report.file));
    let _fifos = writable.collect::<Result<Vec<_>, _>>()?;
    let (runtime, images) = args.connection.sockets()?;
    let mut endpoints = vec![Endpoint { runtime, images }];
    let second = args.vs.as_ref().map(UnixEndpoint::path);
    endpoints.extend(second.map(Endpoint::new));
    let program = std::env::current_exe().map_err(|source| CallError::Io {
        doing: "find the program of this process".to_owned(),
        source,
    })?;
    let options = Options {
        endpoints,
        image: args.image.clone(),
        registry_port: args.registry_port,
        sections,
        effort: effort(args),
        deadline: args.deadline,
        floor: Some(program.clone()),
        crib: Some(program),
    };
    let interrupt = CancellationToken::new();
    let bar = spinner();
    let has_terminal = io::stderr().is_terminal();
    let measuring = bench::bench(options, interrupt.clone(), |what| {
        // Without a terminal for the spinner, a line names the current measurement.
        if has_terminal {
            bar.set_message(what.to_owned());
            bar.tick();
        } else {
            print_stderr(what);
        }
    });
    let report = match interruptible(measuring, "benchmark", &bar, &interrupt).await? {
        None => return Ok(Exit::Interrupted),
        Some(Ok(report)) => report,
        Some(Err(error)) => {
            print_stderr(&chain(&error));
            return Ok(exit(&error));
        }
    };
    show(&report, &args.results)?;
    Ok(if interrupt.is_cancelled() {
        Exit::Interrupted
    } else if report.failures.is_empty() {
        Exit::Success
    } else {
        Exit::Failed
    })
}

fn exit(error: &BenchError) -> Exit {
    match error {
        BenchError::NoRuntime { .. } | BenchError::NoImage(_) => Exit::NoRuntime,
        BenchError::Interrupted => Exit::Interrupted,
        BenchError::Refused { .. }
        | BenchError::Wait(_)
        | BenchError::Io { .. }
        | BenchError::LongSocket(_) => Exit::Failed,
    }
}

/// The selected sections in their order; all sections if none is selected.
fn sections(select: &[Section], skip: &[Section]) -> Result<Vec<Section>, CallError> {
    let selected = |section: &Section| select.is_empty() || select.contains(section);
    let all = Section::ALL.into_iter().filter(selected);
    let chosen: Vec<Section> = all.filter(|section| !skip.contains(section)).collect();
    if chosen.is_empty() {
        let none = "no section is left: --select and --skip exclude all sections";
        return Err(CallError::Usage(none.to_owned()));
    }
    Ok(chosen)
}

/// The effort of the benchmark: the default or that of `--quick`, changed by the other options.
fn effort(args: &BenchArgs) -> Effort {
    let base = match args.quick {
        true => Effort::quick(),
        false => Effort::full(),
    };
    let mut sizes: Vec<usize> = args.sizes.iter().copied().map(usize::from).collect();
    // The sizes must increase, because pods are only added.
    sizes.sort_unstable();
    sizes.dedup();
    let levels: Vec<u32> = args.concurrency.iter().copied().map(u32::from).collect();
    Effort {
        rounds: args.rounds.map_or(base.rounds, usize::from),
        sizes: if sizes.is_empty() { base.sizes } else { sizes },
        pods: args.pods.map_or(base.pods, usize::from),
        levels: if levels.is_empty() { base.levels } else { levels },
        ..base
    }
}

/// A spinner that shows the current measurement on a terminal.
fn spinner() -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    match ProgressStyle::with_template("{spinner} {elapsed} {msg}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Prints the results and writes the reports.
fn show(report: &Report, results: &Results) -> Result<(), CallError> {
    match results.output {
        Output::Text => {
            for line in bench::report::text(report).lines() {
                print(&escape_control(line))?;
            }
        }
        Output::Json => print_json(&bench::report::json(report).to_string())?,
    }
    for Destination { form, file } in &results.report {
        let text = match form {
            Form::Html => bench::report::html(report),
            Form::Json => escape_json(&format!("{}\n", bench::report::json(report))).into_owned(),
            Form::Markdown => bench::report::markdown(report),
        };
        write_file(file, &text)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use rstest::rstest;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        args: BenchArgs,
    }

    fn effort_of(line: &str) -> Effort {
        let words = ["bench"].into_iter().chain(line.split_whitespace());
        effort(&Command::try_parse_from(words).unwrap().args)
    }

    #[test]
    fn options_change_the_effort() {
        assert_eq!(effort_of(""), Effort::full());
        assert_eq!(effort_of("--quick"), Effort::quick());
        let line = "--quick --rounds 7 --sizes 100,3,100 --pods 9 --concurrency 4,1";
        let expected = Effort {
            rounds: 7,
            sizes: vec![3, 100],
            pods: 9,
            levels: vec![4, 1],
            ..Effort::quick()
        };
        assert_eq!(effort_of(line), expected);
    }

    #[rstest]
    #[case::all(&[], &[], Some(8))]
    #[case::some(&[Section::Logs, Section::Calls], &[], Some(2))]
    #[case::others(&[], &[Section::Growth], Some(7))]
    #[case::none(&[Section::Logs], &[Section::Logs], None)]
    fn sections_are_selected_and_skipped(
        #[case] select: &[Section],
        #[case] skip: &[Section],
        #[case] expected: Option<usize>,
    ) {
        let chosen = sections(select, skip).ok();
        assert_eq!(chosen.as_ref().map(Vec::len), expected);
        let ordered = chosen.is_none_or(|chosen| chosen.is_sorted());
        assert!(ordered);
    }

    #[rstest]
    #[case(BenchError::NoImage(String::new()), 3)]
    #[case(BenchError::Wait(String::new()), 1)]
    #[case(BenchError::Interrupted, 130)]
    fn error_has_its_exit_code(#[case] error: BenchError, #[case] code: u8) {
        assert_eq!(exit(&error).code(), code);
    }
}
