//! The rules of a running proxy, which can be added and removed: their states and counters, and the responses that `stale` rules
//! keep.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use hyper::HeaderMap;
use serde::{Deserialize, Serialize};

use super::fault::{Action, CallFault, Fault, RuleSet};
use super::json;
use super::schedule::{Count, chance};

/// The maximum number of responses that a `stale` rule keeps, one for each distinct request.
const MAX_CACHED: usize = 1024;

/// The rules of a running proxy. Clones share them.
#[derive(Debug, Clone)]
pub struct Rules {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    seed: u64,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    rules: Vec<Arc<Rule>>,
    /// The number of rules so far, including removed ones.
    numbered: u64,
    /// The rules of each call by path, with the call's index in the rule.
    by_path: BTreeMap<String, Vec<(Arc<Rule>, usize)>>,
}

#[derive(Debug)]
struct Rule {
    fault: Fault,
    /// Beginning with 1.
    number: u64,
    name: String,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    is_on: bool,
    count: Count,
    /// The responses by call and request, each with a sequence number.
    responses: BTreeMap<String, (u64, CachedResponse)>,
    kept: u64,
}

/// A successful response that may be sent again.
#[derive(Debug, Clone)]
pub(super) struct CachedResponse {
    pub(super) body: Bytes,
    pub(super) trailers: HeaderMap,
}

/// A rule, and its counters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleState {
    /// Its name, or its number if it has no name. Rules are numbered from 1 in their order.
    pub name: String,
    /// Whether it is enabled.
    pub on: bool,
    /// The number of calls that met it.
    pub met: u64,
    /// The number of calls that it was applied to.
    pub applied: u64,
    /// The text of the rule.
    pub rule: String,
}

/// No rule has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no rule is named {name:?}; the rules are{}", listed(known))]
pub struct UnknownRule {
    name: String,
    known: Vec<String>,
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { ": none".to_owned() } else { format!(": {}", names.join(", ")) }
}

/// A rule for one call.
#[derive(Debug, Clone)]
pub(super) struct CallRule {
    seed: u64,
    rule: Arc<Rule>,
    call: usize,
}

impl Rules {
    pub(super) fn new(set: RuleSet) -> Self {
        let mut table = Table::default();
        for fault in set.faults {
            table.add(fault);
        }
        Self { shared: Arc::new(Shared { seed: set.seed, table: Mutex::new(table) }) }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.shared.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The rules, and their counters.
    #[must_use]
    pub fn list(&self) -> Vec<RuleState> {
        let table = self.table();
        let rules = table.rules.iter().map(|rule| {
            let state = rule.state();
            RuleState {
                name: rule.name.clone(),
                on: state.is_on,
                met: state.count.met,
                applied: state.count.applied,
                rule: rule.fault.text().to_owned(),
            }
        });
        rules.collect()
    }

    /// Enables or disables the rules of a name. When a rule is enabled, its counters are reset.
    ///
    /// # Errors
    /// No rule has the name.
    pub fn switch(&self, name: &str, on: bool) -> Result<(), UnknownRule> {
        for rule in self.table().named(name)? {
            let mut state = rule.state();
            if on && !state.is_on {
                state.count = Count::default();
            }
            state.is_on = on;
        }
        Ok(())
    }

    /// Adds a rule at the end, for calls that begin later. Without a name, the rule gets the next number.
    pub fn add(&self, fault: Fault) {
        self.table().add(fault);
    }

    /// Removes the rules of a name. A stream continues without them, and so does a call whose response they would change; a call
    /// that a rule delays keeps waiting.
    ///
    /// # Errors
    /// No rule has the name.
    pub fn remove(&self, name: &str) -> Result<(), UnknownRule> {
        let mut table = self.table();
        for rule in table.named(name)? {
            rule.state().is_on = false;
        }
        table.rules.retain(|rule| rule.name != name);
        table.by_path.values_mut().for_each(|rules| rules.retain(|(rule, _)| rule.name != name));
        Ok(())
    }

    /// The rules that may apply to a call.
    pub(super) fn for_call(&self, path: &str) -> Vec<CallRule> {
        let (table, seed) = (self.table(), self.shared.seed);
        let of_call = table.by_path.get(path).into_iter().flatten();
        let rules =
            of_call.map(|(rule, call)| CallRule { seed, rule: Arc::clone(rule), call: *call });
        // A rule may be enabled during a stream, and a `stale` rule keeps responses while it is disabled.
        rules
            .filter(|rule| {
                let fault = rule.fault();
                let keeps = matches!(fault.action, Action::Stale);
                keeps || fault.method.is_server_streaming() || rule.is_on()
            })
            .collect()
    }
}

impl Table {
    fn add(&mut self, fault: Fault) {
        self.numbered += 1;
        let number = self.numbered;
        let rule = Arc::new(Rule {
            number,
            name: fault.name().map_or_else(|| number.to_string(), str::to_owned),
            state: Mutex::new(State {
                is_on: fault.is_on,
                count: Count::default(),
                responses: BTreeMap::new(),
                kept: 0,
            }),
            fault,
        });
        for (call, one) in rule.fault.calls.iter().enumerate() {
            let of_call = self.by_path.entry(json::path(&one.method)).or_default();
            of_call.push((Arc::clone(&rule), call));
        }
        self.rules.push(rule);
    }

