//! Answers other commands that ask about the pods, or for the end of the run.

use api::manifest::pod_json;
use api::pod::{Pod, PodUid};
use crib_base::run_socket::{Answer, PodAnswer, Request};

use super::Loop;
use crate::lifecycle::Event;
use crate::questions::{Question, Reply};
use crate::reports::Reports;

impl Loop {
    /// Answers a question; says what it is for the lifecycle, if it is something.
    pub(super) fn answer(&mut self, question: Question) -> Option<Event> {
        let (reply, event) = match question.request {
            Request::Objects => {
                let objects = self.hub.objects();
                (Some(Reply::Answer(Answer { objects, ..Answer::default() })), None)
            }
            Request::Watch => (self.hub.watch().map(|(list, watch)| Reply::Watch(list, watch)), None),
            Request::AddEphemeralContainer { pod, container } => {
                let added = self.hub.add_ephemeral_container(&PodUid::new(pod), *container);
                (Some(Reply::Answer(Answer { refused: added.err(), ..self.pods_now() })), None)
            }
            Request::Pods => (Some(Reply::Answer(self.pods_now())), None),
            Request::End => (Some(Reply::Answer(self.pods_now())), Some(Event::Down)),
            Request::Kill => (Some(Reply::Answer(self.pods_now())), Some(Event::Signal)),
        };
        // One that is not there any more needs no answer, and still wants what it asked for.
        if let Some(reply) = reply {
            let _ = question.answer.send(reply);
        }
        event
    }

    fn pods_now(&self) -> Answer {
        let reports = self.reports.borrow();
        let in_store = self.hub.pods();
        let in_store = in_store.iter().filter_map(|object| {
            let pod = pod_json::from_json(object.value.clone()).ok()?;
            let events = self.history.of(&PodUid::new(object.uid()));
            Some(PodAnswer { pod, events })
        });
        let mut pods: Vec<PodAnswer> = in_store.collect();
        // Those that are deleted already.
        let is_there = |pod: &Pod| {
            pods.iter().any(|other| other.pod.metadata.uid.as_deref() == Some(pod.uid().as_str()))
        };
        let refused: Vec<&Pod> = self.refused.iter().filter(|pod| !is_there(pod)).collect();
        pods.extend(refused.into_iter().map(|pod| self.pod_now(pod, &reports)));
        pods.sort_by(|a, b| {
            let (a, b) = (&a.pod.metadata, &b.pod.metadata);
            (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name))
        });
        Answer { pods, ..Answer::default() }
    }

    fn pod_now(&self, pod: &Pod, reports: &Reports) -> PodAnswer {
        let mut api = pod.api().clone();
        api.spec.get_or_insert_default().node_name = Some(crib_base::node::node_name());
        if let Some(report) = reports.get(pod.uid()) {
            api.status = Some((*report.status).clone());
        }
        PodAnswer { pod: api, events: self.history.of(pod.uid()) }
    }
}
