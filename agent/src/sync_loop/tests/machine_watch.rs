//! What the machine says of itself, as events of the node.

use tokio::sync::mpsc;

use super::*;
use crate::EventObjectKind;

#[tokio::test(start_paused = true)]
async fn kills_for_want_of_memory_of_the_machine_are_events_of_the_node() {
    let mut scene = Scene::without_agent(seconds(10));
    let (kills, receiver) = mpsc::unbounded_channel();
    scene.oom_kills = Some(receiver);
    scene.start_agent();
    let mut events = scene.agent().events();
    let view = scene.agent().view();
    assert_eq!(view.system_oom_kills(), Some(0));
    let kill = |cgroup: &str, process: Option<(i32, &str)>| OomKill {
        cgroup: cgroup.to_owned(),
        process: process.map(|(id, name)| (id, name.to_owned())),
    };
    for kill in [kill("/", Some((71, "big"))), kill("/kubepods/podu", None), kill("/", None)] {
        kills.send(kill).unwrap();
    }
    scene.sleep(1).await;
    let seen: Vec<_> = drain(&mut events).collect();
    let of_node = |event: &crate::Event| {
        (event.object.kind, event.object.name.as_str()) == (EventObjectKind::Node, "localhost")
    };
    assert!(seen.iter().all(of_node), "{seen:?}");
    let said: Vec<_> = seen.iter().map(|it| (it.reason.as_str(), it.message.as_str())).collect();
    assert_eq!(
        said,
        [
            ("SystemOOM", "System OOM encountered, victim process: big, pid: 71"),
            ("SystemOOM", "System OOM encountered"),
        ]
    );
    assert_eq!(view.system_oom_kills(), Some(2));
    assert_eq!(Scene::new().agent().view().system_oom_kills(), None, "nobody watches");
}
