//! The sections of the file other than those for registries, and the network flags, which take precedence over the file.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use compact::Map;
use crib_base::args;
use image::NamedScript;
use network::PodCidrs;
use network::cni::CniConfig;
use runtime_fake::{Config, Handler, Handlers, Streams};
use serde::Deserialize;

/// `network:`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct NetworkSection {
    pod_cidr: Option<Cidr>,
    cni: Option<CniSection>,
    unprivileged_ports: Option<bool>,
    unprivileged_ping: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CniSection {
    conf_dir: AbsolutePath,
    #[serde(default)]
    bin_dirs: Vec<AbsolutePath>,
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct Cidr(PodCidrs);

impl TryFrom<String> for Cidr {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse().map(Self).map_err(|error: network::CidrError| error.to_string())
    }
}

impl NetworkSection {
    pub(super) fn apply(self, config: &mut Config) {
        if let Some(Cidr(cidrs)) = self.pod_cidr {
            config.pod_cidrs = cidrs;
        }
        let allowed = &mut config.unprivileged;
        allowed.ports = self.unprivileged_ports.unwrap_or(allowed.ports);
        allowed.ping = self.unprivileged_ping.unwrap_or(allowed.ping);
        if let Some(section) = self.cni {
            let bin_dirs: Vec<PathBuf> = section.bin_dirs.into_iter().map(|path| path.0).collect();
            config.cni = Some(cni(section.conf_dir.0, bin_dirs));
        }
    }
}

/// `behave:`, scripts by image.
#[derive(Debug, Default, Deserialize)]
#[serde(try_from = "BTreeMap<String, String>")]
pub(super) struct BehaveSection(Vec<NamedScript>);

impl TryFrom<BTreeMap<String, String>> for BehaveSection {
    type Error = String;

    fn try_from(scripts: BTreeMap<String, String>) -> Result<Self, String> {
        let named = scripts.iter().map(|(name, script)| NamedScript::new(name, script));
        let named: Result<_, _> = named.collect();
        named.map(Self).map_err(|error| error.to_string())
    }
}

impl BehaveSection {
    pub(super) fn apply(self, config: &mut Config) {
        config.scripts.extend(self.0);
    }
}

/// `cdi:`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct CdiSection {
    /// Directories; later ones take precedence.
    spec_dirs: Option<Vec<PathBuf>>,
}

impl CdiSection {
    pub(super) fn apply(self, config: &mut Config) {
        if let Some(directories) = self.spec_dirs {
            config.cdi_dirs = directories;
        }
    }
}

/// `handlers:`, by name.
#[derive(Debug, Default, Deserialize)]
#[serde(try_from = "Map<String, HandlerSection>")]
pub(crate) struct HandlersSection(Handlers);

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct HandlerSection {
    no_new_privs: bool,
    read_only_root: bool,
    seccomp_default: bool,
}

impl TryFrom<Map<String, HandlerSection>> for HandlersSection {
    type Error = String;

    fn try_from(sections: Map<String, HandlerSection>) -> Result<Self, String> {
        let mut handlers = Handlers::default();
        for (name, section) in sections {
            let handler = Handler {
                no_new_privs: section.no_new_privs,
                read_only_root: section.read_only_root,
                seccomp_default: section.seccomp_default,
            };
            handlers.add(&name, handler).map_err(|error| error.to_string())?;
        }
        Ok(Self(handlers))
    }
}

impl HandlersSection {
    pub(super) fn apply(self, config: &mut Config) {
        config.handlers = self.0;
    }
}

/// The minimum size of a log: it must hold one read of a full pipe, in which each newline becomes a line with a timestamp.
const LEAST: u64 = 1 << 20;

/// `logs:`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LogsSection {
    max_size: Option<Bytes>,
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "u64")]
struct Bytes(NonZeroU64);

impl TryFrom<u64> for Bytes {
    type Error = String;

    fn try_from(bytes: u64) -> Result<Self, String> {
        match NonZeroU64::new(bytes).filter(|_| bytes >= LEAST) {
            Some(bytes) => Ok(Self(bytes)),
            None => Err(format!("{bytes} bytes is too small: set at least {LEAST}")),
        }
    }
}

