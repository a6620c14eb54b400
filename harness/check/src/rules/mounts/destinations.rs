//! Rules of where in a container something is mounted, and of what: places that the image does not have, or has as a link, and
//! sockets and pipes.

use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixListener;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::prelude::*;
use crate::rules::content::{image, script};
use crate::rules::mounts::{directory, made, of};

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-MNT-027": "A mount at a path below a link of the image is where the link leads, inside of the container: images have /var/run as a link, and a kubelet mounts below it.",
        KUBELET, tags ["kubelet", "files"], calls [CreateContainer],
        links_of_image_are_followed, faults [
            "CreateContainer request drop config.mounts",
            "CreateContainer request set config.mounts.container_path \"/tmp\"",
        ];
    Must "CRI-MNT-028": "A mount at a path that the image does not have is there, also where the root is read-only.",
        KUBELET, tags ["kubelet", "files"], calls [CreateContainer],
        places_are_made, faults [
            "CreateContainer request drop config.mounts",
            "CreateContainer request drop config.linux.security_context.readonly_rootfs",
        ];
    Must "CRI-MNT-029": "A mount takes the place of what the runtime itself has there: /etc/hosts, /etc/resolv.conf, /etc/hostname and /dev/shm.",
        KUBELET, tags ["kubelet", "files"], calls [CreateContainer],
        mounts_come_before_those_of_runtime, faults [
            "CreateContainer request drop config.mounts",
            "CreateContainer request set config.mounts.readonly true",
        ];
    Must "CRI-MNT-031": "Every user may write to /dev/shm, 10 MB too, and nobody may remove what is another's.",
        API, tags ["files", "user"], calls [CreateContainer],
        shared_memory_is_open given [namespaces, users], faults [
            "CreateContainer request set config.mounts [{\"container_path\": \"/dev/shm\", \"host_path\": \"/usr\", \"readonly\": true}]",
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"echo other\"]",
        ];
    Must "CRI-MNT-030": "A socket and a named pipe of the host are mounted as such.",
        API, tags ["files"], calls [CreateContainer],
        sockets_and_pipes_are_mounted, faults ["CreateContainer request drop config.mounts"];
};

async fn links_of_image_are_followed(x: &Context) -> Verdict {
    let volume = directory(x)?;
    made(std::fs::write(volume.join("token"), "secret\n"))?;
    // The second link has so many `..` that it leaves the root of the container, unless that root is where they end.
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

async fn places_are_made(x: &Context) -> Verdict {
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
        "what was written to /etc/hosts",
        read("hosts").as_str(),
        "# hosts of the client\nmore\n",
    )?;
    let shared = read("shm/file");
    equal("what was written to /dev/shm", shared.as_str(), "shared\n")
}

async fn shared_memory_is_open(x: &Context) -> Verdict {
    // Databases need some of it.
    let text = "[ -k /dev/shm ] && echo sticky; echo written >/dev/shm/file; cat /dev/shm/file
        head -c 10000000 /dev/zero >/dev/shm/zeros && echo 10 MB";
    let mut config = x.script("c", text);
    let linux = config.linux.get_or_insert_default();
    let context = linux.security_context.get_or_insert_default();
    context.run_as_user = Some(v1::Int64Value { value: 1234 });
    x.prints(config, "what a user sees", "sticky\nwritten\n10 MB\n").await
}

async fn sockets_and_pipes_are_mounted(x: &Context) -> Verdict {
    let volume = directory(x)?;
    let (socket, pipe) = (volume.join("socket"), volume.join("pipe"));
    // The directory's own path may be longer than that of a socket can be.
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
    x.prints(config, "what is there", "socket\npipe\n").await
}
