//! Clients that may not use the runtime's socket.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use crate::command::*;

/// The message of each client, with the remedy.
const DENIED: &str = "run crib as the socket's owner, as root or in the socket's group, or choose another runtime with --runtime-endpoint: \
    Permission denied (os error 13)\n";

#[tokio::test]
async fn clients_of_other_users_get_remedy() {
    harness::needs!(Root);
    let (place, user) = (Place::unchecked(), Place::unchecked());
    let (open, closed) = (place.path("s"), place.path("closed/s"));
    std::fs::set_permissions(place.path(""), Permissions::from_mode(0o755)).unwrap();
    std::fs::create_dir(place.path("closed")).unwrap();
    let state = place.path("state").display().to_string();
    let socket = open.display().to_string();
    let mut runtime =
        place.start(&["runtime", "--ephemeral", "--listen", &socket, "--state-dir", &state]);
    runtime.line_with("listening").await;
    std::fs::set_permissions(place.path("closed"), Permissions::from_mode(0o700)).unwrap();

    let config = user.file("pod.json", r#"{"metadata": {"name": "p", "namespace": "default"}}"#);
    // The first socket belongs to root; the second one is in a directory of root.
    for socket in [open, closed] {
        let endpoint = format!("unix://{}", socket.display());
        let manifests = user.path("").display().to_string();
        for command in [
            &["ps"][..],
            &["logs", "web"],
            &["exec", "web", "true"],
            &["pull", "busybox"],
            &["events"],
            &["runp", &config],
            &["agent", "--manifests", &manifests],
        ] {
            let args = [&command[..1], &["--runtime-endpoint", &endpoint], &command[1..]].concat();
            let ended = user.end(user.as_ordinary_user(user.command(&args))).await;
            assert_eq!((ended.code, ended.out.as_str()), (Some(3), ""), "{args:?}: {ended:?}");
            let socket = match command[0] {
                "agent" => socket.display().to_string(),
                _ => endpoint.clone(),
            };
            let expected = format!("crib: failed to connect to the runtime at {socket}; {DENIED}");
            assert_eq!(ended.err, expected, "{args:?}");
        }
    }
    runtime.stop().await;
    place.wait_until_clean().await;
    user.wait_until_clean().await;
}
