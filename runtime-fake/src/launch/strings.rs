//! ◆ Validates the client's strings that are written into files or variables in which a separator would split them. Pure.
//!
//! Each string is checked before anything is created. Paths have their own checks (`paths`, `mounts`, `log`, `devices`), as do
//! cgroups (`cgroup/path`, `cgroup/limits`), labels and profiles (`selinux`, `apparmor`) and kernel parameters (`sysctl`).
//! Strings that are only stored and returned, such as labels and annotations, may have any value.

use cri::v1::{ContainerConfig, DnsConfig, PodSandboxConfig};

use crate::launch::{Invalid, invalid};

/// A line break ends a line of a log or of a file written by a plugin; a NUL ends an environment variable such as
/// `CNI_ARGS`.
fn one_line(field: &str, text: &str) -> Result<(), Invalid> {
    if text.contains(char::is_control) {
        return invalid(format!(
            "{field} {text:?} has a control character: it may have printable ones only"
        ));
    }
    Ok(())
}

/// A word in `/etc/hosts` or `/etc/resolv.conf`, which a space would split (hosts(5), resolv.conf(5)).
fn word(field: &str, text: &str) -> Result<(), Invalid> {
    one_line(field, text)?;
    if text.is_empty() || text.contains(|c: char| c.is_whitespace() || "#;".contains(c)) {
        return invalid(format!(
            "{field} {text:?} is not one word: it may have no white space, # or ;"
        ));
    }
    Ok(())
}

/// Validates the strings of a sandbox.
pub(super) fn check_pod(config: &PodSandboxConfig) -> Result<(), Invalid> {
    if let Some(metadata) = &config.metadata {
        for (field, text) in [
            ("metadata.name", &metadata.name),
            ("metadata.namespace", &metadata.namespace),
            ("metadata.uid", &metadata.uid),
        ] {
            one_line(field, text)?;
        }
    }
    if !config.hostname.is_empty() {
        word("hostname", &config.hostname)?;
    }
    one_line("log_directory", &config.log_directory)?;
    config.dns_config.as_ref().map_or(Ok(()), check_dns)
}

fn check_dns(dns: &DnsConfig) -> Result<(), Invalid> {
    for (field, words) in [
        ("dns_config.servers", &dns.servers),
        ("dns_config.searches", &dns.searches),
        ("dns_config.options", &dns.options),
    ] {
        for text in words {
            word(field, text)?;
        }
    }
    Ok(())
}

/// Validates the strings of a container.
pub(super) fn check_container(config: &ContainerConfig) -> Result<(), Invalid> {
    if let Some(metadata) = &config.metadata {
        one_line("metadata.name", &metadata.name)?;
    }
    one_line("log_path", &config.log_path)?;
    let mounts = config.mounts.iter().map(|mount| &mount.container_path);
    let devices = config.devices.iter().map(|device| &device.container_path);
    mounts.chain(devices).try_for_each(|path| one_line("container_path", path))
}

/// A pod's name as a hostname.
pub(super) fn hostname_of(name: &str) -> String {
    let plain = |c: char| {
        if c.is_whitespace() || "#;".contains(c) { '-' } else { c }
    };
    name.chars().map(plain).take(63).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    type Pod = PodSandboxConfig;

    #[rstest]
    #[case::name(|c: &mut Pod, s: String| c.metadata.get_or_insert_default().name = s, "a\nb")]
    #[case::namespace(|c: &mut Pod, s: String| c.metadata.get_or_insert_default().namespace = s, "a\0b")]
    #[case::uid(|c: &mut Pod, s: String| c.metadata.get_or_insert_default().uid = s, "a\u{1b}[2J")]
    #[case::hostname(|c: &mut Pod, s: String| c.hostname = s, "a\nb")]
    #[case::another_name_of_the_host(|c: &mut Pod, s: String| c.hostname = s, "a example.com")]
    #[case::commented_name_of_the_host(|c: &mut Pod, s: String| c.hostname = s, "a#b")]
    #[case::log_directory(|c: &mut Pod, s: String| c.log_directory = s, "/a\nb")]
    #[case::server(|c: &mut Pod, s: String| c.dns_config.get_or_insert_default().servers = vec![s], "10.0.0.1\noptions x")]
    #[case::two_servers(|c: &mut Pod, s: String| c.dns_config.get_or_insert_default().servers = vec![s], "10.0.0.1 10.0.0.2")]
    #[case::no_server(|c: &mut Pod, s: String| c.dns_config.get_or_insert_default().servers = vec![s], "")]
    #[case::search(|c: &mut Pod, s: String| c.dns_config.get_or_insert_default().searches = vec![s], "a\nnameserver 6.6.6.6")]
    #[case::option(|c: &mut Pod, s: String| c.dns_config.get_or_insert_default().options = vec![s], "a\rb")]
    fn hostile_string_of_a_pod_is_refused(#[case] set: fn(&mut Pod, String), #[case] text: &str) {
        let mut config = Pod::default();
        set(&mut config, "plain".to_owned());
        check_pod(&config).unwrap();
        set(&mut config, text.to_owned());
        let refused = check_pod(&config).unwrap_err().0;
        assert!(!refused.contains(char::is_control), "{refused:?}");
    }

    #[rstest]
    #[case::name(|c: &mut ContainerConfig, s: String| c.metadata.get_or_insert_default().name = s)]
    #[case::log(|c: &mut ContainerConfig, s: String| c.log_path = s)]
    #[case::mount(|c: &mut ContainerConfig, s: String| c.mounts = vec![cri::v1::Mount { container_path: s, ..Default::default() }])]
    #[case::device(|c: &mut ContainerConfig, s: String| c.devices = vec![cri::v1::Device { container_path: s, ..Default::default() }])]
    fn hostile_string_of_a_container_is_refused(#[case] set: fn(&mut ContainerConfig, String)) {
        let mut config = ContainerConfig::default();
        set(&mut config, "/a b#c".to_owned());
        check_container(&config).unwrap();
        for text in ["/a\nb", "/a\0b", "/a\u{7f}"] {
            set(&mut config, text.to_owned());
            check_container(&config).unwrap_err();
        }
    }

    #[test]
    fn pod_name_becomes_one_word_for_a_hostname() {
        assert_eq!(hostname_of("my pod#1"), "my-pod-1");
        assert_eq!(hostname_of(&"x".repeat(100)).len(), 63);
    }
}
