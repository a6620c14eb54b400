//! ◆ The values of `-o`. Pure.

use std::str::FromStr;

use super::columns::CustomColumns;
use crate::objects::jsonpath::JsonPath;
use crate::template::Template;

const EXPECTED: &str = "expected wide, name, json, yaml, jsonpath=TEMPLATE, jsonpath-as-json=TEMPLATE, go-template=TEMPLATE or \
custom-columns=COLUMNS";

/// The output format of objects.
#[derive(Clone, Debug)]
pub(super) enum OutputFormat {
    /// A table with additional columns.
    Wide,
    /// `KIND/NAME`.
    Name,
    Json,
    Yaml,
    JsonPath(JsonPath),
    /// A JSON array for each path of the template.
    JsonPathAsJson(JsonPath),
    CustomColumns(CustomColumns),
    /// Without a template, the template of `--template`.
    GoTemplate(Option<Template>),
}

impl OutputFormat {
    /// The names of the formats whose templates are in files.
    pub(super) const OF_FILES: [&str; 4] =
        ["jsonpath-file", "go-template-file", "templatefile", "custom-columns-file"];

    /// The format with this name, and with the template in a file.
    pub(super) fn of_file(name: &str, template: &str) -> Result<Self, String> {
        match name {
            "jsonpath-file" => template.parse().map(Self::JsonPath),
            "go-template-file" | "templatefile" => {
                let template = template.parse::<Template>().map_err(|error| error.to_string());
                template.map(|template| Self::GoTemplate(Some(template)))
            }
            "custom-columns-file" => CustomColumns::of_file(template).map(Self::CustomColumns),
            _ => Err(EXPECTED.to_owned()),
        }
    }
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
            ("jsonpath-as-json", Some(template)) if !template.is_empty() => {
                template.parse().map(Self::JsonPathAsJson)
            }
            ("jsonpath" | "jsonpath-as-json", _) => {
                Err(format!("{format} needs a template: {format}='{{.metadata.name}}'"))
            }
            ("custom-columns", columns) => {
                columns.unwrap_or_default().parse().map(Self::CustomColumns)
            }
            ("go-template" | "template", None) => Ok(Self::GoTemplate(None)),
            ("go-template" | "template", Some("")) => {
                Err("go-template needs a template: go-template='{{.metadata.name}}'".to_owned())
            }
            ("go-template" | "template", Some(template)) => {
                let template = template.parse::<Template>().map_err(|error| error.to_string());
                template.map(|template| Self::GoTemplate(Some(template)))
            }
            _ => Err(EXPECTED.to_owned()),
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
    #[case("jsonpath-as-json={.items[*].status}")]
    #[case("custom-columns=NAME:.metadata.name,IP:.status.podIP")]
    #[case("go-template={{range .items}}{{.metadata.name}}{{end}}")]
    #[case("template={{.a}}")]
    #[case("go-template")]
    fn formats_of_kubectl_are_read(#[case] text: &str) {
        text.parse::<OutputFormat>().unwrap();
    }

    #[rstest]
    #[case("jsonpath-file", "{.metadata.name}\n")]
    #[case("go-template-file", "{{.metadata.name}}")]
    #[case("templatefile", "{{.metadata.name}}")]
    #[case("custom-columns-file", "NAME\n.metadata.name")]
    fn templates_in_files_are_read(#[case] name: &str, #[case] template: &str) {
        OutputFormat::of_file(name, template).unwrap();
        assert!(OutputFormat::OF_FILES.contains(&name));
        assert_eq!(OutputFormat::of_file("file", template).unwrap_err(), EXPECTED);
    }

    #[rstest]
    #[case("table", EXPECTED)]
    #[case("wide=1", EXPECTED)]
    #[case("go-template=", "go-template needs a template: go-template='{{.metadata.name}}'")]
    #[case("go-template={{.a", "invalid template, line 1: unclosed action")]
    #[case("jsonpath", "jsonpath needs a template: jsonpath='{.metadata.name}'")]
    #[case("jsonpath=", "jsonpath needs a template: jsonpath='{.metadata.name}'")]
    #[case("jsonpath={.a", "'{' without '}'")]
    #[case(
        "jsonpath-as-json=",
        "jsonpath-as-json needs a template: jsonpath-as-json='{.metadata.name}'"
    )]
    #[case("custom-columns", "custom-columns needs columns: custom-columns=NAME:.metadata.name")]
    fn other_formats_are_refused(#[case] text: &str, #[case] expected: &str) {
        assert_eq!(text.parse::<OutputFormat>().unwrap_err(), expected);
    }
}
