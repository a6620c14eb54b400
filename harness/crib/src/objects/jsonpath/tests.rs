//! Test data from Kubernetes 1.36's client-go/util/jsonpath, and additional cases.

use proptest::prelude::*;
use rstest::rstest;
use serde_json::json;

use super::*;

fn store() -> Value {
    json!({
        "Name": "jsonpath",
        "Book": [
            {"Category": "reference", "Author": "Nigel Rees", "Title": "Sayings of the Centurey", "Price": 8.95},
            {"Category": "fiction", "Author": "Evelyn Waugh", "Title": "Sword of Honour", "Price": 12.99},
        ],
        "Bicycle": [
            {"Color": "red", "Price": 19.95, "IsNew": true},
            {"Color": "green", "Price": 20.01, "IsNew": false},
        ],
        "Labels": {"k8s.io/app": "web", "it's": 1},
        "None": null,
        "Pods": [
            {"name": "a", "ip": "10.0.0.1", "restarts": 3, "conditions": [{"type": "Ready", "status": "True"}]},
            {"name": "b", "restarts": 0, "conditions": [{"type": "Ready", "status": "False"}]},
        ],
    })
}

#[rstest]
#[case::plain("hello jsonpath", "hello jsonpath")]
#[case::escaped_quotes(r#"hello {"a\"b"}{'c"d'}"#, r#"hello a"bc"d"#)]
#[case::control_characters(r#"{"\t\n"}"#, "\t\n")]
#[case::outside_of_braces(r"a\nb", r"a\nb")]
#[case::brace_in_text(r#"{"{"}{"}"}"#, "{}")]
#[case::field("{.Name}", "jsonpath")]
#[case::root("{$.Name}", "jsonpath")]
#[case::current("{@.Name}", "jsonpath")]
#[case::quoted_field("{['Name']}", "jsonpath")]
#[case::spaces("{ .Name }", "jsonpath")]
#[case::missing("<{.hello}{.Name.x}{.None.x}{.None[0]}>", "<>")]
#[case::null("<{.None}>", "<>")]
#[case::escaped_dot(r"{.Labels.k8s\.io/app}", "web")]
#[case::bracketed_dot("{.Labels['k8s.io/app']}", "web")]
#[case::escaped_quote(r"{.Labels['it\'s']}", "1")]
#[case::all_elements("{.Book[*].Author}", "Nigel Rees Evelyn Waugh")]
#[case::index("{.Book[1].Author}", "Evelyn Waugh")]
#[case::last("{.Book[-1].Author}", "Evelyn Waugh")]
#[case::last_slice("{.Book[-1:].Author}", "Evelyn Waugh")]
#[case::slice("{.Book[0:2].Category}", "reference fiction")]
#[case::step("{.Book[::2].Category}", "reference")]
#[case::empty_slice("<{.Book[1:1]}>", "<>")]
#[case::union("{.Book[0,1].Price}", "8.95 12.99")]
#[case::union_of_fields("{.Book[0]['Author','Price']}", "Nigel Rees 8.95")]
#[case::dot_and_index("{.Book.[0].Price}", "8.95")]
#[case::wildcard("{.Bicycle[0].*}", "red true 19.95")]
#[case::recursive("{..Color}", "red green")]
#[case::recursive_below("{.Bicycle..Price}", "19.95 20.01")]
#[case::object("{.Bicycle[1]}", r#"{"Color":"green","IsNew":false,"Price":20.01}"#)]
#[case::filter_number("{.Bicycle[?(@.Price > 20)].Color}", "green")]
#[case::filter_less("{.Book[?(@.Price<=8.95)].Title}", "Sayings of the Centurey")]
#[case::filter_bool("{.Bicycle[?(@.IsNew==true)].Color}", "red")]
#[case::filter_text(r#"{.Bicycle[?(@.Color=="green")].Price}"#, "20.01")]
#[case::filter_quotes("{.Bicycle[?(@.Color!='green')].Price}", "19.95")]
#[case::filter_exists("{.Pods[?(@.ip)].name}", "a")]
#[case::filter_missing("<{.Pods[?(@.ip=='x')].name}>", "<>")]
#[case::filter_kinds("<{.Pods[?(@.name==1)].name}>", "<>")]
#[case::filter_path("{.Bicycle[?(@.Color==@.Color)].Price}", "19.95 20.01")]
#[case::filter_operator_in_quotes(r#"<{.Bicycle[?(@.Color=="a||b")].Price}>"#, "<>")]
#[case::filter_nested(r#"{.Pods[?(@.conditions[?(@.status=="True")].type=="Ready")].name}"#, "a")]
#[case::range(r#"{range .Pods[*]}{.name}{"\t"}{.ip}{"\n"}{end}"#, "a\t10.0.0.1\nb\t\n")]
#[case::nested_ranges(
    "{range .Pods[*]}{.name}:{range .conditions[*]}{.type}={.status};{end}{end}",
    "a:Ready=True;b:Ready=False;"
)]
#[case::root_in_range("{range .Book[*]}{$.Name} {end}", "jsonpath jsonpath ")]
#[case::whole(
    "{.Pods[1].conditions}{.Pods[1].restarts}",
    r#"[{"status":"False","type":"Ready"}]0"#
)]
fn templates_are_filled_in(#[case] template: &str, #[case] expected: &str) {
    let template: JsonPath = template.parse().unwrap();
    assert_eq!(template.fill(&store()).as_deref(), Ok(expected));
}

