//! Claims that pods share, and devices of requests.

#![allow(clippy::unwrap_used)]

use rstest::rstest;

use super::*;

fn key(name: &str) -> Key {
    Key { namespace: "n".to_owned(), name: name.to_owned() }
}

fn required(name: &str, uid: &str) -> RequiredClaim {
    let drivers = ["a", "b"].map(str::to_owned).into_iter().collect();
    RequiredClaim { key: key(name), uid: uid.to_owned(), drivers }
}

fn device(cdi: &[&str], requests: &[&str]) -> Device {
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    Device { cdi_devices: texts(cdi), requests: texts(requests), ..Device::default() }
}

fn names(claims: &[Claim]) -> Vec<&str> {
    claims.iter().map(|claim| claim.name.as_str()).collect()
}

#[test]
fn claim_is_prepared_once_for_all_its_pods() {
    let mut claims = Claims::default();
    let both = [required("r", "1"), required("s", "2")];
    assert_eq!(names(&claims.add("p", &both).unwrap()), ["r", "s"]);
    claims.set_prepared(&key("r"));
    assert_eq!(names(&claims.add("p", &both).unwrap()), ["s"]);
    assert_eq!(claims.add("q", &both[..1]), Ok(Vec::new()));
    assert_eq!(claims.of_pod("q"), [key("r")]);
    assert_eq!(claims.pods().iter().collect::<Vec<_>>(), ["p", "q"]);
}

#[test]
fn claim_is_unused_when_its_last_pod_leaves() {
    let mut claims = Claims::default();
    claims.add("p", &[required("r", "1"), required("s", "2")]).unwrap();
    claims.add("q", &[required("r", "1")]).unwrap();
    assert_eq!(names(&claims.remove_pod("p")), ["s"]);
    // The pod uses it until its drivers have answered.
    assert_eq!(claims.of_pod("p"), [key("s")]);
    claims.remove(&key("s"));
    assert_eq!(claims.remove_pod("p"), []);
    assert_eq!(names(&claims.remove_pod("q")), ["r"]);
}

#[test]
fn add_rejects_claim_while_another_uid_exists() {
    let mut claims = Claims::default();
    claims.add("p", &[required("r", "1")]).unwrap();
    let before = claims.clone();
    let error = claims.add("q", &[required("s", "3"), required("r", "2")]).unwrap_err();
    assert_eq!(
        error,
        "old ResourceClaim with same name r and different UID 1 still exists (previous pod force-deleted?!)"
    );
    assert_eq!(claims, before);
}

#[rstest]
#[case::all(&[""], &["a=1", "a=2", "a=3", "b=1"])]
#[case::one(&["x"], &["a=1", "a=2", "b=1"])]
#[case::other(&["y"], &["a=3", "b=1"])]
#[case::both(&["y", "x"], &["a=3", "b=1", "a=1", "a=2"])]
#[case::unknown(&["z"], &["b=1"])]
#[case::none(&[], &[])]
fn container_gets_the_devices_of_its_requests(
    #[case] requests: &[&str],
    #[case] expected: &[&str],
) {
    let mut claims = Claims::default();
    claims.add("p", &[required("r", "1")]).unwrap();
    let of_a = vec![device(&["a=1", "a=2"], &["x"]), device(&["a=3"], &["y"])];
    claims.set_devices(&key("r"), "a", of_a);
    // A device without requests satisfies all of them.
    claims.set_devices(&key("r"), "b", vec![device(&["b=1"], &[]), device(&[], &[])]);
    let requests: Vec<String> = requests.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(claims.cdi_devices(&key("r"), &requests).unwrap(), expected);
}

#[test]
fn unknown_claim_has_no_devices() {
    let error = Claims::default().cdi_devices(&key("r"), &[String::new()]).unwrap_err();
    let expected = "internal error: unable to get claim info for ResourceClaim r in namespace n";
    assert_eq!(error, expected);
}

#[test]
fn repeated_preparation_replaces_devices() {
    let mut claims = Claims::default();
    claims.add("p", &[required("r", "1")]).unwrap();
    for name in ["a=1", "a=2"] {
        claims.set_devices(&key("r"), "a", vec![device(&[name], &[])]);
    }
    assert_eq!(claims.cdi_devices(&key("r"), &[String::new()]).unwrap(), ["a=2"]);
    let prepared = claims.prepared(&key("r")).unwrap();
    assert_eq!((prepared.name.as_str(), prepared.devices.len()), ("r", 1));
    assert_eq!(prepared.devices[0].driver, "a");
}

#[rstest]
#[case::all(&[("1", None), ("2", None)], None)]
#[case::one_is_missing(&[("1", None)], Some("Call skipped 1 ResourceClaims"))]
#[case::unknown(&[("1", None), ("3", None)], Some("Call returned result for unknown claim UID 3"))]
#[case::failed(&[("1", None), ("2", Some("no disk"))], Some("Call failed for ResourceClaim s: no disk"))]
fn check_rejects_missing_answers(
    #[case] answers: &[(&str, Option<&str>)],
    #[case] expected: Option<&str>,
) {
    let mut claims = Claims::default();
    let requested = claims.add("p", &[required("r", "1"), required("s", "2")]).unwrap();
    let answers = answers.iter().map(|(uid, error)| {
        ((*uid).to_owned(), error.map_or(Ok(()), |error| Err(error.to_owned())))
    });
    let checked = check("Call", &requested, answers.collect());
    assert_eq!(checked.err().as_deref(), expected);
}
