//! How a manifest is decoded as by a kubelet, and crib's messages about rejected ones.
#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;
use rstest::rstest;

use super::*;

const POD: &str =
    "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: x}]}\n";

fn read(text: &[u8]) -> Result<ApiPod, Rejected> {
    pod(Location::File("/m/a.yaml"), "Node-1", text)
}

fn pods(location: Location<'_>, node_name: &str, bytes: &[u8]) -> Result<Vec<ApiPod>, Rejected> {
    Manifest::new(location, node_name, bytes)?.all()
}

/// The class and the first line of the message.
fn rejected(text: &str) -> (ErrorClass, String) {
    let rejected = read(text.as_bytes()).unwrap_err();
    let message = rejected.to_string();
    (rejected.class, message.lines().next().unwrap().to_owned())
}

fn label(pod: &ApiPod) -> &str {
    &pod.metadata.labels.as_ref().unwrap()["l"]
}

#[rstest]
#[case::secret(
    "{containers: [{name: c, image: x}], volumes: [{name: v, secret: {secretName: s}}]}",
    true
)]
#[case::account("{containers: [{name: c, image: x}], serviceAccountName: s}", true)]
#[case::claims(
    "{containers: [{name: c, image: x}], resourceClaims: [{name: r, resourceClaimName: r}]}",
    false
)]
#[case::trust_bundle(
    "{containers: [{name: c, image: x}], volumes: [{name: v, projected: {sources: [{clusterTrustBundle: {name: b, path: p}}]}}]}",
    false
)]
fn static_pod_refers_to_objects_only_if_it_may(#[case] spec: &str, #[case] expected: bool) {
    let text = format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec: {spec}\n");
    let location = Location::File("/m/a.yaml");
    let refused = supported_pod(location, "n", false, text.as_bytes()).unwrap_err();
    assert_eq!(refused.class, ErrorClass::ApiReference);
    let read = supported_pod(location, "n", true, text.as_bytes());
    assert_eq!(read.is_ok(), expected, "{read:?}");
}

#[test]
fn static_pod_is_bound_to_the_node() {
    let pod = pod(Location::File("/m/a.yaml"), "n.example", POD.as_bytes()).unwrap();
    assert_eq!(pod.metadata.name.as_deref(), Some("a-n.example"));
    let spec = pod.spec.unwrap();
    assert_eq!(spec.node_name.as_deref(), Some("n.example"));
    assert_eq!(spec.tolerations.unwrap()[0].effect.as_deref(), Some("NoExecute"));
    assert_eq!(pod.metadata.uid.unwrap().len(), 32);
}

#[rstest]
#[case("kind: Pod", ErrorClass::Kind, "/m/a.yaml:1:1: apiVersion: missing: expected v1")]
#[case("", ErrorClass::Kind, "/m/a.yaml:1:1: expected a Pod: an object with apiVersion and kind")]
#[case(
    "apiVersion: v1\nkind: ConfigMap\n",
    ErrorClass::NotAPod,
    "/m/a.yaml:2:7: kind: expected a Pod, found a ConfigMap"
)]
#[case(
    "apiVersion: v1\nkind: Pod\nmetadata: {name: 1}\n",
    ErrorClass::Decode,
    "/m/a.yaml:3:18: metadata.name: expected text, found the number 1; put it in quotes"
)]
#[case(
    "{\"kind\": }",
    ErrorClass::Syntax,
    "/m/a.yaml:1:10: not valid JSON: expected value at line 1 column 10"
)]
#[case("a: \u{7}", ErrorClass::Syntax, "/m/a.yaml:1:4: control characters are not allowed")]
fn rejection_has_class_and_position(
    #[case] text: &str,
    #[case] class: ErrorClass,
    #[case] expected: &str,
) {
    assert_eq!(rejected(text), (class, expected.to_owned()));
}

#[test]
fn utf16_manifests_are_read() {
    let mut bytes = vec![0xff, 0xfe];
    bytes.extend(POD.encode_utf16().flat_map(u16::to_le_bytes));
    let pod = pod(Location::File("a"), "n", &bytes).unwrap();
    assert_eq!(pod.metadata.name.as_deref(), Some("a-n"));
}

#[test]
fn escapes_of_json_are_characters() {
    let text = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","annotations":{"l":"\ud83d\ude00\u00e9\/"}},
        "spec":{"containers":[{"name":"c","image":"x"}]}}"#;
    let pod = pod(Location::File("a"), "n", text.as_bytes()).unwrap();
    assert_eq!(pod.metadata.annotations.unwrap()["l"], "😀é/");
}

#[test]
fn only_the_first_document_and_the_last_of_duplicate_keys_count() {
    let text = POD.replace("{name: a}", "{name: a, labels: {l: one, l: two}}") + "---\nkind: [\n";
    let pod = pod(Location::File("a"), "n", text.as_bytes()).unwrap();
    assert_eq!(label(&pod), "two");
}

#[test]
fn objects_of_duplicate_keys_in_json_are_overlaid() {
    let text = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"metadata":{"labels":{"l":"y"}},
        "spec":{"containers":[{"name":"c","image":"x"}]}}"#;
    let pod = pod(Location::File("a"), "n", text.as_bytes()).unwrap();
    assert_eq!((pod.metadata.name.as_deref(), label(&pod)), (Some("a-n"), "y"));
}

#[rstest]
#[case("~: 1")]
#[case("<<: 1")]
#[case("a: .inf")]
fn yaml_that_json_cannot_hold_is_rejected(#[case] line: &str) {
    assert_eq!(rejected(&format!("{POD}{line}\n")).0, ErrorClass::Syntax);
}

#[test]
fn list_is_read_from_a_url_only() {
    let list = "apiVersion: v1\nkind: PodList\nitems:\n- metadata: {name: a}\n  spec: {containers: [{name: c, image: x}]}\n";
    assert_eq!(rejected(list).0, ErrorClass::NotAPod);
    let url = Location::Url("http://user:secret@h/pods?token=secret");
    assert_eq!(pods(url, "n", list.as_bytes()).unwrap().len(), 1);
    assert_eq!(url.shown(), "http://h/pods");
    let bad = list.replace("name: a", "name: A_");
    assert!(pods(url, "n", bad.as_bytes()).is_err());
}

#[test]
fn uid_depends_on_node_and_place() {
    let uid = |location, node| pod(location, node, POD.as_bytes()).unwrap().metadata.uid;
    let all = [
        uid(Location::File("a"), "n"),
        uid(Location::File("b"), "n"),
        uid(Location::File("a"), "m"),
        uid(Location::Url("a"), "n"),
    ];
    for (index, one) in all.iter().enumerate() {
        assert!(!all[index + 1..].contains(one));
    }
    assert_eq!(all[0], uid(Location::File("a"), "n"));
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = read(&bytes);
        let _ = pods(Location::Url("http://h/"), "n", &bytes);
    }

    #[test]
    fn any_text_is_read_or_rejected(text in "[a-z:{}\\[\\]\"&*<,\\- \n\t#|>!%@`]{0,80}") {
        let _ = read(text.as_bytes());
    }
}
