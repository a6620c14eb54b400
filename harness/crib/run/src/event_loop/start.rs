//! Starts the components of a run: the agent, the controllers, and the output.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Instant;

use agent::LogRotation;
use agent::clock::{Clock as _, SystemClock};
use agent::objects::ObjectStore;
use agent::pod_spec::dns;
use agent::storage::claim_directories::ClaimDirectories;
use agent::storage::volumes::in_memory;
use api::claims::ClaimName;
use api::manifest::Workload;
use cluster::controllers::{CronStarts, Refused};
use cluster::manager::Manager;
use crib_base::pod_dialer::PodDialer;
use crib_base::report::chain;
use machine::HostMachine;
use tokio::sync::mpsc;
use tokio::time::Instant as Alarm;

use super::starting::Starting;
use super::{Loop, label};
use crate::args::RunArgs;
use crate::capabilities::RuntimeCapabilities;
use crate::history::History;
use crate::hub::Hub;
use crate::input::archived_images;
use crate::input::inputs::Inputs;
use crate::input::manifest_objects::ManifestObjects;
use crate::lifecycle::Lifecycle;
use crate::manifest_watch;
use crate::output::label::Label;
use crate::output::notes::Notes;
use crate::output::printer::{Printer, Style};
use crate::output::rollouts::Rollouts;
use crate::output::tail::Tail;
use crate::processes::background::{self, Background};
use crate::processes::dead_runs;
use crate::processes::root::Root;
use crate::reports::{Reported, Reports};
use crate::requests::PendingRequest;
use crate::services::Services;
use crate::store_cluster::StoreCluster;

/// The connections to other commands.
#[derive(Debug)]
pub(crate) struct Outside {
    /// Receives their requests.
    pub(crate) requests: mpsc::UnboundedReceiver<PendingRequest>,
    /// The command at the terminal that started this process, for a background run.
    pub(crate) background: Option<Background>,
}

