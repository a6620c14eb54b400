//! Rules for mount destinations: paths that are missing or symlinks in the image, and paths of the runtime's own mounts. Also for
//! mounted sockets and pipes, and for mounts whose `host_path` does not exist.

use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixListener;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::prelude::*;
use crate::rules::content::{image, script};
use crate::rules::mounts::{directory, made, of};

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-MNT-027": "A container_path below a symlink of the image resolves inside the container; the kubelet mounts below /var/run, which is often a symlink.",
        KUBELET, tags ["kubelet", "files"], calls [CreateContainer],
        links_of_image_are_followed, faults [
            "CreateContainer request drop config.mounts",
            "CreateContainer request set config.mounts.container_path \"/tmp\"",
        ];
    Must "CRI-MNT-028": "A container_path that is missing in the image is created, even if the root filesystem is read-only.",
        KUBELET, tags ["kubelet", "files"], calls [CreateContainer],
        mount_points_are_created, faults [
            "CreateContainer request drop config.mounts",
            "CreateContainer request drop config.linux.security_context.readonly_rootfs",
        ];
    Must "CRI-MNT-029": "A mount at /etc/hosts, /etc/resolv.conf, /etc/hostname or /dev/shm replaces the runtime's own file or mount at this path.",
        KUBELET, tags ["kubelet", "files"], calls [CreateContainer],
        mounts_come_before_those_of_runtime, faults [
            "CreateContainer request drop config.mounts",
            "CreateContainer request set config.mounts.readonly true",
        ];
    Must "CRI-MNT-031": "/dev/shm is world-writable and sticky, and has room for 10 MB.",
        API, tags ["files", "user"], calls [CreateContainer],
        shared_memory_is_open given [namespaces, users], faults [
            "CreateContainer request set config.mounts [{\"container_path\": \"/dev/shm\", \"host_path\": \"/usr\", \"readonly\": true}]",
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"echo other\"]",
        ];
    Must "CRI-MNT-030": "Sockets and named pipes of the host can be mounted into a container.",
        API, tags ["files"], calls [CreateContainer],
        sockets_and_pipes_are_mounted, faults ["CreateContainer request drop config.mounts"];
};

async fn links_of_image_are_followed(x: &Context) -> Verdict {
    let volume = directory(x)?;
    made(std::fs::write(volume.join("token"), "secret\n"))?;
    // The second symlink has enough `..` to leave the container's root if they are resolved on the host.
    let links = Layer::new()
        .directory("run", 0o755)
        .directory("real", 0o755)
        .directory("var", 0o755)
        .symlink("var/run", "/run")
        .symlink("var/other", "../../../../real");
    let image = image(x, "1", |image| image.layer(links)).await?;
    let text = "cat /run/secrets/token /var/run/secrets/token /real/deep/token";
    let mut config = script(x, &image, text);
    config.mounts = vec![of(&volume, "/var/run/secrets"), of(&volume, "/var/other/deep")];
    x.prints(config, "the files", "secret\nsecret\nsecret\n").await
}

async fn mount_points_are_created(x: &Context) -> Verdict {
    let volume = directory(x)?;
    made(std::fs::write(volume.join("file"), "there\n"))?;
    let text = "cat /not/in/the/image/file /no/such/file; echo written >/not/in/the/image/new
        echo no 2>/dev/null >/not/in/the/other; ls /not/in/the; ls /not/in/the/image";
    for read_only in [false, true] {
        let mut config = x.script("c", text);
        let linux = config.linux.get_or_insert_default();
        let context = linux.security_context.get_or_insert_default();
        context.readonly_rootfs = read_only;
        config.mounts =
            vec![of(&volume, "/not/in/the/image"), of(&volume.join("file"), "/no/such/file")];
        let output = x.output(config).await?;
        let other = if read_only { "" } else { "other\n" };
        let what = format!("the files, with readonly_rootfs {read_only}");
        equal(&what, output.as_str(), &format!("there\nthere\nimage\n{other}file\nnew\n"))?;
    }
    Ok(())
}

