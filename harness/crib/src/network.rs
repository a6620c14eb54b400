//! Network flags of `crib runtime`.

use std::path::PathBuf;

use clap::Args;
use network::{PodCidrs, cni::CniConfig};
use runtime_fake::Config;

/// Where distributions and projects put the programs of plugins.
const BIN_DIRS: [&str; 2] = ["/opt/cni/bin", "/usr/lib/cni"];

#[derive(Debug, Args)]
pub(crate) struct NetworkArgs {
    /// Pod subnets: IPv4, IPv6, or one of each separated by a comma [default: free ones of both families]
    #[arg(long, value_name = "SUBNET[,SUBNET]")]
    pod_cidr: Option<PodCidrs>,
    /// Directory of CNI configurations, used instead of the runtime's own bridge
    #[arg(long, value_name = "DIR")]
    cni_conf_dir: Option<PathBuf>,
    /// Directory of CNI plugins; repeatable [default: /opt/cni/bin and /usr/lib/cni]
    #[arg(long, value_name = "DIR", requires = "cni_conf_dir")]
    cni_bin_dir: Vec<PathBuf>,
}

impl NetworkArgs {
    /// Puts what was said into `config`: it is preferred to what a file says.
    pub(crate) fn apply(&self, config: &mut Config) {
        if let Some(cidrs) = self.pod_cidr {
            config.pod_cidrs = cidrs;
        }
        if let Some(conf_dir) = &self.cni_conf_dir {
            config.cni = Some(cni(conf_dir.clone(), self.cni_bin_dir.clone()));
        }
    }
}

/// Plugins of `conf_dir`, with the usual directories of programs where none are named.
pub(crate) fn cni(conf_dir: PathBuf, bin_dirs: Vec<PathBuf>) -> CniConfig {
    let bin_dirs = if bin_dirs.is_empty() { BIN_DIRS.map(PathBuf::from).into() } else { bin_dirs };
    // Plugins run elsewhere than here.
    let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
    CniConfig {
        conf_dir: absolute(conf_dir),
        bin_dirs: bin_dirs.into_iter().map(absolute).collect(),
    }
}
