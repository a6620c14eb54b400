//! Images that an endpoint can pull without internet access. They contain this machine's programs, and are served by a registry in
//! this process at 127.0.0.1, without TLS. Also the configuration with which a runtime pulls them.

use std::io;
use std::net::Ipv4Addr;

use harness::client::Client;
use harness::fixture_image::{ImageBuilder, Layer};
use registry::{Fault, LoadError, Registry, RegistryError};
use tonic::Status;

use crate::directory::RunDirectory;

/// The programs in the containers' image.
const PROGRAMS: &[&str] = &[
    "cat", "chmod", "env", "head", "hostname", "id", "ls", "mkdir", "mknod", "mount", "perl",
    "pwd", "readlink", "rm", "sh", "sleep", "stty", "touch", "tr", "yes",
];

/// Why the check has no images.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The registry failed to start.
    #[error("failed to start a registry")]
    Registry(#[from] RegistryError),
    /// An image could not be built.
    #[error("failed to make an image of this machine's programs: name one with --image")]
    Program(#[source] io::Error),
    /// An image could not be loaded into the registry.
    #[error("failed to load an image into the registry")]
    Load(#[from] LoadError),
    /// The endpoint cannot pull the image.
    #[error("the runtime cannot pull {image} ({}): name an image that it has with --image", status.message())]
    Pull {
        /// The image.
        image: String,
        /// The runtime's response.
        status: Box<Status>,
    },
}

/// A registry in this process with the images of a check.
#[derive(Debug)]
pub struct TestImages {
    registry: Registry,
    run: String,
}

impl TestImages {
    /// Starts the registry at 127.0.0.1, at this port or at a free one. Its files are in the run's directory; if this run is
    /// killed, a later run removes them.
    pub async fn start(run: &RunDirectory, port: Option<u16>) -> Result<Self, ImageError> {
        let registry = Registry::with()
            .listen((Ipv4Addr::LOCALHOST, port.unwrap_or(0)).into())
            .root(&run.path().join("registry"));
        Ok(Self { registry: registry.start().await?, run: run.name() })
    }

    /// Stops the registry.
    pub async fn stop(self) {
        self.registry.stop().await;
    }

    /// The full name of an image of this run, without a tag.
    #[must_use]
    pub fn name(&self, name: &str) -> String {
        format!("{}/{}/{name}", self.registry.host(), self.run)
    }

    /// The path of an image's repository, which distinguishes the faults and requests of one rule from those of others.
    #[must_use]
    pub(super) fn repository(&self, name: &str) -> String {
        format!("/{}/{name}", self.run)
    }

    /// Adds a fault to the registry. The fault must name a repository, because the rules share the registry.
    pub(super) fn fail(&self, fault: Fault) {
        self.registry.fail(fault);
    }

    /// The registry's URL.
    #[must_use]
    pub(super) fn url(&self) -> &str {
        self.registry.url()
    }

    /// The number of requests whose path contains `part`.
    #[must_use]
    pub(super) fn seen(&self, part: &str) -> usize {
        let seen = self.registry.requests();
        seen.iter().filter(|one| one.path.contains(part)).count()
    }

    /// Whether a name is in this registry.
    pub(super) fn has(&self, name: &str) -> bool {
        name.starts_with(&format!("{}/", self.registry.host()))
    }

    /// Adds a small image with `content` as `NAME:TAG`, and returns its digest.
    pub(super) fn add(
        &self,
        name_and_tag: &str,
        content: &str,
        change: impl FnOnce(ImageBuilder) -> ImageBuilder,
    ) -> Result<String, LoadError> {
        // Concurrent runs must not share an image, because each run removes its images.
        let content = format!("{}: {content}", self.run);
        let layer = Layer::new().file("content", 0o644, content);
        let builder = ImageBuilder::new(&format!("{}/{name_and_tag}", self.run));
        let digest = self.registry.add(&change(builder.layer(layer)))?;
        Ok(digest.to_string())
    }

    /// Adds an image of these layers as `NAME:TAG`.
    pub fn add_layers(
        &self,
        name_and_tag: &str,
        layers: impl IntoIterator<Item = Layer>,
    ) -> Result<(), LoadError> {
        let image = ImageBuilder::new(&format!("{}/{name_and_tag}", self.run));
        let image = layers.into_iter().fold(image, ImageBuilder::layer);
        self.registry.add(&image).map(drop)
    }

    /// Adds an image with a shell, and returns its name.
    pub fn add_shell(&self) -> Result<String, ImageError> {
        let layer = programs(PROGRAMS)?;
        self.registry.add(&ImageBuilder::new(&format!("{}/shell:1", self.run)).layer(layer))?;
        Ok(format!("{}:1", self.name("shell")))
    }

    /// Adds an image with a shell, makes the endpoint pull it, and returns its name.
    pub async fn shell(&self, client: &Client) -> Result<String, ImageError> {
        let image = self.add_shell()?;
        match client.pull(&image).await {
            Ok(_) => Ok(image),
            Err(status) => Err(ImageError::Pull { image, status: Box::new(status) }),
        }
    }
}

/// A layer with programs of this machine, and the directories and accounts that they need.
pub(super) fn programs(names: &[&str]) -> Result<Layer, ImageError> {
    let mut layer = Layer::new()
        .directory("tmp", 0o1777)
        .directory("proc", 0o755)
        .directory("sys", 0o755)
        .directory("dev", 0o755)
        .file(
            "etc/passwd",
            0o644,
            "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
        )
        .file("etc/group", 0o644, "root:x:0:\nnogroup:x:65534:\n");
    for program in names {
        let path = ["/bin", "/usr/bin"].map(|directory| format!("{directory}/{program}"));
        let Some(path) = path.iter().find(|path| std::path::Path::new(path).is_file()) else {
            continue;
        };
        layer = layer.host_program(path).map_err(ImageError::Program)?;
    }
    Ok(layer)
}

/// The registry's port in the generated configuration if none is given. By default a check uses a free port, so that checks can run
/// concurrently; a check of a runtime with this configuration must be given this port.
pub const REGISTRY_PORT: u16 = 5055;

/// A runtime with its own configuration format for registries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigurableRuntime {
    /// containerd.
    Containerd,
    /// CRI-O, and other users of its image library.
    Crio,
}

/// The configuration for a check whose registry is at this port, with comments that explain it.
#[must_use]
pub fn registry_configuration(runtime: ConfigurableRuntime, port: u16) -> String {
    match runtime {
        ConfigurableRuntime::Containerd => format!(
            "# For crib check --registry-port {port}\n\
            # containerd pulls from 127.0.0.1:{port} without TLS as it is: no registry has to be configured.\n\
            # Without the internet, sandbox_image in /etc/containerd/config.toml must name an image that is there\n\
            # (ctr --namespace k8s.io images import).\n"
        ),
        ConfigurableRuntime::Crio => format!(
            "# For crib check --registry-port {port}\n\
            # /etc/containers/registries.conf.d/crib-check.conf, then reload CRI-O:\n\
            [[registry]]\n\
            location = \"127.0.0.1:{port}\"\n\
            insecure = true\n"
        ),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(ConfigurableRuntime::Containerd, "")]
    #[case(
        ConfigurableRuntime::Crio,
        "[[registry]]\nlocation = \"127.0.0.1:5055\"\ninsecure = true\n"
    )]
    fn settings_are_those_that_the_runtime_needs(
        #[case] runtime: ConfigurableRuntime,
        #[case] expected: &str,
    ) {
        let text = registry_configuration(runtime, 5055);
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let settings: String = lines.map(|line| format!("{line}\n")).collect();
        assert_eq!(settings, expected);
    }
}
