//! Programs whose interpreter is not in their image: the message names it.

use harness::fixture_image::{ImageBuilder, Layer};

use crate::command::*;

/// An image with scripts, a working shell, and a dynamically linked program without its loader.
fn image(place: &Place) -> String {
    let program = std::fs::read("/bin/echo").unwrap();
    let layer = Layer::new()
        .host_program("/bin/sh")
        .unwrap()
        .file("bin/script", 0o755, "#!/no/such/shell -e\n")
        .file("bin/chain", 0o755, "#!/bin/script\n")
        .file("bin/windows", 0o755, "#!/bin/sh\r\nexit 0\r\n")
        .file("bin/hidden", 0o111, "#!/no/such/shell\n");
    let path = place.path("image.tar");
    let image = ImageBuilder::new("registry.test/scripts:1").layer(layer);
    image.write_oci(&path).unwrap();
    let dynamic = Layer::new().file("bin/dynamic", 0o755, program);
    let image = ImageBuilder::new("registry.test/dynamic:1").layer(dynamic);
    image.write_oci(&place.path("dynamic.tar")).unwrap();
    path.display().to_string()
}

#[rstest]
#[case::script("scripts", "/bin/script", r#""/bin/script": its interpreter "/no/such/shell" is"#)]
#[case::in_path("scripts", "script", r#""script": its interpreter "/no/such/shell" is"#)]
#[case::chain(
    "scripts",
    "/bin/chain",
    r#""/bin/chain": the interpreter "/no/such/shell" of "/bin/script" is"#
)]
#[case::windows_line(
    "scripts",
    "/bin/windows",
    r#""/bin/windows": its interpreter "/bin/sh\r" is"#
)]
#[case::loader("dynamic", "/bin/dynamic", r#""/bin/dynamic": its interpreter "/lib"#)]
#[tokio::test]
async fn run_names_missing_interpreter(
    #[case] name: &str,
    #[case] program: &str,
    #[case] message: &str,
) {
    let place = Place::new();
    let images = [image(&place), place.path("dynamic.tar").display().to_string()];
    let manifest = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n  restartPolicy: Never\n  \
         containers: [{{name: main, image: 'registry.test/{name}:1', command: [{program}]}}]\n"
    );
    let manifest = place.file("p.yaml", &manifest);
    let [scripts, dynamic] = images.each_ref().map(String::as_str);
    let ended = place
        .crib(&["run", "--image-archive", scripts, "--image-archive", dynamic, &manifest])
        .await
        .exits(1);
    let message = format!("exec: {message}");
    assert!(ended.err.contains(&message), "{message} is not in: {}", ended.err);
    ended.err_has(" is not in the container's image");
}

/// A program that its user may execute but not read.
#[tokio::test]
async fn run_reports_missing_interpreter_of_unreadable_script() {
    let place = Place::new();
    let archive = image(&place);
    let manifest = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec:\n  restartPolicy: Never\n  \
        securityContext: {runAsUser: 0}\n  containers:\n  - name: main\n    image: registry.test/scripts:1\n    \
        command: [/bin/hidden]\n    securityContext: {capabilities: {drop: [ALL]}}\n";
    // Its owner may not read it, and root without capabilities is like any owner.
    let ended = place
        .crib(&["run", "--image-archive", &archive, &place.file("p.yaml", manifest)])
        .await
        .exits(1);
    let message = r#"exec: "/bin/hidden": its interpreter is not in the container's image"#;
    ended.err_has(message);
}
