//! The huge pages of the machine, as the kernel lists them in `/sys`.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cadvisor/util.go (CapacityFromMachineInfo).

use std::fs;
use std::path::Path;

use api::quantity::{Format, Quantity};

use crate::pod_spec::spec::page_size_name;

/// The directory in which the kernel lists them.
pub(crate) const HUGE_PAGES: &str = "/sys/kernel/mm/hugepages";

/// The huge pages of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HugePages {
    /// Bytes of one page.
    size: i64,
    /// The number of pages that the kernel has reserved.
    number: i64,
}

impl HugePages {
    /// The size as the CRI and cgroups name it: `2MB`.
    pub(crate) fn size_name(self) -> Option<String> {
        page_size_name(self.size)
    }

    /// The node's resource with its capacity: `hugepages-2Mi` and `64Mi`.
    pub(crate) fn capacity(self) -> (String, String) {
        let bytes = |amount| Quantity::whole(amount, Format::BinarySi).to_string();
        let all = self.size.saturating_mul(self.number);
        (format!("hugepages-{}", bytes(self.size)), bytes(all))
    }
}

/// Reads the sizes of huge pages in `directory`, smallest first; none if the kernel has none.
pub(crate) fn read(directory: &Path) -> Vec<HugePages> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found: Vec<HugePages> = entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let kilobytes = name.to_str()?.strip_prefix("hugepages-")?;
            let kilobytes: i64 = kilobytes.strip_suffix("kB")?.parse().ok()?;
            let number = fs::read_to_string(entry.path().join("nr_hugepages")).ok()?;
            Some(HugePages {
                size: kilobytes.checked_mul(1024)?,
                number: number.trim().parse().ok()?,
            })
        })
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn sizes_and_capacities_are_read() {
        let root = tempfile::tempdir().unwrap();
        for (name, number) in [
            ("hugepages-1048576kB", "2\n"),
            ("hugepages-2048kB", "32\n"),
            ("hugepages-64kB", "many"),
            ("other", "1"),
        ] {
            fs::create_dir(root.path().join(name)).unwrap();
            fs::write(root.path().join(name).join("nr_hugepages"), number).unwrap();
        }
        let found = read(root.path());
        let names: Vec<_> = found.iter().filter_map(|pages| pages.size_name()).collect();
        assert_eq!(names, ["2MB", "1GB"]);
        let capacity: Vec<_> = found.iter().map(|pages| pages.capacity()).collect();
        let expected = [("hugepages-2Mi", "64Mi"), ("hugepages-1Gi", "2Gi")];
        assert_eq!(capacity, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
        assert_eq!(read(&root.path().join("none")), []);
    }
}
