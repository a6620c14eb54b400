//! Loading manifests, and the errors.
use k8s_openapi::api::core::v1::Pod as ApiPod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rstest::rstest;

use super::*;

fn pod(name: &str, uid: &str) -> Pod {
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        uid: Some(uid.to_owned()),
        ..ObjectMeta::default()
    };
    Pod::new(ApiPod { metadata, ..ApiPod::default() })
}

fn file(name: &str, pods: Vec<Pod>) -> (String, Parsed) {
    (name.to_owned(), Parsed { pods, ..Parsed::default() })
}

#[test]
fn pods_keep_manifest_order() {
    let inputs = merge(
        vec![file("x", vec![pod("b", "1"), pod("a", "2")]), file("y", vec![pod("c", "3")])],
        vec![],
        Empty::Refused,
    )
    .unwrap();
    let names: Vec<&str> = inputs.pods.iter().map(Pod::name).collect();
    assert_eq!(names, ["b", "a", "c"]);
}

#[test]
fn duplicate_pod_name_names_both_files() {
    let problems = merge(
        vec![file("x", vec![pod("a", "1")]), file("y", vec![pod("a", "2")])],
        vec![],
        Empty::Refused,
    )
    .unwrap_err();
    assert_eq!(problems, ["y: pod default/a is also defined in x: give one of them another name"]);
}

#[test]
fn duplicate_pod_name_in_one_file_is_rejected() {
    let twice = file("x", vec![pod("a", "1"), pod("a", "2")]);
    let seen = merge(vec![twice], vec![], Empty::Refused).unwrap_err();
    assert_eq!(seen, ["x: pod default/a is defined twice: give one of them another name"]);
}

#[test]
fn duplicate_pod_uid_is_rejected() {
    let problems =
        merge(vec![file("x", vec![pod("a", "1"), pod("b", "1")])], vec![], Empty::Refused)
            .unwrap_err();
    assert_eq!(
        problems,
        ["x: pod default/b has the same metadata.uid as pod default/a: leave it out, or change it"]
    );
}

#[test]
fn all_manifest_errors_are_reported() {
    let missing = load(
        &[PathBuf::from("/nowhere/a.yaml"), PathBuf::from("/nowhere/b.yaml")],
        ManifestArgs::default(),
    )
    .unwrap_err();
    assert_eq!(missing.len(), 2, "{missing:?}");
    assert!(
        missing.iter().all(|problem| problem.starts_with("failed to read the manifest /nowhere/")),
        "{missing:?}"
    );
}

#[test]
fn first_manifest_errors_are_reported_and_others_counted() {
    let dir = tempfile::tempdir().unwrap();
    for number in 0..103 {
        std::fs::write(dir.path().join(format!("{number:03}.json")), "").unwrap();
    }
    let problems = load(&[dir.path().to_owned()], ManifestArgs::default()).unwrap_err();
    assert_eq!(problems.len(), 101, "{problems:?}");
    assert!(problems[99].contains("099.json:1:1: no pod found"), "{}", problems[99]);
    assert_eq!(problems[100], "and 3 more problems in the manifests");
    std::fs::remove_file(dir.path().join("000.json")).unwrap();
    std::fs::remove_file(dir.path().join("001.json")).unwrap();
    std::fs::remove_file(dir.path().join("002.json")).unwrap();
    let problems = load(&[dir.path().to_owned()], ManifestArgs::default()).unwrap_err();
    assert_eq!(problems.len(), 100, "{problems:?}");
}

#[test]
fn missing_and_duplicate_objects_are_rejected() {
    let text = |map: &str| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {map}}}\n---\napiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\n\
             spec:\n  containers: [{{name: c, image: x, envFrom: [{{configMapRef: {{name: m}}}}]}}]\n"
        )
    };
    let parsed = |map: &str| {
        let parsed = manifest::parse("x", &text(map), Strictness::Strict);
        ("x".to_owned(), parsed)
    };
    let inputs = merge(vec![parsed("m")], vec![], Empty::Refused).unwrap();
    assert_eq!(references::missing(&inputs.pods[0], &inputs.objects), [""; 0]);
    assert_eq!(
        merge(vec![parsed("other")], vec![], Empty::Refused).unwrap_err(),
        ["x: pod default/p needs the configmap default/m: add it to the manifests"]
    );
}

/// kubectl applies the definitions in order, so the last one is used.
#[test]
fn equal_objects_are_one_and_of_different_ones_the_last_counts() {
    let map = |data: &str| {
        let text = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: m}}\ndata: {{a: {data}}}\n---\n\
             apiVersion: v1\nkind: Namespace\nmetadata: {{name: other}}\n"
        );
        (data.to_owned(), manifest::parse("x", &text, Strictness::Strict))
    };
    let server_text = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec:\n  selector: {matchLabels: {a: b}}\n  \
                  template:\n    metadata: {labels: {a: b}}\n    spec: {containers: [{name: c, image: x}]}\n";
    let server = |text: &str| ("y".to_owned(), manifest::parse("y", text, Strictness::Strict));
    let files = vec![map("one"), map("one"), map("two"), server(server_text), server(server_text)];
    let inputs = merge(files, vec![], Empty::Refused).unwrap();
    assert_eq!(
        inputs.warnings,
        ["two: configmap default/m is in the manifests twice: the last definition is used"]
    );
    assert_eq!(inputs.object_names, ["configmap default/m", "namespace other"]);
    assert_eq!(inputs.workloads.len(), 1);
    let other = server_text.replace("image: x", "image: z");
    let files = vec![server(server_text), server(&other)];
    let problems = merge(files, vec![], Empty::Refused).unwrap_err();
    assert_eq!(
        problems,
        ["y: deployment default/d is in the manifests twice: give one of them another name"]
    );
}

