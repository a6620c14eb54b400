//! Identifies the machine and its operating system, from files of the kernel and the system.

use std::path::Path;

use jiff::Timestamp;

/// The machine's part of `status.nodeInfo`; a field is empty if its file is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Machine {
    pub(crate) machine_id: String,
    pub(crate) system_uuid: String,
    pub(crate) boot_id: String,
    pub(crate) kernel_version: String,
    pub(crate) os_image: String,
}

impl Machine {
    /// Reads the files below `root`. On most systems only root may read the firmware's.
    ///
    /// Source: cAdvisor 0.56, utils/sysinfo and machine/info.go.
    pub(crate) fn read(root: &Path) -> Self {
        let first = |paths: &[&str]| {
            let texts = paths.iter().map(|path| std::fs::read_to_string(root.join(path)));
            let texts = texts.filter_map(Result::ok).map(|text| text.trim().to_owned());
            texts.into_iter().find(|text| !text.is_empty()).unwrap_or_default()
        };
        let release = first(&["etc/os-release", "usr/lib/os-release"]);
        Self {
            machine_id: first(&["etc/machine-id", "var/lib/dbus/machine-id"]),
            system_uuid: first(&[
                "sys/class/dmi/id/product_uuid",
                "proc/device-tree/system-id",
                "proc/device-tree/vm,uuid",
                "etc/machine-id",
            ]),
            boot_id: first(&["proc/sys/kernel/random/boot_id"]),
            kernel_version: first(&["proc/sys/kernel/osrelease"]),
            os_image: pretty_name(&release).unwrap_or_else(|| "Linux".to_owned()),
        }
    }
}

/// The boot time, as the kernel reports it.
pub(crate) fn boot_time(root: &Path) -> Option<Timestamp> {
    let text = std::fs::read_to_string(root.join("proc/stat")).ok()?;
    let seconds = text.lines().find_map(|line| line.strip_prefix("btime "))?;
    Timestamp::from_second(seconds.trim().parse().ok()?).ok()
}

/// The system's display name (os-release(5)).
fn pretty_name(release: &str) -> Option<String> {
    let name = release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    Some(name.trim_matches(['"', '\'']).to_owned()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(
        "NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n",
        Some("Debian GNU/Linux 12 (bookworm)")
    )]
    #[case("PRETTY_NAME=Alpine\n", Some("Alpine"))]
    #[case("NAME=x\n", None)]
    fn os_image_is_pretty_name_of_os_release(#[case] text: &str, #[case] name: Option<&str>) {
        assert_eq!(pretty_name(text).as_deref(), name);
    }

    #[test]
    fn boot_time_is_read_from_proc_stat() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(boot_time(root.path()), None);
        std::fs::create_dir_all(root.path().join("proc")).unwrap();
        std::fs::write(root.path().join("proc/stat"), "cpu 1 2\nbtime 70\n").unwrap();
        assert_eq!(boot_time(root.path()), Timestamp::from_second(70).ok());
    }

    #[test]
    fn machine_without_firmware_is_identified_by_its_machine_id() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("etc")).unwrap();
        std::fs::write(root.path().join("etc/machine-id"), "abc\n").unwrap();
        let machine = Machine::read(root.path());
        let expected = Machine {
            machine_id: "abc".to_owned(),
            system_uuid: "abc".to_owned(),
            os_image: "Linux".to_owned(),
            ..Machine::default()
        };
        assert_eq!(machine, expected);
    }
}
