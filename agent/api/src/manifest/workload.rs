//! Objects in manifests for which a controller creates pods.

use k8s_openapi::Metadata;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet, StatefulSetSpec};
use k8s_openapi::api::batch::v1::{CronJob, Job, JobSpec};
use k8s_openapi::api::core::v1::{Pod as ApiPod, PodTemplateSpec, ReplicationController};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::tree::Node;
use super::typed_value::{TypedValue, to_json};
use super::{
    FieldError, Loader, admit_with_account, full_path, hex_hash, names_no_grace, object, storage,
    support, validate,
};
use crate::pod::Pod;

/// The path of the template in the objects.
const TEMPLATE: &str = "spec.template";

/// An object for which a controller creates pods, defaulted and validated.
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// The object.
    pub object: WorkloadObject,
    /// The file that it was read from.
    pub origin: String,
}

/// An object of one of the kinds.
#[derive(Clone, Debug, PartialEq)]
pub enum WorkloadObject {
    /// Pods that run until enough of them have succeeded.
    Job(Job),
    /// Jobs at the times of a schedule.
    CronJob(Box<CronJob>),
    /// Pods that run forever, through a ReplicaSet.
    Deployment(Deployment),
    /// Pods that run forever.
    ReplicaSet(ReplicaSet),
    /// Pods that run forever, with a selector of equal labels.
    ReplicationController(ReplicationController),
    /// One pod on the node.
    DaemonSet(DaemonSet),
    /// Numbered pods that run forever.
    StatefulSet(StatefulSet),
}

/// Applies an expression to an object of any kind.
macro_rules! each {
    ($object:expr, $of:ident => $value:expr) => {
        match $object {
            WorkloadObject::Job($of) => $value,
            WorkloadObject::CronJob($of) => $value,
            WorkloadObject::Deployment($of) => $value,
            WorkloadObject::ReplicaSet($of) => $value,
            WorkloadObject::ReplicationController($of) => $value,
            WorkloadObject::DaemonSet($of) => $value,
            WorkloadObject::StatefulSet($of) => $value,
        }
    };
}

impl Workload {
    /// The object's metadata, with a uid.
    #[must_use]
    pub fn metadata(&self) -> &ObjectMeta {
        each!(&self.object, object => &object.metadata)
    }

    /// The object's API version and kind.
    #[must_use]
    pub fn kind(&self) -> (&'static str, &'static str) {
        match &self.object {
            WorkloadObject::Job(_) => ("batch/v1", "Job"),
            WorkloadObject::CronJob(_) => ("batch/v1", "CronJob"),
            WorkloadObject::Deployment(_) => ("apps/v1", "Deployment"),
            WorkloadObject::ReplicaSet(_) => ("apps/v1", "ReplicaSet"),
            WorkloadObject::ReplicationController(_) => ("v1", "ReplicationController"),
            WorkloadObject::DaemonSet(_) => ("apps/v1", "DaemonSet"),
            WorkloadObject::StatefulSet(_) => ("apps/v1", "StatefulSet"),
        }
    }

    /// `metadata.name`.
    #[must_use]
    pub fn name(&self) -> &str {
        self.metadata().name.as_deref().unwrap_or_default()
    }