#[test]
fn empty_directory_may_be_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let paths = [dir.path().to_owned()];
    load(&paths, ManifestArgs::default()).unwrap_err();
    let inputs = load_or_none(&paths, ManifestArgs::default(), Empty::Accepted).unwrap();
    assert_eq!(inputs.pods, []);
}

#[test]
fn skipped_documents_are_listed_if_nothing_remains() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("role.yaml");
    let text = "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: r}\n";
    std::fs::write(&file, text).unwrap();
    let problems = load(&[file], ManifestArgs::default()).unwrap_err();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems[0].ends_with("this kind needs a cluster"), "{problems:?}");
    assert_eq!(problems[1], "no pod in the manifests: nothing to run");
}

/// A kustomization is reported in addition to other errors: a patch next to it is not a complete manifest.
#[rstest]
#[case::alone(&[], false, &["kind Kustomization", "no pod in the manifests"])]
#[case::beside_patch(&["kind: Deployment\nspec: {replicas: 2}\n"], false, &["kind Kustomization", "apiVersion: missing"])]
#[case::strict(&["kind: Deployment\nspec: {replicas: 2}\n"], true, &["--strict: ", "apiVersion: missing"])]
fn kustomization_error_names_the_fault(
    #[case] others: &[&str],
    #[case] strict: bool,
    #[case] expected: &[&str],
) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("kustomization.yaml"), "resources: [../base]\n").unwrap();
    for (index, text) in others.iter().enumerate() {
        std::fs::write(dir.path().join(format!("{index}.yaml")), text).unwrap();
    }
    let how = ManifestArgs { strict, ..ManifestArgs::default() };
    let problems = load(&[dir.path().to_owned()], how).unwrap_err();
    assert_eq!(problems.len(), expected.len(), "{problems:?}");
    for (problem, expected) in problems.iter().zip(expected) {
        assert!(problem.contains(expected), "{problem}");
    }
    let command = format!("run `kubectl kustomize {} | crib run -`", dir.path().display());
    assert!(problems[0].ends_with(&command), "{problems:?}");
}

#[test]
fn resources_of_devices_are_warned_of_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("gpu.yaml");
    let text = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i, resources: {limits: {nvidia.com/gpu: 1}}}]}\n";
    std::fs::write(&file, text).unwrap();
    let inputs = load(std::slice::from_ref(&file), ManifestArgs::default()).unwrap();
    let about = |message: &&String| message.contains("pod default/p requests nvidia.com/gpu");
    assert_eq!(inputs.warnings.iter().filter(about).count(), 1, "{:?}", inputs.warnings);
    let problems =
        load(&[file], ManifestArgs { strict: true, ..ManifestArgs::default() }).unwrap_err();
    assert_eq!(problems.iter().filter(about).count(), 1, "{problems:?}");
}

#[test]
fn what_a_controller_in_the_manifests_makes_is_left_out() {
    let template = "{metadata: {labels: {a: b}}, spec: {containers: [{name: c, image: i}]}}";
    let owned = |kind: &str, name: &str| {
        format!(
            "ownerReferences: [{{apiVersion: apps/v1, kind: {kind}, name: {name}, uid: u, controller: true}}]"
        )
    };
    let text = format!(
        "apiVersion: apps/v1
kind: Deployment
metadata: {{name: web}}
spec: {{selector: {{matchLabels: {{a: b}}}}, template: {template}}}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {{name: web-1, {}}}
spec: {{selector: {{matchLabels: {{a: b}}}}, template: {template}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: web-1-x, {}}}
spec: {{containers: [{{name: c, image: i}}]}}
---
apiVersion: v1
kind: Pod
metadata: {{name: other, {}}}
spec: {{containers: [{{name: c, image: i}}]}}
",
        owned("Deployment", "web"),
        owned("ReplicaSet", "web-1"),
        owned("ReplicaSet", "gone-1"),
    );
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("all.yaml");
    std::fs::write(&file, text).unwrap();
    let inputs = load(&[file], ManifestArgs::default()).unwrap();
    let pods: Vec<&str> = inputs.pods.iter().map(Pod::name).collect();
    let workloads: Vec<String> = inputs.workloads.iter().map(Workload::full_name).collect();
    assert_eq!((pods, workloads), (vec!["other"], vec!["deployment default/web".to_owned()]));
    let skipped = inputs.warnings.iter().filter(|message| message.contains("is skipped"));
    assert_eq!(skipped.count(), 2, "{:?}", inputs.warnings);
}

