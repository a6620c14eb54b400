//! ◆ The values of `-o`. Pure.

use std::str::FromStr;

use super::columns::CustomColumns;
use crate::objects::jsonpath::JsonPath;

/// The output format of objects.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum OutputFormat {
    /// A table with additional columns.
    Wide,
    /// `KIND/NAME`.
    Name,
    Json,
    Yaml,
    JsonPath(JsonPath),
    CustomColumns(CustomColumns),
}

impl FromStr for OutputFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (format, template) = text.split_once('=').map_or((text, None), |(f, t)| (f, Some(t)));
        match (format, template) {
            ("wide", None) => Ok(Self::Wide),
            ("name", None) => Ok(Self::Name),
            ("json", None) => Ok(Self::Json),
            ("yaml", None) => Ok(Self::Yaml),
            ("jsonpath", Some(template)) if !template.is_empty() => {
                template.parse().map(Self::JsonPath)
            }
            ("jsonpath", _) => {
                Err("jsonpath needs a template: jsonpath='{.metadata.name}'".to_owned())
            }
            ("custom-columns", columns) => {
                columns.unwrap_or_default().parse().map(Self::CustomColumns)
            }
            _ => {
                Err("expected wide, name, json, yaml, jsonpath=TEMPLATE or custom-columns=COLUMNS"
                    .to_owned())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("wide")]
    #[case("name")]
    #[case("json")]
    #[case("yaml")]
    #[case("jsonpath={.items[*].metadata.name}")]
    #[case("jsonpath={.metadata.labels['a=b']}")]
    #[case("custom-columns=NAME:.metadata.name,IP:.status.podIP")]
    fn formats_of_kubectl_are_read(#[case] text: &str) {
        text.parse::<OutputFormat>().unwrap();
    }

    #[rstest]
    #[case("table", "expected wide, name, json, yaml, jsonpath=TEMPLATE or custom-columns=COLUMNS")]
    #[case(
        "wide=1",
        "expected wide, name, json, yaml, jsonpath=TEMPLATE or custom-columns=COLUMNS"
    )]
    #[case("jsonpath", "jsonpath needs a template: jsonpath='{.metadata.name}'")]
    #[case("jsonpath=", "jsonpath needs a template: jsonpath='{.metadata.name}'")]
    #[case("jsonpath={.a", "'{' without '}'")]
    #[case("custom-columns", "custom-columns needs columns: custom-columns=NAME:.metadata.name")]
    fn other_formats_are_refused(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(text.parse::<OutputFormat>().unwrap_err(), expected);
    }
}
