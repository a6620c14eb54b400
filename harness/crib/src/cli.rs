//! The command line of `crib`: its subcommands and their help.

use std::ffi::OsString;
use std::process;

use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::CompleteEnv;
use crib_base::exit::Exit;
use crib_base::report::print_stderr;

use crate::client::{ClientArgs, completion, finish, until_signal};
use crate::commands::image_store::{load, pull, rmi};
use crate::commands::lifecycle::{create, rm, runp, start, update};
use crate::commands::listing::{
    events, images, info, inspect, metricsp, pods, ps, stats, statsp, version,
};
use crate::commands::measures::{bench, check};
use crate::commands::runs::{describe, down, explain_run, get, rollout, scale, top, volume, wait};
use crate::commands::servers::{agent, kubelet, proxy, registry, runtime};
use crate::commands::shell;
use crate::commands::streams::{attach, cp, debug, exec, logs, port_forward};

mod boolean_flags;
#[cfg(test)]
mod documents;
mod first_argument;

/// The command line of `crib`.
#[derive(Debug, Parser)]
#[command(name = "crib", version = env!("CRIB_VERSION"), about = "Run Kubernetes pods from manifests, or run the CRI runtime or the kubelet-like agent separately", long_about = None, propagate_version = true, max_term_width = 100)]
#[command(after_help = "Examples:
  crib run pod.yaml                 run a pod, print its state and logs, clean up
  crib runtime                      serve the Container Runtime Interface on a unix socket
  crib run --help                   every option and the exit codes")]
pub(crate) struct Cli {
    #[command(flatten)]
    client: ClientArgs,
    #[command(subcommand)]
    command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<crib_run::RunArgs>),
    Down(down::DownArgs),
    ExplainRun(explain_run::ExplainRunArgs),
    Runtime(runtime::RuntimeArgs),
    Agent(Box<agent::AgentArgs>),
    Kubelet(Box<kubelet::KubeletArgs>),
    Registry(registry::RegistryArgs),
    Check(check::CheckArgs),
    Bench(bench::BenchArgs),
    Proxy(proxy::ProxyArgs),
    Volume(volume::VolumeArgs),
    Pods(pods::PodsArgs),
    Ps(ps::PsArgs),
    Get(get::GetArgs),
    Wait(wait::WaitArgs),
    Rollout(rollout::RolloutArgs),
    Scale(scale::ScaleArgs),
    Describe(describe::DescribeArgs),
    #[command(aliases = ["image", "img"])]
    Images(images::ImagesArgs),
    Pull(pull::PullArgs),
    Load(load::LoadArgs),
    Rmi(rmi::RmiArgs),
    Inspect(inspect::InspectArgs),
    Inspectp(inspect::InspectpArgs),
    Inspecti(inspect::InspectiArgs),
    Logs(logs::LogsArgs),
    Exec(exec::ExecArgs),
    Attach(attach::AttachArgs),
    Cp(cp::CpArgs),
    Debug(Box<debug::DebugArgs>),
    PortForward(port_forward::PortForwardArgs),
    Stats(stats::StatsArgs),
    Top(top::TopArgs),
    Runp(runp::RunpArgs),
    Create(create::CreateArgs),
    Start(start::StartArgs),
    Stop(start::StopArgs),
    Rm(rm::RmArgs),
    Stopp(runp::StoppArgs),
    Rmp(runp::RmpArgs),
    Update(update::UpdateArgs),
    Checkpoint(start::CheckpointArgs),
    Statsp(statsp::StatspArgs),
    Metricsp(metricsp::MetricspArgs),
    Metricdescs(metricsp::MetricdescsArgs),
    Info(info::InfoArgs),
    Imagefsinfo(images::ImagefsinfoArgs),
    RuntimeConfig(info::RuntimeConfigArgs),
    UpdateRuntimeConfig(update::UpdateRuntimeConfigArgs),
    #[command(alias = "event")]
    Events(events::EventsArgs),
    Version(version::VersionArgs),
    #[command(alias = "completion")]
    Completions(shell::CompletionsArgs),
    Man(shell::ManArgs),
}

