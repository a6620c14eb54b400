//! All rules: one file for each area.

mod absent_path;
mod after_restart;
mod agreement;
mod as_user;
mod attached_input;
mod beginnings;
mod cancellation;
mod capability_sets;
mod cgroups;
mod children;
mod codes;
mod command;
mod concurrency;
mod configuration;
mod container;
mod container_echo;
mod credentials;
mod declared_volume;
mod deleted_events;
mod digests;
mod ended;
mod event;
mod exec;
mod exec_alike;
mod freed;
mod host_network;
mod host_port;
mod image;
mod image_content;
mod image_files;
mod image_format;
mod image_life;
mod image_pull;
mod image_volume;
mod initial_state;
mod large;
mod left_behind;
mod limits;
mod listing;
mod log;
mod log_bytes;
mod lost_sandbox;
mod lower_limit;
mod mapped_ids;
mod measured;
mod memory_kills;
mod metrics;
mod moments;
mod mount_places;
mod mounts;
mod named_on_host;
mod names;
mod namespaces;
mod network;
mod optional;
mod output;
mod port_forward;
mod process;
mod profiles;
mod programs;
mod reached_after_restart;
mod reached_by_user;
mod refusals;
mod resources;
mod restart;
mod restarted;
mod rights;
mod rotation;
mod runtime;
mod sandbox;
mod sandbox_echo;
mod seccomp;
mod security;
mod several;
mod states;
mod statistics;
mod stop;
mod stream;
mod streamed_lists;
mod surroundings;
mod terminals;
mod traffic;
mod unhindered;
mod unified;
mod unmasked;
mod unstarted;
mod user_namespace;
mod what_is_counted;
mod whole_matches;

use super::rule::Rule;

/// Every rule, by area.
#[must_use]
pub fn all() -> Vec<&'static Rule> {
    let areas = [
        runtime::RULES,
        sandbox::RULES,
        sandbox_echo::RULES,
        names::RULES,
        container::RULES,
        container_echo::RULES,
        states::RULES,
        listing::RULES,
        beginnings::RULES,
        whole_matches::RULES,
        several::RULES,
        streamed_lists::RULES,
        agreement::RULES,
        codes::RULES,
        configuration::RULES,
        limits::RULES,
        cgroups::RULES,
        resources::RULES,
        unified::RULES,
        unstarted::RULES,
        namespaces::RULES,
        user_namespace::RULES,
        mapped_ids::RULES,
        mounts::RULES,
        mount_places::RULES,
        image_volume::RULES,
        declared_volume::RULES,
        security::RULES,
        seccomp::RULES,
        profiles::RULES,
        unmasked::RULES,
        named_on_host::RULES,
        rights::RULES,
        as_user::RULES,
        surroundings::RULES,
        capability_sets::RULES,
        reached_by_user::RULES,
        stop::RULES,
        ended::RULES,
        initial_state::RULES,
        programs::RULES,
        process::RULES,
        children::RULES,
        concurrency::RULES,
        refusals::RULES,
        cancellation::RULES,
        stream::RULES,
        attached_input::RULES,
        terminals::RULES,
        port_forward::RULES,
        network::RULES,
        host_port::RULES,
        host_network::RULES,
        absent_path::RULES,
        left_behind::RULES,
        memory_kills::RULES,
        lower_limit::RULES,
        lost_sandbox::RULES,
        optional::RULES,
        exec::RULES,
        command::RULES,
        exec_alike::RULES,
        log::RULES,
        output::RULES,
        rotation::RULES,
        log_bytes::RULES,
        event::RULES,
        deleted_events::RULES,
        moments::RULES,
        image::RULES,
        image_pull::RULES,
        credentials::RULES,
        digests::RULES,
        image_content::RULES,
        image_files::RULES,
        image_format::RULES,
        image_life::RULES,
        unhindered::RULES,
        statistics::RULES,
        measured::RULES,
        traffic::RULES,
        freed::RULES,
        what_is_counted::RULES,
        metrics::RULES,
        // Behind the rules of events: some runtimes send what is minutes old to who listens, and each event of theirs is large.
        large::RULES,
        restart::RULES,
        restarted::RULES,
        after_restart::RULES,
        reached_after_restart::RULES,
    ];
    areas.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use super::*;
    use crate::proxy::Fault;

    #[test]
    fn ids_are_unique_and_of_known_areas() {
        let mut seen = BTreeSet::new();
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
