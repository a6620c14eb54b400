//! Flags of `crib agent` for the sources of pods.

use std::path::{Path, PathBuf};
use std::time::Duration;

use agent::local_node::kubelet_config::{GoDuration, KubeletConfiguration};
use agent::source::{DirectorySource, ManifestMode, PodSource, UrlSource};
use api::manifest::Strictness;
use clap::{Args, ValueEnum};
use compact::Map;
use crib_base::args::duration;
use crib_base::named_text;

/// The value of --manifest-mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Files *.yaml, *.yml and *.json, each with any number of pods; unknown fields are errors; when a file becomes invalid, its
    /// pods keep running
    Crib,
    /// All files, each with one static pod, as in the kubelet; when a file becomes invalid, its pod ends
    Kubelet,
}

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Manifests")]
pub(crate) struct SourceArgs {
    /// Directory of manifests, or a manifest file [default: staticPodPath of --config]
    #[arg(long, value_name = "PATH", required_unless_present_any = ["manifest_url", "config", "kubeconfig"])]
    pub(super) manifests: Option<PathBuf>,
    /// Directory of manifests of ConfigMaps, Secrets, PersistentVolumeClaims and other objects that pods refer to; the agent
    /// watches the directory for changes
    #[arg(long, value_name = "DIR")]
    pub(super) objects: Option<PathBuf>,
    /// How to read the manifest files [default: crib for --manifests without --kubeconfig, otherwise kubelet]
    #[arg(long, value_name = "MODE", value_enum)]
    manifest_mode: Option<Mode>,
    /// Interval at which the agent reads the manifests again, even without a change notification (such as 20s or 1m) [default:
    /// 20s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    file_check_frequency: Option<Duration>,
    /// URL of a Pod or PodList to run, as with the kubelet's --manifest-url [default: staticPodURL of --config]
    #[arg(long, value_name = "URL")]
    manifest_url: Option<String>,
    /// File of HTTP headers for --manifest-url, one NAME: VALUE per line [default: staticPodURLHeader of --config]
    #[arg(long, value_name = "FILE")]
    manifest_url_headers: Option<PathBuf>,
    /// Interval at which the agent reads --manifest-url (such as 20s or 1m) [default: 20s]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    http_check_frequency: Option<Duration>,
}

pub(super) type Sources = Vec<Box<dyn PodSource>>;

impl SourceArgs {
    /// The sources of the flags, or else of the file; the error is a message. `joins`: the cluster is a source too, so no other
    /// source is required.
    pub(super) fn sources(
        &self,
        file: &KubeletConfiguration,
        node_name: &str,
        joins: bool,
    ) -> Result<Sources, String> {
        let mut sources = Sources::new();
        if let Some((path, mode)) = self.directory(file, node_name, joins)? {
            let mut source = DirectorySource::new(path, mode);
            if let Some(period) = frequency(self.file_check_frequency, file.file_check_frequency) {
                source = source.relisted_each(period);
            }
            sources.push(Box::new(source));
        }
        if let Some((url, of)) = given(self.manifest_url.as_ref(), file.static_pod_url.as_ref()) {
            let name = of.name("--manifest-url", "staticPodURL");
            let source = UrlSource::new(url, &self.headers(file)?, node_name.to_owned());
            let source = source.map_err(|error| format!("{name}: {error}"))?;
            let mut source = source.with_references(may_refer(file));
            if let Some(period) = frequency(self.http_check_frequency, file.http_check_frequency) {
                source = source.read_each(period);
            }
            sources.push(Box::new(source));
        } else if self.manifest_url_headers.is_some() {
            return Err("--manifest-url-headers needs --manifest-url".to_owned());
        }
        if sources.is_empty() && !joins {
            return Err(
                "no source of pods: set --manifests to a directory of manifests, set --manifest-url, or join a cluster with --kubeconfig"
                    .to_owned(),
            );
        }
        Ok(sources)
    }

