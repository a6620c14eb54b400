//! ◆ Renders a template.

use serde_json::Value as Json;

use super::format::display;
use super::functions;
use super::parser::{Node, Operand, Pipeline};
use super::{Dialect, Value};

/// Renders a template with a document.
pub(super) fn run(nodes: &[Node], document: &Json, dialect: Dialect) -> Result<String, String> {
    let document = Value::Json(document.clone());
    let variables = vec![(String::new(), document.clone())];
    let mut run = Run { out: String::new(), variables, dialect };
    run.nodes(nodes, &document)?;
    Ok(run.out)
}

/// How the evaluation of a list of nodes ended.
#[derive(PartialEq, Eq)]
enum Flow {
    On,
    Break,
    Continue,
}

struct Run {
    out: String,
    /// Innermost scope last.
    variables: Vec<(String, Value)>,
    dialect: Dialect,
}

impl Run {
    fn nodes(&mut self, nodes: &[Node], dot: &Value) -> Result<Flow, String> {
        for node in nodes {
            let flow = self.node(node, dot)?;
            if flow != Flow::On {
                return Ok(flow);
            }
        }
        Ok(Flow::On)
    }

    fn node(&mut self, node: &Node, dot: &Value) -> Result<Flow, String> {
        match node {
            Node::Text(text) => self.out.push_str(text),
            Node::Break => return Ok(Flow::Break),
            Node::Continue => return Ok(Flow::Continue),
            Node::Action(pipeline) => {
                let value = self.pipeline(pipeline, dot)?;
                self.assign(pipeline, &value)?;
                if pipeline.variables.is_empty() {
                    self.out.push_str(&display(&value));
                }
            }
            Node::If(pipeline, body, otherwise) | Node::With(pipeline, body, otherwise) => {
                let outer = self.variables.len();
                let value = self.pipeline(pipeline, dot)?;
                self.assign(pipeline, &value)?;
                let flow = match (value.is_true(), node) {
                    (true, Node::With(..)) => self.nodes(body, &value),
                    (true, _) => self.nodes(body, dot),
                    (false, _) => self.nodes(otherwise, dot),
                };
                self.variables.truncate(outer);
                return flow;
            }
            Node::Range(pipeline, body, otherwise) => {
                return self.range(pipeline, body, otherwise, dot);
            }
        }
        Ok(Flow::On)
    }

    fn range(
        &mut self,
        pipeline: &Pipeline,
        body: &[Node],
        otherwise: &[Node],
        dot: &Value,
    ) -> Result<Flow, String> {
        let value = self.pipeline(pipeline, dot)?;
        let items: Vec<(Value, Value)> = match value {
            Value::Json(Json::Null) => Vec::new(),
            Value::Json(Json::Array(all)) => {
                let all = all.into_iter().map(Value::Json);
                (0..).map(Value::Int).zip(all).collect()
            }
            Value::Json(Json::Object(all)) => {
                let mut all: Vec<(String, Json)> = all.into_iter().collect();
                compact::sort_by(&mut all, |(a, _), (b, _)| a.cmp(b));
                let pair = |(key, value)| (Value::text(key), Value::Json(value));
                all.into_iter().map(pair).collect()
            }
            other => return Err(format!("cannot range over {}", other.kind())),
        };
        if items.is_empty() {
            return self.nodes(otherwise, dot);
        }
        for (key, item) in items {
            let outer = self.variables.len();
            match pipeline.variables.as_slice() {
                [] => {}
                [value] => self.set(value, pipeline.declares, item.clone())?,
                [index, value, ..] => {
                    self.set(index, pipeline.declares, key)?;
                    self.set(value, pipeline.declares, item.clone())?;
                }
            }
            let flow = self.nodes(body, &item)?;
            self.variables.truncate(outer);
            if flow == Flow::Break {
                break;
            }
        }
        Ok(Flow::On)
    }

    fn assign(&mut self, pipeline: &Pipeline, value: &Value) -> Result<(), String> {
        for name in &pipeline.variables {
            self.set(name, pipeline.declares, value.clone())?;
        }
        Ok(())
    }

