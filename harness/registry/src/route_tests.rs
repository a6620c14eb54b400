//! Tables of paths, digests, queries and ranges with their parsed forms.
use rstest::rstest;

use super::*;

fn a() -> String {
    format!("sha256:{}", "a".repeat(64))
}

#[rstest]
#[case("/v2/", "Base")]
#[case("/v2", "Base")]
#[case("/token", "Token")]
#[case("/v2/_catalog", "Catalog")]
#[case("/v2/x/tags/list", "Tags { name: \"x\" }")]
#[case("/v2/tags/list/tags/list", "Tags { name: \"tags/list\" }")]
#[case(
    "/v2/gcr.io/a/b/manifests/1.0",
    "Manifest { name: \"gcr.io/a/b\", reference: Tag(\"1.0\") }"
)]
#[case(
    "/v2/localhost:5000/a/manifests/x",
    "Manifest { name: \"localhost:5000/a\", reference: Tag(\"x\") }"
)]
#[case(
    "/v2/manifests/manifests/latest",
    "Manifest { name: \"manifests\", reference: Tag(\"latest\") }"
)]
#[case("/v2/a/blobs/uploads/", "Uploads { name: \"a\" }")]
#[case("/v2/a/blobs/uploads", "Uploads { name: \"a\" }")]
#[case("/v2/a/blobs/uploads/7", "Upload { name: \"a\", id: \"7\" }")]
fn route_parses_distribution_paths(#[case] path: &str, #[case] route: &str) {
    assert_eq!(format!("{:?}", Route::parse(path).unwrap()), route);
}

#[rstest]
#[case("/", PathError::Unknown)]
#[case("/v1/search", PathError::Unknown)]
#[case("/v2/a", PathError::Unknown)]
#[case("/v2/tags/list", PathError::Unknown)]
#[case("/v2/A/tags/list", PathError::Name)]
#[case("/v2/../tags/list", PathError::Name)]
#[case("/v2/%2e%2e/tags/list", PathError::Name)]
#[case("/v2/a/../b/manifests/x", PathError::Name)]
#[case("/v2/a//b/manifests/x", PathError::Name)]
#[case("/v2/a:b/tags/list", PathError::Name)]
#[case("/v2/a/b:5000/tags/list", PathError::Name)]
#[case("/v2/a..b/tags/list", PathError::Name)]
#[case("/v2/a/manifests/-x", PathError::Reference)]
#[case("/v2/a/manifests/sha256:12", PathError::Reference)]
#[case("/v2/a/blobs/sha256:12", PathError::Digest)]
#[case("/v2/a/blobs/latest", PathError::Digest)]
fn route_rejects_invalid_paths(#[case] path: &str, #[case] why: PathError) {
    assert_eq!(Route::parse(path), Err(why));
}

#[test]
fn route_accepts_every_sha256_digest() {
    let path = format!("/v2/a/b/blobs/{}", a());
    let Ok(Route::Blob { name, digest }) = Route::parse(&path) else { panic!("no blob") };
    assert_eq!((name.as_str(), digest.as_str()), ("a/b", a().as_str()));
    let path = format!("/v2/a/b/manifests/{}", a().replace(':', "%3A"));
    assert!(matches!(
        Route::parse(&path),
        Ok(Route::Manifest { reference: Reference::Digest(_), .. })
    ));
    assert!(a().to_uppercase().parse::<Digest>().is_err());
    assert!("sha512:".parse::<Digest>().is_err());
}

#[test]
fn query_fields_are_percent_decoded() {
    let all = fields("ns=docker.io&scope=repository%3Aa%2Fb%3Apull+x&scope=two&empty&=&%zz=%4");
    assert_eq!(field(&all, "ns"), Some("docker.io"));
    assert_eq!(field(&all, "scope"), Some("repository:a/b:pull x"));
    assert_eq!(field(&all, "empty"), Some(""));
    assert_eq!(field(&all, "%zz"), Some("%4"));
    assert_eq!(field(&all, "other"), None);
}

#[rstest]
#[case(None, Some(None))]
#[case(Some("bytes=0-"), Some(Some((0, 10))))]
#[case(Some("bytes=3-"), Some(Some((3, 7))))]
#[case(Some("bytes=3-5"), Some(Some((3, 3))))]
#[case(Some("bytes=3-99"), Some(Some((3, 7))))]
#[case(Some("bytes=-4"), Some(Some((6, 4))))]
#[case(Some("bytes=-99"), Some(Some((0, 10))))]
#[case(Some("bytes=10-"), None)]
#[case(Some("bytes=-0"), None)]
#[case(Some("bytes=5-3"), Some(None))]
#[case(Some("lines=1-2"), Some(None))]
#[case(Some("bytes=a-b"), Some(None))]
fn range_header_is_resolved_against_length(
    #[case] header: Option<&str>,
    #[case] found: Option<Option<(u64, u64)>>,
) {
    assert_eq!(range(header, 10), found);
}

#[test]
fn range_of_empty_file_is_rejected() {
    assert_eq!(range(Some("bytes=0-"), 0), None);
    assert_eq!(range(None, 0), Some(None));
}