impl Command {
    /// Applies the flags before the command; the error is a flag that has no effect for this command.
    fn inherit(&mut self, before: &ClientArgs) -> Result<(), &'static str> {
        match self {
            Self::Run(_)
            | Self::Down(_)
            | Self::ExplainRun(_)
            | Self::Runtime(_)
            | Self::Agent(_)
            | Self::Kubelet(_)
            | Self::Registry(_)
            | Self::Proxy(_)
            | Self::Volume(_)
            | Self::Completions(_)
            | Self::Man(_) => return before.given().map_or(Ok(()), Err),
            Self::Check(args) => args.connection.inherit(before),
            Self::Bench(args) => args.connection.inherit(before),
            Self::Pods(args) => args.connection.inherit(before),
            Self::Ps(args) => args.connection.inherit(before),
            Self::Get(args) => args.connection.inherit(before),
            Self::Wait(args) => args.connection.inherit(before),
            Self::Rollout(args) => args.connection().inherit(before),
            Self::Scale(args) => args.connection.inherit(before),
            Self::Describe(args) => args.connection.inherit(before),
            Self::Images(args) => args.connection.inherit(before),
            Self::Pull(args) => args.connection.inherit(before),
            Self::Load(args) => args.connection.inherit(before),
            Self::Rmi(args) => args.connection.inherit(before),
            Self::Inspect(args) => args.connection.inherit(before),
            Self::Inspectp(args) => args.connection.inherit(before),
            Self::Inspecti(args) => args.connection.inherit(before),
            Self::Logs(args) => args.connection.inherit(before),
            Self::Exec(args) => args.connection.inherit(before),
            Self::Attach(args) => args.connection.inherit(before),
            Self::Cp(args) => args.connection.inherit(before),
            Self::Debug(args) => args.connection.inherit(before),
            Self::PortForward(args) => args.connection.inherit(before),
            Self::Stats(args) => args.connection.inherit(before),
            Self::Top(args) => args.connection.inherit(before),
            Self::Runp(args) => args.connection.inherit(before),
            Self::Create(args) => args.connection.inherit(before),
            Self::Start(args) => args.connection.inherit(before),
            Self::Stop(args) => args.connection.inherit(before),
            Self::Rm(args) => args.connection.inherit(before),
            Self::Stopp(args) => args.connection.inherit(before),
            Self::Rmp(args) => args.connection.inherit(before),
            Self::Update(args) => args.connection.inherit(before),
            Self::Checkpoint(args) => args.connection.inherit(before),
            Self::Statsp(args) => args.connection.inherit(before),
            Self::Metricsp(args) => args.connection.inherit(before),
            Self::Metricdescs(args) => args.connection.inherit(before),
            Self::Info(args) => args.connection.inherit(before),
            Self::Imagefsinfo(args) => args.connection.inherit(before),
            Self::RuntimeConfig(args) => args.connection.inherit(before),
            Self::UpdateRuntimeConfig(args) => args.connection.inherit(before),
            Self::Events(args) => args.connection.inherit(before),
            Self::Version(args) => args.connection.inherit(before),
        }
        Ok(())
    }
}

impl Cli {
    /// The arguments in a form that clap parses: kubectl and crictl accept more forms.
    fn rewritten(arguments: Vec<OsString>) -> Vec<OsString> {
        let mut definition = Self::command();
        let arguments = first_argument::separate(arguments, &mut definition);
        boolean_flags::without_values(arguments, &mut definition)
    }

    /// Parses the command line of this process; exits with a message if it is invalid.
    pub(crate) fn read() -> Self {
        // Exits if a shell requests completions.
        CompleteEnv::with_factory(Self::command).var(completion::VARIABLE).complete();
        let arguments: Vec<OsString> = std::env::args_os().collect();
        let is_kubelet = arguments.get(1).is_some_and(|word| word == "kubelet");
        let arguments = match is_kubelet {
            true => kubelet::with_hyphens(arguments),
            false => Self::rewritten(arguments),
        };
        Self::try_parse_from(arguments).unwrap_or_else(|error| {
            // A kubelet exits with the same code for all errors.
            if is_kubelet && error.use_stderr() {
                let _ = error.print();
                process::exit(Exit::Failed.code().into());
            }
            error.exit()
        })
    }
}

/// The exit code of a command that ended or failed to start.
fn either(ended: Result<Exit, Exit>) -> Exit {
    ended.unwrap_or_else(|exit| exit)
}

