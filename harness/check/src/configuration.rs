//! ◆ The configuration with which a runtime pulls the images of a check: from a registry at 127.0.0.1, without TLS.

/// The port of the registry in a configuration that names no other one. A check without a port takes a free one, so that checks
/// run beside each other; with such a configuration it has to be given this one.
pub const REGISTRY_PORT: u16 = 5055;

/// A runtime that has a configuration of its own for registries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConfigurableRuntime {
    /// containerd.
    Containerd,
    /// CRI-O, and all else that uses its library for images.
    Crio,
}

/// The file, below its path, for a check whose registry is at this port.
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
