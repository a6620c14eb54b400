//! Paths that already exist: the error names the existing file, and files of other users are left alone.

use std::os::unix::fs::{lchown, symlink};
use std::path::Path;

use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::command::*;
use crate::runs::run::pod;

/// Creates something at `path`, which exists as long as the returned value.
fn plant(kind: &str, path: &Path) -> Option<std::os::unix::net::UnixListener> {
    match kind {
        "file" => std::fs::write(path, "kept").unwrap(),
        "fifo" => {
            nix::unistd::mkfifo(path, nix::sys::stat::Mode::from_bits_truncate(0o666)).unwrap()
        }
        "dangling" => symlink("nowhere", path).unwrap(),
        "link" => symlink("../p.yaml", path).unwrap(),
        "directory" => std::fs::create_dir(path).unwrap(),
        "socket" => return Some(std::os::unix::net::UnixListener::bind(path).unwrap()),
        kind => panic!("{kind}"),
    }
    None
}

#[rstest]
#[tokio::test]
async fn file_in_place_of_directory_is_named(
    #[values("file", "fifo", "dangling", "link", "socket")] kind: &str,
) {
    let place = Place::new();
    let claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: c}\nspec: {accessModes: [ReadWriteOnce], \
        resources: {requests: {storage: 1Gi}}}\n---\n";
    let volume = "  volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]\n";
    let manifest = place.file("p.yaml", &format!("{claim}{}{volume}", pod("p", "echo done")));
    std::fs::create_dir(place.path("taken")).unwrap();
    let taken = place.path("taken/it");
    let _held = plant(kind, &taken);
    let (dir, socket) = (taken.to_str().unwrap(), taken.join("s"));
    let (socket, other) = (socket.to_str().unwrap(), place.path("other"));
    let other = other.to_str().unwrap();
    let words = match kind {
        "file" => "it is a file and no directory: remove it, or name another directory",
        "fifo" => "it is a FIFO and no directory: ",
        "socket" => "it is a socket and no directory: ",
        "dangling" => {
            "it is a link to nowhere, which is not there: make that directory, or name another one"
        }
        _ => "it is a link to ../p.yaml, which is a file and no directory: ",
    };
    for (args, code) in [
        (&["runtime", "--listen", other, "--state-dir", dir][..], 3),
        (&["runtime", "--listen", socket, "--state-dir", other], 3),
        (&["run", &manifest, "--state-dir", dir], 3),
        (&["run", &manifest, "--volumes-dir", dir], 2),
        (&["registry", "--listen", "127.0.0.1:0", "--root", dir], 3),
        (&["man", "--output", dir], 1),
    ] {
        let ended = place.crib(args).await.exits(code);
        ended.err_has(words);
        assert!(!ended.err.contains("os error 17"), "{args:?}: {}", ended.err);
        std::fs::symlink_metadata(&taken).unwrap();
        place.assert_clean();
    }
}

#[rstest]
#[tokio::test]
async fn socket_path_in_use_is_kept(
    #[values("file", "fifo", "dangling", "link", "directory", "socket")] kind: &str,
) {
    let place = Place::new();
    place.file("p.yaml", "");
    std::fs::create_dir(place.path("taken")).unwrap();
    let taken = place.path("taken/it");
    let held = plant(kind, &taken);
    let (path, state) = (taken.to_str().unwrap(), place.path("state"));
    let words = match &held {
        Some(_) => "a server is already listening",
        None => "exists and is not a socket",
    };
    let state = state.to_str().unwrap();
    let free = place.path("free");
    let free = free.to_str().unwrap();
    for args in [
        &["runtime", "--listen", path, "--state-dir", state][..],
        &["proxy", "--listen", path, "--upstream", "/nowhere"],
        &["proxy", "--listen", free, "--control", path, "--upstream", "/nowhere"],
    ] {
        let ended = place.crib(args).await;
        assert!(matches!(ended.code, Some(1..=3)), "{ended:?}");
        ended.err_has(words);
    }
    std::fs::symlink_metadata(&taken).unwrap();
}

/// A FIFO that no process reads.
#[tokio::test]
async fn recording_to_fifo_without_reader_is_refused() {
    let place = Place::new();
    let fifo = place.path("fifo");
    plant("fifo", &fifo);
    let (fifo, listen) = (fifo.to_str().unwrap(), place.path("s"));
    let listen = listen.to_str().unwrap();
    let args = ["proxy", "record", fifo, "--listen", listen, "--upstream", "/nowhere"];
    place.crib(&args).await.exits(1).err_has("fifo: No such device or address");
}

/// A server that accepts no connections, with a full queue.
#[tokio::test]
async fn unresponsive_server_does_not_delay_pods() {
    let place = Place::new();
    let path = place.path("s");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let waiting = std::os::unix::net::UnixStream::connect(&path).unwrap();
    let (path, state) = (path.to_str().unwrap(), place.path("state"));
    let args = ["runtime", "--listen", path, "--state-dir", state.to_str().unwrap()];
    place.crib(&args).await.exits(3).err_has("a server is already listening");
    drop((listener, waiting));
}

