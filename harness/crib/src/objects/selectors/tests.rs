//! Selectors with the test cases of Kubernetes 1.36, apimachinery/pkg/labels/selector_test.go and
//! apimachinery/pkg/fields/selector_test.go.

use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Map, json};

use super::*;

fn labelled(labels: &str) -> Value {
    let pairs = labels.split(',').filter_map(|pair| pair.split_once('='));
    let labels: Map<String, Value> =
        pairs.map(|(key, value)| (key.to_owned(), json!(value))).collect();
    json!({"metadata": {"labels": labels}})
}

#[rstest]
#[case("", "x=y", true)]
#[case("x=y", "x=y", true)]
#[case("x=y,z=w", "x=y,z=w", true)]
#[case("x!=y,z!=w", "x=z,z=a", true)]
#[case("notin=in", "notin=in", true)]
#[case("x", "x=z", true)]
#[case("!x", "y=z", true)]
#[case("x>1", "x=2", true)]
#[case("x<1", "x=0", true)]
#[case("x=z", "", false)]
#[case("x=y", "x=z", false)]
#[case("x=y,z=w", "x=w,z=w", false)]
#[case("x!=y,z!=w", "x=z,z=w", false)]
#[case("x", "y=z", false)]
#[case("!x", "x=z", false)]
#[case("x>1", "x=0", false)]
#[case("x<1", "x=2", false)]
#[case("foo=bar", "foo=bar,baz=blah", true)]
#[case("foo=bar,baz=blah", "foo=bar,baz=blah", true)]
#[case("foo=bar,foobar=bar,baz=blah", "foo=bar,baz=blah", false)]
#[case("x in (abc,def)", "x=def", true)]
#[case("x in (abc,)", "x=", true)]
#[case("x in ()", "x=", true)]
#[case("x notin (abc,,def),bar,z in (),w", "bar=1,z=,w=2", true)]
#[case("x notin (abc,,def)", "x=def", false)]
#[case("a in (x,y,notin, z,in)", "a=notin", true)]
#[case("x=", "x=", true)]
fn label_selectors_match_as_in_kubernetes(
    #[case] selector: &str,
    #[case] labels: &str,
    #[case] expected: bool,
) {
    let selector: Labels = selector.parse().unwrap();
    assert_eq!(selector.match_object(&labelled(labels)), expected);
}

#[rstest]
fn label_selectors_of_kubernetes_are_read(
    #[values(
        "x=a,y=b,z=c",
        "x= ,z= ",
        "x>1,z<5",
        "\rx",
        "this-is-a-dns.domain.com/key-with-dash",
        "this-is-another-dns.domain.com/key-with-dash in (so,what)",
        "0.1.2.domain/99 notin (10.10.100.1, tick.tack.clock)",
        "foo  in\t (abc)",
        "x notin\n (abc)",
        "x in (a,,a,,a,,a,,)",
        "x=a,y!=b,z in (h,i,j)",
        "x notin ( )",
        "x notin (, a)",
        "a "
    )]
    selector: &str,
) {
    selector.parse::<Labels>().unwrap();
}

#[rstest]
fn invalid_label_selectors_are_refused(
    #[values(
        "x=a||y=b",
        "x==a==b",
        "!x=a",
        "x<a",
        "x,,y",
        ",x,y",
        "x nott in (y)",
        "a in (xyz),",
        "a in (xyz)b notin ()",
        "a in (xyz abc)",
        "a notin(",
        "a (",
        "("
    )]
    selector: &str,
) {
    selector.parse::<Labels>().unwrap_err();
}

#[rstest]
#[case("status.phase=Running", true)]
#[case("status.phase==Running,metadata.name=web", true)]
#[case("status.phase!=Running", false)]
#[case("spec.nodeName=", true)]
#[case("spec.nodeName!=n1,metadata.name!=x", true)]
#[case("metadata.name=x", false)]
#[case("", true)]
fn field_selectors_match_text(#[case] selector: &str, #[case] expected: bool) {
    let object = json!({"metadata": {"name": "web"}, "status": {"phase": "Running"}});
    let selector: Fields = selector.parse().unwrap();
    assert_eq!(selector.match_object(&object), expected);
}

#[rstest]
#[case("Job", json!({"succeeded": 2}), "status.successful=2", true)]
#[case("Job", json!({}), "status.successful=0", true)]
#[case("Job", json!({}), "status.successful!=0", false)]
#[case("ReplicationController", json!({"replicas": 3}), "status.replicas=3", true)]
#[case("Service", json!({}), "spec.type=ClusterIP", true)]
#[case("Secret", json!({}), "type=kubernetes.io/tls", false)]
#[case("Pod", json!({}), "spec.hostNetwork=false", true)]
#[case("Pod", json!({}), "spec.hostNetwork=true", false)]
fn field_selectors_match_defaults_and_numbers(
    #[case] kind: &str,
    #[case] status: Value,
    #[case] selector: &str,
    #[case] expected: bool,
) {
    let object = json!({"kind": kind, "status": status});
    let selector: Fields = selector.parse().unwrap();
    assert_eq!(selector.check(kind), Ok(()));
    assert_eq!(selector.match_object(&object), expected);
}

#[rstest]
#[case("a=a,", &["a=a"])]
#[case(r"k=\,,k2=v2", &[r"k=\,", "k2=v2"])]
#[case(r"k=\\,k2=v2", &[r"k=\\", "k2=v2"])]
#[case(r"k=\\\,,k2=v2", &[r"k=\\\,", "k2=v2"])]
#[case("함=수,목=록", &["함=수", "목=록"])]
fn field_selectors_are_split_at_unescaped_commas(#[case] text: &str, #[case] expected: &[&str]) {
    assert_eq!(terms(text), expected);
}

#[rstest]
fn invalid_field_selectors_are_refused(
    #[values("x=a||y=b", "x==a==b", "x=a,b", "x in (a)", "x", r"x=\a")] selector: &str,
) {
    selector.parse::<Fields>().unwrap_err();
}

#[rstest]
#[case("status.phase=Running", "Pod", true)]
#[case("status.phase=Running", "Job", false)]
#[case("metadata.namespace=a", "Job", true)]
#[case("spec.containers=a", "Pod", false)]
#[case("involvedObject.name=web,type!=Normal,source=kubelet", "Event", true)]
#[case("message=a", "Event", false)]
fn fields_are_checked_by_kind(#[case] selector: &str, #[case] kind: &str, #[case] known: bool) {
    let selector: Fields = selector.parse().unwrap();
    assert_eq!(selector.check(kind).is_ok(), known);
}

#[rstest]
#[case("involvedObject.name=web,reason=BackOff", true)]
#[case("source!=kubelet", false)]
fn field_selectors_match_events(#[case] selector: &str, #[case] expected: bool) {
    let object = json!({
        "kind": "Event", "reason": "BackOff", "involvedObject": {"name": "web"}, "source": {"component": "kubelet"},
    });
    let selector: Fields = selector.parse().unwrap();
    assert_eq!(selector.match_object(&object), expected);
}

proptest! {
    #[test]
    fn any_text_is_a_selector_or_refused(text in r"([()!=<>,\\ a.-]|in|notin|\PC){0,24}") {
        let object = json!({"metadata": {"labels": {"a": "1"}}});
        if let Ok(labels) = text.parse::<Labels>() {
            labels.match_object(&object);
        }
        if let Ok(fields) = text.parse::<Fields>() {
            fields.match_object(&object);
        }
    }
}
