//! Claims that pods and containers name.

#![allow(clippy::unwrap_used)]

use rstest::rstest;
use serde_json::{Value, json};

use super::*;

fn pod(claims: Value, status: Value) -> Pod {
    let pod = json!({
        "metadata": {"name": "p", "namespace": "n", "uid": "u"},
        "spec": {"containers": [], "resourceClaims": claims},
        "status": status,
    });
    Pod::new(serde_json::from_value(pod).unwrap())
}

fn container(resources: Value) -> Container {
    serde_json::from_value(json!({"name": "c", "resources": resources})).unwrap()
}

fn claim(owner: &str, reserved: &str, allocation: Value) -> ResourceClaim {
    let owner =
        json!([{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": owner, "controller": true}]);
    let claim = json!({
        "metadata": {"name": "r", "namespace": "n", "uid": "c1", "ownerReferences": owner},
        "spec": {},
        "status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": reserved}], "allocation": allocation},
    });
    serde_json::from_value(claim).unwrap()
}

#[rstest]
#[case::direct(json!([{"name": "a", "resourceClaimName": "r"}]), json!({}), Ok(vec![("r", false)]))]
#[case::of_a_template(
    json!([{"name": "a", "resourceClaimTemplateName": "t"}]),
    json!({"resourceClaimStatuses": [{"name": "b", "resourceClaimName": "x"}, {"name": "a", "resourceClaimName": "p-a-1"}]}),
    Ok(vec![("p-a-1", true)])
)]
#[case::not_needed(
    json!([{"name": "a", "resourceClaimTemplateName": "t"}]),
    json!({"resourceClaimStatuses": [{"name": "a"}]}),
    Ok(vec![])
)]
#[case::not_made_yet(
    json!([{"name": "a", "resourceClaimTemplateName": "t"}]),
    json!({}),
    Err("pod \"n/p\": ResourceClaim not created yet")
)]
#[case::of_another_kind(
    json!([{"name": "a"}]),
    json!({}),
    Err("pod \"n/p\", spec.resourceClaim \"a\": none of the supported fields are set")
)]
#[case::twice(
    json!([{"name": "a", "resourceClaimName": "r"}, {"name": "b", "resourceClaimName": "r"}]),
    json!({}),
    Ok(vec![("r", false)])
)]
#[case::of_extended_resources(
    json!([{"name": "a", "resourceClaimName": "r"}]),
    json!({"extendedResourceClaimStatus": {"resourceClaimName": "e", "requestMappings": []}}),
    Ok(vec![("r", false), ("e", false)])
)]
fn claims_of_a_pod(
    #[case] claims: Value,
    #[case] status: Value,
    #[case] expected: Result<Vec<(&str, bool)>, &str>,
) {
    let found = of_pod(&pod(claims, status));
    let expected = expected.map_err(str::to_owned).map(|all| {
        let reference =
            |(name, is_owned): (&str, bool)| Reference { name: name.to_owned(), is_owned };
        all.into_iter().map(reference).collect::<Vec<_>>()
    });
    assert_eq!(found, expected);
}

#[rstest]
#[case::whole_claim(json!({"claims": [{"name": "a"}]}), vec![("r", vec![""])])]
#[case::requests(
    json!({"claims": [{"name": "a", "request": "x"}, {"name": "a", "request": "y"}, {"name": "b"}]}),
    vec![("r", vec!["x", "y"]), ("s", vec![""])]
)]
#[case::another_claim(json!({"claims": [{"name": "c"}]}), vec![])]
#[case::nothing(json!({}), vec![])]
#[case::extended_resource(json!({"requests": {"e.com/gpu": "1"}}), vec![("e", vec!["container-0-request-0"])])]
#[case::no_extended_resource(json!({"requests": {"e.com/gpu": "0"}}), vec![])]
fn claims_of_a_container(#[case] resources: Value, #[case] expected: Vec<(&str, Vec<&str>)>) {
    let claims =
        json!([{"name": "a", "resourceClaimName": "r"}, {"name": "b", "resourceClaimName": "s"}]);
    let mapping = |container: &str, request: &str| json!({"containerName": container, "requestName": request, "resourceName": "e.com/gpu"});
    let mappings =
        [mapping("c", "container-0-request-0"), mapping("other", "container-1-request-0")];
    let status = json!({"extendedResourceClaimStatus": {"resourceClaimName": "e", "requestMappings": mappings}});
    let found = of_container(&pod(claims, status), &container(resources)).unwrap();
    let expected = expected.into_iter().map(|(claim, requests)| Use {
        claim: (*claim).to_owned(),
        requests: requests.into_iter().map(str::to_owned).collect(),
    });
    assert_eq!(found, expected.collect::<Vec<_>>());
}

#[rstest]
#[case::owned_and_reserved("u", "u", true, None)]
#[case::reserved("other", "u", false, None)]
#[case::of_another_pod(
    "other",
    "u",
    true,
    Some("ResourceClaim n/r was not created for Pod n/p (Pod is not owner)")
)]
#[case::not_reserved(
    "u",
    "other",
    true,
    Some("pod p (u) is not allowed to use ResourceClaim r (c1)")
)]
fn claim_is_checked(
    #[case] owner: &str,
    #[case] reserved: &str,
    #[case] is_owned: bool,
    #[case] expected: Option<&str>,
) {
    let reference = Reference { name: "r".to_owned(), is_owned };
    let checked =
        check(&pod(json!([]), json!({})), &claim(owner, reserved, Value::Null), &reference);
    assert_eq!(checked.err().as_deref(), expected);
}

#[test]
fn drivers_are_those_of_the_allocation() {
    let result =
        |driver: &str| json!({"driver": driver, "pool": "p", "device": "d", "request": "x"});
    let results = [result("b.example"), result("a.example"), result("b.example")];
    let allocated = claim("u", "u", json!({"devices": {"results": results}}));
    let names: Vec<String> = drivers(&allocated).unwrap().iter().cloned().collect();
    assert_eq!(names, ["a.example", "b.example"]);
    assert_eq!(drivers(&claim("u", "u", json!({}))), Ok(Set::new()));
    let missing = drivers(&claim("u", "u", Value::Null));
    assert_eq!(missing, Err("ResourceClaim r: not allocated".to_owned()));
}
