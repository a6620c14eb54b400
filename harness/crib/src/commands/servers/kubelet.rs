//! `crib kubelet`: the agent with the kubelet's command line and defaults.
//!
//! `flags` ◆ is the table of flags, `values` ◆ parses their values, and `configuration` merges files and flags. The agent is the
//! same as in `crib agent`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::path::PathBuf;

use agent::local_node::kubelet_config::{self, label_problems};
use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};
use compact::Map;
use crib_base::exit::Exit;
use crib_base::report::{io_error_to_exit, message_to_exit};

use super::agent::lock_file::LockFile;
use super::agent::settings::Settings;
use super::agent::start::Start;

mod configuration;
mod flags;
mod values;

use flags::{Target, flags};

/// The kubelet's root directory.
const ROOT_DIR: &str = "/var/lib/kubelet";

const EXAMPLES: &str = "Examples:
  crib kubelet --config /var/lib/kubelet/config.yaml --kubeconfig /etc/kubernetes/kubelet.conf \\
    --bootstrap-kubeconfig /etc/kubernetes/bootstrap-kubelet.conf
  crib kubelet --container-runtime-endpoint unix:///run/crib.sock \\
    --pod-manifest-path manifests/ --config node.yaml

A flag that is described as a config field, such as staticPodPath, sets this field of the KubeletConfiguration. A flag can \
also be written as --flag=value, and with _ instead of -. Without --config, four flags have other defaults, as in the \
kubelet: --anonymous-auth true, --authentication-token-webhook false, --authorization-mode AlwaysAllow and \
--read-only-port 10255. Without --config, the agent's server (port 10250) therefore accepts requests without credentials. \
The agent rejects flags and fields that it does not support, and warns about flags and fields without effect. After any error, \
`crib kubelet` exits with code 1. The agent supports systemd's Type=notify and WatchdogSec=.";

/// The given flags, with their values in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct KubeletArgs {
    given: GivenFlags,
    version: Option<String>,
}

/// The values of each given flag.
type GivenFlags = Map<&'static str, Vec<String>>;

impl FromArgMatches for KubeletArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut args = Self::default();
        args.update_from_arg_matches(matches)?;
        Ok(args)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        for flag in flags() {
            if let Some(texts) = matches.get_many::<String>(flag.name) {
                self.given.insert(flag.name, texts.cloned().collect());
            }
        }
        self.version = matches.get_one::<String>("version").cloned();
        Ok(())
    }
}

