//! After any sequence of writes, lists, watches, lost watches and slow ones, each watcher's view equals the store.

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster::{DeleteOptions, Error, Event, Kind, Object, Part, Propagation, Selection, Watch};
use proptest::prelude::*;
use serde_json::json;

use super::*;

/// An operation on the store, or on one of its watchers.
#[derive(Clone, Debug)]
enum Action {
    Create(u8),
    Label(u8, u8),
    Status(u8, u8),
    Bind(u8),
    Delete(u8, bool, Propagation),
    Finalizers(u8, bool),
    /// A watcher reads at most this many changes.
    Follow(usize, u8),
    /// A watcher loses its connection, and continues after the last change that it received.
    Lose(usize),
}

fn actions() -> impl Strategy<Value = Vec<Action>> {
    let propagation = prop_oneof![
        Just(Propagation::Background),
        Just(Propagation::Foreground),
        Just(Propagation::Orphan)
    ];
    let name = 0..6_u8;
    let action = prop_oneof![
        4 => name.clone().prop_map(Action::Create),
        3 => (name.clone(), 0..3_u8).prop_map(|(name, label)| Action::Label(name, label)),
        2 => (name.clone(), 0..3_u8).prop_map(|(name, phase)| Action::Status(name, phase)),
        2 => name.clone().prop_map(Action::Bind),
        3 => (name.clone(), any::<bool>(), propagation).prop_map(|(n, now, p)| Action::Delete(n, now, p)),
        2 => (name, any::<bool>()).prop_map(|(name, held)| Action::Finalizers(name, held)),
        4 => (0..4_usize, 1..5_u8).prop_map(|(watcher, most)| Action::Follow(watcher, most)),
        1 => (0..4_usize).prop_map(Action::Lose),
    ];
    proptest::collection::vec(action, 0..120)
}

struct Watcher {
    store: Store,
    selection: Selection,
    watch: Watch,
    picture: BTreeMap<Key, Arc<Object>>,
}

impl Watcher {
    fn new(store: &Store, selection: Selection) -> Self {
        let (watch, picture) = listed(store, &selection);
        Self { store: store.clone(), selection, watch, picture }
    }

    fn follow(&mut self, most: u8) {
        for _ in 0..most {
            match self.watch.try_next() {
                Ok(None) => return,
                Ok(Some(Event::Deleted(object))) => {
                    assert!(self.picture.remove(&object.key).is_some(), "{object:?} was not there");
                }
                Ok(Some(Event::Added(object))) => {
                    let before = self.picture.insert(object.key.clone(), object);
                    assert_eq!(before, None);
                }
                Ok(Some(Event::Modified(object))) => {
                    let before = self.picture.insert(object.key.clone(), object.clone()).unwrap();
                    assert!(before.version < object.version);
                }
                Err(Error::Expired { .. }) => {
                    (self.watch, self.picture) = listed(&self.store, &self.selection);
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn lose(&mut self) {
        match self.store.watch(self.selection.clone(), self.watch.version()) {
            Ok(watch) => self.watch = watch,
            Err(Error::Expired { .. }) => {
                (self.watch, self.picture) = listed(&self.store, &self.selection);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn listed(store: &Store, selection: &Selection) -> (Watch, BTreeMap<Key, Arc<Object>>) {
    let list = store.list(selection);
    let watch = store.watch(selection.clone(), list.version).unwrap();
    (watch, list.items.into_iter().map(|object| (object.key.clone(), object)).collect())
}

fn selections() -> [Selection; 4] {
    [
        Selection::default(),
        Selection::of(Kind::pod()).with_field("metadata.labels.color", "c1"),
        Selection::of(Kind::pod()).with_field("spec.nodeName", "n"),
        Selection::of(Kind::of("v1", "ConfigMap")),
    ]
}

/// Even names are pods, odd ones are maps.
fn value(name: u8) -> serde_json::Value {
    let text = format!("o{name}");
    if name.is_multiple_of(2) { pod(&text) } else { config_map(&text) }
}

fn act(store: &Store, watchers: &mut [Watcher], action: &Action) {
    let key = |name: u8| Key::of(&value(name)).unwrap();
    let change = |name: u8, part: Part, path: &str, to: serde_json::Value| {
        // If the object does not exist, there is nothing to change.
        let _ = store.change(&key(name), part, |value| {
            *value = with(value, path, to);
            Ok(())
        });
    };
    match action {
        Action::Create(name) => drop(store.create(value(*name), at(1))),
        Action::Label(name, label) => {
            change(*name, Part::Main, "/metadata/labels", json!({"color": format!("c{label}")}));
        }
        Action::Status(name, phase) => {
            let phase = ["Pending", "Running", "Succeeded"][usize::from(*phase)];
            change(*name, Part::Status, "/status", json!({"phase": phase}));
        }
        Action::Bind(name) => drop(store.bind(&key(*name), "n", at(2))),
        Action::Delete(name, now, propagation) => {
            let grace_seconds = now.then_some(0);
            let options =
                DeleteOptions { grace_seconds, propagation: *propagation, ..Default::default() };
            drop(store.delete(&key(*name), &options, at(3)));
        }
        Action::Finalizers(name, held) => {
            let finalizers = if *held { json!(["a/b"]) } else { json!([]) };
            change(*name, Part::Main, "/metadata/finalizers", finalizers);
        }
        Action::Follow(watcher, most) => watchers[*watcher].follow(*most),
        Action::Lose(watcher) => watchers[*watcher].lose(),
    }
}

proptest! {
    #[test]
    fn every_watcher_converges_to_the_store(history in 1..40_usize, actions in actions()) {
        let store = Store::with_history(3, history);
        let mut watchers = selections().map(|selection| Watcher::new(&store, selection));
        for action in &actions {
            act(&store, &mut watchers, action);
        }
        for watcher in &mut watchers {
            watcher.follow(u8::MAX);
            let items = store.list(&watcher.selection).items;
            let expected = items.into_iter().map(|object| (object.key.clone(), object)).collect();
            prop_assert_eq!(&watcher.picture, &expected);
        }
    }
}
