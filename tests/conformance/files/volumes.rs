//! Image volumes, volumes of images, and rejected mounts.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use cri::v1::{ImageSpec, Mount};

use crate::support::*;

const DATA: &str = "example.com/data:1";
const APP: &str = "example.com/app:1";

/// A runtime with an image of several layers to mount, and one to run.
async fn with_images() -> (Runtime, TempDir) {
    let place = tempfile::tempdir().unwrap();
    let data = [
        Layer::new()
            .file("etc/passwd", 0o644, "below\n")
            .file("etc/gone", 0o644, "")
            .symlink("link", "/etc"),
        Layer::new()
            .file("etc/passwd", 0o644, "above\n")
            .whiteout("etc/gone")
            .host_program("/bin/echo")
            .unwrap(),
    ];
    let data = data.into_iter().fold(ImageBuilder::new(DATA), ImageBuilder::layer);
    data.write_docker(&place.path().join("data.tar")).unwrap();
    let app = Layer::new()
        .directory("data", 0o750)
        .owned_by(33, 34)
        .file("data/file", 0o640, "of the image\n")
        .owned_by(33, 34)
        .symlink("innocent", "/proc/sys/kernel")
        .directory("tmp", 0o1777);
    let programs = ["/bin/sh", "/bin/cat", "/bin/sleep", "/usr/bin/stat", "/bin/rm"];
    let app = with_programs(app, &programs);
    let app = ImageBuilder::new(APP).layer(app).volumes(["/data", "/new/volume", "C:/relative"]);
    app.write_docker(&place.path().join("app.tar")).unwrap();
    let runtime = Runtime::with()
        .durable()
        .archive(&place.path().join("data.tar"))
        .archive(&place.path().join("app.tar"))
        .start()
        .await
        .unwrap();
    (runtime, place)
}

fn image_volume(sub_path: &str) -> Mount {
    Mount {
        container_path: "/mnt".to_owned(),
        readonly: true,
        image: Some(ImageSpec { image: DATA.to_owned(), ..Default::default() }),
        image_sub_path: sub_path.to_owned(),
        ..Default::default()
    }
}

#[tokio::test]
async fn image_volume_survives_image_removal_and_daemon_restart() {
    harness::needs!(Namespaces);
    let (mut runtime, _place) = with_images().await;
    let id = runtime.client.pull(DATA).await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let mut config = fixture::forever("c");
    config.mounts = vec![image_volume("")];
    let container = pod.start(config).await.unwrap();
    let status = runtime.client.container(&container).await.unwrap();
    let image = status.mounts[0].image.clone().unwrap();
    assert_eq!((image.image.as_str(), &image.image_ref), (DATA, &id));
    // The container keeps the image after its removal and a restart of the daemon.
    runtime.client.remove_image(DATA).await.unwrap();
    runtime.kill_and_restart().await.unwrap();
    let script = "cat /mnt/etc/passwd; readlink /mnt/link; ls /mnt/etc; /mnt/bin/echo runs
        (echo x > /mnt/etc/x) 2>&1 | grep -o 'Read-only file system'";
    let seen = runtime.client.sh(&container, script).await.unwrap();
    assert_eq!(seen, "above\n/etc\npasswd\nruns\nRead-only file system\n");
    let status = runtime.client.container(&container).await.unwrap();
    assert_eq!(status.mounts[0].image.as_ref().unwrap().image_ref, id);
}

#[rstest]
#[case::through_link("link", "/mnt", "/mnt/passwd")]
#[case::file("etc/passwd", "/new/file", "/new/file")]
#[tokio::test]
async fn image_volume_mounts_sub_path(
    #[case] sub_path: &str,
    #[case] at: &str,
    #[case] file: &str,
) {
    harness::needs!(Namespaces);
    let (runtime, _place) = with_images().await;
    runtime.client.pull(DATA).await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let mut config = pod.script("c", &format!("cat {file}"));
    config.mounts = vec![Mount { container_path: at.to_owned(), ..image_volume(sub_path) }];
    assert_eq!(pod.output(config).await.unwrap(), "above\n");
}

#[rstest]
#[case::removed_by_layer(image_volume("etc/gone"))]
#[case::not_pulled(Mount { image: Some(ImageSpec { image: APP.to_owned(), ..Default::default() }), ..image_volume("") })]
#[tokio::test]
async fn create_rejects_invalid_image_volume(#[case] mount: Mount) {
    let (runtime, _place) = with_images().await;
    runtime.client.pull(DATA).await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let mut config = fixture::forever("c");
    config.mounts = vec![mount];
    assert_eq!(code(pod.create(config).await), Code::InvalidArgument);
}