/// Executes the command. Must be called while the process has a single thread.
pub(crate) fn dispatch(mut cli: Cli) -> Exit {
    if let Err(flag) = cli.command.inherit(&cli.client) {
        print_stderr(&format!("{flag} has no effect when given before this command: leave it out"));
        return Exit::BadInput;
    }
    match cli.command {
        Command::Run(args) => either(crib_run::run(&args)),
        Command::Down(args) => down::run(&args),
        Command::ExplainRun(args) => explain_run::run(&args),
        Command::Runtime(args) => either(runtime::run(args)),
        Command::Agent(args) => either(agent::run(*args)),
        Command::Kubelet(args) => kubelet::run(&args),
        Command::Registry(args) => either(registry::run(&args)),
        Command::Check(args) => finish(check::run(&args)),
        Command::Bench(args) => finish(bench::run(&args)),
        Command::Proxy(args) => finish(proxy::run(&args)),
        Command::Volume(args) => volume::run(&args),
        Command::Pods(args) => finish(pods::run(&args)),
        Command::Ps(args) => finish(ps::run(&args)),
        Command::Get(args) => finish(get::run(&args)),
        Command::Wait(args) => finish(until_signal(wait::run(&args))),
        Command::Rollout(args) => finish(until_signal(rollout::run(&args))),
        Command::Scale(args) => finish(async move { scale::run(&args) }),
        Command::Describe(args) => finish(describe::run(&args)),
        Command::Images(args) => finish(images::run(&args)),
        // A signal drops the call, which cancels the pull.
        Command::Pull(args) => finish(until_signal(pull::run(&args))),
        Command::Load(args) => finish(load::run(&args)),
        Command::Rmi(args) => finish(rmi::run(&args)),
        Command::Inspect(args) => finish(inspect::run(&args)),
        Command::Inspectp(args) => finish(inspect::inspect_pods(&args)),
        Command::Inspecti(args) => finish(inspect::inspect_images(&args)),
        Command::Logs(args) => finish(until_signal(logs::run(&args))),
        Command::Exec(args) => finish(exec::run(&args)),
        Command::Attach(args) => finish(attach::run(&args)),
        Command::Debug(args) => finish(debug::run(&args)),
        // A signal drops the copy; files that were copied already are kept.
        Command::Cp(args) => finish(until_signal(cp::run(&args))),
        Command::PortForward(args) => finish(until_signal(port_forward::run(&args))),
        Command::Stats(args) => finish(until_signal(stats::run(&args))),
        Command::Top(args) => finish(until_signal(top::run(&args))),
        Command::Runp(args) => finish(runp::run(&args)),
        Command::Create(args) => finish(until_signal(create::run(&args))),
        Command::Start(args) => finish(start::run(&args)),
        Command::Stop(args) => finish(start::stop(&args)),
        Command::Rm(args) => finish(rm::run(&args)),
        Command::Stopp(args) => finish(runp::stop(&args)),
        Command::Rmp(args) => finish(runp::remove_all(&args)),
        Command::Update(args) => finish(update::run(&args)),
        Command::Checkpoint(args) => finish(until_signal(start::checkpoint(&args))),
        Command::Statsp(args) => finish(until_signal(statsp::run(&args))),
        Command::Metricsp(args) => finish(until_signal(metricsp::run(&args))),
        Command::Metricdescs(args) => finish(metricsp::list_descriptors(&args)),
        Command::Info(args) => finish(info::run(&args)),
        Command::Imagefsinfo(args) => finish(images::filesystems(&args)),
        Command::RuntimeConfig(args) => finish(info::runtime_config(&args)),
        Command::UpdateRuntimeConfig(args) => finish(update::update_runtime_config(&args)),
        Command::Events(args) => finish(until_signal(events::run(&args))),
        Command::Version(args) => finish(version::run(&args)),
        Command::Completions(args) => shell::completions(&args),
        Command::Man(args) => shell::man(&args, Cli::command()),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn command_line_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[rstest]
    #[case("crib run")]
    #[case("crib run a.yaml --timeout soon")]
    #[case("crib run a.yaml --quiet --output json")]
    #[case("crib run a.yaml --isolation strong")]
    #[case("crib run a.yaml --name Web")]
    #[case("crib run a.yaml --name web --keep")]
    #[case("crib run a.yaml --name web --output json")]
    #[case("crib run a.yaml --detached")]
    #[case("crib down")]
    #[case("crib down --all web")]
    #[case("crib ps --run web --runtime-endpoint unix:///s")]
    #[case("crib runtime --listen tcp://localhost:1")]
    #[case("crib runtime --listen unix://relative")]
    #[case("crib runtime --registry-mirror docker.io")]
    #[case("crib agent --manifests /m")]
    #[case("crib agent --runtime-endpoint unix:///s")]
    #[case("crib agent --runtime-endpoint unix:///s --manifests /m --manifest-mode strict")]
    #[case("crib agent --runtime-endpoint unix:///s --manifests m --node-labels a")]
    #[case("crib agent --runtime-endpoint unix:///s --manifests m --register-with-taints a=b")]
    #[case("crib agent --runtime-endpoint unix:///s --manifests m --system-reserved gpu=1")]
    #[case("crib agent --runtime-endpoint unix:///s --manifests m --event-driven-pleg=perhaps")]
    #[case("crib registry --listen 5000")]
    #[case("crib registry --auth basic")]
    #[case("crib registry --ca-file x")]
    #[case("crib check --report pdf=x")]
    #[case("crib check --profile dockershim")]
    #[case("crib check --print-config docker --registry-port 5055")]
    #[case("crib check --registry-port 0")]
    #[case("crib check compare old.json")]
    #[case("crib check --list compare old.json new.json")]
    #[case("crib check --fail-on never")]
    #[case("crib bench --select speed")]
    #[case("crib bench --rounds 0")]
    #[case("crib bench --sizes 10,many")]
    #[case("crib bench --report junit=x")]
    #[case("crib bench --vs tcp://localhost:1")]
    #[case("crib bench report")]
    #[case("crib bench --quick report a.json")]
    #[case("crib proxy --listen /a")]
    #[case("crib proxy")]
    #[case("crib proxy --listen /a --upstream /b --fault dance")]
    #[case("crib proxy --listen /a ctl --control /c list")]
    #[case("crib proxy ctl list")]
    #[case("crib proxy record f --listen /a")]
    #[case("crib proxy replay f")]
    #[case("crib completions cobol")]
    #[case("crib dance")]
    fn parser_rejects_bad_flags_with_exit_code_2(#[case] line: &str) {
        let error = Cli::try_parse_from(line.split(' ')).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{error}");
    }

    #[rstest]
    #[case("crib run a.yaml")]
    #[case("crib run - dir b.json --quiet --timeout 90 --keep --lenient")]
    #[case(
        "crib run a.yaml --output json --timeout 1m30s --image-archive x.tar --image-archive dir"
    )]
    #[case("crib run a.yaml --isolation rootless --state-dir /tmp/x")]
    #[case("crib run a.yaml --name web --watch --timeout 5m --quiet")]
    #[case("crib down web db --force")]
    #[case("crib ps --run web")]
    #[case("crib runtime")]
    #[case(
        "crib runtime --config c.yaml --registry-mirror docker.io=http://127.0.0.1:5000 --registry-mirror *=https://m"
    )]
    #[case(
        "crib runtime --listen unix:///run/x.sock --until-stdin-closes --ephemeral --log-format json --log-level debug"
    )]
    #[case("crib agent --runtime-endpoint unix:///run/x.sock --manifests /m --node-name n")]
    #[case(
        "crib agent --runtime-endpoint unix:///s --manifest-url http://h/p --manifest-url-headers f"
    )]
    #[case(
        "crib agent --runtime-endpoint unix:///s --manifests m --manifest-mode kubelet --adopt-node"
    )]
    #[case(
        "crib agent --runtime-endpoint unix:///s --manifests m --config c.yaml --max-pods 9 --node-labels a=b,c=d --node-labels e="
    )]
    #[case(
        "crib agent --runtime-endpoint unix:///s --manifests m --register-with-taints a=b:NoSchedule,c:NoExecute --kube-reserved cpu=1,memory=1Gi"
    )]
    #[case(
        "crib agent --runtime-endpoint unix:///s --manifests m --event-driven-pleg=false --serialize-image-pulls=false --container-log-max-size -1"
    )]
    #[case("crib version --output json")]
    #[case(
        "crib registry --listen [::1]:5000 --root d --load a --load b=n:1 --auth bearer --tls --ca-file c"
    )]
    #[case(
        "crib check --select must,sandbox --skip CRI-CTR-017 --fail-on may --report json=a --report junit=b --trace c --baseline d"
    )]
    #[case("crib check --profile crictl --report html=a --report sarif=b")]
    #[case("crib check compare old.json new.json --html c")]
    #[case(
        "crib bench --runtime-endpoint unix:///a --vs /b --select calls,logs --skip pulls --quick --sizes 1,2 --concurrency 3 --output json"
    )]
    #[case("crib bench report a.json --report html=b --report markdown=c")]
    #[case("crib proxy --listen unix:///a --upstream /b --trace c")]
    #[case("crib proxy --listen /a --upstream /b --rules f --control /c --seed 7")]
    #[case("crib proxy ctl --control /c on slow")]
    #[case("crib proxy record f --listen /a --upstream /b --lint")]
    #[case("crib proxy replay f --listen /a --timed")]
    #[case("crib completions bash")]
    fn parser_accepts_documented_flags(#[case] line: &str) {
        Cli::try_parse_from(line.split(' ')).unwrap();
    }
}
