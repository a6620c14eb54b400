//! eviction-*: thresholds, signals, and the order in which pods are evicted.

use std::collections::{BTreeMap, BTreeSet};

use agent::local_node::eviction::Signal;
use agent::local_node::eviction::config::{ConfigError, EvictionConfig, Threshold, ThresholdValue};
use agent::local_node::eviction::message::message;
use agent::local_node::eviction::observe::{observe, thresholds_met};
use agent::local_node::eviction::rank::{Candidate, FsLayout, rank};
use agent::local_node::eviction::stats::{NodeStats, PodStats};
use api::pod::Pod;
use serde_json::{Map, Value, json};

use crate::judge::Set;
use crate::pods;
use crate::read::{self, Case};

pub(crate) const THRESHOLDS: Set = Set::new(
    "eviction-thresholds",
    "the thresholds of an eviction configuration",
    judge_thresholds,
);

pub(crate) const SIGNALS: Set = Set::new(
    "eviction-signals",
    "the eviction signals observed on a node, and the eviction thresholds that are met",
    judge_signals,
);

pub(crate) const RANK: Set =
    Set::new("eviction-rank", "which pod is evicted first, and the eviction message", judge_rank);

fn config(input: &Value) -> EvictionConfig {
    let map = |key: &str| -> BTreeMap<String, String> {
        let entries = input[key].as_object().into_iter().flatten();
        entries.map(|(name, value)| (name.clone(), read::text(value).to_owned())).collect()
    };
    EvictionConfig {
        enforce_node_allocatable: pods::texts(&input["enforceNodeAllocatable"]),
        hard: map("evictionHard"),
        soft: map("evictionSoft"),
        soft_grace_period: map("evictionSoftGracePeriod"),
        minimum_reclaim: map("evictionMinimumReclaim"),
    }
}

/// The thresholds as in the files: sorted by signal, hard ones first.
fn shown(thresholds: &[&Threshold]) -> Value {
    let value = |value: &ThresholdValue| match value {
        ThresholdValue::Quantity { text, .. } => json!({"quantity": text}),
        // The files have the 64-bit integer that results from NaN.
        ThresholdValue::Percentage(share) if share.is_nan() => {
            json!({"percentage": -922_337_203_685_477.6})
        }
        ThresholdValue::Percentage(share) => {
            let percent = (f64::from(*share) * 100.0 * 1000.0).round() / 1000.0;
            json!({"percentage": pods::seconds(percent)})
        }
    };
    let mut sorted = thresholds.to_vec();
    sorted.sort_by_key(|threshold| threshold.signal.as_str());
    let all: Vec<Value> = sorted
        .iter()
        .map(|threshold| {
            let mut shown = Map::new();
            shown.insert("signal".to_owned(), json!(threshold.signal.as_str()));
            shown.insert("operator".to_owned(), json!("LessThan"));
            shown.insert("value".to_owned(), value(&threshold.value));
            if !threshold.grace_period.is_zero() {
                let seconds = pods::seconds(threshold.grace_period.as_secs_f64());
                shown.insert("gracePeriodSeconds".to_owned(), seconds);
            }
            if let Some(reclaim) = &threshold.minimum_reclaim {
                shown.insert("minReclaim".to_owned(), value(reclaim));
            }
            Value::Object(shown)
        })
        .collect();
    json!(all)
}

fn judge_thresholds(case: &Case) -> Result<(), String> {
    let thresholds = match config(&case.input).thresholds() {
        Ok(thresholds) => thresholds,
        Err(error) => {
            let theirs = case.expected["error"].as_str();
            let theirs = theirs.ok_or(format!("refused ({error}): {}", case.expected))?;
            // Parsers of numbers have their own messages.
            let parser = matches!(
                error,
                ConfigError::Percentage(_) | ConfigError::Quantity(_) | ConfigError::Duration(_)
            );
            return if parser {
                Ok(())
            } else {
                read::same("error", &json!(error.to_string()), &json!(theirs))
            };
        }
    };
    if case.expected["error"].is_string() {
        return Err(format!("accepted, but expected {}", case.expected));
    }
    let thresholds: Vec<&Threshold> = thresholds.iter().collect();
    let theirs = &case.expected["thresholds"];
    read::same("thresholds", &shown(&thresholds), theirs)
}

fn judge_signals(case: &Case) -> Result<(), String> {
    let stats: NodeStats = serde_json::from_value(case.input["nodeStats"].clone()).unwrap();
    let thresholds =
        config(&case.input["config"]).thresholds().map_err(|error| error.to_string())?;
    let observed = observe(&stats);
    let observations: Map<String, Value> = observed
        .iter()
        .map(|(signal, seen)| {
            let seen = json!({"available": seen.available, "capacity": seen.capacity});
            (signal.as_str().to_owned(), seen)
        })
        .collect();
    let expected = &case.expected;
    read::same("observations", &json!(observations), &expected["observations"])?;
    let met = thresholds_met(&thresholds, &observed, false);
    read::same("met", &shown(&met), &expected["met"])?;
    let reclaimed = thresholds_met(&thresholds, &observed, true);
    read::same("metWithMinReclaim", &shown(&reclaimed), &expected["metWithMinReclaim"])?;
    let conditions: BTreeSet<&str> =
        met.iter().map(|threshold| threshold.signal.node_condition()).collect();
    read::same("nodeConditions", &json!(conditions), &expected["nodeConditions"])
}

fn judge_rank(case: &Case) -> Result<(), String> {
    let input = &case.input;
    let pods: Vec<Pod> = read::list(&input["pods"]).iter().map(pods::pod).collect();
    let stats: Vec<PodStats> = serde_json::from_value(input["podStats"].clone()).unwrap();
    let candidates: Vec<Candidate<'_>> = pods
        .iter()
        .map(|pod| Candidate {
            pod,
            stats: stats.iter().find(|stats| stats.pod_ref.uid == pod.uid().as_str()),
        })
        .collect();
    let signal = Signal::named(read::text(&input["signal"])).unwrap();
    let layout = match (input["dedicatedImageFs"] == true, input["splitContainerFs"] == true) {
        (true, true) => FsLayout::ImagesOnly,
        (true, false) => FsLayout::Images,
        (false, _) => FsLayout::One,
    };
    let names = |group: &[Candidate<'_>]| {
        let mut names: Vec<&str> = group.iter().map(|candidate| candidate.pod.name()).collect();
        names.sort_unstable();
        json!(names)
    };
    let groups = rank(signal, layout, &candidates);
    let ours: Vec<Value> = groups.iter().map(|group| names(group)).collect();
    let theirs: Vec<Value> = read::list(&case.expected["order"])
        .iter()
        .map(|group| {
            let mut names = pods::texts(group);
            names.sort_unstable();
            json!(names)
        })
        .collect();
    read::same("order", &json!(ours), &json!(theirs))?;

    let node: NodeStats = serde_json::from_value(input["nodeStats"].clone()).unwrap();
    let thresholds = config(&json!({
        "evictionHard": input["threshold"],
        "enforceNodeAllocatable": ["pods"],
    }))
    .thresholds()
    .map_err(|error| error.to_string())?;
    let thresholds: Vec<&Threshold> =
        thresholds.iter().filter(|threshold| threshold.signal == signal).collect();
    let of = candidates
        .iter()
        .find(|candidate| candidate.pod.name() == read::text(&input["message_pod"]));
    let actual = message(signal.resource(), of.unwrap(), &thresholds, &observe(&node));
    read::same("message", &json!(actual.message), &case.expected["message"])?;
    read::same("annotations", &json!(actual.annotations), &case.expected["message_annotations"])
}
