//! The rules of a running proxy: which are on, how often each was met, and the answers that stale ones keep.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use hyper::HeaderMap;
use serde::{Deserialize, Serialize};

use super::fault::{Action, CallFault, Fault, RuleSet};
use super::json;
use super::schedule::{Count, chance};

/// How many answers a stale rule keeps: one for each request that differs from the others.
const MAX_ANSWERS: usize = 1024;

/// The rules of a running proxy. Clones share them.
#[derive(Debug, Clone)]
pub struct Rules {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    seed: u64,
    rules: Vec<Rule>,
    /// The rules of each call by its path, and the place of the call in the rule.
    by_path: BTreeMap<String, Vec<(usize, usize)>>,
}

#[derive(Debug)]
struct Rule {
    fault: Fault,
    name: String,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    is_on: bool,
    count: Count,
    /// By call and request, with the number of the call that was answered so.
    answers: BTreeMap<String, (u64, KeptAnswer)>,
    kept: u64,
}

/// A successful answer that may be given again.
#[derive(Debug, Clone)]
pub(super) struct KeptAnswer {
    pub(super) body: Bytes,
    pub(super) trailers: HeaderMap,
}

/// A rule, and what it has done so far.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleState {
    /// Its name; of a rule without one, its number in the order of the rules, from 1 on.
    pub name: String,
    /// Whether it is switched on.
    pub on: bool,
    /// How many calls met it.
    pub met: u64,
    /// How many of those it was applied to.
    pub applied: u64,
    /// The rule as it was written.
    pub rule: String,
}

/// No rule has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no rule is called {name:?}; there are: {}", known.join(", "))]
pub struct UnknownRule {
    name: String,
    known: Vec<String>,
}

/// A rule of one call.
#[derive(Debug, Clone)]
pub(super) struct CallRule {
    rules: Rules,
    rule: usize,
    call: usize,
}

impl Rules {
    pub(super) fn new(set: RuleSet) -> Self {
        let mut by_path = BTreeMap::<_, Vec<_>>::new();
        for (rule, fault) in set.faults.iter().enumerate() {
            for (call, one) in fault.calls.iter().enumerate() {
                let path = json::path(&one.method);
                by_path.entry(path).or_default().push((rule, call));
            }
        }
        let numbered = set.faults.into_iter().enumerate();
        let rules = numbered.map(|(number, fault)| Rule {
            name: fault.name().map_or_else(|| (number + 1).to_string(), str::to_owned),
            state: Mutex::new(State {
                is_on: fault.is_on,
                count: Count::default(),
                answers: BTreeMap::new(),
                kept: 0,
            }),
            fault,
        });
        let shared = Shared { seed: set.seed, rules: rules.collect(), by_path };
        Self { shared: Arc::new(shared) }
    }

    /// The rules, and what they have done so far.
    #[must_use]
    pub fn list(&self) -> Vec<RuleState> {
        let rules = self.shared.rules.iter().map(|rule| {
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

    /// Switches the rules of a name on or off. A rule that is switched on counts anew.
    ///
    /// # Errors
    /// No rule has the name.
    pub fn switch(&self, name: &str, on: bool) -> Result<(), UnknownRule> {
        let mut found = false;
        for rule in self.shared.rules.iter().filter(|rule| rule.name == name) {
            found = true;
            let mut state = rule.state();
            if on && !state.is_on {
                state.count = Count::default();
            }
            state.is_on = on;
        }
        if found {
            return Ok(());
        }
        let names = self.shared.rules.iter().map(|rule| rule.name.clone());
        let mut known: Vec<_> = names.collect();
        known.dedup();
        Err(UnknownRule { name: name.to_owned(), known })
    }

    /// The rules that a call may meet.
    pub(super) fn for_call(&self, path: &str) -> Vec<CallRule> {
        let of_call = self.shared.by_path.get(path).into_iter().flatten();
        let rules =
            of_call.map(|(rule, call)| CallRule { rules: self.clone(), rule: *rule, call: *call });
        // A rule may be switched on while a stream goes on; a stale one keeps answers while it is off.
        rules
            .filter(|rule| {
                let fault = rule.fault();
                let keeps = matches!(fault.action, Action::Stale);
                keeps || fault.method.is_server_streaming() || rule.is_on()
            })
            .collect()
    }
}

impl Rule {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CallRule {
    fn rule(&self) -> &Rule {
        // The places are those of `by_path`, and the vectors never change.
        &self.rules.shared.rules[self.rule]
    }

    pub(super) fn fault(&self) -> &CallFault {
        &self.rule().fault.calls[self.call]
    }

    pub(super) fn is_on(&self) -> bool {
        self.rule().state().is_on
    }

    /// Counts a call that meets the rule. Whether the rule applies to it.
    pub(super) fn count(&self) -> bool {
        let rule = self.rule();
        let mut state = rule.state();
        let number = u64::try_from(self.rule).unwrap_or(u64::MAX);
        let chance = chance(self.rules.shared.seed, number, state.count.met);
        let is_due = rule.fault.schedule.is_due(state.count, chance);
        state.count.met += 1;
        state.count.applied += u64::from(is_due);
        is_due
    }

    /// The answer that a request had when the rule did not apply.
    pub(super) fn kept_answer(&self, request: &str) -> Option<KeptAnswer> {
        let state = self.rule().state();
        let kept = state.answers.get(&self.key(request));
        kept.map(|(_, answer)| answer.clone())
    }

    /// Keeps an answer, in place of the oldest one when there are too many.
    pub(super) fn keep_answer(&self, request: &str, answer: KeptAnswer) {
        let mut state = self.rule().state();
        state.kept += 1;
        let number = state.kept;
        state.answers.insert(self.key(request), (number, answer));
        if state.answers.len() > MAX_ANSWERS {
            let oldest = state.answers.iter().min_by_key(|(_, (number, _))| *number);
            if let Some(key) = oldest.map(|(key, _)| key.clone()) {
                state.answers.remove(&key);
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
        assert_eq!(error, "no rule is called \"quick\"; there are: slow, 2");
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
        let answer = KeptAnswer { body: Bytes::from_static(b"x"), trailers: HeaderMap::new() };
        for number in 0..=MAX_ANSWERS {
            call.keep_answer(&number.to_string(), answer.clone());
        }
        assert!(call.kept_answer("0").is_none());
        assert!(call.kept_answer("1").is_some());
    }
}
