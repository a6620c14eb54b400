//! The state of a rule during one call: whether it applies to the call, and to which of its messages.

use prost_reflect::DynamicMessage;
use tonic::Code;

use super::fault::{Action, Status};
use super::rules::CallRule;

/// The state of a rule during one call.
#[derive(Debug)]
pub(super) struct RuleInCall {
    pub(super) rule: CallRule,
    /// Whether the rule applies to the call; `None` until the call is counted.
    pub(super) decided: Option<bool>,
    /// The number of messages that have met the condition.
    met: usize,
}

impl RuleInCall {
    pub(super) fn new(rule: CallRule) -> Self {
        Self { rule, decided: None, met: 0 }
    }

    /// Whether the rule applies to a message of the response. Counts the message.
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

    /// The rate limit of the response.
    pub(super) fn throttle(&self) -> Option<u32> {
        if let Action::Throttle(rate) = self.rule.fault().action
            && self.decided == Some(true)
        {
            return Some(rate);
        }
        None
    }

    /// The replacement for a status with this code.
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