    /// The rules with this name, at least one.
    fn named(&self, name: &str) -> Result<Vec<Arc<Rule>>, UnknownRule> {
        let found = self.rules.iter().filter(|rule| rule.name == name);
        let found: Vec<_> = found.map(Arc::clone).collect();
        if !found.is_empty() {
            return Ok(found);
        }
        let mut known: Vec<_> = self.rules.iter().map(|rule| rule.name.clone()).collect();
        known.dedup();
        Err(UnknownRule { name: name.to_owned(), known })
    }
}

impl Rule {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CallRule {
    pub(super) fn fault(&self) -> &CallFault {
        // `by_path` contains the index, and a rule never changes.
        &self.rule.fault.calls[self.call]
    }

    pub(super) fn is_on(&self) -> bool {
        self.rule.state().is_on
    }

    /// Counts a call that meets the rule. Returns whether the rule applies to it.
    pub(super) fn count(&self) -> bool {
        let mut state = self.rule.state();
        let chance = chance(self.seed, self.rule.number - 1, state.count.met);
        let is_due = self.rule.fault.schedule.is_due(state.count, chance);
        state.count.met += 1;
        state.count.applied += u64::from(is_due);
        is_due
    }

    /// The response to a request from a time when the rule did not apply.
    pub(super) fn cached_response(&self, request: &str) -> Option<CachedResponse> {
        let state = self.rule.state();
        let kept = state.responses.get(&self.key(request));
        kept.map(|(_, response)| response.clone())
    }

    /// Keeps a response, and drops the oldest one if there are too many.
    pub(super) fn cache_response(&self, request: &str, response: CachedResponse) {
        let mut state = self.rule.state();
        state.kept += 1;
        let number = state.kept;
        state.responses.insert(self.key(request), (number, response));
        if state.responses.len() > MAX_CACHED {
            let oldest = state.responses.iter().min_by_key(|(_, (number, _))| *number);
            if let Some(key) = oldest.map(|(key, _)| key.clone()) {
                state.responses.remove(&key);
            }
        }
    }

    fn key(&self, request: &str) -> String {
        format!("{} {request}", self.fault().method.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "/runtime.v1.RuntimeService/Version";

    fn rules(text: &str) -> Rules {
        Rules::new(text.parse().unwrap())
    }

    #[test]
    fn rule_is_met_only_while_it_is_on_and_counts_anew() {
        let rules = rules("off slow: Version times 1 hang\nStatus hang");
        assert!(rules.for_call(PATH).is_empty());
        rules.switch("slow", true).unwrap();
        let call = rules.for_call(PATH).remove(0);
        assert!(call.count() && !call.count());
        let slow = RuleState {
            name: "slow".to_owned(),
            on: true,
            met: 2,
            applied: 1,
            rule: "off slow: Version times 1 hang".to_owned(),
        };
        assert_eq!(rules.list()[0], slow);
        assert_eq!(rules.list()[1].name, "2");
        rules.switch("slow", false).unwrap();
        rules.switch("slow", true).unwrap();
        assert!(call.count());
        let error = rules.switch("quick", true).unwrap_err().to_string();
        assert_eq!(error, "no rule is named \"quick\"; the rules are: slow, 2");
    }

    #[test]
    fn rules_come_and_go() {
        let rules = rules("first: Version hang\nStatus hang");
        rules.add("Version,Status times 1 hang".parse().unwrap());
        let listed = |rules: &Rules| {
            let names: Vec<String> = rules.list().into_iter().map(|rule| rule.name).collect();
            names.join(" ")
        };
        assert_eq!((listed(&rules).as_str(), rules.for_call(PATH).len()), ("first 2 3", 2));
        let under_way = rules.for_call(PATH).remove(0);
        rules.remove("first").unwrap();
        assert!(!under_way.is_on());
        rules.remove("2").unwrap();
        // A number is not reused.
        rules.add("off Version hang".parse().unwrap());
        assert_eq!((listed(&rules).as_str(), rules.for_call(PATH).len()), ("3 4", 1));
        let error = rules.remove("2").unwrap_err().to_string();
        assert_eq!(error, "no rule is named \"2\"; the rules are: 3, 4");
        rules.remove("3").unwrap();
        rules.remove("4").unwrap();
        let error = rules.switch("4", true).unwrap_err().to_string();
        assert_eq!(error, "no rule is named \"4\"; the rules are: none");
    }

    #[test]
    fn call_that_contract_does_not_have_meets_no_rule() {
        let rules = rules("* hang");
        assert_eq!(rules.for_call(PATH).len(), 1);
        assert!(rules.for_call("/runtime.v2.RuntimeService/Version").is_empty());
    }

    #[test]
    fn seed_repeats_the_same_run() {
        let run = |seed| {
            let rules = rules(&format!("seed {seed}\nVersion probability 0.5 hang"));
            let call = rules.for_call(PATH).remove(0);
            (0..40).map(|_| call.count()).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn stale_rule_keeps_limited_number_of_answers() {
        let rules = rules("off Version stale");
        let call = rules.for_call(PATH).remove(0);
        let response =
            CachedResponse { body: Bytes::from_static(b"x"), trailers: HeaderMap::new() };
        for number in 0..=MAX_CACHED {
            call.cache_response(&number.to_string(), response.clone());
        }
        assert!(call.cached_response("0").is_none());
        assert!(call.cached_response("1").is_some());
    }
}