impl LogsSection {
    pub(super) fn apply(self, config: &mut Config) {
        config.log_max = self.max_size.map(|Bytes(bytes)| bytes);
    }
}

/// `security:`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SecuritySection {
    /// Whether every pod gets an SELinux label.
    selinux: bool,
}

impl SecuritySection {
    pub(super) fn apply(self, config: &mut Config) {
        config.selinux = self.selinux;
    }
}

/// `streams:`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct StreamsSection {
    address: Option<Address>,
    idle_timeout: Option<Timeout>,
    creation_timeout: Option<Timeout>,
}

#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct Address(SocketAddr);

impl TryFrom<String> for Address {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        stream_address(&text).map(Self)
    }
}

/// Parses the address of the stream server.
pub(crate) fn stream_address(text: &str) -> Result<SocketAddr, String> {
    let problem = |_| format!("invalid address {text:?}: expected ADDRESS:PORT, as in 127.0.0.1:0");
    text.parse().map_err(problem)
}

impl StreamsSection {
    pub(crate) fn apply(self, to: &mut Streams) {
        if let Some(Address(address)) = self.address {
            to.address = address;
        }
        if let Some(Timeout(idle)) = self.idle_timeout {
            to.idle = idle;
        }
        if let Some(Timeout(creation)) = self.creation_timeout {
            to.creation = creation;
        }
    }
}

/// A duration in the format of the command line.
#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
pub(super) struct Timeout(pub(super) Duration);

impl TryFrom<String> for Timeout {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        args::duration(&text).map(Self)
    }
}

/// An absolute path: the author of the file does not know the daemon's working directory.
#[derive(Debug, Deserialize)]
#[serde(try_from = "PathBuf")]
pub(super) struct AbsolutePath(pub(super) PathBuf);

impl TryFrom<PathBuf> for AbsolutePath {
    type Error = String;

    fn try_from(path: PathBuf) -> Result<Self, String> {
        if path.is_absolute() {
            Ok(Self(path))
        } else {
            Err("the path must be absolute".to_owned())
        }
    }
}

/// The usual directories of CNI plugins.
const BIN_DIRS: [&str; 2] = ["/opt/cni/bin", "/usr/lib/cni"];

#[derive(Debug, Args)]
pub(crate) struct NetworkArgs {
    /// Pod subnets: one IPv4 subnet, one IPv6 subnet, or both separated by a comma [default: a free subnet of each IP family]
    #[arg(long, value_name = "SUBNET[,SUBNET]")]
    pod_cidr: Option<PodCidrs>,
    /// Directory of CNI configurations; with this flag, CNI plugins replace the runtime's own bridge
    #[arg(long, value_name = "DIR")]
    cni_conf_dir: Option<PathBuf>,
    /// Directory of CNI plugins; repeatable [default: /opt/cni/bin and /usr/lib/cni]
    #[arg(long, value_name = "DIR", requires = "cni_conf_dir")]
    cni_bin_dir: Vec<PathBuf>,
}

impl NetworkArgs {
    /// Applies the flags to `config`; they take precedence over the file.
    pub(crate) fn apply(&self, config: &mut Config) {
        if let Some(cidrs) = self.pod_cidr {
            config.pod_cidrs = cidrs;
        }
        if let Some(conf_dir) = &self.cni_conf_dir {
            config.cni = Some(cni(conf_dir.clone(), self.cni_bin_dir.clone()));
        }
    }
}

/// The CNI configuration in `conf_dir`, with the usual plugin directories if none are given.
pub(crate) fn cni(conf_dir: PathBuf, bin_dirs: Vec<PathBuf>) -> CniConfig {
    let bin_dirs = if bin_dirs.is_empty() { BIN_DIRS.map(PathBuf::from).into() } else { bin_dirs };
    // Plugins run in a different working directory.
    let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
    CniConfig {
        conf_dir: absolute(conf_dir),
        bin_dirs: bin_dirs.into_iter().map(absolute).collect(),
    }
}