    /// Applies the flags to the displayed configuration. Pods of --manifest-mode crib are not static pods.
    pub(super) fn fill_configz(&self, file: &mut KubeletConfiguration) {
        if let Some(path) = &self.manifests {
            let is_kubelets = self.manifest_mode != Some(Mode::Crib);
            file.static_pod_path = is_kubelets.then(|| path.display().to_string());
        }
        if let Some(url) = &self.manifest_url {
            file.static_pod_url = Some(url.clone());
        }
        // Headers may contain credentials.
        file.static_pod_url_header = None;
        let period = |flag: Option<Duration>, file: Option<GoDuration>| {
            let nanos = flag.and_then(|period| i64::try_from(period.as_nanos()).ok());
            nanos.map(GoDuration::of_nanos).or(file)
        };
        file.file_check_frequency = period(self.file_check_frequency, file.file_check_frequency);
        file.http_check_frequency = period(self.http_check_frequency, file.http_check_frequency);
    }

    fn directory(
        &self,
        file: &KubeletConfiguration,
        node_name: &str,
        joins: bool,
    ) -> Result<Option<(PathBuf, ManifestMode)>, String> {
        let in_file = file.static_pod_path.as_ref().map(PathBuf::from);
        let Some((path, of)) = given(self.manifests.as_ref(), in_file.as_ref()) else {
            return Ok(None);
        };
        if !path.exists() {
            let name = of.name("--manifests", "staticPodPath");
            let problem = format!(
                "{} does not exist: set {name} to a directory of manifests or to a manifest file",
                path.display()
            );
            // kubeadm sets staticPodPath even on nodes without static pods.
            if !(joins && matches!(of, Of::File)) {
                return Err(problem);
            }
            tracing::warn!("{problem}");
        }
        let usual = match of {
            Of::Flag if !joins => Mode::Crib,
            Of::Flag | Of::File => Mode::Kubelet,
        };
        let mode = self.manifest_mode.unwrap_or(usual);
        if joins && mode == Mode::Crib {
            tracing::warn!(
                "the API server does not show pods of --manifests in --manifest-mode crib: they are not static pods of a kubelet"
            );
        }
        let mode = match mode {
            Mode::Crib => ManifestMode::Crib(Strictness::Strict),
            Mode::Kubelet => ManifestMode::Kubelet {
                node_name: node_name.to_owned(),
                may_refer: may_refer(file),
            },
        };
        Ok(Some((path.clone(), mode)))
    }

    /// The headers of requests to --manifest-url, one per line.
    fn headers(&self, file: &KubeletConfiguration) -> Result<String, String> {
        match &self.manifest_url_headers {
            Some(path) => read(path),
            None => Ok(file.static_pod_url_header.as_ref().map(lines).unwrap_or_default()),
        }
    }
}

/// The origin of a value.
#[derive(Clone, Copy)]
enum Of {
    Flag,
    File,
}

impl Of {
    fn name(self, flag: &str, field: &str) -> String {
        match self {
            Self::Flag => flag.to_owned(),
            Self::File => format!("{field} of --config"),
        }
    }
}

/// Whether static pods may refer to API objects.
fn may_refer(file: &KubeletConfiguration) -> bool {
    !file.gates().enabled("PreventStaticPodAPIReferences")
}

fn given<T>(flag: Option<T>, file: Option<T>) -> Option<(T, Of)> {
    let of_file = || file.map(|value| (value, Of::File));
    flag.map(|value| (value, Of::Flag)).or_else(of_file)
}

/// 0 means the default, as in a kubelet.
fn frequency(flag: Option<Duration>, file: Option<GoDuration>) -> Option<Duration> {
    flag.or(file.map(GoDuration::get)).filter(|period| !period.is_zero())
}

fn read(path: &Path) -> Result<String, String> {
    named_text::read_text(path)
        .map_err(|error| format!("failed to read {}: {error}", path.display()))
}

fn lines(headers: &Map<String, Vec<String>>) -> String {
    let line = |(name, values): (&String, &Vec<String>)| -> String {
        let line = |value| format!("{name}: {value}\n");
        values.iter().map(line).collect()
    };
    headers.iter().map(line).collect()
}
