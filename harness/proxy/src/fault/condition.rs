//! ◆ The condition of a rule on a call's request and response.

use prost_reflect::{
    DynamicMessage, FieldDescriptor, MessageDescriptor, MethodDescriptor, Value as Field,
};
use serde_json::Value;

use super::cursor::{Cursor, Problem, excerpt, suggestion};
use super::path::FieldPath;

/// The maximum nesting of `(` and `not`: parsing and evaluating a condition are recursive, and a thread's stack is limited.
const MAX_NESTING: usize = 64;

/// A condition on a call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Condition {
    All(Vec<Condition>),
    Any(Vec<Condition>),
    Not(Box<Condition>),
    FieldTest(FieldTest),
}

/// A condition on a field.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FieldTest {
    side: Side,
    path: FieldPath,
    is: Predicate,
}

#[derive(Debug, Clone, PartialEq)]
enum Predicate {
    OneOf(Vec<Field>),
    Unset,
    Prefix(String),
}

/// The message that a path refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Request,
    Response,
}

impl Condition {
    /// Parses `A or B and not (C)`; `and` has precedence over `or`.
    pub(super) fn parse(
        cursor: &mut Cursor<'_>,
        method: &MethodDescriptor,
    ) -> Result<Self, Problem> {
        Self::parse_nested(cursor, method, 0)
    }

    /// Like [`Self::parse`], at this nesting depth.
    fn parse_nested(
        cursor: &mut Cursor<'_>,
        method: &MethodDescriptor,
        depth: usize,
    ) -> Result<Self, Problem> {
        joined(cursor, "or", Self::Any, |cursor| {
            joined(cursor, "and", Self::All, |cursor| one(cursor, method, depth))
        })
    }

    /// Whether the condition depends on the response.
    pub(super) fn needs_response(&self) -> bool {
        match self {
            Self::All(all) | Self::Any(all) => all.iter().any(Self::needs_response),
            Self::Not(inner) => inner.needs_response(),
            Self::FieldTest(test) => test.side == Side::Response,
        }
    }

    /// Whether the condition holds; `None` if that depends on a message that is missing.
    pub(crate) fn holds(
        &self,
        request: Option<&DynamicMessage>,
        response: Option<&DynamicMessage>,
    ) -> Option<bool> {
        match self {
            Self::All(all) => decided(all, false, request, response),
            Self::Any(all) => decided(all, true, request, response),
            Self::Not(inner) => inner.holds(request, response).map(|holds| !holds),
            Self::FieldTest(test) => {
                let message = match test.side {
                    Side::Request => request,
                    Side::Response => response,
                };
                message.map(|message| test.holds(message))
            }
        }
    }
}

impl FieldTest {
    fn holds(&self, message: &DynamicMessage) -> bool {
        match &self.is {
            Predicate::Unset => self.path.is_unset(message),
            Predicate::OneOf(wanted) => self.path.any(message, &|value| wanted.contains(value)),
            Predicate::Prefix(prefix) => self
                .path
                .any(message, &|value| value.as_str().is_some_and(|text| text.starts_with(prefix))),
        }
    }
}

/// The result of several conditions: `decisive` as soon as one of them is, its opposite if all are known, otherwise `None`.
fn decided(
    all: &[Condition],
    decisive: bool,
    request: Option<&DynamicMessage>,
    response: Option<&DynamicMessage>,
) -> Option<bool> {
    let mut is_open = false;
    for condition in all {
        match condition.holds(request, response) {
            Some(holds) if holds == decisive => return Some(decisive),
            Some(_) => {}
            None => is_open = true,
        }
    }
    (!is_open).then_some(!decisive)
}

