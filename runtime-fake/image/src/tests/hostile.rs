//! Malicious archives: each is refused for its own reason and leaves nothing behind.

use serde_json::{Value, json};
use tar::EntryType;

use super::*;

/// Pulls from the archive and returns why it was refused, after checking that nothing is left.
fn refusal(bench: &Bench, archive: &[u8], name: &str) -> ContentError {
    bench.offer("a.tar", archive);
    let store = bench.open();
    let error = store.pull(name).unwrap_err();
    assert_eq!(store.list(), [], "{error:?}");
    assert_eq!(bench.leftovers(), NOTHING, "{error:?}");
    let error =
        if let ImageError::NotFoundUnreadable { source, .. } = error { *source } else { error };
    let ImageError::Archive { source, .. } = error else { panic!("{error:?}") };
    source
}

const NAME: &str = "example.com/evil:1";

fn refused(members: &Members) -> ContentError {
    refusal(&Bench::new(), &members.tar(), NAME)
}

/// Adds a valid bottom layer: a rejected image must not leave it in the store.
fn with_layer(layer: Vec<u8>) -> Vec<Vec<u8>> {
    vec![layers()[0].clone(), layer]
}

#[rstest]
#[case::traversal(Tar::new().file("../../evil", "x"))]
#[case::absolute_traversal(Tar::new().file("/../evil", "x"))]
#[case::loop_of_links(Tar::new().symlink("l", "../../l").file("l/evil", "x"))]
#[case::hard_link(Tar::new().hard_link("l", "../../images"))]
#[case::size(Tar::new().member(EntryType::Regular, "a", "", b"", |h| h.set_size(1 << 60)))]
#[case::below_a_file(Tar::new().directory("a").file("a", "").file("a/b", ""))]
fn pull_stores_nothing_of_refused_layers(#[case] layer: Tar) {
    for pack in [gzip, zstd, plain] {
        refused(&oci(NAME, &with_layer(layer.clone().bytes()), pack));
    }
    refused(&docker(&[NAME], &with_layer(layer.bytes())));
}

#[test]
fn unpack_rejects_truncated_layers() {
    let layer = Tar::new().file("a", vec![7; 5000]).bytes();
    // The archive's digest is correct; the layer still ends early.
    fn cut(bytes: &[u8]) -> Vec<u8> {
        let packed = gzip(bytes);
        packed[..packed.len() - 9].to_vec()
    }
    let problem = refused(&oci(NAME, std::slice::from_ref(&layer), cut));
    assert!(matches!(problem, ContentError::Truncated { .. }), "{problem:?}");
    let problem = refused(&docker(&[NAME], &[layer[..3000].to_vec()]));
    assert!(matches!(problem, ContentError::Truncated { .. }), "{problem:?}");
    fn damaged(bytes: &[u8]) -> Vec<u8> {
        let mut packed = gzip(bytes);
        let crc = packed.len() - 8;
        packed[crc] ^= 1;
        packed
    }
    let problem = refused(&oci(NAME, &[layer], damaged));
    assert!(matches!(problem, ContentError::Compressed { .. }), "{problem:?}");
}

#[test]
fn pull_rejects_digest_and_size_mismatch() {
    let change = |part: &str, change: fn(&mut Vec<u8>)| {
        let mut members = oci(NAME, &layers(), gzip);
        let large = part == "layer";
        let layer = Digest::of(&gzip(&layers()[1])).hex();
        let name = members.0.iter().find(|(name, bytes)| {
            name.starts_with("blobs/")
                && name.ends_with(&layer) == large
                && (large || find(bytes, part))
        });
        let name = name.unwrap().0.clone();
        change(members.0.get_mut(&name).unwrap());
        refused(&members)
    };
    fn find(bytes: &[u8], part: &str) -> bool {
        String::from_utf8_lossy(bytes).contains(part)
    }
    for part in ["\"diff_ids\"", "\"layers\"", "layer"] {
        let longer = change(part, |bytes| bytes.push(b' '));
        assert!(matches!(longer, ContentError::SizeDiffers { .. }), "{part}: {longer:?}");
        let shorter = change(part, |bytes| bytes.truncate(bytes.len() - 1));
        assert!(matches!(shorter, ContentError::SizeDiffers { .. }), "{part}: {shorter:?}");
    }
    for part in ["\"diff_ids\"", "\"layers\""] {
        let other = change(part, |bytes| *bytes.last_mut().unwrap() = b' ');
        assert!(matches!(other, ContentError::DigestDiffers { .. }), "{part}: {other:?}");
    }
    // The time in a gzip header changes the blob but not the layer.
    let other = change("layer", |bytes| bytes[4] ^= 1);
    assert!(matches!(other, ContentError::DigestDiffers { .. }), "{other:?}");
    // For a broken blob with a wrong digest, the digest is reported.
    let other = change("layer", |bytes| {
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0xff;
    });
    assert!(matches!(other, ContentError::DigestDiffers { .. }), "{other:?}");
}

