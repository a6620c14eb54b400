//! Lists, and watches that continue them.

use cluster::{DeleteOptions, Error, Event, Kind, Part, Selection, Watch};
use serde_json::json;

use super::*;

fn names(events: Vec<Event>) -> Vec<String> {
    let name = |event: &Event| match event {
        Event::Added(object) => format!("added {}", object.key.name),
        Event::Modified(object) => format!("modified {}", object.key.name),
        Event::Deleted(object) => format!("deleted {}", object.key.name),
    };
    events.iter().map(name).collect()
}

fn all(watch: &mut Watch) -> Vec<Event> {
    std::iter::from_fn(|| watch.try_next().unwrap()).collect()
}

#[test]
fn watch_from_list_version_delivers_every_change() {
    let store = store();
    create(&store, pod("a"));
    let list = store.list(&Selection::of(Kind::pod()));
    let b = create(&store, pod("b"));
    create(&store, config_map("m"));
    store.bind(&b.key, "n", at(2)).unwrap();
    store.delete(&pod_key("a"), &DeleteOptions::default(), at(3)).unwrap();
    let mut watch = store.watch(Selection::of(Kind::pod()), list.version).unwrap();
    assert_eq!(names(all(&mut watch)), ["added b", "modified b", "deleted a"]);
    assert_eq!(names(all(&mut watch)), [""; 0]);
}

#[test]
fn object_enters_and_leaves_a_selection() {
    let store = store();
    let selection = Selection::of(Kind::pod()).with_field("spec.nodeName", "n1");
    let mut watch = store.watch(selection.clone(), store.list(&selection).version).unwrap();
    let old = create(&store, pod("p"));
    let value = with(&old.value, "/metadata/resourceVersion", json!(""));
    let on_node = |node: &str| with(&value, "/spec/nodeName", json!(node));
    for node in ["n1", "n2", "n1"] {
        store.update(on_node(node), Part::Main).unwrap();
    }
    let annotated = with(&on_node("n1"), "/metadata/annotations", json!({"x": "y"}));
    store.update(annotated, Part::Main).unwrap();
    assert_eq!(names(all(&mut watch)), ["added p", "deleted p", "added p", "modified p"]);
    assert_eq!(store.list(&selection).items.len(), 1);
    assert_eq!(store.list(&selection.in_namespace("other")).items.len(), 0);
}

#[test]
fn watcher_relists_after_falling_behind() {
    let store = Store::with_history(1, 3);
    let mut watch =
        store.watch(Selection::default(), store.list(&Selection::default()).version).unwrap();
    let first = create(&store, config_map("a"));
    for name in ["b", "c"] {
        create(&store, config_map(name));
    }
    assert_eq!(all(&mut watch).len(), 3);
    for name in ["d", "e", "f", "g"] {
        create(&store, config_map(name));
    }
    let error = watch.try_next().unwrap_err();
    assert_eq!(error.reason(), ("Expired", 410));
    assert_eq!(
        error.to_string(),
        format!("too old resource version: {} ({})", first.version + 2, first.version + 3)
    );
    let error = store.watch(Selection::default(), first.version).unwrap_err();
    assert!(matches!(error, Error::Expired { .. }));
    let future = store.watch(Selection::default(), 1000).unwrap_err();
    assert_eq!(future.reason(), ("BadRequest", 400));
}

#[test]
fn new_watch_resumes_at_a_resource_version() {
    let store = store();
    let mut watch =
        store.watch(Selection::default(), store.list(&Selection::default()).version).unwrap();
    for name in ["a", "b", "c"] {
        create(&store, config_map(name));
    }
    assert_eq!(names(watch.try_next().unwrap().into_iter().collect()), ["added a"]);
    let mut other = store.watch(Selection::default(), watch.version()).unwrap();
    assert_eq!(names(all(&mut other)), ["added b", "added c"]);
    assert_eq!(names(all(&mut watch)), ["added b", "added c"]);
}

#[tokio::test]
async fn waiting_watch_gets_the_change() {
    let store = store();
    let mut watch =
        store.watch(Selection::of(Kind::pod()), store.list(&Selection::default()).version).unwrap();
    let waiting = tokio::spawn(async move { watch.next().await });
    create(&store, config_map("m"));
    let pod = create(&store, pod("p"));
    assert_eq!(waiting.await.unwrap().unwrap(), Event::Added(pod));
}

#[test]
fn concurrent_writes_have_one_order() {
    let store = store();
    let from = store.list(&Selection::default()).version;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let store = store.clone();
            scope.spawn(move || {
                for number in 0..50 {
                    create(&store, config_map(&format!("m{thread}-{number}")));
                }
            });
        }
    });
    let versions = |events: Vec<Event>| -> Vec<u64> {
        events.iter().map(|event| event.object().version).collect()
    };
    let mut watch = store.watch(Selection::default(), from).unwrap();
    let expected: Vec<u64> = (from + 1..=from + 200).collect();
    assert_eq!(versions(all(&mut watch)), expected);
}