fn joined(
    cursor: &mut Cursor<'_>,
    word: &str,
    join: impl Fn(Vec<Condition>) -> Condition,
    parse: impl Fn(&mut Cursor<'_>) -> Result<Condition, Problem>,
) -> Result<Condition, Problem> {
    let first = parse(cursor)?;
    let mut all = vec![first];
    while cursor.consume_word(word) {
        all.push(parse(cursor)?);
    }
    Ok(if all.len() == 1 { all.remove(0) } else { join(all) })
}

fn one(
    cursor: &mut Cursor<'_>,
    method: &MethodDescriptor,
    depth: usize,
) -> Result<Condition, Problem> {
    let at = cursor.at();
    if depth > MAX_NESTING {
        let why = format!("( and `not` may nest at most {MAX_NESTING} levels deep");
        return Err(Problem { at, why });
    }
    if cursor.consume_word("not") {
        return Ok(Condition::Not(Box::new(one(cursor, method, depth + 1)?)));
    }
    if cursor.consume("(") {
        let inner = Condition::parse_nested(cursor, method, depth + 1)?;
        if !cursor.consume(")") {
            return Err(cursor.problem(") is missing"));
        }
        return Ok(inner);
    }
    let (side, path) = side_and_path(cursor, method)?;
    let (is, is_negated) = comparison(cursor, &path)?;
    let test = Condition::FieldTest(FieldTest { side, path, is });
    Ok(match is_negated {
        true => Condition::Not(Box::new(test)),
        false => test,
    })
}

/// The comparison after a path, and whether it is negated.
fn comparison(cursor: &mut Cursor<'_>, path: &FieldPath) -> Result<(Predicate, bool), Problem> {
    if cursor.consume("!=") {
        return Ok((equal(cursor, path)?, true));
    }
    if cursor.consume("==") || cursor.consume("=") {
        return Ok((equal(cursor, path)?, false));
    }
    if cursor.consume_word("in") {
        return Ok((one_of(cursor, path)?, false));
    }
    if !cursor.consume_word("prefix") {
        return Err(cursor.problem("==, !=, in or prefix is missing after the field"));
    }
    let at = cursor.at();
    match (path.is_text(), cursor.json()?) {
        (true, Value::String(prefix)) => Ok((Predicate::Prefix(prefix), false)),
        (_, value) => Err(Problem {
            at,
            why: format!(
                "`prefix` needs a field and a value that are text, not {}",
                excerpt(&value.to_string())
            ),
        }),
    }
}

fn equal(cursor: &mut Cursor<'_>, path: &FieldPath) -> Result<Predicate, Problem> {
    let at = cursor.at();
    let value = cursor.json()?;
    if value.is_null() {
        return Ok(Predicate::Unset);
    }
    let value = path.comparable(&value);
    let value = value.map_err(|why| Problem { at, why })?;
    Ok(Predicate::OneOf(vec![value]))
}

fn one_of(cursor: &mut Cursor<'_>, path: &FieldPath) -> Result<Predicate, Problem> {
    let at = cursor.at();
    let problem = |why| Problem { at, why };
    let Value::Array(values) = cursor.json()? else {
        return Err(problem("`in` needs a list, such as [\"a\", \"b\"]".to_owned()));
    };
    let values: Result<Vec<_>, _> = values.iter().map(|value| path.comparable(value)).collect();
    Ok(Predicate::OneOf(values.map_err(problem)?))
}

/// The message and the path, from `request.x` or `request x`. Without a prefix it is the response, or the request if only the
/// request has the field.
pub(super) fn side_and_path(
    cursor: &mut Cursor<'_>,
    method: &MethodDescriptor,
) -> Result<(Side, FieldPath), Problem> {
    let (input, output) = (method.input(), method.output());
    let side = match cursor.peek_name() {
        "request" if input.get_field_by_name("request").is_none() => Some(Side::Request),
        "response" if output.get_field_by_name("response").is_none() => Some(Side::Response),
        _ => None,
    };
    if side.is_some() {
        cursor.name();
        cursor.consume_here(".");
    }
    let side = match side {
        Some(side) => side,
        None => {
            let at = cursor.at();
            side_with(cursor.peek_name(), &input, &output).map_err(|why| Problem { at, why })?
        }
    };
    let message = match side {
        Side::Request => input,
        Side::Response => output,
    };
    Ok((side, FieldPath::parse(cursor, &message)?))
}

/// The message that has a field.
fn side_with(
    name: &str,
    input: &MessageDescriptor,
    output: &MessageDescriptor,
) -> Result<Side, String> {
    if name.is_empty() {
        return Err("a field is missing".to_owned());
    }
    if output.get_field_by_name(name).is_some() {
        return Ok(Side::Response);
    }
    if input.get_field_by_name(name).is_some() {
        return Ok(Side::Request);
    }
    let fields: Vec<_> = input.fields().chain(output.fields()).collect();
    let similar = suggestion(name, fields.iter().map(FieldDescriptor::name));
    let (input, output) = (input.name(), output.name());
    let name = excerpt(name);
    Err(format!("neither {input} nor {output} has a field {name:?}{similar}"))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::json::method;

    const REQUEST: &str = r#"{"container_id": "c1", "verbose": false}"#;

    fn message(descriptor: prost_reflect::MessageDescriptor, value: Value) -> DynamicMessage {
        DynamicMessage::deserialize(descriptor, value).unwrap()
    }

    #[rstest]
    #[case::equal(r#"container_id == "c1""#, true)]
    #[case::one_sign(r#"request container_id = "c1""#, true)]
    #[case::side_with_dot(r#"request.container_id == "c2""#, false)]
    #[case::number_as_text(r#"status.started_at == "5""#, true)]
    #[case::number(r"status.started_at == 5", true)]
    #[case::default_is_a_value(r#"status.state == "CONTAINER_CREATED""#, true)]
    #[case::default_number(r"status.exit_code == 0", true)]
    #[case::default_text(r#"status.reason == """#, true)]
    #[case::default_is_unset(r"status.state == null", true)]
    #[case::absent_message_has_no_fields(r#"status.image.image == """#, false)]
    #[case::absent_message_is_unset(r"status.image.image == null", true)]
    #[case::set_is_not_unset(r"status.started_at != null", true)]
    #[case::key(r#"status.labels["a.b/c"] == "1""#, true)]
    #[case::key_with_dots(r#"status.labels.a.b/c = "1""#, true)]
    #[case::absent_key(r#"status.labels["d"] == null"#, true)]
    #[case::absent_key_differs(r#"status.labels["d"] != "1""#, true)]
    #[case::map_is_unset(r"status.annotations == null", true)]
    #[case::element(r#"status.mounts.host_path == "/b""#, true)]
    #[case::no_element(r#"status.mounts.host_path == "/c""#, false)]
    #[case::in_list(r#"status.id in ["c2", "c1"]"#, true)]
    #[case::prefix(r#"status.mounts.host_path prefix "/""#, true)]
    #[case::and_binds_closer(
        r#"status.id == "x" and status.id == "c1" or status.exit_code == 0"#,
        true
    )]
    #[case::parentheses(
        r#"status.id == "x" and (status.id == "c1" or status.exit_code == 0)"#,
        false
    )]
    #[case::not(r#"not (status.id == "x") and not status.id == "y""#, true)]
    fn condition_reads_fields(#[case] text: &str, #[case] expected: bool) {
        let method = method("/runtime.v1.RuntimeService/ContainerStatus").unwrap();
        let mut cursor = Cursor::new(text);
        let condition = Condition::parse(&mut cursor, &method).unwrap();
        cursor.end().unwrap();
        let request = message(method.input(), serde_json::from_str(REQUEST).unwrap());
        let response = message(
            method.output(),
            json!({"status": {
                "id": "c1", "started_at": "5", "labels": {"a.b/c": "1"},
                "mounts": [{"host_path": "/a"}, {"host_path": "/b"}],
            }}),
        );
        assert_eq!(condition.holds(Some(&request), Some(&response)), Some(expected));
    }

    #[rstest]
    #[case::request_decides(r#"container_id == "x" and status.id == "c1""#, Some(false))]
    #[case::request_suffices(r#"container_id == "c1" or status.id == "c1""#, Some(true))]
    #[case::open(r#"container_id == "c1" and status.id == "c1""#, None)]
    #[case::open_negation(r#"not status.id == "c1""#, None)]
    fn condition_on_response_is_open_before_it(#[case] text: &str, #[case] expected: Option<bool>) {
        let method = method("/runtime.v1.RuntimeService/ContainerStatus").unwrap();
        let condition = Condition::parse(&mut Cursor::new(text), &method).unwrap();
        assert!(condition.needs_response());
        let request = message(method.input(), serde_json::from_str(REQUEST).unwrap());
        assert_eq!(condition.holds(Some(&request), None), expected);
    }

    #[rstest]
    #[case(
        r"stat.id == 1",
        0,
        "neither ContainerStatusRequest nor ContainerStatusResponse has a field \"stat\": did you mean \"status\"?"
    )]
    #[case(r"status.xyzzy == 1", 7, "ContainerStatus has no field \"xyzzy\"")]
    #[case(
        r#"status.state == "CONTAINER_RUNING""#,
        16,
        "ContainerState has no value \"CONTAINER_RUNING\": did you mean \"CONTAINER_RUNNING\"?"
    )]
    #[case(r"status.id.x == 1", 10, "id has no fields")]
    #[case(
        r"status.mounts[0] == 1",
        14,
        "mounts is not a map: a rule applies to every element of a list"
    )]
    #[case(r"status.id", 9, "==, !=, in or prefix is missing after the field")]
    #[case(r"status.id == c1", 13, "\"c1\" is not a JSON value: is it in quotes?")]
    #[case(r#"status.labels == "x""#, 17, "compare a map by its keys, such as labels[\"x\"]")]
    #[case(
        r#"status.exit_code prefix "x""#,
        24,
        "`prefix` needs a field and a value that are text, not \"x\""
    )]
    #[case(r#"(status.id == "x""#, 17, ") is missing")]
    fn bad_condition_is_refused_with_place(
        #[case] text: &str,
        #[case] at: usize,
        #[case] why: &str,
    ) {
        let method = method("/runtime.v1.RuntimeService/ContainerStatus").unwrap();
        let problem = Condition::parse(&mut Cursor::new(text), &method).unwrap_err();
        assert_eq!((problem.at, problem.why.as_str()), (at, why));
    }

    #[rstest]
    #[case::parentheses("(", ")", 65)]
    #[case::negations("not ", "", 260)]
    fn condition_nests_up_to_its_limit(
        #[case] open: &str,
        #[case] close: &str,
        #[case] limit: usize,
    ) {
        let method = method("/runtime.v1.RuntimeService/ContainerStatus").unwrap();
        let parse = |depth: usize| {
            let text = format!("{}status.id == \"x\"{}", open.repeat(depth), close.repeat(depth));
            Condition::parse(&mut Cursor::new(&text), &method)
        };
        parse(MAX_NESTING).unwrap();
        for depth in [MAX_NESTING + 1, 100_000] {
            let problem = parse(depth).unwrap_err();
            assert_eq!(problem.at, limit);
            assert_eq!(problem.why, "( and `not` may nest at most 64 levels deep");
        }
    }
}