#[tokio::test]
async fn volumes_of_image_are_writable_and_per_container() {
    harness::needs!(UserIds);
    let (runtime, _place) = with_images().await;
    runtime.client.pull(APP).await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    // A volume has the image's files and owners, and is writable even if the root is read-only.
    let script = "cat /data/file; echo new > /data/new && cat /data/new; echo x > /new/volume/x && cat /new/volume/x
        echo y > /C:/relative/y && cat /C:/relative/y
        stat -c '%u:%g %a' /data /data/file; (echo x > /etc/x) 2>/dev/null || echo the root is read-only";
    let mut config = of_image(pod.script("c", script), APP);
    fixture::security(&mut config).readonly_rootfs = true;
    let expected = "of the image\nnew\nx\ny\n33:34 750\n33:34 640\nthe root is read-only\n";
    assert_eq!(pod.output(config.clone()).await.unwrap(), expected);
    // Each container has its own volumes; a mount of the client replaces one.
    let mut other =
        pod.script("d", "cat /data/new 2>/dev/null || echo mine; cat /new/volume/brought");
    other.image = config.image;
    let brought = directory(&runtime, "brought");
    fs::write(brought.join("brought"), "brought\n").unwrap();
    other.mounts = vec![of(&brought, "/new/volume")];
    assert_eq!(pod.output(other).await.unwrap(), "mine\nbrought\n");
}

#[tokio::test]
async fn missing_host_path_is_created() {
    harness::needs!(Namespaces);
    let (runtime, pod) = with_pod().await;
    let missing = directory(&runtime, "volume").join("a/b");
    let mut config = pod.script("c", "echo fine > /mnt/file");
    config.mounts = vec![of(&missing, "/mnt")];
    pod.output(config).await.unwrap();
    assert_eq!(fs::read_to_string(missing.join("file")).unwrap(), "fine\n");
    let mode = fs::metadata(&missing).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o755);
}

/// The target of a dangling link may be created later: then the same request can succeed.
#[tokio::test]
async fn dangling_link_in_place_of_a_host_path_can_be_mended() {
    harness::needs!(Namespaces);
    let (runtime, pod) = with_pod().await;
    let volume = directory(&runtime, "volume");
    symlink("target", volume.join("link")).unwrap();
    let mut config = pod.script("c", "echo fine > /mnt/file");
    config.mounts = vec![of(&volume.join("link"), "/mnt")];
    let reason = "no directory can be made in its place";
    rejected(pod.create(config.clone()).await, Code::FailedPrecondition, reason);
    config.mounts = vec![of(&volume.join("link/below"), "/mnt")];
    rejected(pod.create(config.clone()).await, Code::FailedPrecondition, reason);
    fs::create_dir(volume.join("target")).unwrap();
    pod.output(config).await.unwrap();
    assert_eq!(fs::read_to_string(volume.join("target/below/file")).unwrap(), "fine\n");
}

#[rstest]
#[case::file_over_directory("/etc/hostname", "/etc", "the one is a file, the other a directory")]
#[case::directory_over_file("/etc", "/etc/passwd", "the one is a directory, the other a file")]
#[case::inside_proc("/etc", "/proc/sys", "inside /proc")]
#[case::over_proc("/etc", "/proc", "inside /proc")]
#[tokio::test]
async fn create_rejects_mismatched_and_proc_mount_targets(
    #[case] host_path: &str,
    #[case] target: &str,
    #[case] reason: &str,
) {
    harness::needs!(Namespaces);
    let (_runtime, pod) = with_pod().await;
    let mut config = fixture::forever("c");
    config.mounts = vec![of(Path::new(host_path), target)];
    rejected(pod.create(config).await, Code::InvalidArgument, reason);
}

#[tokio::test]
async fn create_rejects_mount_target_that_links_into_proc() {
    harness::needs!(Namespaces);
    let (runtime, _place) = with_images().await;
    runtime.client.pull(APP).await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let mut config = of_image(fixture::forever("c"), APP);
    config.mounts = vec![of(&directory(&runtime, "volume"), "/innocent")];
    let error = pod.create(config).await.unwrap_err();
    assert!(error.message().contains("inside /proc"), "{error}");
}

#[tokio::test]
async fn files_in_proc_and_dev_may_be_covered() {
    harness::needs!(Namespaces);
    let (runtime, pod) = with_pod().await;
    let file = directory(&runtime, "volume").join("file");
    fs::write(&file, "covered\n").unwrap();
    let mut config = pod.script("c", "cat /proc/meminfo /dev/termination-log");
    config.mounts = vec![of(&file, "/proc/meminfo"), of(&file, "/dev/termination-log")];
    assert_eq!(pod.output(config).await.unwrap(), "covered\ncovered\n");
    let mut config = pod.script("d", "[ -e /proc/self ] && stat -f -c %T /proc");
    config.mounts = vec![of(Path::new("/proc"), "/proc")];
    assert_eq!(trimmed(&pod.output(config).await.unwrap()), "proc");
}