async fn mounts_come_before_those_of_runtime(x: &Context) -> Verdict {
    let volume = directory(x)?;
    let places = ["hosts", "resolv.conf", "hostname"];
    let mut mounts = Vec::new();
    for name in places {
        let path = volume.join(name);
        made(std::fs::write(&path, format!("# {name} of the client\n")))?;
        mounts.push(of(&path, &format!("/etc/{name}")));
    }
    let memory = volume.join("shm");
    made(std::fs::create_dir(&memory))?;
    mounts.push(of(&memory, "/dev/shm"));
    let text = "cat /etc/hosts /etc/resolv.conf /etc/hostname; echo more >>/etc/hosts; echo shared >/dev/shm/file";
    let mut config = x.script("c", text);
    config.mounts = mounts;
    let output = x.output(config).await?;
    let expected = places.map(|name| format!("# {name} of the client\n"));
    equal("the files", output.as_str(), expected.concat().as_str())?;
    let read = |name: &str| std::fs::read_to_string(volume.join(name)).unwrap_or_default();
    equal(
        "the file mounted at /etc/hosts",
        read("hosts").as_str(),
        "# hosts of the client\nmore\n",
    )?;
    let shared = read("shm/file");
    equal("the file written to /dev/shm", shared.as_str(), "shared\n")
}

async fn shared_memory_is_open(x: &Context) -> Verdict {
    // Databases need several megabytes.
    let text = "[ -k /dev/shm ] && echo sticky; echo written >/dev/shm/file; cat /dev/shm/file
        head -c 10000000 /dev/zero >/dev/shm/zeros && echo 10 MB";
    let mut config = x.script("c", text);
    let linux = config.linux.get_or_insert_default();
    let context = linux.security_context.get_or_insert_default();
    context.run_as_user = Some(v1::Int64Value { value: 1234 });
    x.prints(config, "the output of user 1234", "sticky\nwritten\n10 MB\n").await
}

async fn sockets_and_pipes_are_mounted(x: &Context) -> Verdict {
    let volume = directory(x)?;
    let (socket, pipe) = (volume.join("socket"), volume.join("pipe"));
    // The directory's path may exceed the length limit for socket addresses.
    let listening = std::fs::File::open(&volume).and_then(|directory| {
        let short = format!("/proc/self/fd/{}/socket", directory.as_raw_fd());
        UnixListener::bind(short)
    });
    let _listening =
        listening.map_err(|error| Outcome::Skipped(format!("no socket to mount: {error}")))?;
    mkfifo(&pipe, Mode::from_bits_truncate(0o666))
        .map_err(|error| Outcome::Skipped(format!("no pipe to mount: {error}")))?;
    let text = "[ -S /run/socket ] && echo socket; [ -p /run/pipe ] && echo pipe";
    let mut config = x.script("c", text);
    config.mounts = vec![of(&socket, "/run/socket"), of(&pipe, "/run/pipe")];
    x.prints(config, "the types of the mounted files", "socket\npipe\n").await
}

pub(crate) const MISSING_SOURCE: &[Rule] = rules! {
    Should "CRI-MNT-026": "If the host_path of a mount does not exist, the container is refused, or the runtime creates the directory; the container never runs without the mount.",
        API, tags ["kubelet", "mounts"], calls [CreateContainer, StartContainer],
        absent_path_is_refused_or_made given [namespaces], faults ["CreateContainer request drop config.mounts"];
};

async fn absent_path_is_refused_or_made(x: &Context) -> Verdict {
    let path = directory(x)?.join("absent");
    let mut config = x.forever("c");
    config.mounts = vec![v1::Mount {
        host_path: path.display().to_string(),
        container_path: "/mnt".to_owned(),
        ..Default::default()
    }];
    let pod = x.pod().await?;
    let started = pod.start(config).await;
    let Ok(id) = &started else {
        return refused("a container with a missing host_path", started).map(drop);
    };
    let what = "the missing host_path after the container was started";
    ensure(path.is_dir(), what, "a directory", "no directory")?;
    let seen = "touch /mnt/file; ls /mnt";
    let seen = x.client.sh(id, seen).await?;
    equal("the files in the mount", seen.as_str(), "file\n")?;
    let made = path.join("file").exists();
    ensure(made, "a file of the mount on the host", "to exist", "missing")
}
