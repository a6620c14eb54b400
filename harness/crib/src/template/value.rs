//! ◆ The values of templates.

use serde_json::Value as Json;

/// A value of a template: of the document, or a literal. Numbers of the document are texts in Go (`json.Number`).
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Json(Json),
    Int(i64),
    Float(f64),
}

impl Value {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::Json(Json::String(text.into()))
    }

    /// What `if` asks. A number of the document is always true, because Go sees a text that is not empty.
    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Json(Json::Null | Json::Bool(false)) => false,
            Self::Json(Json::String(text)) => !text.is_empty(),
            Self::Json(Json::Array(all)) => !all.is_empty(),
            Self::Json(Json::Object(all)) => !all.is_empty(),
            Self::Json(Json::Bool(true) | Json::Number(_)) => true,
            Self::Int(number) => *number != 0,
            Self::Float(number) => *number != 0.0,
        }
    }

    /// What it is called in errors.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Json(Json::Null) => "null",
            Self::Json(Json::Bool(_)) => "a boolean",
            Self::Json(Json::String(_)) => "a string",
            Self::Json(Json::Array(_)) => "a list",
            Self::Json(Json::Object(_)) => "an object",
            Self::Json(Json::Number(_)) | Self::Int(_) | Self::Float(_) => "a number",
        }
    }
}
