//! Fuzz targets: mount tables and cgroups, as the kernel shows them.

use std::collections::BTreeSet;

use fuzz_target::{Target, bytes, two_texts};

use crate::contract::criu::mounts;
use crate::kernel::cgroup::hierarchy;

pub(super) const TARGETS: &[Target] = &[Target::new("mountinfo", mountinfo, seeds)];

/// Both parsers of the same table agree about where cgroup hierarchies are mounted.
fn mountinfo(data: &[u8]) {
    let (table, cgroup) = two_texts(data);
    let _ = mounts::external(table);
    let places: BTreeSet<String> = mounts::assembled(table, "");
    for hierarchy in hierarchy::mounted(table, cgroup) {
        let place = hierarchy.mount.to_str().unwrap_or_default();
        let known =
            places.contains(place) || !place.starts_with('/') || matches!(place, "/" | "/dev");
        assert!(known, "{place:?} is in none of {places:?}");
    }
}

fn seeds() -> Vec<Vec<u8>> {
    bytes(&[
        "22 27 0:21 / /proc rw,relatime - proc proc rw\n\
         27 0 254:0 / / rw shared:1 - ext4 /dev/vda rw\n\
         29 28 0:25 / /sys/fs/cgroup ro,nosuid shared:4 - tmpfs tmpfs ro,mode=755\n\
         30 29 0:26 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n\
         31 29 0:27 /a\\040b /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\0\
         4:cpu,cpuacct:/a b/c\n0::/init.scope\n",
        "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n\x000::/user.slice\n",
        "93 89 0:40 / /a\\134b rw - tmpfs shm rw\n94 93 0:41 / /a\\134b rw - tmpfs b rw",
    ])
}
