//! A rule in the course of one call: whether it applies to the call, and to which of its messages.

use prost_reflect::DynamicMessage;
use tonic::Code;

use super::fault::{Action, Status};
use super::rules::CallRule;

/// A rule in the course of one call.
#[derive(Debug)]
pub(super) struct RuleInCall {
    pub(super) rule: CallRule,
    /// Whether it applies to the call; `None` until the call was counted.
    pub(super) decided: Option<bool>,
    /// The messages that met its condition so far.
    met: usize,
}

impl RuleInCall {
    pub(super) fn new(rule: CallRule) -> Self {
        Self { rule, decided: None, met: 0 }
    }

    /// Whether it applies to a message of the answer, which is counted.
    pub(super) fn meets(
        &mut self,
        request: Option<&DynamicMessage>,
        response: Option<&DynamicMessage>,
    ) -> bool {
        if self.decided == Some(false) || !self.rule.is_on() {
            return false;
        }
        let fault = self.rule.fault();
        let condition = fault.condition.as_ref();
        if condition.is_some_and(|condition| condition.holds(request, response) != Some(true)) {
            return false;
        }
        self.met += 1;
        let rule = &self.rule;
        let applies = *self.decided.get_or_insert_with(|| rule.count());
        let messages = fault.messages.as_ref();
        applies && messages.is_none_or(|messages| messages.contains(&self.met))
    }

    /// The rate that it gives the answer.
    pub(super) fn throttle(&self) -> Option<u32> {
        if let Action::Throttle(rate) = self.rule.fault().action
            && self.decided == Some(true)
        {
            return Some(rate);
        }
        None
    }

    /// The status in place of one with this code.
    pub(super) fn recoded(&self, code: Code) -> Option<Status> {
        if let Action::Recode(from, to) = &self.rule.fault().action
            && self.decided == Some(true)
            && *from == code
        {
            return Some(to.clone());
        }
        None
    }
}