impl Loop {
    /// Starts the agent and passes it the pods.
    pub(in super::super) async fn start(
        args: &RunArgs,
        inputs: Inputs,
        capabilities: &RuntimeCapabilities,
        root: &Root,
        outside: Outside,
        started: Instant,
    ) -> Result<Self, String> {
        let (mut pods, mut objects) = (inputs.pods, inputs.objects);
        let endpoint = format!("unix://{}", root.socket().display());
        let cri = agent::cri::grpc::connect(&endpoint).await.map_err(|error| chain(&error))?;
        let mut config = agent::Config::new(root.agent(), root.pod_logs());
        config.volumes_dir = inputs.volumes_dir;
        config.volumes_in_memory = inputs.volumes_in_memory;
        config.seccomp_profile_root = inputs.seccomp_profile_root;
        config.pods_lock = Some(dead_runs::lock(root.path()));
        config.node_name = crib_base::node::node_name();
        config.node_ips = vec![agent::local_node::node_address::of_default_route().to_string()];
        config.host_names = capabilities.host_names();
        config.host_reaches_cluster = capabilities.host_reaches_pods();
        // If the runtime serves no cluster names, the user cannot configure them either, so a warning would not help.
        config.warn_of_missing_cluster_dns = false;
        // The tail may still read the logs of a removed pod; the whole directory is removed at the end.
        config.remove_logs = false;
        // In the foreground, every line is printed, even if the reader is slow: a rotated log could be removed before it is read.
        // In the background, nothing is printed, and pods may run for a long time.
        config.log_rotation = args.detached.then(LogRotation::default);
        config.container_logs_dir = None;
        // Keeps the user's images, and does not limit the number of pulls.
        config.images.garbage_collection = None;
        config.images.registry_pull_qps = 0;
        let pull_secrets = inputs.pull_secrets.apply(&mut config.images);
        let examples = inputs.workloads.iter().map(Workload::example);
        let mut first_notes = Vec::new();
        let mut all_pods = pods.iter().cloned().chain(examples);
        if let Some(make) = config.volumes_in_memory
            && all_pods.any(|pod| in_memory::has_volumes(&pod))
            && let Err(problem) = make(&in_memory::directory(&root.agent()))
        {
            first_notes
                .push(format!("warning: volumes with secrets are written to the disk: {problem}"));
        }
        let seed = RandomState::new().hash_one(std::process::id());
        let examples = inputs.workloads.iter().map(Workload::example);
        let mut all_pods = pods.iter().cloned().chain(examples);
        let needs_dns = all_pods.any(|pod| dns::uses_cluster_dns(&pod));
        // With `--keep`, the DNS server ends before the pods, so they must not use it.
        let opens = args.watch || !objects.all_services().is_empty() || needs_dns && !args.keep;
        let images = archived_images::never_pulled(&pods, &inputs.workloads);
        let problems = archived_images::import(&root.socket(), &images).await;
        first_notes.extend(problems.iter().map(|problem| format!("warning: {problem}")));
        let (mut services, served) = match opens {
            true => Services::open(&root.socket(), &mut objects, seed).await,
            false => (Services::closed(seed), None),
        };
        match services.refusal(&objects) {
            Some(problem) if args.how.strict => return Err(format!("--strict: {problem}")),
            Some(problem) => first_notes.push(format!("warning: {problem}")),
            None => {}
        }
        let domain = config.cluster_domain.clone();
        let directories = ClaimDirectories::new(config.volumes_dir.clone());
        let store = Arc::new(ObjectStore::default());
        let cluster = StoreCluster::new(config.node_name.clone(), Arc::clone(&store), seed);
        let cluster = Arc::new(cluster);
        let hub = Hub::new(&cluster);
        let mut hub = hub.ok_or("failed to follow the store of the run")?;
        let now = SystemClock.now();
        let refused = if args.keep { Refused::Kept } else { Refused::Deleted };
        let starts = if args.now { CronStarts::Now } else { CronStarts::Scheduled };
        let directories = Box::new(move |claim: &ClaimName| directories.path(claim));
        let manager = Manager::new(cluster.store(), refused, starts, seed, directories);
        let mut manager =
            manager.map_err(|error| format!("failed to follow the store: {error}"))?;
        drop(hub.set_objects(objects.json(), now));
        hub.create_workloads(&inputs.workloads, now);
        let mut referred = hub.referred();
        referred.merge(pull_secrets.clone());
        store.set(referred);
        let objects = store;
        let (service_notes, network) = match served {
            Some(served) => {
                config.cluster_dns = vec![served.dns];
                if args.how.strict && !served.taken.is_empty() {
                    return Err(format!("--strict: {}", served.taken.join("; ")));
                }
                first_notes.extend(served.taken.iter().map(|taken| format!("warning: {taken}")));
                if args.keep {
                    let warning = "warning: Services stop when this command ends, even with --keep";
                    first_notes.push(warning.to_owned());
                }
                (served.notes, Some(served.network))
            }
            None => (mpsc::unbounded_channel().1, None),
        };
        let reloaded = inputs.watched.map(|watched| manifest_watch::start(watched, args));
        let reloaded = reloaded.transpose();
        let reloaded =
            reloaded.map_err(|error| format!("failed to watch the manifests: {error}"))?;
        let parts = agent::Parts {
            cluster: cluster.clone(),
            cri,
            clock: Arc::new(SystemClock),
            dialer: Arc::new(PodDialer::new(&root.socket())),
            machine: Arc::new(HostMachine::default()),
            node: agent::NodeParts::default(),
            managers: Arc::new(agent::managers::NoManagers),
            sources: Vec::new(),
            drivers: None,
        };
        let mut agent = agent::start(config, parts);
        if let Some(network) = network {
            agent.serve_services(&domain, objects.clone(), network);
        }
        let (reports, transitions) = (cluster.recorded(), agent.transitions());
        let (readiness, events) = (agent.readiness(), agent.events());

        let manifest_pods = ManifestObjects::new(pods.clone());
        let first = manager.sync(&Reported(&Reports::default()), now);
        pods.extend(first.created);

        let labels: Vec<Label> = pods
            .iter()
            .flat_map(|pod| {
                pod.all_containers().map(|(_, container)| label(&pod.full_name(), &container.name))
            })
            .collect();
        let (closed, output_closed) = mpsc::unbounded_channel();
        let style = match args.detached {
            true => Style::of_background(args.quiet, args.events),
            false => Style::choose(args.output, args.quiet, args.events),
        };
        let printer = Printer::start(style, &labels, started, closed);
        let tail = Tail::start(printer.clone())
            .map_err(|error| format!("failed to watch log files: {error}"))?;
        let mut notes = Notes::new(args.timeout, &pods);
        if let Some(name) = &args.name {
            notes.end_with(&format!("`crib down {name}`"));
        }
        if !args.quiet {
            notes.at_start(&pods).into_iter().for_each(|line| printer.note(line));
        }
        first_notes.into_iter().for_each(|line| printer.note(line));
        let notices = first.messages.into_iter().filter(|_| !args.quiet);
        notices.chain(first.problems).for_each(|line| printer.note(line));
        let starting =
            match outside.background {
                Some(background) => {
                    let log = root.log_file(background::LOG);
                    let log = log.map_err(|error| chain(&error))?;
                    let starting = Starting::new(background, log, args.wait);
                    Some(starting.map_err(|error| {
                        format!("failed to watch the foreground command: {error}")
                    })?)
                }
                None => None,
            };
        hub.create(pods, now);
        Ok(Self {
            hub,
            manifest_pods,
            manifest_workloads: ManifestObjects::new(inputs.workloads),
            keep: args.keep,
            is_quiet: args.quiet,
            warned: inputs.warnings.into_iter().collect(),
            socket: root.socket(),
            agent,
            cluster,
            reports,
            transitions,
            readiness,
            events,
            service_notes,
            objects,
            services,
            pull_secrets,
            reloaded,
            requests: outside.requests,
            history: History::default(),
            ending: None,
            waiting_due: None,
            without_grace: inputs.without_grace,
            rollouts: Rollouts::default(),
            in_background: args.detached,
            starting,
            manager,
            // Syncs the controllers immediately: without pods, there will be no report.
            controllers_due: Some(Alarm::now()),
            failures: None,
            lifecycle: Lifecycle::new(args.keep),
            notes,
            printer,
            output_closed,
            tail,
            deadline: args
                .timeout
                // No deadline if the timeout exceeds the range of the clock.
                .and_then(|timeout| Alarm::from_std(started).checked_add(timeout)),
            overdue: None,
        })
    }
}