#[tokio::test]
async fn mount_options_are_applied() {
    harness::needs!(Namespaces);
    let runtime = Runtime::start().await.unwrap();
    assert!(runtime.client.status().await.unwrap().features.unwrap().mount_options);
    let pod = runtime.pod("p").await.unwrap();
    let volume = directory(&runtime, "volume");
    write_program(&volume.join("program"), "#!/bin/sh\n").unwrap();
    let mut config = pod.script("c", "/mnt/program && /forbidden/program || echo no");
    let mut forbidden = of(&volume, "/forbidden");
    forbidden.mount_options = vec!["noexec".to_owned()];
    config.mounts = vec![of(&volume, "/mnt"), forbidden];
    assert_eq!(pod.output(config).await.unwrap(), "no\n");
}

#[tokio::test]
async fn read_only_root_has_etc_files_and_working_dir() {
    harness::needs!(Namespaces);
    let (runtime, _place) = with_images().await;
    runtime.client.pull(APP).await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let script = "pwd; cat /etc/hostname; (echo x >> /etc/hosts) 2>/dev/null || echo read-only";
    let mut config = of_image(pod.script("c", script), APP);
    // The working directory is created before the root becomes read-only.
    config.working_dir = "/not/in/the/image".to_owned();
    fixture::security(&mut config).readonly_rootfs = true;
    assert_eq!(pod.output(config).await.unwrap(), "/not/in/the/image\np\nread-only\n");
}

/// Programs read their limits from the cgroup file system.
#[tokio::test]
async fn cgroup_hierarchy_is_shown_read_only() {
    harness::needs!(Namespaces);
    let (_runtime, pod) = with_pod().await;
    let script = "stat -f -c %T /sys/fs/cgroup /sys/fs/cgroup/memory /sys/fs/cgroup/unified 2>/dev/null
        touch /sys/fs/cgroup/x 2>/dev/null || echo read-only; cut -d: -f3 /proc/self/cgroup | sort -u";
    let out = pod.output(pod.script("c", script)).await.unwrap();
    let lines: Vec<_> = out.lines().collect();
    assert!(lines.ends_with(&["read-only", "/"]), "{out}");
    let shown = lines.iter().any(|line| line.starts_with("cgroup"));
    let host = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert_eq!(shown, host.contains(" /sys/fs/cgroup"), "{out}");
}

/// Without an annotation, links in `host_path` are followed. With one, the sub-path is opened without following links, even by the
/// keeper of a pod that is older than the daemon.
#[tokio::test]
async fn sub_path_of_volume_is_mounted_without_following_links() {
    harness::needs!(Namespaces);
    let mut runtime = Runtime::with().durable().start().await.unwrap();
    let volume = fs::canonicalize(directory(&runtime, "volume")).unwrap();
    let part = volume.join("d/part");
    fs::create_dir_all(&part).unwrap();
    fs::write(part.join("file"), "of the part\n").unwrap();
    let path = directory(&runtime, "pod").join("0");
    symlink("/etc", &path).unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let mounting = |name: &str, sub_path: &str| {
        let mut config = pod.script(name, "ls /mnt");
        config.mounts = vec![of(&path, "/mnt")];
        let parts = serde_json::json!([{"path": path, "volume": volume, "sub_path": sub_path}]);
        let name = "crib.local/sub-paths".to_owned();
        config.annotations.insert(name, parts.to_string());
        config
    };
    let seen = pod.output(mounting("a", "d/part")).await.unwrap();
    assert_eq!(seen, "file\n");
    runtime.kill_and_restart().await.unwrap();
    let seen = pod.output(mounting("b", "d/part")).await.unwrap();
    assert_eq!(seen, "file\n");

    symlink("/", volume.join("out")).unwrap();
    symlink("d", volume.join("in")).unwrap();
    for sub_path in ["out", "out/etc", "in", "in/part"] {
        let error = pod.create(mounting("c", sub_path)).await.unwrap_err();
        assert!(error.message().contains("replaced by a link"), "{error}");
        // The directory may exist again at the next attempt.
        assert_ne!(error.code(), Code::InvalidArgument, "{error}");
    }
    assert_eq!(code(pod.create(mounting("c", "../pod")).await), Code::InvalidArgument);
}

#[rstest]
#[case::source_that_cannot_be_created("/proc/no/such/directory", "/mnt")]
#[case::relative_source("usr", "/mnt")]
#[case::source_with_a_nul("/usr\0", "/mnt")]
#[case::no_source("", "/mnt")]
#[case::relative_target("/usr", "mnt")]
#[case::target_with_a_nul("/usr", "/mnt\0")]
#[case::root_target("/usr", "/")]
#[case::root_target_with_dot_dot("/usr", "/mnt/..")]
#[case::target_below_file("/usr", "/etc/passwd/mnt")]
#[case::no_target("/usr", "")]
#[tokio::test]
async fn create_rejects_invalid_mount(#[case] host_path: &str, #[case] container_path: &str) {
    let (_runtime, pod) = with_pod().await;
    let mut config = fixture::script("c", "echo fine");
    config.mounts = vec![of(Path::new(host_path), container_path)];
    code(pod.create(config).await);
    // The pod still works.
    assert_eq!(pod.output(fixture::script("c", "echo fine")).await.unwrap(), "fine\n");
}

