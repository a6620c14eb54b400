//! `/etc/passwd` and `/etc/group` of hostile images and containers: the runtime reads only regular files of the image, of limited
//! size, and does not hang.

use cri::v1::Int64Value;
use tar::EntryType;

use crate::support::*;

const NAME: &str = "example.com/accounts:1";

/// A runtime with an image whose account files `make` adds.
async fn with_accounts(make: fn(Layer) -> Layer) -> (Runtime, TempDir) {
    let layer = make(Layer::new().directory("tmp", 0o1777));
    let programs = ["/bin/sh", "/bin/sleep", "/usr/bin/id", "/bin/rm", "/usr/bin/mkfifo"];
    with_image(Runtime::with(), NAME, with_programs(layer, &programs)).await
}

fn passwd(body: impl Into<Vec<u8>>) -> Layer {
    Layer::new().file("etc/passwd", 0o644, body)
}

fn long_line() -> Vec<u8> {
    vec![b'x'; 11 << 20]
}

/// Links are resolved inside the image, where their targets are missing; irregular and oversized files are rejected.
#[rstest]
#[case::without(|l| l, None)]
#[case::link_to_device(|l: Layer| l.symlink("etc/passwd", "/dev/zero"), None)]
#[case::link_to_proc(|l: Layer| l.symlink("etc/passwd", "/proc/self/environ"), None)]
#[case::link_to_descriptor(|l: Layer| l.symlink("etc/passwd", "/proc/self/fd/0"), None)]
#[case::link_to_kernel_log(|l: Layer| l.symlink("etc/passwd", "/proc/kmsg"), None)]
#[case::directory(|l: Layer| l.directory("etc/passwd", 0o755), Some("a directory"))]
#[case::directory_of_groups(|l: Layer| l.directory("etc/group", 0o755), Some("/etc/group is a directory"))]
#[case::long(|l: Layer| l.file("etc/passwd", 0o644, long_line()), Some("10 MiB"))]
#[case::not_text(|l: Layer| l.file("etc/passwd", 0o644, vec![0xff, 0, b'\n', 0]), None)]
#[tokio::test]
async fn create_reads_only_regular_files_of_the_image(
    #[case] make: fn(Layer) -> Layer,
    #[case] refused: Option<&str>,
) {
    harness::needs!(Namespaces);
    let (runtime, _place) = with_accounts(make).await;
    let pod = runtime.pod("p").await.unwrap();
    let mut config = pod.script("c", "id -u; echo $HOME");
    config.image.as_mut().unwrap().image = NAME.to_owned();
    match refused {
        None => assert_eq!(pod.output(config).await.unwrap(), "0\n/\n"),
        Some(word) => {
            rejected(pod.create(config).await, Code::InvalidArgument, word);
        }
    }
}

/// Opening a FIFO would block, and /dev/zero never ends.
#[rstest]
#[case::fifo(|l: Layer| l.node("etc/passwd", EntryType::Fifo, (0, 0)), "/etc/passwd is a FIFO")]
#[case::device(|l: Layer| l.node("etc/group", EntryType::Char, (1, 5)), "/etc/group is a device")]
#[tokio::test]
async fn create_refuses_special_files_as_accounts(
    #[case] make: fn(Layer) -> Layer,
    #[case] refused: &str,
) {
    harness::needs!(DeviceNodes);
    let (runtime, _place) = with_accounts(make).await;
    let pod = runtime.pod("p").await.unwrap();
    let config = of_image(pod.script("c", "id -u"), NAME);
    rejected(pod.create(config).await, Code::InvalidArgument, refused);
}

/// Like containerd and CRI-O, the runtime reads the image's files, not mounts over them.
#[rstest]
#[case::fifo(true)]
#[case::file(false)]
#[tokio::test]
async fn create_does_not_read_mounted_accounts(#[case] fifo: bool) {
    harness::needs!(UserIds);
    let (runtime, _place) =
        with_accounts(|_| passwd("alice:x:1001:1002::/home/alice:/bin/sh\n")).await;
    let mounted = runtime.root().join("passwd");
    if fifo {
        nix::unistd::mkfifo(&mounted, nix::sys::stat::Mode::S_IRWXU).unwrap();
    } else {
        std::fs::write(&mounted, "alice:x:0:0::/:/bin/sh\n").unwrap();
    }
    let pod = runtime.pod("p").await.unwrap();
    let mut config = pod.script("c", "id -u; echo $HOME");
    config.image.as_mut().unwrap().image = NAME.to_owned();
    config.mounts.push(of(&mounted, "/etc/passwd"));
    fixture::security(&mut config).run_as_username = "alice".to_owned();
    assert_eq!(pod.output(config).await.unwrap(), "1001\n/home/alice\n");
}

/// A container can change its own files, so an exec uses the ids found when the container was created.
#[rstest]
#[case::fifo("mkfifo /etc/passwd /etc/group")]
#[case::other_user("echo 'root:x:7:8::/elsewhere:/bin/sh' > /etc/passwd")]
#[tokio::test]
async fn exec_ignores_account_files_of_container(#[case] change: &str) {
    harness::needs!(Namespaces);
    let (runtime, _place) = with_accounts(|_| passwd("root:x:0:0::/home/root:/bin/sh\n")).await;
    let pod = runtime.pod("p").await.unwrap();
    let script = format!("rm -f /etc/passwd; {change}; echo ready; sleep 86399");
    let config = of_image(pod.script("c", &script), NAME);
    let id = pod.start_ready(config).await.unwrap();
    let reported = runtime.client.sh(&id, "id -u; echo $HOME").await.unwrap();
    assert_eq!(reported, "0\n/home/root\n");
    runtime.client.stop(&id, 0).await.unwrap();
}

/// CVE-2024-21626: a working directory that leads to an open directory of a runtime process.
#[rstest]
#[case::descriptor("/proc/self/fd/3")]
#[case::root("/proc/self/root")]
#[case::other_process("/proc/1/cwd")]
#[tokio::test]
async fn working_directory_follows_no_link_of_proc(#[case] directory: &str) {
    harness::needs!(Namespaces);
    let (_runtime, pod) = with_pod().await;
    for number in 0..4 {
        let mut config = pod.script(&format!("c{number}"), "pwd");
        config.working_dir = directory.replace('3', &(number + 3).to_string());
        fixture::security(&mut config).run_as_user = Some(Int64Value { value: 0 });
        assert_eq!(code(pod.create(config).await), Code::InvalidArgument);
    }
}
