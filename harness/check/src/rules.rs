//! All rules, by area. The module of an area has the name that [`Rule::area`] returns. `calls` contains the areas about several
//! calls: agreement, cancellation, codes and concurrency.
//!
//! `AGR` agreement, `CAN` cancellation, `CFG` configuration, `CNT` content, `COD` codes, `CON` concurrency, `CTR` container,
//! `EVT` event, `EXE` exec, `FMT` format, `IMG` image, `LIM` limits, `LOG` log, `MNT` mounts, `NET` network, `NSP` namespaces,
//! `OPT` optional, `PRC` process, `PUL` pull, `RST` restart, `RTM` runtime, `SBX` sandbox, `SEC` security, `STA` statistics,
//! `STP` stop, `STR` stream.
//!
//! `list` contains the rules of all lists, whatever the lists contain. A rule that shares its preparations with rules of another
//! area is in their file: `grep -rn CRI-SBX-045 harness/check/src/rules` finds it.

mod calls;
mod configuration;
mod container;
mod content;
mod event;
mod exec;
mod format;
mod image;
mod limits;
mod list;
mod log;
mod mounts;
mod namespaces;
mod network;
mod optional;
mod process;
mod pull;
mod restart;
mod runtime;
mod sandbox;
mod security;
mod statistics;
mod stop;
mod stream;

use crate::rule::Rule;

/// Every rule, by area.
#[must_use]
pub fn all() -> Vec<&'static Rule> {
    let areas = [
        runtime::RULES,
        sandbox::RULES,
        sandbox::echo::RULES,
        sandbox::handlers::RULES,
        sandbox::names::RULES,
        container::RULES,
        container::echo::RULES,
        container::states::RULES,
        list::RULES,
        container::id_prefix::RULES,
        list::exact_matches::RULES,
        list::members::RULES,
        list::churn::RULES,
        configuration::multiple_values::RULES,
        configuration::repeated_values::RULES,
        list::streams::RULES,
        calls::agreement::RULES,
        calls::codes::OF_ABSENT,
        calls::codes::RULES,
        calls::codes::arguments::RULES,
        calls::codes::messages::RULES,
        configuration::RULES,
        limits::RULES,
        limits::cgroup_paths::RULES,
        limits::extremes::RULES,
        limits::other_resources::RULES,
        limits::unified::RULES,
        container::states::FAILED_START,
        namespaces::RULES,
        namespaces::user::RULES,
        mounts::idmap::RULES,
        mounts::RULES,
        mounts::destinations::RULES,
        mounts::image_volume::RULES,
        mounts::image_volume::DECLARED_VOLUME,
        security::RULES,
        security::seccomp::RULES,
        security::seccomp::SECCOMP_ARGUMENTS,
        security::privileges::MASKED_PATHS,
        security::host_names::RULES,
        security::privileges::RULES,
        security::ordinary_user::RULES,
        mounts::kernel_filesystems::RULES,
        security::capability_sets::RULES,
        security::user_access::RULES,
        stop::RULES,
        stream::exited_container::RULES,
        process::initial_state::RULES,
        configuration::command_lookup::RULES,
        process::RULES,
        process::children::RULES,
        calls::RULES,
        sandbox::retries::RULES,
        calls::cancellation::RULES,
        stream::RULES,
        stream::ATTACH_STDIN,
        stream::terminals::RULES,
        stream::port_forward::RULES,
        stream::urls::RULES,
        network::RULES,
        network::host_port::RULES,
        network::host_network::RULES,
        mounts::destinations::MISSING_SOURCE,
        exec::arguments::ORPHANS,
        limits::OOM_KILLS,
        limits::decrease::RULES,
        sandbox::killed_process::RULES,
        optional::RULES,
        exec::RULES,
        exec::arguments::RULES,
        stream::exec::RULES,
        log::RULES,
        log::output::RULES,
        log::rotation::RULES,
        log::bytes::RULES,
        event::RULES,
        event::DELETION,
        process::timestamps::RULES,
        image::RULES,
        pull::RULES,
        pull::credentials::RULES,
        pull::DIGESTS,
        content::RULES,
        content::files::RULES,
        format::RULES,
        content::removal::RULES,
        pull::concurrency::RULES,
        statistics::RULES,
        statistics::accuracy::RULES,
        statistics::network::RULES,
        statistics::reclaim::RULES,
        statistics::accounting::RULES,
        statistics::metrics::RULES,
        // After the rules of events: some runtimes send past events to new subscribers, and these events are large.
        optional::large_messages::RULES,
        restart::RULES,
        restart::running_containers::RULES,
        restart::container_settings::RULES,
        restart::connectivity::RULES,
    ];
    areas.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use compact::Set;

    use super::*;
    use proxy::Fault;

    #[test]
    fn ids_are_unique_and_of_known_areas() {
        let mut seen = Set::new();
        for rule in all() {
            assert!(seen.insert(rule.id), "{} is there twice", rule.id);
            assert_ne!(rule.area(), "other", "{}", rule.id);
            assert!(rule.says.ends_with('.'), "{}: {}", rule.id, rule.says);
        }
    }

    #[test]
    fn each_rule_names_faults_that_parse() {
        for rule in all() {
            assert!(!rule.faults.is_empty(), "{} names no fault", rule.id);
            for fault in rule.faults {
                fault.parse::<Fault>().unwrap();
            }
        }
    }
}
