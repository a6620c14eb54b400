//! Handles the requests of other commands.

use agent::clock::{Clock as _, SystemClock};
use api::manifest::pod_json;
use api::pod::PodUid;
use crib_base::run_socket::{Answer, PodAnswer, Request};

use super::Loop;
use crate::lifecycle::Event;
use crate::questions::{Question, Reply};

impl Loop {
    /// Answers a request; returns its event for the lifecycle, if any.
    pub(super) fn answer(&mut self, question: Question) -> Option<Event> {
        let (reply, event) = match question.request {
            Request::Objects => {
                let objects = self.hub.objects();
                (Some(Reply::Answer(Answer { objects, ..Answer::default() })), None)
            }
            Request::Watch => {
                (self.hub.watch().map(|(list, watch)| Reply::Watch(list, watch)), None)
            }
            Request::AddEphemeralContainer { pod, container } => {
                let added = self.hub.add_ephemeral_container(&PodUid::new(pod), *container);
                (Some(Reply::Answer(Answer { refused: added.err(), ..self.pods_now() })), None)
            }
            Request::Scale(scale) => {
                let scaled = self.hub.scale(&scale);
                let reports = self.reports.borrow().clone();
                self.control(&reports, SystemClock.now());
                (Some(Reply::Answer(Answer { refused: scaled.err(), ..Answer::default() })), None)
            }
            Request::Pods => (Some(Reply::Answer(self.pods_now())), None),
            Request::End => (Some(Reply::Answer(self.pods_now())), Some(Event::Down)),
            Request::Kill => (Some(Reply::Answer(self.pods_now())), Some(Event::Signal)),
        };
        // If the client has disconnected, the response is dropped; the request takes effect nevertheless.
        if let Some(reply) = reply {
            let _ = question.answer.send(reply);
        }
        event
    }

    fn pods_now(&self) -> Answer {
        let pods = self.hub.pods();
        let pods = pods.iter().filter_map(|object| {
            let pod = pod_json::from_json(object.value.clone()).ok()?;
            let events = self.history.of(&PodUid::new(object.uid()));
            Some(PodAnswer { pod, events })
        });
        Answer { pods: pods.collect(), ..Answer::default() }
    }
}
