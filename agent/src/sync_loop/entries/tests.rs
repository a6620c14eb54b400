//! The running sums after additions, changes and removals of pods equal the sums over all pods.
#![allow(clippy::unwrap_used)]
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::fixtures;
use crate::reporting::report::transitions::changes_share;

/// An event of the pod with a number.
#[derive(Clone, Debug)]
enum Step {
    /// A worker starts for it.
    Start { millicores: u16, rejected: bool },
    /// Its source updates it.
    Update { millicores: u16 },
    /// Its worker is requested to end it.
    Terminate,
    /// Its worker has ended.
    End,
    /// Its worker reports.
    Report { finished: bool, millicores: Option<u16> },
    /// Pods are counted.
    Count,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..9_u16, any::<bool>())
            .prop_map(|(millicores, rejected)| Step::Start { millicores, rejected }),
        (0..9_u16).prop_map(|millicores| Step::Update { millicores }),
        Just(Step::Terminate),
        Just(Step::End),
        (any::<bool>(), proptest::option::of(0..9_u16))
            .prop_map(|(finished, millicores)| { Step::Report { finished, millicores } }),
        Just(Step::Count),
    ]
}

fn pod(uid: &PodUid, millicores: u16) -> Pod {
    let requests = json!({"cpu": format!("{millicores}m")});
    let app = json!({"name": "app", "resources": {"requests": requests}});
    fixtures::pod(
        json!({"metadata": {"name": "p", "uid": uid.as_str()}, "spec": {"containers": [app]}}),
    )
}

fn report(uid: &PodUid, finished: bool, millicores: Option<u16>) -> PodReport {
    let requests = millicores.map(|number| json!({"cpu": format!("{number}m")}));
    let app = json!({"name": "app", "resources": {"requests": requests}});
    let status = serde_json::from_value(json!({"containerStatuses": [app]})).unwrap();
    PodReport { finished, ..fixtures::pod_report(uid.as_str(), status) }
}

fn entry(uid: &PodUid, millicores: u16, rejected: bool) -> Entry {
    let of = fixtures::pod_ref(uid.as_str(), "p");
    let pod = pod(uid, millicores);
    let granted = Granted::default();
    Entry {
        state: WorkerState::of(&pod, of),
        updates: watch::channel(granted.update(&pod)).0,
        rejected,
        granted,
        evicted: false,
    }
}

fn take(entries: &mut Entries, uid: &PodUid, step: &Step) {
    match step {
        Step::Start { millicores, rejected } => {
            entries.insert(uid.clone(), entry(uid, *millicores, *rejected))
        }
        Step::Update { millicores } => {
            if let Some(entry) = entries.get_mut(uid) {
                entry.state.desired = Some(pod(uid, *millicores));
            }
        }
        Step::Terminate => {
            if let Some(entry) = entries.get_mut(uid) {
                entry.state.desired = None;
            }
        }
        Step::End => drop(entries.remove(uid)),
        Step::Report { .. } | Step::Count => {}
    }
}

proptest! {
    #[test]
    fn counted_pods_are_all_active_ones(steps in proptest::collection::vec((0..4_u8, step()), 1..60)) {
        let (reported, receiver) = mpsc::unbounded_channel();
        let mut entries = Entries::new(receiver);
        let mut reports = Reports::default();
        for (number, step) in steps {
            let uid = PodUid::new(number.to_string());
            if let Step::Report { finished, millicores } = step {
                let new = report(&uid, finished, millicores);
                if changes_share(reports.get(&uid), &new) {
                    reported.send(uid.clone()).unwrap();
                }
                reports.insert_mut(uid.clone(), new);
            }
            take(&mut entries, &uid, &step);
            if matches!(step, Step::Count) {
                entries.count(&reports);
                let active = entries.all.iter();
                let active = active.filter_map(|(uid, entry)| entry.active(reports.get(uid)));
                prop_assert_eq!(entries.admitted(), &active.collect::<AdmittedPods>());
            }
        }
    }
}

#[test]
fn conflicting_workers_have_the_pod_uid_or_name() {
    let (_reported, receiver) = mpsc::unbounded_channel();
    let mut entries = Entries::new(receiver);
    let uid = |uid: &str| PodUid::new(uid);
    // Two pods with its name, of which one ends; the pod itself under another name; and pods with neighbouring names and
    // namespaces.
    let workers = [
        ("earlier", "default", "p"),
        ("ended", "default", "p"),
        ("own", "default", "renamed"),
        ("longer", "default", "pp"),
        ("shorter", "default", ""),
        ("elsewhere", "default-2", "p"),
    ];
    for (of, namespace, name) in workers {
        let mut entry = entry(&uid(of), 1, false);
        entry.state.pod.namespace = namespace.to_owned();
        entry.state.pod.name = name.to_owned();
        entries.insert(uid(of), entry);
    }
    entries.remove(&uid("ended"));
    let like = |entries: &Entries, pods: &[&[Pod]]| -> Vec<String> {
        let states = entries.conflicting_states(pods);
        states.keys().map(|uid| uid.to_string()).collect()
    };
    let pod = pod(&uid("own"), 1);
    assert_eq!(like(&entries, &[&[], &[pod]]), ["earlier", "own"]);
    assert!(like(&entries, &[&[], &[]]).is_empty());
}