/// Like in runc, `..` is resolved before symlinks are followed.
#[tokio::test]
async fn dot_dot_in_mount_target_is_resolved_lexically() {
    harness::needs!(Namespaces);
    let (_runtime, pod) = with_pod().await;
    let mut config = pod.script("c", "test -d /place/bin && echo there");
    config.mounts = vec![of(Path::new("/usr"), "/proc/./../place/")];
    assert_eq!(pod.output(config).await.unwrap(), "there\n");
}

/// Absolute links to a directory of the host, in an image and in a volume, are resolved within the container.
#[tokio::test]
async fn links_of_image_and_volume_lead_to_nothing_of_the_host() {
    const IMAGE: &str = "example.com/linked:1";
    harness::needs!(Namespaces);
    let place = tempfile::tempdir().unwrap();
    let host = fs::canonicalize(place.path()).unwrap().join("host");
    fs::create_dir(&host).unwrap();
    fs::write(host.join("marker"), "").unwrap();
    let named = host.to_str().unwrap();
    let layer = Layer::new().symlink("vol", named).directory(&named[1..], 0o755);
    let layer = with_programs(layer, &["/bin/sh", "/bin/ls", "/bin/sleep"]);
    let archive = place.path().join("image.tar");
    let image = ImageBuilder::new(IMAGE).layer(layer).volumes(["/vol"]);
    image.write_docker(&archive).unwrap();
    let runtime = Runtime::with().archive(&archive).start().await.unwrap();
    runtime.client.pull(IMAGE).await.unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let of_host = || {
        let entries = fs::read_dir(&host).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>()
    };
    // The volume of the image is empty and writable.
    let script = pod.script("c", "ls -A /vol/; : > /vol/written; ls -A /vol/");
    assert_eq!(pod.output(of_image(script, IMAGE)).await.unwrap(), "written\n");
    assert_eq!(of_host(), ["marker"]);

    let volume = directory(&runtime, "volume");
    symlink(&host, volume.join("out")).unwrap();
    let mut config = of_image(fixture::forever("d"), IMAGE);
    config.mounts = vec![of(&volume, "/mnt"), of(&directory(&runtime, "new"), "/mnt/out/new")];
    let _refused_or_inside = pod.create(config).await;
    assert_eq!(of_host(), ["marker"]);
    assert!(symlink_is_kept(&volume.join("out"), &host));
}

/// mount(2) has no room for so many layers.
#[tokio::test]
async fn image_with_many_layers_makes_the_runtime_copy_no_other_image() {
    const FEW: &str = "example.com/few:1";
    const MANY: &str = "example.com/many:1";
    const COUNT: usize = 64;
    harness::needs!(Namespaces);
    let place = tempfile::tempdir().unwrap();
    let programs = || {
        let layer = Layer::new().directory("tmp", 0o1777).directory("many", 0o755);
        with_programs(layer, &["/bin/sh", "/bin/cat", "/bin/sleep"])
    };
    let few = ImageBuilder::new(FEW).layer(programs());
    let many = (0..COUNT).fold(ImageBuilder::new(MANY).layer(programs()), |image, number| {
        image.layer(Layer::new().file(&format!("many/{number}"), 0o644, "x"))
    });
    let archives = [(few, "few.tar"), (many, "many.tar")].map(|(image, name)| {
        let archive = place.path().join(name);
        image.write_docker(&archive).unwrap();
        archive
    });
    let runtime =
        archives.iter().fold(Runtime::with(), |options, archive| options.archive(archive));
    let runtime = runtime.start().await.unwrap();
    for image in [FEW, MANY] {
        runtime.client.pull(image).await.unwrap();
    }
    let pod = runtime.pod("p").await.unwrap();
    let copies_all = || runtime.log().contains("overlayfs failed: images are copied");
    assert_eq!(pod.output(of_image(pod.script("few", "echo x"), FEW)).await.unwrap(), "x\n");
    // On some machines overlayfs does not work at all.
    let before = copies_all();
    let script = of_image(pod.script("many", "cat /many/*"), MANY);
    assert_eq!(pod.output(script).await.unwrap(), "x".repeat(COUNT) + "\n");
    assert_eq!(copies_all(), before, "{}", runtime.log());
}

fn symlink_is_kept(link: &Path, target: &Path) -> bool {
    fs::read_link(link).is_ok_and(|found| found == target)
}