#[test]
fn pull_rejects_layer_with_wrong_diff_id() {
    let mut members = docker(&[NAME], &layers());
    members.0.insert("1/layer.tar".to_owned(), Tar::new().file("other", "").bytes());
    let problem = refused(&members);
    assert!(matches!(problem, ContentError::DigestDiffers { .. }), "{problem:?}");
    // A configuration under the digest of another one.
    let mut members = docker(&[NAME], &layers());
    let config =
        members.0.keys().find(|name| name.ends_with(".json") && name.len() > 60).unwrap().clone();
    members.0.get_mut(&config).unwrap().push(b' ');
    let problem = refused(&members);
    assert!(matches!(problem, ContentError::DigestDiffers { .. }), "{problem:?}");
}

#[test]
fn pull_rejects_missing_blobs() {
    for missing in oci(NAME, &layers(), gzip).0.keys() {
        let mut members = oci(NAME, &layers(), gzip);
        members.0.remove(missing);
        let problem = match missing.as_str() {
            "oci-layout" => continue,
            _ => refused(&members),
        };
        let expected = match missing.as_str() {
            "index.json" => matches!(problem, ContentError::NoImages),
            _ => matches!(&problem, ContentError::Missing { name } if name == missing),
        };
        assert!(expected, "{missing}: {problem:?}");
    }
}

#[rstest]
#[case("index.json", b"{".to_vec())]
#[case("index.json", b"[]".to_vec())]
#[case("index.json", br#"{"schemaVersion":2,"manifests":[{"mediaType":"x","size":1,"digest":"sha256:../../../etc/passwd"}]}"#.to_vec())]
#[case("manifest.json", b"[{}]".to_vec())]
#[case("manifest.json", b"\xff".to_vec())]
fn pull_rejects_invalid_documents(#[case] name: &str, #[case] bytes: Vec<u8>) {
    let mut members = Members::default();
    members.0.insert(name.to_owned(), bytes);
    let problem = refused(&members);
    assert!(
        matches!(problem, ContentError::Document { .. } | ContentError::Digest { .. }),
        "{problem:?}"
    );
}

#[rstest]
#[case::layer_outside("../../etc/passwd")]
#[case::layer_absolute("/etc/passwd")]
#[case::layer_missing("2/layer.tar")]
fn pull_rejects_docker_manifest_with_missing_layers(#[case] layer: &str) {
    let mut members = docker(&[NAME], &layers());
    let mut manifest: Value = serde_json::from_slice(&members.0["manifest.json"]).unwrap();
    manifest[0]["Layers"][1] = layer.into();
    members.document("manifest.json", &manifest);
    let problem = refused(&members);
    assert!(matches!(problem, ContentError::Missing { .. }), "{problem:?}");
    manifest[0]["Layers"] = json!([]);
    members.document("manifest.json", &manifest);
    let problem = refused(&members);
    assert!(matches!(problem, ContentError::LayerCount { manifest: 0, config: 2 }), "{problem:?}");
}

