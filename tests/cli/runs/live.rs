//! The pods of `crib run`, as seen from a second terminal.

use std::path::PathBuf;

use crate::command::*;
use crate::runs::run::pod;

/// The script of a container that runs until SIGTERM.
const FOREVER: &str = "trap 'exit 0' TERM; echo up; while true; do sleep 0.1; done";

/// Starts `crib run` with a manifest, and waits until its containers run.
async fn run(place: &Place, name: &str, manifest: &str) -> Running {
    let file = place.file(&format!("{name}.yaml"), manifest);
    let mut running = place.start(&["run", &file]);
    running.line_with("up").await;
    running
}

async fn end(running: Running) -> Ended {
    running.interrupt().await.exits(130)
}

/// The output of a command that must succeed.
async fn out(place: &Place, args: &[&str]) -> String {
    let ended = place.crib(args).await;
    assert_eq!(ended.code, Some(0), "crib {args:?}: {ended:?}");
    ended.out
}

/// The directory in which the runs of a place register.
fn registry(place: &Place) -> PathBuf {
    place.path("xdg/crib-runs")
}

#[tokio::test]
async fn pods_of_all_runs_are_found_without_endpoint() {
    let place = Place::new();
    place.crib(&["logs", "web"]).await.exits(3);
    let web = run(&place, "web", &pod("web", FOREVER)).await;
    let only = out(&place, &["images", "-q"]).await;
    assert_eq!(only.lines().count(), 1, "the only run's images: {only}");
    let db = run(&place, "db", &pod("db", FOREVER)).await;

    for command in ["ps", "pods"] {
        let listed = out(&place, &[command]).await;
        for name in ["web", "db"] {
            assert!(listed.contains(name), "{command}: {listed}");
        }
        let ids = out(&place, &[command, "-q"]).await;
        assert_eq!(ids.lines().count(), 2, "{command}: {ids}");
    }
    for args in [
        &["logs", "web"][..],
        &["logs", "pod/web"],
        &["logs", "po/default/web", "-c", "main"],
        &["exec", "web", "echo", "up"],
        &["exec", "--sync", "-c", "main", "pod/web", "echo", "up"],
        &["exec", "pod/web", "-c", "main", "--", "echo", "up"],
    ] {
        assert_eq!(out(&place, args).await, "up\n", "{args:?}");
    }
    let host = out(&place, &["exec", "db", "hostname"]).await;
    assert_eq!(host, "db\n");
    let shown = out(
        &place,
        &["inspectp", "db", "-o", "go-template", "--template", "{{.status.metadata.name}}"],
    );
    assert_eq!(shown.await, "db\n");
    let shown = out(&place, &["inspect", "web", "--kind", "pod"]).await;
    assert!(shown.contains("SANDBOX_READY"), "{shown}");

    let both = place.crib(&["logs", "main"]).await.exits(1);
    both.err_begins("crib: \"main\" matches more than one container: choose one of ");
    for name in ["(default/web)", "(default/db)"] {
        both.err_has(name);
    }
    let several = place.crib(&["images"]).await.exits(2);
    several.err_has("several runtimes are running: choose one with --runtime-endpoint unix://");
    for (args, message) in [
        (&["logs", "nothing"][..], "crib: container \"nothing\" not found\n"),
        (&["logs", "pod/nothing"], "crib: pod \"pod/nothing\" not found\n"),
        (
            &["logs", "web", "-c", "nothing"],
            "crib: pod \"web\" has no container \"nothing\": it has main\n",
        ),
    ] {
        let ended = place.crib(args).await;
        assert_eq!((ended.code, ended.err.as_str()), (Some(1), message));
    }

    let ended = end(web).await;
    let printed =
        ended.err.lines().find_map(|line| line.strip_prefix("crib: runtime endpoint: unix://"));
    assert!(printed.is_some_and(|path| path.starts_with('/')), "{}", ended.err);
    let listed = out(&place, &["pods"]).await;
    assert!(listed.contains("db") && !listed.contains("web"), "{listed}");
    end(db).await;
    assert!(!registry(&place).exists(), "the last run leaves no directory");
}

#[tokio::test]
async fn first_container_of_a_pod_is_the_default_one() {
    let place = Place::unchecked();
    let manifest = format!(
        "{}  - name: side\n    image: crib.local/host\n    command: [bash, -c, {FOREVER:?}]\n  initContainers:\n  \
         - name: before\n    image: crib.local/host\n    command: [echo, before]\n",
        pod("web", FOREVER)
    );
    let mut web = run(&place, "web", &manifest).await;
    web.line_with("up").await;
    let ended = place.crib(&["exec", "web", "true"]).await.exits(0);
    let note = "crib: Defaulted container \"main\" out of: main, side, before (init)\n";
    assert_eq!(ended.err, note);
    assert_eq!(out(&place, &["logs", "web", "-c", "side"]).await, "up\n");
    assert_eq!(out(&place, &["logs", "web", "-c", "before"]).await, "before\n");
    assert_eq!(out(&place, &["exec", "side", "echo", "x"]).await, "x\n");
    end(web).await;
}

#[tokio::test]
async fn entries_of_dead_runs_are_swept() {
    let place = Place::new();
    let mut killed = run(&place, "killed", &pod("killed", FOREVER)).await;
    // The remains of a killed runtime: no process holds the file's lock.
    std::fs::write(registry(&place).join("dead"), "unix:///nowhere.sock").unwrap();
    let listed = out(&place, &["pods"]).await;
    assert!(listed.contains("killed"), "{listed}");
    assert!(!registry(&place).join("dead").exists());
    killed.child.kill().await.unwrap();
    eventually("the runtime of the killed run ends", || match registry(&place).exists() {
        true => vec!["it is registered".to_owned()],
        false => vec![],
    })
    .await;
    place.crib(&["images"]).await.exits(3);
    place.wait_until_clean().await;
}