#[test]
fn empty_input_is_rejected() {
    let seen = merge(vec![], vec![], Empty::Refused).unwrap_err();
    assert_eq!(seen, ["no pod in the manifests: nothing to run"]);
}

#[rstest]
#[case("a.yaml", true)]
#[case("dir/a.yml", true)]
#[case("a.json", true)]
#[case(".a.yaml", false)]
#[case("a.yaml~", false)]
#[case("README.md", false)]
#[case("yaml", false)]
fn directory_selects_manifest_extensions(#[case] name: &str, #[case] taken: bool) {
    assert_eq!(is_manifest(Path::new(name)), taken);
}

#[test]
fn directory_is_read_in_name_order_without_recursion() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("c.yaml")).unwrap();
    for name in ["b.yml", "a.json", ".hidden.yaml", "notes.txt"] {
        std::fs::write(dir.path().join(name), name).unwrap();
    }
    let mut texts = Texts::with_room(2);
    read_manifests(dir.path(), Empty::Refused, &mut texts).unwrap();
    let read: Vec<&str> = texts.all.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(read, ["a.json", "b.yml"]);
}

#[test]
fn empty_directory_and_non_utf8_file_are_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let mut texts = Texts::with_room(2);
    assert!(
        read_manifests(dir.path(), Empty::Refused, &mut texts).unwrap_err().contains("no *.yaml")
    );
    std::fs::write(dir.path().join("x.yaml"), b"ok\xff").unwrap();
    assert!(
        read_manifests(dir.path(), Empty::Refused, &mut texts)
            .unwrap_err()
            .ends_with("byte 2 is not UTF-8: a manifest is YAML or JSON text")
    );
}

/// `aü😀`, and the same with half of a character, as PowerShell writes them.
#[rstest]
#[case::little_endian(b"\xff\xfea\0\xfc\0\x3d\xd8\0\xde", "aü😀")]
#[case::big_endian(b"\xfe\xff\0a\0\xfc\xd8\x3d\xde\0", "aü😀")]
#[case::half_a_character(b"\xff\xfea\0\x3d\xd8", "a\u{fffd}")]
#[case::utf_8("\u{feff}aü".as_bytes(), "\u{feff}aü")]
fn utf_16_with_byte_order_mark_is_decoded(#[case] bytes: &[u8], #[case] expected: &str) {
    assert_eq!(decode("x.yaml", bytes.to_vec()).as_deref(), Ok(expected));
}

#[test]
fn manifests_have_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let problem = |paths: &[PathBuf], how| load(paths, how).unwrap_err().join("\n");
    std::fs::write(path("many.yaml"), "---\na: b\n".repeat(1001)).unwrap();
    let message = problem(&[path("many.yaml"), path("missing.yaml")], ManifestArgs::default());
    assert!(message.ends_with("more than 1000 documents: raise --max-documents"), "{message}");
    let how = ManifestArgs { max_documents: 1001, ..ManifestArgs::default() };
    let message = problem(&[path("many.yaml")], how);
    assert!(message.contains("missing: expected v1"), "{message}");
    let item = "{kind: ConfigMap, apiVersion: v1, metadata: {name: m}}, ";
    let list = format!("apiVersion: v1\nkind: List\nitems: [{}]\n", item.repeat(1001));
    std::fs::write(path("list.yaml"), list).unwrap();
    let message = problem(&[path("list.yaml")], ManifestArgs::default());
    assert!(message.ends_with("more than 1000 documents: raise --max-documents"), "{message}");
    let message = problem(&[path("list.yaml")], how);
    assert_eq!(message, NOTHING);
    let long = format!("a: {}\n", "x".repeat(LONGEST_DOCUMENT));
    std::fs::write(path("long.yaml"), long).unwrap();
    let message = problem(&[path("long.yaml")], how);
    assert!(message.ends_with("a document has more than 16 MiB: is this a manifest?"), "{message}");
    let message = problem(&["/dev/zero".into()], how);
    assert_eq!(message, "failed to read the manifest /dev/zero: it has more than 64 MiB");
}

#[test]
fn full_names_need_no_objects_of_other_manifests() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a.yaml");
    let text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\n\
                apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n---\n\
                apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec:\n  \
                containers: [{name: c, image: x, envFrom: [{configMapRef: {name: elsewhere}}]}]\n---\n\
                apiVersion: g/v1\nkind: Other\nmetadata: {name: o}\n";
    std::fs::write(&file, text).unwrap();
    let names = full_names(std::slice::from_ref(&file)).unwrap();
    assert_eq!(names, ["pod default/web", "secret default/s"]);
    std::fs::write(&file, "apiVersion: v1\nkind: Pod\nmetadata: {}\n").unwrap();
    let problems = full_names(&[file, directory.path().join("none")]).unwrap_err();
    assert!(problems.len() > 1, "{problems:?}");
    assert!(problems[0].contains("failed to read the manifest"), "{problems:?}");
}