#[test]
fn pull_rejects_malformed_tar() {
    let good = docker(&[NAME], &layers());
    let bench = Bench::new();
    let twice =
        good.0.iter().chain(&good.0).fold(Tar::new(), |tar, (name, bytes)| tar.file(name, bytes));
    let problem = refusal(&bench, &twice.bytes(), NAME);
    assert!(matches!(problem, ContentError::Twice { .. }), "{problem:?}");
    let whole = good.tar();
    // Truncated inside the last member's body or header: the end marker is 1024 bytes.
    for cut in [whole.len() - 1024 - 300, 700, 100] {
        let problem = refusal(&bench, &whole[..cut], NAME);
        assert!(matches!(problem, ContentError::Truncated { .. }), "cut at {cut}: {problem:?}");
    }
    let packed = gzip(&whole);
    let problem = refusal(&bench, &packed[..packed.len() - 20], NAME);
    assert!(matches!(problem, ContentError::Truncated { .. }), "{problem:?}");
    let problem = refusal(&bench, &Tar::new().file("../manifest.json", "[]").bytes(), NAME);
    assert!(matches!(problem, ContentError::Name { .. }), "{problem:?}");
    let problem =
        refusal(&bench, &Tar::new().symlink("manifest.json", "/etc/passwd").bytes(), NAME);
    assert!(matches!(problem, ContentError::LinkLeadsOut { .. }), "{problem:?}");
    let problem =
        refusal(&bench, &Tar::new().device(EntryType::Char, "manifest.json", 1, 5).bytes(), NAME);
    assert!(matches!(problem, ContentError::Device { .. }), "{problem:?}");
    let problem = refusal(&bench, b"hello", NAME);
    assert!(matches!(problem, ContentError::Truncated { .. }), "{problem:?}");
    let problem = refusal(&bench, &[b'x'; 2048], NAME);
    assert!(matches!(problem, ContentError::Header { .. }), "{problem:?}");
    let problem = refusal(&bench, b"", NAME);
    assert!(matches!(problem, ContentError::NoImages), "{problem:?}");
}

#[test]
fn pull_enforces_limits() {
    let with = |limits: Limits| Bench::limited(limits);
    let zeros = Tar::new().file("zeros", vec![0; 1 << 20]).bytes();
    let bomb = Limits { ratio: 50, ratio_from: 1 << 16, ..Limits::default() };
    let problem =
        refusal(&with(bomb.clone()), &oci(NAME, std::slice::from_ref(&zeros), zstd).tar(), NAME);
    assert!(matches!(problem, ContentError::Ratio { .. }), "{problem:?}");
    let problem =
        refusal(&with(bomb), &gzip(&docker(&[NAME], std::slice::from_ref(&zeros)).tar()), NAME);
    assert!(matches!(problem, ContentError::Ratio { .. }), "{problem:?}");
    // Two layers of one image share one budget.
    let budget = Limits { unpacked_bytes: 3 << 19, ..Limits::default() };
    let two = [zeros.clone(), Tar::new().file("more", vec![1; 1 << 20]).bytes()];
    let problem = refusal(&with(budget), &oci(NAME, &two, gzip).tar(), NAME);
    assert!(matches!(problem, ContentError::TooMuch { .. }), "{problem:?}");
    for limits in [
        Limits { document_bytes: 100, ..Limits::default() },
        Limits { defaults_bytes: 10, ..Limits::default() },
        Limits { layers: 1, ..Limits::default() },
        Limits { entries: 3, ..Limits::default() },
    ] {
        let problem = refusal(&with(limits.clone()), &oci(NAME, &layers(), gzip).tar(), NAME);
        assert!(matches!(problem, ContentError::TooMuch { .. }), "{limits:?}: {problem:?}");
    }
    let settings = Limits { defaults_bytes: 10, ..Limits::default() };
    let problem = refusal(&with(settings), &docker(&[NAME], &layers()).tar(), NAME);
    assert!(matches!(problem, ContentError::TooMuch { .. }), "{problem:?}");
}

#[test]
fn pull_rejects_archive_with_too_many_names() {
    let tags: Vec<String> = (0..10_001).map(|number| format!("example.com/a:{number}")).collect();
    let tags: Vec<&str> = tags.iter().map(String::as_str).collect();
    let problem = refusal(&Bench::new(), &docker(&tags, &layers()).tar(), "example.com/a:1");
    assert!(matches!(problem, ContentError::TooMuch { unit: "names", .. }), "{problem:?}");
}

#[test]
fn pull_rejects_nested_and_ambiguous_indexes() {
    let mut members = Members::default();
    let mut descriptor = oci_image(&mut members, &layers(), gzip);
    for _ in 0..10 {
        let nested = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [descriptor]});
        descriptor = members.blob(INDEX, &serde_json::to_vec(&nested).unwrap());
    }
    index(&mut members, &[named(descriptor, NAME)]);
    let problem = refused(&members);
    assert!(matches!(problem, ContentError::TooMuch { unit: "nested indexes", .. }), "{problem:?}");
    let mut members = Members::default();
    let one = oci_image(&mut members, &layers(), gzip);
    let other = oci_image(&mut members, &layers()[..1], gzip);
    index(&mut members, &[named(one, NAME), named(other, NAME)]);
    let problem = refused(&members);
    assert!(matches!(problem, ContentError::Ambiguous { .. }), "{problem:?}");
}
