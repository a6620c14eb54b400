//! The contract of the store, tested from outside: what an API server's clients rely on.

#![allow(clippy::unwrap_used, reason = "tests")]

mod endpoint_slices;
mod garbage;
mod manager;
mod model;
mod watches;
mod writes;

use std::sync::Arc;

use cluster::{Key, Object, Store};
use jiff::Timestamp;
use serde_json::{Value, json};

/// A time of these tests, in seconds.
fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn store() -> Store {
    Store::new(7)
}

fn pod(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i"}], "terminationGracePeriodSeconds": 20},
    })
}

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}})
}

/// The object with another value at this path (`/spec/nodeName`).
fn with(value: &Value, path: &str, to: Value) -> Value {
    let mut value = value.clone();
    let mut place = &mut value;
    for field in path.split('/').skip(1) {
        place = match field.parse::<usize>() {
            Ok(index) => &mut place[index],
            Err(_) => &mut place[field],
        };
    }
    *place = to;
    value
}

fn create(store: &Store, value: Value) -> Arc<Object> {
    store.create(value, at(1)).unwrap()
}

fn pod_key(name: &str) -> Key {
    Key::pod("default", name)
}