/// A directory that another user has created at the default socket's directory, in a temporary directory.
#[tokio::test]
async fn planted_default_socket_is_neither_used_nor_advised_to_be_removed() {
    harness::needs!(Root);
    let place = Place::new();
    let temporary = place.path("tmp");
    let planted = temporary.join("crib-65534");
    std::fs::create_dir(&planted).unwrap();
    let _server = plant("socket", &planted.join("crib.sock"));
    for (args, mode) in [
        (&["runtime"][..], 0o777),
        (&["ps"], 0o777),
        (&["pods"], 0o777),
        (&["runtime"], 0o1777),
        (&["ps"], 0o1755),
    ] {
        let mut command = place.as_ordinary_user(place.command(args));
        command.env_remove("XDG_RUNTIME_DIR");
        for path in [planted.clone(), planted.join("crib.sock")] {
            lchown(path, Some(12345), Some(12345)).unwrap();
        }
        let open = std::os::unix::fs::PermissionsExt::from_mode;
        std::fs::set_permissions(&planted, open(mode)).unwrap();
        std::fs::set_permissions(&temporary, open(0o1777)).unwrap();
        let ended = place.end(command).await;
        assert!(matches!(ended.code, Some(2 | 3)), "{args:?}: {ended:?}");
        ended.err_has(
            "is not private to this user: another user created it: choose another socket, or set XDG_RUNTIME_DIR",
        );
        assert!(!ended.err.contains("remove it"), "{}", ended.err);
    }
    std::fs::remove_file(planted.join("crib.sock")).unwrap();
    std::fs::remove_dir(planted).unwrap();
}

/// A user other than root and the one that runs crib.
const STRANGER: u32 = 12345;

/// Creates another user's directory, not writable for others, in a directory like `/tmp`.
fn plant_directory(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let above = path.parent().unwrap();
    lchown(above, Some(0), Some(0)).unwrap();
    std::fs::set_permissions(above, std::fs::Permissions::from_mode(0o1777)).unwrap();
    std::fs::create_dir(path).unwrap();
    lchown(path, Some(STRANGER), Some(STRANGER)).unwrap();
}

/// A command of root, or of an ordinary user.
fn command_of(place: &Place, root: bool, args: &[&str]) -> tokio::process::Command {
    let command = place.command(args);
    if root { command } else { place.as_ordinary_user(command) }
}

/// Of the two users, only root can remove it.
#[rstest]
#[tokio::test]
async fn only_root_is_advised_to_remove_directory_of_another_user(
    #[values(false, true)] root: bool,
) {
    harness::needs!(Root);
    let place = Place::new();
    let claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: c}\nspec: {accessModes: [ReadWriteOnce], \
        resources: {requests: {storage: 1Gi}}}\n---\n";
    let volume = "  volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]\n";
    let mounts = "    volumeMounts: [{name: v, mountPath: /mnt}]\n";
    let text = format!("{claim}{}{mounts}{volume}", pod("p", "echo done"));
    let manifest = place.file("p.yaml", &text);
    let manifests = place.file("m/p.yaml", &pod("p", "echo done")).replace("/p.yaml", "");
    std::fs::create_dir(place.path("shared")).unwrap();
    let (taken, other) = (place.path("shared/taken"), place.path("other"));
    let (dir, other) = (taken.to_str().unwrap(), other.to_str().unwrap());
    for args in [
        &["runtime", "--listen", other, "--state-dir", dir][..],
        &["run", &manifest, "--state-dir", dir],
        &["agent", "--runtime-endpoint", other, "--manifests", &manifests, "--root-dir", dir],
    ] {
        let command = command_of(&place, root, args);
        plant_directory(&taken);
        let ended = place.end(command).await;
        assert!(matches!(ended.code, Some(1..=3)), "{args:?}: {ended:?}");
        ended.err_has(&format!("{dir} belongs to "));
        ended.err_has("choose another directory");
        assert_eq!(ended.err.contains("remove it"), root, "{args:?}: {}", ended.err);
        std::fs::remove_dir(&taken).unwrap();
    }
    // The agent retries the volume until the end.
    let mut command = command_of(&place, root, &["run", &manifest, "--volumes-dir", dir]);
    plant_directory(&taken);
    let mut running = command.spawn().unwrap();
    let mut lines = BufReader::new(running.stderr.take().unwrap()).lines();
    let line = tokio::time::timeout(WAIT_LIMIT, async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.contains(&format!("{dir} belongs to ")) {
                return line;
            }
        }
        panic!("its end came first");
    });
    let line = line.await.unwrap();
    let pid = i32::try_from(running.id().unwrap()).unwrap();
    kill(Pid::from_raw(pid), Signal::SIGINT).unwrap();
    while lines.next_line().await.unwrap().is_some() {}
    running.wait().await.unwrap();
    assert!(line.contains("choose another directory"), "{line}");
    assert_eq!(line.contains("remove it"), root, "{line}");
}

#[rstest]
#[tokio::test]
async fn only_root_is_advised_to_remove_list_of_runs_of_another_user(
    #[values(false, true)] root: bool,
) {
    harness::needs!(Root);
    let place = Place::new();
    let mut command = command_of(&place, root, &["pods"]);
    let first = format!("crib-runs-{}", if root { 0 } else { 65534 });
    let further = (1..16).map(|number| format!("{first}-{number}"));
    let names: Vec<String> = std::iter::once(first.clone()).chain(further).collect();
    let planted = || names.iter().map(|name| place.path("tmp").join(name));
    planted().for_each(|path| plant_directory(&path));
    command.env_remove("XDG_RUNTIME_DIR");
    let ended = place.end(command).await;
    assert!(matches!(ended.code, Some(1..=3)), "{ended:?}");
    ended.err_has(&format!("{first}: it is not a private directory of this user: "));
    ended.err_has(" TMPDIR to a directory that only you can write to");
    assert_eq!(ended.err.contains("remove it"), root, "{}", ended.err);
    planted().for_each(|path| std::fs::remove_dir(path).unwrap());
}