#[tokio::test]
async fn kept_pods_are_found_after_their_run() {
    let place = Place::new();
    let manifest = place.file("kept.yaml", &pod("kept", FOREVER));
    let mut running = place.start(&["run", "--keep", &manifest]);
    running.line_with("up").await;
    let err = end(running).await.err;
    assert_eq!(out(&place, &["logs", "kept"]).await, "up\n");
    let (_, name) = err.trim_end().rsplit_once("crib down ").unwrap();
    assert_eq!(out(&place, &["down", name]).await, "");
    // The runtime releases its lock shortly before it exits.
    place.wait_until_clean().await;
    assert!(!registry(&place).exists());
}

#[tokio::test]
async fn endpoint_is_not_printed_with_quiet_or_json() {
    let place = Place::unchecked();
    let manifest = place.file("p.yaml", &pod("p", "echo fine"));
    for args in [&["run", "--quiet", &manifest][..], &["run", "--output", "json", &manifest]] {
        let ended = place.crib(args).await;
        assert_eq!(ended.code, Some(0), "{args:?}: {}", ended.err);
        assert!(!ended.err.contains("endpoint"), "{args:?}: {}", ended.err);
    }
}

/// Other users can create files in a shared directory; opening a FIFO would block.
#[tokio::test]
async fn list_of_runs_keeps_file_of_another_user() {
    let place = Place::new();
    let uid = nix::unistd::geteuid();
    let planted = place.path("tmp").join(format!("crib-runs-{uid}"));
    nix::unistd::mkfifo(&planted, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let manifest = place.file("p.yaml", &pod("p", FOREVER));
    let mut command = place.command(&["run", &manifest]);
    let mut child = command.env_remove("XDG_RUNTIME_DIR").spawn().unwrap();
    let directory = place.path("tmp").join(format!("crib-runs-{uid}-1"));
    eventually("the run is registered", || match directory.exists() {
        true => vec![],
        false => vec![format!("no {}", directory.display())],
    })
    .await;
    let listed = place.command(&["pods"]).env_remove("XDG_RUNTIME_DIR").output().await.unwrap();
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let pid = i32::try_from(child.id().unwrap()).unwrap();
    kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
    child.wait().await.unwrap();
    std::fs::remove_file(planted).unwrap();
}

#[tokio::test]
async fn runs_without_runtime_directory_register_below_temporary_directory() {
    let place = Place::new();
    let manifest = place.file("p.yaml", &pod("p", FOREVER));
    let mut command = place.command(&["run", &manifest]);
    let mut child = command.env_remove("XDG_RUNTIME_DIR").spawn().unwrap();
    let directory = place.path("tmp").join(format!("crib-runs-{}", nix::unistd::geteuid()));
    eventually("the run is registered", || match directory.exists() {
        true => vec![],
        false => vec![format!("no {}", directory.display())],
    })
    .await;
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(&directory).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let pid = i32::try_from(child.id().unwrap()).unwrap();
    kill(Pid::from_raw(pid), Signal::SIGTERM).unwrap();
    child.wait().await.unwrap();
}

/// A directory that another user has created in a directory like `/tmp` before.
#[tokio::test]
async fn list_and_run_of_another_user_are_neither_used_nor_removed() {
    use std::os::unix::fs::{PermissionsExt as _, chown};
    const STRANGER: u32 = 12345;
    harness::needs!(Root);
    let place = Place::new();
    let temporary = place.path("tmp");
    let planted = temporary.join("crib-runs-65534");
    let dead = temporary.join("crib-run-dead");
    let (socket, entry) = (planted.join("planted.sock"), planted.join("x"));
    for (directory, mode) in [(&planted, 0o755), (&dead, 0o700)] {
        std::fs::create_dir(directory).unwrap();
        std::fs::set_permissions(directory, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    std::fs::write(dead.join("lock"), "").unwrap();
    let server = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    server.set_nonblocking(true).unwrap();
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o777)).unwrap();
    std::fs::write(&entry, format!("unix://{}", socket.display())).unwrap();
    let living = std::fs::File::open(&entry).unwrap();
    living.lock().unwrap();
    for path in [&planted, &dead, &dead.join("lock"), &socket, &entry] {
        chown(path, Some(STRANGER), Some(STRANGER)).unwrap();
    }
    let command = |args: &[&str]| {
        let mut command = place.as_ordinary_user(place.command(args));
        chown(&temporary, Some(0), Some(0)).unwrap();
        std::fs::set_permissions(&temporary, std::fs::Permissions::from_mode(0o1777)).unwrap();
        command.env_remove("XDG_RUNTIME_DIR");
        command
    };
    let listed = place.end(command(&["pods", "-q"])).await.exits(0);
    assert_eq!(listed.out, "");
    let manifest = place.file("p.yaml", &pod("p", FOREVER));
    let mut running = Running::start(command(&["run", &manifest]));
    running.line_with("up").await;
    assert_eq!(std::fs::read_dir(temporary.join("crib-runs-65534-1")).unwrap().count(), 1);
    let listed = place.end(command(&["pods", "-q"])).await.exits(0);
    assert_eq!(listed.out.lines().count(), 1, "{}", listed.out);
    end(running).await;
    // A run of root, too.
    let short = place.file("short.yaml", &pod("p", "true"));
    place.crib(&["run", "-q", &short]).await.exits(0);
    let error = server.accept().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    let left = |directory| std::fs::read_dir(directory).unwrap().count();
    assert_eq!((left(&planted), left(&dead)), (2, 1));
    for directory in [planted, dead] {
        file_tree::remove(&directory).unwrap();
    }
}