    /// `metadata.namespace`.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.metadata().namespace.as_deref().unwrap_or("default")
    }

    /// Kind, namespace and name: `job default/backup`.
    #[must_use]
    pub fn full_name(&self) -> String {
        let kind = self.kind().1.to_lowercase();
        format!("{kind} {}/{}", self.namespace(), self.name())
    }

    /// The template of its pods.
    #[must_use]
    pub fn template(&self) -> Option<&PodTemplateSpec> {
        match &self.object {
            WorkloadObject::Job(job) => job.spec.as_ref().map(|spec| &spec.template),
            WorkloadObject::CronJob(cron) => Some(&cron.spec.job_template.spec.as_ref()?.template),
            WorkloadObject::Deployment(set) => set.spec.as_ref().map(|spec| &spec.template),
            WorkloadObject::ReplicaSet(set) => set.spec.as_ref()?.template.as_ref(),
            WorkloadObject::ReplicationController(set) => set.spec.as_ref()?.template.as_ref(),
            WorkloadObject::DaemonSet(set) => set.spec.as_ref().map(|spec| &spec.template),
            WorkloadObject::StatefulSet(set) => set.spec.as_ref().map(|spec| &spec.template),
        }
    }

    /// The object as JSON.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        each!(&self.object, object => to_json(object))
    }

    /// The template of its pods as JSON.
    #[must_use]
    pub fn template_json(&self) -> String {
        TypedValue::of(&self.template()).json()
    }

    /// The template of its pods.
    pub fn template_mut(&mut self) -> Option<&mut PodTemplateSpec> {
        match &mut self.object {
            WorkloadObject::Job(job) => job.spec.as_mut().map(|spec| &mut spec.template),
            WorkloadObject::CronJob(cron) => {
                Some(&mut cron.spec.job_template.spec.as_mut()?.template)
            }
            WorkloadObject::Deployment(set) => set.spec.as_mut().map(|spec| &mut spec.template),
            WorkloadObject::ReplicaSet(set) => set.spec.as_mut()?.template.as_mut(),
            WorkloadObject::ReplicationController(set) => set.spec.as_mut()?.template.as_mut(),
            WorkloadObject::DaemonSet(set) => set.spec.as_mut().map(|spec| &mut spec.template),
            WorkloadObject::StatefulSet(set) => set.spec.as_mut().map(|spec| &mut spec.template),
        }
    }

    /// Sets the uid.
    pub fn set_uid(&mut self, uid: Option<String>) {
        each!(&mut self.object, object => object.metadata.uid = uid);
    }

    /// Whether an existing object may be changed to the other one.
    ///
    /// Source: Kubernetes 1.36, pkg/apis/batch/validation/validation.go and pkg/apis/apps/validation/validation.go.
    #[must_use]
    pub fn may_become(&self, other: &Self) -> bool {
        use WorkloadObject as Of;
        match (&self.object, &other.object) {
            (Of::Job(old), Of::Job(new)) => fixed_of_job(old) == fixed_of_job(new),
            (Of::CronJob(_), Of::CronJob(_))
            | (Of::ReplicationController(_), Of::ReplicationController(_)) => true,
            (Of::Deployment(_), Of::Deployment(_))
            | (Of::ReplicaSet(_), Of::ReplicaSet(_))
            | (Of::DaemonSet(_), Of::DaemonSet(_)) => self.selector() == other.selector(),
            (Of::StatefulSet(old), Of::StatefulSet(new)) => {
                fixed_of_stateful_set(old) == fixed_of_stateful_set(new)
            }
            _ => false,
        }
    }

    fn selector(&self) -> Option<&LabelSelector> {
        match &self.object {
            WorkloadObject::Deployment(set) => set.spec.as_ref().map(|spec| &spec.selector),
            WorkloadObject::ReplicaSet(set) => set.spec.as_ref().map(|spec| &spec.selector),
            WorkloadObject::DaemonSet(set) => set.spec.as_ref().map(|spec| &spec.selector),
            WorkloadObject::StatefulSet(set) => set.spec.as_ref().map(|spec| &spec.selector),
            WorkloadObject::Job(_)
            | WorkloadObject::CronJob(_)
            | WorkloadObject::ReplicationController(_) => None,
        }
    }

    /// A pod made from the template, with the object's name. It must not be run.
    #[must_use]
    pub fn example(&self) -> Pod {
        let template = self.template().cloned().unwrap_or_default();
        let mut metadata = template.metadata.unwrap_or_default();
        metadata.name = Some(self.name().to_owned());
        metadata.namespace = Some(self.namespace().to_owned());
        metadata.uid.clone_from(&self.metadata().uid);
        let pod = ApiPod { metadata, spec: template.spec, ..ApiPod::default() };
        Pod::new(pod).with_origin(&self.origin)
    }
}

/// The ordinal of the first pod.
fn first_ordinal(spec: &StatefulSetSpec) -> i32 {
    let ordinals = spec.ordinals.as_ref();
    ordinals.and_then(|ordinals| ordinals.start).unwrap_or(0)
}

/// The immutable fields of a Job.
fn fixed_of_job(job: &Job) -> Option<JobSpec> {
    let spec = job.spec.clone()?;
    Some(JobSpec {
        active_deadline_seconds: None,
        backoff_limit: None,
        parallelism: None,
        suspend: None,
        ttl_seconds_after_finished: None,
        ..spec
    })
}

/// The immutable fields of a StatefulSet.
fn fixed_of_stateful_set(set: &StatefulSet) -> Option<StatefulSetSpec> {
    let spec = set.spec.clone()?;
    Some(StatefulSetSpec {
        min_ready_seconds: None,
        ordinals: None,
        persistent_volume_claim_retention_policy: None,
        replicas: None,
        revision_history_limit: None,
        template: PodTemplateSpec::default(),
        update_strategy: None,
        ..spec
    })
}

