//! The section `network:`.

use std::path::PathBuf;

use network::PodCidrs;
use runtime_fake::Config;
use serde::Deserialize;

use super::values::AbsolutePath;
use crate::network::cni;

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