    fn set(&mut self, name: &str, declares: bool, value: Value) -> Result<(), String> {
        if declares {
            self.variables.push((name.to_owned(), value));
            return Ok(());
        }
        let mut inner_first = self.variables.iter_mut().rev();
        let found = inner_first.find(|(known, _)| known == name);
        let (_, place) = found.ok_or_else(|| format!("undefined variable ${name}"))?;
        *place = value;
        Ok(())
    }

    fn pipeline(&mut self, pipeline: &Pipeline, dot: &Value) -> Result<Value, String> {
        let mut last = None;
        for command in &pipeline.commands {
            last = Some(self.command(command, dot, last)?);
        }
        last.ok_or_else(|| "missing a value".to_owned())
    }

    fn command(
        &mut self,
        words: &[Operand],
        dot: &Value,
        piped: Option<Value>,
    ) -> Result<Value, String> {
        let (first, rest) = words.split_first().ok_or("missing a value")?;
        let Operand::Function(name) = first else {
            if !rest.is_empty() || piped.is_some() {
                let what = if matches!(first, Operand::Field(..)) { "a field" } else { "a value" };
                return Err(format!("{what} takes no arguments"));
            }
            return self.operand(first, dot);
        };
        if name == "and" || name == "or" {
            return self.first_that_decides(name == "or", rest, dot, piped);
        }
        let mut arguments = Vec::new();
        for word in rest {
            arguments.push(self.operand(word, dot)?);
        }
        arguments.extend(piped);
        functions::call(name, arguments)
    }

    /// `and` returns its first false argument, `or` its first true one; later arguments are not evaluated.
    fn first_that_decides(
        &mut self,
        decides: bool,
        words: &[Operand],
        dot: &Value,
        piped: Option<Value>,
    ) -> Result<Value, String> {
        let mut last = None;
        for word in words {
            let value = self.operand(word, dot)?;
            if value.is_true() == decides {
                return Ok(value);
            }
            last = Some(value);
        }
        piped.or(last).ok_or_else(|| "and, or: expected an argument".to_owned())
    }

    fn operand(&mut self, operand: &Operand, dot: &Value) -> Result<Value, String> {
        match operand {
            Operand::Dot => Ok(dot.clone()),
            Operand::Nil => Ok(Value::Json(Json::Null)),
            Operand::Bool(value) => Ok(Value::Json(Json::Bool(*value))),
            Operand::Int(number) => Ok(Value::Int(*number)),
            Operand::Float(number) => Ok(Value::Float(*number)),
            Operand::Text(text) => Ok(Value::text(text.clone())),
            Operand::Variable(name) => {
                let mut inner_first = self.variables.iter().rev();
                let found = inner_first.find(|(known, _)| known == name);
                let (_, value) = found.ok_or_else(|| format!("undefined variable ${name}"))?;
                Ok(value.clone())
            }
            Operand::Function(name) => functions::call(name, Vec::new()),
            Operand::Pipeline(pipeline) => self.pipeline(pipeline, dot),
            Operand::Field(of, name) => match (self.operand(of, dot)?, self.dialect) {
                (Value::Json(Json::Object(mut all)), Dialect::Crictl) => all
                    .remove(name)
                    .map(Value::Json)
                    .ok_or_else(|| format!("no field {name:?}; -o json shows all fields")),
                (Value::Json(Json::Object(mut all)), Dialect::Kubectl) => {
                    Ok(all.remove(name).map_or(Value::Json(Json::Null), typed))
                }
                (Value::Json(Json::Null), Dialect::Kubectl) => Ok(Value::Json(Json::Null)),
                (other, _) => Err(format!("no field {name:?} in {}", other.kind())),
            },
        }
    }
}

/// A value of an object, whose numbers have a type in Go.
fn typed(value: Json) -> Value {
    match (value.as_i64(), value.as_f64()) {
        (Some(number), _) => Value::Int(number),
        (None, Some(number)) => Value::Float(number),
        (None, None) => Value::Json(value),
    }
}