impl Loader<'_> {
    pub(super) fn job(&mut self, node: &Node, path: &str) {
        self.workload(node, path, WorkloadObject::Job, |loader, object: &mut Job| {
            let spec = object.spec.get_or_insert_default();
            let mut errors = loader.template(node, path, TEMPLATE, &mut spec.template);
            validate::job::apply_defaults(spec);
            if validate::job::remove_generated_selector(spec) {
                let field = "spec.selector";
                let message = "is removed: the controller of another cluster generated it";
                loader.warning(node.locate(field), &full_path(path, field), message);
            }
            errors.extend(validate::job::job(object));
            errors
        });
    }

    pub(super) fn cron_job(&mut self, node: &Node, path: &str) {
        let wrap = |object| WorkloadObject::CronJob(Box::new(object));
        self.workload(node, path, wrap, |loader, object: &mut CronJob| {
            let spec = &mut object.spec;
            let job = spec.job_template.spec.get_or_insert_default();
            let at = "spec.jobTemplate.spec.template";
            let mut errors = loader.template(node, path, at, &mut job.template);
            validate::job::apply_defaults(job);
            validate::cron_job::apply_defaults(spec);
            errors.extend(validate::cron_job::cron_job(object));
            errors
        });
    }

    pub(super) fn deployment(&mut self, node: &Node, path: &str) {
        self.workload(node, path, WorkloadObject::Deployment, |loader, object: &mut Deployment| {
            let spec = object.spec.get_or_insert_default();
            let mut errors = loader.template(node, path, TEMPLATE, &mut spec.template);
            errors.extend(validate::workload::deployment(object));
            errors
        });
    }

    pub(super) fn replica_set(&mut self, node: &Node, path: &str) {
        self.workload(node, path, WorkloadObject::ReplicaSet, |loader, object: &mut ReplicaSet| {
            let spec = object.spec.get_or_insert_default();
            let mut errors =
                loader.template(node, path, TEMPLATE, spec.template.get_or_insert_default());
            errors.extend(validate::workload::replica_set(object));
            errors
        });
    }

    pub(super) fn replication_controller(&mut self, node: &Node, path: &str) {
        let wrap = WorkloadObject::ReplicationController;
        self.workload(node, path, wrap, |loader, object: &mut ReplicationController| {
            validate::workload::default_replication_controller(object);
            let spec = object.spec.get_or_insert_default();
            let mut errors =
                loader.template(node, path, TEMPLATE, spec.template.get_or_insert_default());
            errors.extend(validate::workload::replication_controller(object));
            errors
        });
    }

    pub(super) fn daemon_set(&mut self, node: &Node, path: &str) {
        self.workload(node, path, WorkloadObject::DaemonSet, |loader, object: &mut DaemonSet| {
            let spec = object.spec.get_or_insert_default();
            let mut errors = loader.template(node, path, TEMPLATE, &mut spec.template);
            errors.extend(validate::workload::daemon_set(object));
            errors
        });
    }

    pub(super) fn stateful_set(&mut self, node: &Node, path: &str) {
        self.workload(
            node,
            path,
            WorkloadObject::StatefulSet,
            |loader, object: &mut StatefulSet| {
                let name = object.metadata.name.clone().unwrap_or_default();
                let spec = object.spec.get_or_insert_default();
                loader.unsupported(node, path, support::of_claim_templates(spec));
                storage::default_templates(spec.volume_claim_templates.as_mut());
                // Containers may mount volumes that the controller adds. The claims of the first pod stand for those of all pods.
                let first = format!("{name}-{}", first_ordinal(spec));
                let templates = spec.volume_claim_templates.clone().unwrap_or_default();
                let pod_spec = spec.template.spec.get_or_insert_default();
                storage::mount_claims(pod_spec, &templates, &first);
                let mut errors = loader.template(node, path, TEMPLATE, &mut spec.template);
                errors.extend(validate::workload::stateful_set(object));
                errors
            },
        );
    }

    /// Decodes an object and sets its namespace and uid; `check` completes it, and returns its errors.
    fn workload<T>(
        &mut self,
        node: &Node,
        path: &str,
        wrap: impl FnOnce(T) -> WorkloadObject,
        check: impl FnOnce(&mut Self, &mut T) -> Vec<FieldError>,
    ) where
        T: DeserializeOwned + Serialize + Metadata<Ty = ObjectMeta>,
    {
        let Some((mut found, sound)) = self.decoded::<T>(node, path) else {
            return;
        };
        let number = self.parsed.workloads.len();
        let (file, metadata) = (self.file, found.metadata_mut());
        object::in_namespace(metadata);
        let name = metadata.name.as_deref().unwrap_or_default();
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let content = format!("{file}\0{number}\0workload\0{namespace}\0{name}");
        metadata.uid.get_or_insert_with(|| hex_hash(&content));
        self.template_names_no_grace = false;
        let errors = check(self, &mut found);
        self.errors(node, path, errors, sound);
        let workload = Workload { object: wrap(found), origin: self.file.to_owned() };
        let without_grace = self.template_names_no_grace.then(|| workload.full_name());
        self.parsed.without_grace.extend(without_grace);
        self.parsed.workloads.push(workload);
    }

    /// Defaults and validates the pods of a template; `at` is the template's path in its object.
    fn template(
        &mut self,
        node: &Node,
        path: &str,
        at: &str,
        template: &mut PodTemplateSpec,
    ) -> Vec<FieldError> {
        // Pods get only these fields of the template's metadata; the controller sets their names.
        let given = template.metadata.clone().unwrap_or_default();
        let metadata = ObjectMeta {
            name: Some("pod".to_owned()),
            annotations: given.annotations,
            finalizers: given.finalizers,
            labels: given.labels,
            ..ObjectMeta::default()
        };
        let spec = template.spec.take();
        self.template_names_no_grace = names_no_grace(spec.as_ref());
        if let Some(spec) = &spec {
            let at = full_path(at, "spec");
            self.unsupported(node, path, support::of_media(&at, spec));
        }
        let (pod, mut errors) = admit_with_account(ApiPod { metadata, spec, ..ApiPod::default() });
        for error in &mut errors {
            error.field = full_path(at, &error.field);
        }
        template.spec = pod.spec;
        errors
    }
}
