//! The list of the agent's sets, in the order of the table.

use crate::judge::Set;
use crate::{
    actions, backoff, config, eviction, images, inside, kill, mounts, probes, resources, restart,
    static_pod_dirs, status,
};

pub(crate) const SETS: &[Set] = &[
    actions::SET,
    restart::SET,
    backoff::SET,
    kill::ORDER,
    kill::GRACE,
    probes::PROBES,
    probes::REQUESTS,
    status::PHASE,
    status::STATUS,
    static_pod_dirs::SET,
    inside::EXPANSION,
    inside::ENVIRONMENT,
    inside::HOSTS,
    inside::DNS,
    mounts::SET,
    resources::CPU,
    resources::QOS,
    config::SANDBOX,
    config::CONTAINER,
    images::REFERENCES,
    images::CREDENTIALS,
    images::BACKOFF,
    images::SEQUENCES,
    eviction::THRESHOLDS,
    eviction::SIGNALS,
    eviction::RANK,
];
