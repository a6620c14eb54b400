//! Debian's containerd on a scenario's node, with all its directories below the node's.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};

use cri::v1::PodSandboxFilter;
use harness::eventually::within;
use harness::process::Process;
use harness::{Client, Leaks};
use nix::sys::signal::Signal;
use registry::Registry;
use tempfile::TempDir;

use crate::node::WAIT_LIMIT;
use crate::runtimes::images;

/// The directories of CNI plugins in Debian and elsewhere.
const PLUGINS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];
/// Each instance has its own bridge and subnet.
static NUMBER: AtomicU8 = AtomicU8::new(1);

/// A containerd. It must run in its own namespaces (`tests/interop/alone`): its shims have sockets in `/run`.
pub(crate) struct Containerd {
    pub(crate) client: Client,
    root: TempDir,
    process: Option<Process>,
}

impl Containerd {
    /// Starts containerd with the registry for images of these hosts, and waits until it serves.
    pub(crate) async fn start(registry: &Registry, hosts: &BTreeSet<String>) -> Self {
        let root = tempfile::Builder::new().prefix("crib-t").tempdir().unwrap();
        configure(root.path(), registry, hosts);
        let mut containerd =
            Self { client: Client::new(&socket(root.path())), root, process: None };
        containerd.launch().await;
        containerd
    }

    async fn launch(&mut self) {
        let root = self.root.path();
        let log =
            File::options().create(true).append(true).open(root.join("containerd.log")).unwrap();
        let mut command = Command::new("containerd");
        command.arg("--config").arg(root.join("containerd.toml"));
        command.current_dir("/").stdin(Stdio::null());
        command.stdout(log.try_clone().unwrap()).stderr(log);
        self.process = Some(Process::spawn(&mut command).unwrap());
        // The client caches a failed connection for a while.
        let serves = within(WAIT_LIMIT, "containerd to serve", async || {
            Client::new(&socket(root)).version().await
        });
        if let Err(error) = serves.await {
            let log = fs::read_to_string(root.join("containerd.log")).unwrap_or_default();
            panic!("{error}\n{log}");
        }
        self.client = Client::new(&socket(root));
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.root.path().to_owned()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        socket(self.root.path())
    }

    /// Stops containerd. Its pods keep running.
    pub(crate) async fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.signal(Signal::SIGTERM);
            process.wait(WAIT_LIMIT).await;
        }
    }

    pub(crate) async fn restart(&mut self) {
        self.stop().await;
        self.launch().await;
    }

    async fn remove_pods(&self) -> Result<(), tonic::Status> {
        for pod in self.client.pods(PodSandboxFilter::default()).await? {
            self.client.stop_pod(&pod.id).await?;
            self.client.remove_pod(&pod.id).await?;
        }
        Ok(())
    }

    /// Stops containerd and its pods. An error describes what is left.
    pub(crate) async fn end(mut self) -> Result<(), String> {
        // An agent that was stopped may have left a pending removal, which blocks another one.
        let removed =
            within(WAIT_LIMIT, "all pods to be removed", async || self.remove_pods().await);
        removed.await.map_err(|error| error.to_string())?;
        self.stop().await;
        let leaks = Leaks::below(self.root.path());
        // A shim exits shortly after its last container.
        let nothing_left = within(WAIT_LIMIT, "nothing of containerd to be left", async || {
            let left = leaks.running();
            if left.is_empty() { Ok(()) } else { Err(left) }
        });
        nothing_left.await.map_err(|error| error.to_string())
    }
}

fn socket(root: &Path) -> PathBuf {
    root.join("containerd.sock")
}

/// Writes the configuration of containerd, of its network and of its registries.
fn configure(root: &Path, registry: &Registry, hosts: &BTreeSet<String>) {
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let plugins = PLUGINS.iter().find(|path| Path::new(path).is_dir());
    let plugins = plugins.expect("no CNI plugins: apt-get install containernetworking-plugins");
    let (directory, pause) = (root.display(), images::PAUSE);
    let config = format!(
        r#"version = 2
root = "{directory}/lib"
state = "{directory}/run"
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.tracing.processor.v1.otlp",
]
[grpc]
address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
path = "{directory}/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
# Root in a container may not lower the score.
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{plugins}"
conf_dir = "{directory}/cni"
[plugins."io.containerd.grpc.v1.cri".registry]
config_path = "{directory}/registries"
"#,
        socket = socket(root).display()
    );
    fs::write(root.join("containerd.toml"), config).unwrap();
    let network = format!(
        r#"{{
  "cniVersion": "0.4.0",
  "name": "containerd-{number}",
  "plugins": [
    {{
      "type": "bridge", "bridge": "containerd{number}", "isGateway": true, "ipMasq": false,
      "ipam": {{
        "type": "host-local", "dataDir": "{directory}/addresses", "routes": [{{"dst": "0.0.0.0/0"}}],
        "ranges": [[{{"subnet": "10.88.{number}.0/24"}}]]
      }}
    }},
    {{"type": "portmap", "capabilities": {{"portMappings": true}}}}
  ]
}}
"#
    );
    fs::create_dir(root.join("cni")).unwrap();
    fs::write(root.join("cni/10-network.conflist"), network).unwrap();
    for host in hosts {
        let directory = root.join("registries").join(host);
        fs::create_dir_all(&directory).unwrap();
        let hosts = format!(
            "server = \"{url}\"\n[host.\"{url}\"]\ncapabilities = [\"pull\", \"resolve\"]\n",
            url = registry.url()
        );
        fs::write(directory.join("hosts.toml"), hosts).unwrap();
    }
}
