//! Answers other commands that ask about the pods, or for the end of the run.

use api::pod::Pod;
use crib_base::run_socket::{Answer, PodAnswer, Request};

use super::super::lifecycle::Event;
use super::super::questions::Question;
use super::super::reports::Reports;
use super::Loop;

impl Loop {
    /// Answers a question; says what it is for the lifecycle, if it is something.
    pub(super) fn answer(&mut self, question: Question) -> Option<Event> {
        // One that is not there any more needs no answer, and still wants what it asked for.
        let _ = question.answer.send(self.pods_now());
        match question.request {
            Request::Pods => None,
            Request::End => Some(Event::Down),
            Request::Kill => Some(Event::Signal),
        }
    }

    fn pods_now(&self) -> Answer {
        let reports = self.reports.borrow();
        let all = self.desired.iter().chain(&self.refused);
        let mut pods: Vec<PodAnswer> = all.map(|pod| self.pod_now(pod, &reports)).collect();
        pods.sort_by(|a, b| {
            let (a, b) = (&a.pod.metadata, &b.pod.metadata);
            (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name))
        });
        Answer { pods }
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
