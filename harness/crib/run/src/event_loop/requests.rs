//! Handles the requests of other commands.

use agent::clock::{Clock as _, SystemClock};
use api::manifest::pod_json;
use api::pod::PodUid;
use crib_base::run_socket::{PodWithEvents, Request, RunResponse};

use super::Loop;
use crate::lifecycle::Event;
use crate::requests::{PendingRequest, Reply};

impl Loop {
    /// Answers a request; returns its event for the lifecycle, if any.
    pub(super) fn handle_request(&mut self, pending: PendingRequest) -> Option<Event> {
        let (reply, event) = match pending.request {
            Request::Objects => {
                let objects = self.hub.objects();
                (Some(Reply::Response(RunResponse { objects, ..RunResponse::default() })), None)
            }
            Request::Watch => {
                (self.hub.watch().map(|(list, watch)| Reply::Watch(list, watch)), None)
            }
            Request::AddEphemeralContainer { pod, container } => {
                let added = self.hub.add_ephemeral_container(&PodUid::new(pod), *container);
                (
                    Some(Reply::Response(RunResponse { refused: added.err(), ..self.pods_now() })),
                    None,
                )
            }
            Request::Scale(scale) => {
                let scaled = self.hub.scale(&scale);
                (Some(self.changed(scaled)), None)
            }
            Request::Restart(restart) => {
                let restarted = self.hub.restart(&restart, SystemClock.now());
                (Some(self.changed(restarted)), None)
            }
            Request::Undo(undo) => {
                let restored = self.hub.undo(&undo);
                (Some(self.changed(restored)), None)
            }
            Request::Pods => (Some(Reply::Response(self.pods_now())), None),
            Request::End => (Some(Reply::Response(self.pods_now())), Some(Event::Down)),
            Request::Kill => (Some(Reply::Response(self.pods_now())), Some(Event::Signal)),
        };
        // If the client has disconnected, the response is dropped; the request takes effect nevertheless.
        if let Some(reply) = reply {
            let _ = pending.reply.send(reply);
        }
        event
    }

    /// Runs the controllers after a change of a workload, and returns the response.
    fn changed(&mut self, change: Result<(), String>) -> Reply {
        let reports = self.reports.borrow().clone();
        self.control(&reports, SystemClock.now());
        Reply::Response(RunResponse { refused: change.err(), ..RunResponse::default() })
    }

    fn pods_now(&self) -> RunResponse {
        let pods = self.hub.pods();
        let pods = pods.iter().filter_map(|object| {
            let pod = pod_json::from_json(object.value.clone()).ok()?;
            let events = self.history.of(&PodUid::new(object.uid()));
            Some(PodWithEvents { pod, events })
        });
        RunResponse { pods: pods.collect(), ..RunResponse::default() }
    }
}