#[rstest]
#[case::open("{.Name", "'{' without '}'")]
#[case::open_bracket("{.Book[0}", "'{' without '}'")]
#[case::open_quote("{\"a}", "'{' without '}'")]
#[case::open_range("{range .Book[*]}{.Price}", "{range} without {end}")]
#[case::end("{end}", "{end} without {range}")]
#[case::empty("{}", "{} is empty")]
#[case::word("{hello}", "\"hello\" is not supported: a path begins with '.', '[', '$' or '@'")]
#[case::function("{.Book.length()}", "'(' is not supported here in \".Book.length()\"")]
#[case::function_of(
    "{len(.Book)}",
    "\"len(.Book)\" is not supported: a path begins with '.', '[', '$' or '@'"
)]
#[case::no_index(
    "{.Book[x]}",
    "[x] is not supported: give an index, a slice, '*', a quoted field or a filter"
)]
#[case::two("{.Name .Book}", "' ' is not supported here in \".Name .Book\"")]
#[case::and(
    "{.Book[?(@.Price>1 && @.Price<2)]}",
    "&& is not supported in a filter: \"@.Price>1 && @.Price<2\""
)]
#[case::regex("{.Book[?(@.Title=~'S')]}", "=~ is not supported in a filter: \"@.Title=~'S'\"")]
#[case::bare_word("{.Book[?(@.Title==a)]}", "a is not supported in a filter: \"@.Title==a\"")]
#[case::escape(r#"{"\x"}"#, r#"\x is not supported in "\x""#)]
#[case::two_texts(r#"{"a" "b"}"#, r#""a" "b" is not one text in quotes"#)]
fn unsupported_templates_are_refused(#[case] template: &str, #[case] expected: &str) {
    assert_eq!(template.parse::<JsonPath>().unwrap_err(), expected);
}

#[rstest]
#[case("{.Book[2]}", "array index out of bounds: index 2, length 2")]
#[case("{.Book[-3]}", "array index out of bounds: index -1, length 2")]
#[case("{.Book[0:3]}", "array index out of bounds: index 2, length 2")]
#[case("{.Book[1:0]}", "starting index 1 is greater than ending index 0")]
#[case("{.Book[0:2:0]}", "step must be > 0")]
#[case("{.Name[0]}", "\"jsonpath\" is not an array")]
#[case("{.Book[?(@.*=='x')]}", "can only compare one element at a time")]
fn templates_that_do_not_fit_fail(#[case] template: &str, #[case] expected: &str) {
    let template: JsonPath = template.parse().unwrap();
    assert_eq!(template.fill(&store()).unwrap_err(), expected);
}

#[rstest]
#[case("Name")]
#[case(".Name")]
#[case("{.Name}")]
#[case("{Name}")]
#[case("$.Name")]
fn relaxed_paths_may_lack_braces_and_dot(#[case] text: &str) {
    let path = Path::relaxed(text).unwrap();
    assert_eq!(path.find(&store()), Ok(vec![&json!("jsonpath")]));
}

#[rstest]
#[case("")]
#[case("{}")]
#[case("a{b}")]
fn relaxed_paths_need_a_path(#[case] text: &str) {
    Path::relaxed(text).unwrap_err();
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in r#"([{}\[\].*$@?()'"\\:,!=<> 0-9-]|range |end|Book|Price|\PC){0,24}"#) {
        if let Ok(template) = text.parse::<JsonPath>() {
            let _ = template.fill(&store());
        }
        if let Ok(path) = Path::relaxed(&text) {
            let _ = path.find(&store());
        }
    }
}

#[rstest]
#[case::string("{.Name}", "[\n    \"jsonpath\"\n]\n")]
#[case::several("{.Pods[*].restarts}", "[\n    3,\n    0\n]\n")]
#[case::object(
    "{.Pods[1].conditions[0]}",
    "[\n    {\n        \"status\": \"False\",\n        \"type\": \"Ready\"\n    }\n]\n"
)]
#[case::missing("{.hello}", "[]\n")]
#[case::text_and_path("a{.Name}", "[\n    \"a\"\n]\n[\n    \"jsonpath\"\n]\n")]
#[case::range("{range .Pods[*]}{.name}{end}", "[\n    \"a\"\n]\n[\n    \"b\"\n]\n")]
#[case::empty_range("{range .hello}{.name}{end}", "")]
fn templates_are_rendered_as_json_arrays(#[case] template: &str, #[case] expected: &str) {
    let template: JsonPath = template.parse().unwrap();
    assert_eq!(template.fill_json(&store()).as_deref(), Ok(expected));
}
