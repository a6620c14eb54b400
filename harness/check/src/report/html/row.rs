//! ◆ A rule in the HTML page: its requirement, its result and its calls.

use serde_json::Value;

use super::super::escaped;
use super::super::{command, reason, word};
use super::timeline::{self, Bar};
use crate::baseline::Baseline;
use crate::outcome::Outcome;
use crate::running::run::{Report, RuleResult};

/// The possible results of a rule, in the order of the tables.
pub(super) const WORDS: [&str; 5] = ["fail", "pass", "diverges", "unsupported", "skipped"];
/// The maximum number of characters of a message on the page.
const LONGEST_MESSAGE: usize = 16_384;
/// The maximum number of messages of a stream on the page.
const MOST_MESSAGES: usize = 50;

/// The result of a rule.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) id: String,
    pub(super) severity: String,
    pub(super) area: String,
    pub(super) word: &'static str,
    pub(super) says: String,
    pub(super) source: String,
    pub(super) tags: String,
    pub(super) reason: String,
    /// The checked value's name, the expected and the actual value.
    pub(super) difference: Option<[String; 3]>,
    /// The explanation in the baseline.
    pub(super) known: Option<String>,
    pub(super) command: String,
    pub(super) seconds: f64,
    pub(super) calls: Vec<Call>,
}

/// A call of a rule.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) method: String,
    pub(super) start: f64,
    pub(super) end: Option<f64>,
    /// The gRPC status, if it has ended.
    pub(super) code: Option<String>,
    pub(super) message: String,
    pub(super) request: Value,
    /// The time and the text of each response.
    pub(super) responses: Vec<(f64, Value)>,
}

impl From<&proxy::Call> for Call {
    fn from(call: &proxy::Call) -> Self {
        let responses = call.responses().into_iter();
        Self {
            method: call.method.clone(),
            start: call.start,
            end: call.end,
            code: call.code.map(|code| format!("{code:?}")),
            message: call.message.clone(),
            request: call.request(),
            responses: responses.map(|message| (message.at, message.value)).collect(),
        }
    }
}

impl Row {
    pub(super) fn new(report: &Report, result: &RuleResult, baseline: &Baseline) -> Self {
        let rule = result.rule;
        let difference = match &result.outcome {
            Err(Outcome::Fail { what, expected, seen }) => {
                Some([what.clone(), expected.clone(), seen.clone()])
            }
            Ok(())
            | Err(
                Outcome::Refused { .. }
                | Outcome::Diverges(_)
                | Outcome::Unsupported(_)
                | Outcome::Skipped(_),
            ) => None,
        };
        Self {
            id: rule.id.to_owned(),
            severity: rule.severity.to_string(),
            area: rule.area().to_owned(),
            word: word(result),
            says: rule.says.to_owned(),
            source: rule.source.to_owned(),
            tags: rule.tags.join(", "),
            reason: reason(result),
            difference,
            known: baseline.explanation(rule.id).map(str::to_owned),
            command: command(&report.command, rule),
            seconds: result.took.as_secs_f64(),
            calls: result.calls.iter().map(Call::from).collect(),
        }
    }

    /// The row; an unexpected failure is expanded.
    pub(super) fn html(&self) -> String {
        let open = match self.word == "fail" && self.known.is_none() {
            true => " open",
            false => "",
        };
        let mut methods: Vec<&str> = self.calls.iter().map(|call| &*call.method).collect();
        methods.sort_unstable();
        methods.dedup();
        let find =
            [&self.id, &self.says, &self.source, &self.tags, &self.reason].map(String::as_str);
        let find = [&find[..], &methods[..]].concat().join(" ").to_lowercase();
        let mut text = format!(
            "<details class=\"rule\" id=\"{id}\" data-result=\"{word}\" data-severity=\"{severity}\" data-area=\"{area}\" data-find=\"{}\"{open}>\n\
            <summary><span class=\"word {word}\">{word}</span> <code>{id}</code> <span class=\"severity\">{severity}</span> <span class=\"says\">{}</span></summary>\n<dl>\n",
            escaped(&find),
            escaped(&self.says),
            id = self.id,
            word = self.word,
            severity = self.severity,
            area = self.area,
        );
        text += &fact("source", &self.source);
        text += &fact("tags", &self.tags);
        match &self.difference {
            Some([what, expected, seen]) => {
                text += &fact("looked at", what);
                text += &quoted("expected", expected);
                text += &quoted("seen", seen);
            }
            None if self.reason.is_empty() => {}
            None => text += &quoted("reason", &self.reason),
        }
        if let Some(why) = &self.known {
            text += &fact("known", why);
        }
        text += &quoted("alone", &self.command);
        text += &fact("took", &format!("{:.3} s", self.seconds));
        text += "</dl>\n";
        if !self.calls.is_empty() {
            text += &self.timeline();
            for (index, call) in self.calls.iter().enumerate() {
                text += &call.html(&self.anchor(index));
            }
        }
        text + "</details>\n"
    }

    fn anchor(&self, call: usize) -> String {
        format!("{}-call-{}", self.id, call + 1)
    }

    fn timeline(&self) -> String {
        let bars = self.calls.iter().enumerate().map(|(index, call)| Bar {
            anchor: self.anchor(index),
            label: format!("{} {}", call.method, call.times()),
            name: call.method.clone(),
            kind: match call.code.as_deref() {
                Some("Ok") => "ok",
                Some(_) => "error",
                None => "endless",
            },
            start: call.start,
            end: call.end,
        });
        timeline::html(&bars.collect::<Vec<_>>(), self.seconds)
    }
}

impl Call {
    fn times(&self) -> String {
        match self.end {
            Some(end) => format!("at {:.3} s for {:.3} s", self.start, end - self.start),
            None => format!("at {:.3} s, no end", self.start),
        }
    }

    fn html(&self, anchor: &str) -> String {
        let status = match &self.code {
            Some(code) if self.message.is_empty() => code.clone(),
            Some(code) => format!("{code}: {}", self.message),
            None => "no end".to_owned(),
        };
        let mut text = format!(
            "<details class=\"call\" id=\"{anchor}\"><summary><code>{}</code> {} <span class=\"status\">{}</span></summary>\n<h4>request</h4>\n{}",
            escaped(&self.method),
            self.times(),
            escaped(&shortened(&status, 300)),
            message(&self.request),
        );
        for (at, response) in self.responses.iter().take(MOST_MESSAGES) {
            text += &format!("<h4>response at {at:.3} s</h4>\n{}", message(response));
        }
        if let Some(more @ 1..) = self.responses.len().checked_sub(MOST_MESSAGES) {
            text += &format!("<p>{more} more responses: --trace has all.</p>\n");
        }
        text + "</details>\n"
    }
}

fn fact(name: &str, value: &str) -> String {
    format!("<dt>{name}</dt><dd>{}</dd>\n", escaped(value))
}

fn quoted(name: &str, value: &str) -> String {
    let value = shortened(value, LONGEST_MESSAGE);
    format!("<dt>{name}</dt><dd><pre>{}</pre></dd>\n", escaped(&value))
}

fn message(value: &Value) -> String {
    let text = shortened(&format!("{value:#}"), LONGEST_MESSAGE);
    format!("<pre>{}</pre>\n", escaped(&text))
}

/// The text; a note replaces everything after `longest` characters.
fn shortened(text: &str, longest: usize) -> String {
    match text.char_indices().nth(longest) {
        None => text.to_owned(),
        Some((end, _)) => {
            let (head, rest) = text.split_at(end);
            format!("{head}… and {} more bytes", rest.len())
        }
    }
}
