//! ◆ Tables of objects with kubectl's columns. Pure.
//!
//! Source: Kubernetes 1.36, pkg/printers/internalversion/printers.go. Columns with priority 1 are the additional columns of `-o
//! wide`.

mod network;
mod other;
mod pod;
mod storage;
#[cfg(test)]
mod tests;
mod workload;

use crib_base::columns::fields;
use jiff::Timestamp;
use serde_json::Value;

use crate::objects::kinds::Resource;

/// The options of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct TableOptions {
    /// Whether to add the columns of `-o wide`.
    pub(super) wide: bool,
    pub(super) now: Timestamp,
}

/// The table of a kind.
#[derive(Clone, Copy)]
pub(super) struct Printer {
    /// The columns after NAME.
    headings: &'static [&'static str],
    /// The additional columns of `-o wide`.
    wide: &'static [&'static str],
    /// Returns the cells of all of these columns.
    cells: fn(&Value, TableOptions) -> Vec<String>,
}

/// The additional columns of most kinds with a pod template.
const TEMPLATE: &[&str] = &["CONTAINERS", "IMAGES", "SELECTOR"];

/// The kinds with their own columns.
const PRINTERS: [(&str, &str, Printer); 20] = [
    (
        "",
        "Pod",
        Printer {
            headings: &["READY", "STATUS", "RESTARTS", "AGE"],
            wide: &["IP", "NODE", "NOMINATED NODE", "READINESS GATES"],
            cells: pod::cells,
        },
    ),
    (
        "",
        "Service",
        Printer {
            headings: &["TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORT(S)", "AGE"],
            wide: &["SELECTOR"],
            cells: network::service,
        },
    ),
    (
        "discovery.k8s.io",
        "EndpointSlice",
        Printer {
            headings: &["ADDRESSTYPE", "PORTS", "ENDPOINTS", "AGE"],
            wide: &[],
            cells: network::endpoint_slice,
        },
    ),
    (
        "apps",
        "Deployment",
        Printer {
            headings: &["READY", "UP-TO-DATE", "AVAILABLE", "AGE"],
            wide: TEMPLATE,
            cells: workload::deployment,
        },
    ),
    (
        "apps",
        "ReplicaSet",
        Printer {
            headings: &["DESIRED", "CURRENT", "READY", "AGE"],
            wide: TEMPLATE,
            cells: workload::replica_set,
        },
    ),
    (
        "",
        "ReplicationController",
        Printer {
            headings: &["DESIRED", "CURRENT", "READY", "AGE"],
            wide: TEMPLATE,
            cells: workload::replication_controller,
        },
    ),
    (
        "apps",
        "StatefulSet",
        Printer {
            headings: &["READY", "AGE"],
            wide: &["CONTAINERS", "IMAGES"],
            cells: workload::stateful_set,
        },
    ),
    (
        "apps",
        "DaemonSet",
        Printer {
            headings: &[
                "DESIRED",
                "CURRENT",
                "READY",
                "UP-TO-DATE",
                "AVAILABLE",
                "NODE SELECTOR",
                "AGE",
            ],
            wide: TEMPLATE,
            cells: workload::daemon_set,
        },
    ),
    (
        "batch",
        "Job",
        Printer {
            headings: &["STATUS", "COMPLETIONS", "DURATION", "AGE"],
            wide: TEMPLATE,
            cells: workload::job,
        },
    ),
    (
        "batch",
        "CronJob",
        Printer {
            headings: &["SCHEDULE", "TIMEZONE", "SUSPEND", "ACTIVE", "LAST SCHEDULE", "AGE"],
            wide: TEMPLATE,
            cells: workload::cron_job,
        },
    ),
    ("", "ConfigMap", Printer { headings: &["DATA", "AGE"], wide: &[], cells: other::config_map }),
    ("", "Secret", Printer { headings: &["TYPE", "DATA", "AGE"], wide: &[], cells: other::secret }),
    (
        "",
        "PersistentVolume",
        Printer {
            headings: &[
                "CAPACITY",
                "ACCESS MODES",
                "RECLAIM POLICY",
                "STATUS",
                "CLAIM",
                "STORAGECLASS",
                "VOLUMEATTRIBUTESCLASS",
                "REASON",
                "AGE",
            ],
            wide: &["VOLUMEMODE"],
            cells: storage::volume,
        },
    ),
    (
        "",
        "PersistentVolumeClaim",
        Printer {
            headings: &[
                "STATUS",
                "VOLUME",
                "CAPACITY",
                "ACCESS MODES",
                "STORAGECLASS",
                "VOLUMEATTRIBUTESCLASS",
                "AGE",
            ],
            wide: &["VOLUMEMODE"],
            cells: storage::claim,
        },
    ),
    ("", "Namespace", Printer { headings: &["STATUS", "AGE"], wide: &[], cells: other::namespace }),
    (
        "node.k8s.io",
        "RuntimeClass",
        Printer { headings: &["HANDLER", "AGE"], wide: &[], cells: other::runtime_class },
    ),
    (
        "scheduling.k8s.io",
        "PriorityClass",
        Printer {
            headings: &["VALUE", "GLOBAL-DEFAULT", "AGE", "PREEMPTIONPOLICY"],
            wide: &[],
            cells: other::priority_class,
        },
    ),
    (
        "certificates.k8s.io",
        "ClusterTrustBundle",
        Printer { headings: &["SIGNERNAME"], wide: &[], cells: other::cluster_trust_bundle },
    ),
    ("", "ServiceAccount", ANY),
    (
        "",
        "Event",
        Printer {
            headings: &[LAST_SEEN, "TYPE", "REASON", "OBJECT", "MESSAGE"],
            wide: &[],
            cells: other::event,
        },
    ),
];

/// The columns of events with `-o wide`, which are not only additional ones at the end.
const WIDE_EVENTS: Printer = Printer {
    headings: &[
        LAST_SEEN,
        "TYPE",
        "REASON",
        "OBJECT",
        "SUBOBJECT",
        "SOURCE",
        "MESSAGE",
        "FIRST SEEN",
        "COUNT",
        "NAME",
    ],
    wide: &[],
    cells: other::wide_event,
};

/// The first column of events.
const LAST_SEEN: &str = "LAST SEEN";

/// The columns of other kinds, as kubectl shows custom resources.
const ANY: Printer = Printer { headings: &["AGE"], wide: &[], cells: other::any };

impl Printer {
    /// The table of a kind.
    pub(super) fn of(resource: &Resource, wide: bool) -> Self {
        if wide && resource.is_event() {
            return WIDE_EVENTS;
        }
        let known = PRINTERS
            .iter()
            .find(|(group, kind, _)| *group == resource.group && *kind == resource.kind);
        known.map_or(ANY, |(_, _, printer)| *printer)
    }

    /// Whether NAME is the first column. Events show no name or, with `-o wide`, show it last.
    pub(super) fn begins_with_name(&self) -> bool {
        self.headings.first() != Some(&LAST_SEEN)
    }

    /// The headings after NAME.
    pub(super) fn headings(
        &self,
        options: TableOptions,
    ) -> impl Iterator<Item = &'static str> + use<> {
        let wide = if options.wide { self.wide } else { &[] };
        self.headings.iter().chain(wide).copied()
    }

    /// The cells after NAME.
    pub(super) fn cells(&self, object: &Value, options: TableOptions) -> Vec<String> {
        let mut cells = (self.cells)(object, options);
        cells.truncate(self.headings(options).count());
        cells
    }
}

/// The labels of an object: `app=web,tier=front`.
pub(super) fn labels(object: &Value) -> String {
    fields::pairs(object, "/metadata/labels")
}