impl Args for KubeletArgs {
    fn augment_args(command: Command) -> Command {
        let version = Arg::new("version")
            .long("version")
            .value_name("BOOL|raw")
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .help("Print the version of Kubernetes that the agent implements; raw: print all version information");
        command
            .about("Run crib's agent with the kubelet's flags and defaults")
            .disable_version_flag(true)
            .after_help(EXAMPLES)
            .arg(version)
            .args(flags().map(flags::Flag::arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// The arguments, with underscores in flag names replaced by hyphens.
pub(crate) fn with_hyphens(words: Vec<OsString>) -> Vec<OsString> {
    let word = |word: OsString| match word.to_str().and_then(|text| text.strip_prefix("--")) {
        Some(flag) => {
            let (name, value) = flag.split_at(flag.find('=').unwrap_or(flag.len()));
            format!("--{}{value}", name.replace('_', "-")).into()
        }
        None => word,
    };
    words.into_iter().map(word).collect()
}

/// Runs until a signal. Must be called while the process has a single thread. A kubelet exits with the same code for all errors.
pub(crate) fn run(args: &KubeletArgs) -> Exit {
    run_or_fail(args).unwrap_or(Exit::Failed)
}

fn run_or_fail(args: &KubeletArgs) -> Result<Exit, Exit> {
    if let Some(text) = message_to_exit(version(args.version.as_deref()), Exit::Failed)? {
        io_error_to_exit("write to standard output", io::stdout().write_all(text.as_bytes()))?;
        return Ok(Exit::Success);
    }
    let own = message_to_exit(FlagSettings::read(&args.given), Exit::Failed)?;
    let (document, unknown) = message_to_exit(configuration::read(&args.given), Exit::Failed)?;
    let checked = kubelet_config::check(&document);
    let failed = |all| format!("failed to validate the configuration: {all}");
    let checked = message_to_exit(checked.map_err(failed), Exit::Failed)?;
    let unused = flags().filter(|flag| args.given.contains_key(flag.name));
    let unused = unused.filter_map(|flag| match flag.target {
        Target::Unused(why) => Some(format!("--{} ({why})", flag.name)),
        Target::Field(_) | Target::Flag(_) | Target::Refused(_) => None,
    });
    let unused = unused.collect();
    Start::new(None, own.settings(), checked, unknown).warn("flags have no effect", unused).run()
}

/// The output of `--version`; `None` without the flag.
fn version(flag: Option<&str>) -> Result<Option<String>, String> {
    let version = kube_node::VERSION;
    match flag {
        None => Ok(None),
        Some("raw") => Ok(Some(format!(
            "version.Info{{Major:\"1\", Minor:\"36\", GitVersion:{version:?}, Compiler:\"rustc\", Platform:\"linux/{}\"}}\n",
            std::env::consts::ARCH
        ))),
        Some(text) => {
            let shows = values::bool(text)
                .map_err(|_| format!("--version: {text:?} is neither raw nor true or false"))?;
            Ok(shows.then(|| format!("Kubernetes {version}\n")))
        }
    }
}

/// The flags that are not configuration fields.
#[derive(Debug)]
struct FlagSettings {
    root_dir: PathBuf,
    cert_dir: Option<PathBuf>,
    kubeconfig: Option<PathBuf>,
    bootstrap_kubeconfig: Option<PathBuf>,
    node_name: Option<String>,
    node_ip: Vec<IpAddr>,
    node_labels: BTreeMap<String, String>,
    external_cloud: bool,
    node_ip_is_any: bool,
    lock_file: Option<LockFile>,
    credential_providers: Option<(PathBuf, PathBuf)>,
    dead_containers: (Option<i64>, Option<i64>, Option<std::time::Duration>),
}

impl FlagSettings {
    fn read(given: &GivenFlags) -> Result<Self, String> {
        let text = |name: &str| {
            let last = given.get(name).and_then(|texts| texts.last());
            last.filter(|text| !text.is_empty()).cloned()
        };
        let path = |name: &str| text(name).map(PathBuf::from);
        fn read<T>(
            name: &str,
            text: Option<String>,
            read: fn(&str) -> Result<T, String>,
        ) -> Result<Option<T>, String> {
            let value = text.map(|text| read(&text)).transpose();
            value.map_err(|problem| format!("--{name}: {problem}"))
        }
        for flag in flags() {
            if let Target::Refused(remedy) = flag.target
                && text(flag.name).is_some()
            {
                return Err(format!(
                    "--{}: crib's agent does not support this; {remedy}",
                    flag.name
                ));
            }
        }
        let labels = given.get("node-labels").map(Vec::as_slice).unwrap_or_default();
        let labels = values::map(labels, '=', true)
            .map_err(|problem| format!("--node-labels: {problem}"))?;
        let problems = label_problems(&labels);
        if !problems.is_empty() {
            return Err(format!("--node-labels: {}", problems.join("; ")));
        }
        let exit_on_contention =
            read("exit-on-lock-contention", text("exit-on-lock-contention"), values::bool)?;
        let exit_on_contention = exit_on_contention.unwrap_or_default();
        let lock_file = path("lock-file").map(|path| LockFile { path, exit_on_contention });
        if exit_on_contention && lock_file.is_none() {
            return Err("--exit-on-lock-contention needs --lock-file".to_owned());
        }
        let external_cloud = match text("cloud-provider").as_deref() {
            None => false,
            Some("external") => true,
            Some(other) => {
                return Err(format!("--cloud-provider: {other:?} is neither external nor empty"));
            }
        };
        let provider_config = path("image-credential-provider-config");
        let provider_programs = path("image-credential-provider-bin-dir");
        let credential_providers = match (provider_config, provider_programs) {
            (Some(config), Some(programs)) => Some((config, programs)),
            (None, None) => None,
            _ => {
                return Err("--image-credential-provider-config and --image-credential-provider-bin-dir must be given together".to_owned());
            }
        };
        let node_ip = text("node-ip").unwrap_or_default();
        let number = |name: &str| read(name, text(name), values::int);
        let age = "minimum-container-ttl-duration";
        let min_age = read(age, text(age), values::duration)?;
        let kubeconfig = path("kubeconfig");
        let bootstrap_kubeconfig = path("bootstrap-kubeconfig");
        if bootstrap_kubeconfig.is_some() && kubeconfig.is_none() {
            return Err("--bootstrap-kubeconfig needs --kubeconfig, the file to write".to_owned());
        }
        Ok(Self {
            root_dir: path("root-dir").unwrap_or_else(|| ROOT_DIR.into()),
            cert_dir: path("cert-dir"),
            kubeconfig,
            bootstrap_kubeconfig,
            // Node names are in lower case.
            node_name: text("hostname-override").map(|name| name.trim().to_lowercase()),
            node_ip_is_any: node_ip.trim() == "0.0.0.0",
            node_ip: addresses(&node_ip)?,
            node_labels: labels,
            external_cloud,
            lock_file,
            credential_providers,
            dead_containers: (
                number("maximum-dead-containers-per-container")?,
                number("maximum-dead-containers")?,
                min_age.map(kubelet_config::GoDuration::get),
            ),
        })
    }

    /// The settings of an agent that manages the whole node.
    fn settings(self) -> Settings {
        let mut settings = Settings {
            adopt_node: true,
            as_kubelet: true,
            root_dir: Some(self.root_dir),
            lock_file: self.lock_file,
            ..Settings::default()
        };
        settings.cluster.kubeconfig = self.kubeconfig;
        settings.cluster.bootstrap_kubeconfig = self.bootstrap_kubeconfig;
        settings.cluster.cert_dir = self.cert_dir;
        settings.cluster.external_cloud = self.external_cloud;
        settings.cluster.node_ip_is_any = self.node_ip_is_any;
        settings.node.node_name = self.node_name;
        settings.node.node_ip = self.node_ip;
        settings.node.node_labels = self.node_labels.into_iter().collect();
        let (config, programs) = self.credential_providers.unzip();
        settings.images.image_credential_provider_config = config;
        settings.images.image_credential_provider_bin_dir = programs;
        let (per_container, in_all, min_age) = self.dead_containers;
        let dead = &mut settings.dead_containers;
        dead.maximum_dead_containers_per_container = per_container;
        dead.maximum_dead_containers = in_all;
        dead.minimum_container_ttl_duration = min_age;
        settings
    }
}

/// The addresses of `--node-ip`. 0.0.0.0 means the source address of the default route.
fn addresses(text: &str) -> Result<Vec<IpAddr>, String> {
    let texts = text.split(',').map(str::trim).filter(|text| !text.is_empty());
    let addresses = texts.map(|text| {
        text.parse::<IpAddr>().map_err(|_| format!("--node-ip: {text:?} is not an IP address"))
    });
    let addresses: Vec<IpAddr> = addresses.collect::<Result<_, _>>()?;
    match addresses.as_slice() {
        [IpAddr::V4(address)] if address.is_unspecified() => Ok(Vec::new()),
        all if all.iter().any(IpAddr::is_unspecified) => {
            Err("--node-ip: :: is not supported: give an address of this node".to_owned())
        }
        _ => Ok(addresses),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::*;

    pub(super) fn given(line: &str) -> GivenFlags {
        let command = KubeletArgs::augment_args(Command::new("kubelet"));
        let words = ["kubelet"].into_iter().chain(line.split_whitespace());
        let matches = command.try_get_matches_from(words).unwrap();
        KubeletArgs::from_arg_matches(&matches).unwrap().given
    }

    #[test]
    fn flags_become_settings() {
        let given = given(
            "--root-dir /r --hostname-override Node1 --node-ip=192.0.2.1,2001:db8::1 --node-labels a=b,c \
             --cloud-provider=external --kubeconfig k --bootstrap-kubeconfig b --cert-dir /c --lock-file /l \
             --exit-on-lock-contention --maximum-dead-containers -1 --minimum-container-ttl-duration=1m",
        );
        let settings = FlagSettings::read(&given).unwrap().settings();
        assert_eq!(settings.root_dir, Some("/r".into()));
        assert_eq!(settings.node.node_name.as_deref(), Some("node1"));
        assert_eq!(settings.node.node_ip.len(), 2);
        let labels = [("a", "b"), ("c", "")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(settings.node.node_labels, labels);
        assert!(settings.cluster.external_cloud && settings.adopt_node);
        assert!(!settings.cluster.node_ip_is_any);
        assert!(settings.lock_file.unwrap().exit_on_contention);
        assert_eq!(settings.dead_containers.maximum_dead_containers, Some(-1));
        let usual = FlagSettings::read(&GivenFlags::new()).unwrap().settings();
        assert_eq!(usual.root_dir, Some(ROOT_DIR.into()));
    }

    #[rstest]
    #[case(
        "--node-labels node-role.kubernetes.io/x=",
        "--node-labels: node-role.kubernetes.io/x: a"
    )]
    #[case("--node-ip here", "--node-ip: \"here\" is not an IP address")]
    #[case("--node-ip ::", "--node-ip: :: is not supported")]
    #[case("--cloud-provider aws", "--cloud-provider: \"aws\" is neither external nor empty")]
    #[case("--exit-on-lock-contention", "--exit-on-lock-contention needs --lock-file")]
    #[case("--exit-on-lock-contention=maybe", "--exit-on-lock-contention: \"maybe\" is not true")]
    #[case("--bootstrap-kubeconfig b", "--bootstrap-kubeconfig needs --kubeconfig")]
    #[case("--image-credential-provider-config c", "must be given together")]
    #[case("--maximum-dead-containers few", "--maximum-dead-containers: \"few\" is not a number")]
    #[case("--experimental-mounter-path /m", "--experimental-mounter-path: crib's agent does not")]
    fn bad_flags_are_named(#[case] line: &str, #[case] words: &str) {
        let problem = FlagSettings::read(&given(line)).unwrap_err();
        assert!(problem.contains(words), "{problem}");
    }

    #[rstest]
    #[case(None, None)]
    #[case(Some("false"), None)]
    #[case(Some("true"), Some("Kubernetes v1.36."))]
    #[case(Some("raw"), Some("version.Info{Major:\"1\", Minor:\"36\", GitVersion:\"v1.36."))]
    fn version_is_printed_on_request(#[case] flag: Option<&str>, #[case] begin: Option<&str>) {
        let text = version(flag).unwrap();
        assert_eq!(text.is_some(), begin.is_some());
        let begin = begin.unwrap_or_default();
        assert!(text.unwrap_or_default().starts_with(begin));
        assert!(version(Some("soon")).is_err());
    }
}
