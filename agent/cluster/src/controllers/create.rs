//! ◆ The pods of each kind: their names, labels, and additions to the template's spec. Pure.

use api::manifest::storage::mount_claims;
use api::manifest::{Workload, WorkloadObject};
use api::pod::Pod;
use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector, PodSpec};

use super::daemon_set;
use super::template::{self, Additions, Owner};
use api::generated_names::{GeneratedNames, template_hash};

/// The annotation and label of a pod's completion index.
const COMPLETION_INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// Creates the pods of one object.
#[derive(Debug)]
pub(super) struct Creator {
    owner: Owner,
    /// A hash of the template.
    hash: String,
}

impl Creator {
    pub(super) fn new(workload: &Workload) -> Self {
        let hash = template_hash(&workload.template_json());
        let (api_version, kind) = workload.kind();
        let uid = workload.metadata().uid.clone().unwrap_or_default();
        let mut owner = Owner {
            api_version,
            kind,
            name: workload.name().to_owned(),
            uid,
            namespace: workload.namespace().to_owned(),
            origin: workload.origin.clone(),
        };
        // The pods of a Deployment are owned by its ReplicaSet.
        if let WorkloadObject::Deployment(_) = workload.object {
            owner.kind = "ReplicaSet";
            owner.name = format!("{}-{hash}", owner.name);
            owner.uid = format!("{}-{hash}", owner.uid);
        }
        Self { owner, hash }
    }

    /// The hash of the template.
    pub(super) fn revision(&self) -> &str {
        &self.hash
    }

    /// A new pod, with this ordinal or completion index.
    pub(super) fn pod(
        &self,
        workload: &Workload,
        index: Option<u32>,
        names: &mut GeneratedNames,
    ) -> Pod {
        let owner = &self.owner;
        let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let mut additions = Additions::default();
        let labels = &mut additions.labels;
        let mut name = None;
        match &workload.object {
            WorkloadObject::Job(_) => {
                for prefix in ["", "batch.kubernetes.io/"] {
                    labels.push(label(&format!("{prefix}controller-uid"), &owner.uid));
                    labels.push(label(&format!("{prefix}job-name"), &owner.name));
                }
                if let Some(index) = index {
                    let index = index.to_string();
                    labels.push(label(COMPLETION_INDEX, &index));
                    additions.annotations.push(label(COMPLETION_INDEX, &index));
                    additions.hostname = Some(format!("{}-{index}", owner.name));
                    // A long name of the Job is cut before the index.
                    let short: String = owner.name.chars().take(56 - index.len()).collect();
                    name = Some(names.generate(&format!("{short}-{index}-")));
                }
            }
            WorkloadObject::Deployment(_) => {
                labels.push(label("pod-template-hash", &self.hash));
            }
            WorkloadObject::ReplicaSet(_)
            | WorkloadObject::ReplicationController(_)
            | WorkloadObject::CronJob(_) => {}
            WorkloadObject::DaemonSet(_) => {
                labels.push(label("controller-revision-hash", &self.hash));
                labels.push(label("pod-template-generation", "1"));
            }
            WorkloadObject::StatefulSet(_) => {
                let index = index.unwrap_or_default().to_string();
                let own = format!("{}-{index}", owner.name);
                let revision = format!("{}-{}", owner.name, self.hash);
                labels.push(label("controller-revision-hash", &revision));
                labels.push(label("statefulset.kubernetes.io/pod-name", &own));
                labels.push(label("apps.kubernetes.io/pod-index", &index));
                additions.hostname = Some(own.clone());
                name = Some(own);
            }
        }
        let name = name.unwrap_or_else(|| names.generate(&format!("{}-", owner.name)));
        let uid = names.uid(&owner.uid, &name);
        let template = workload.template().cloned().unwrap_or_default();
        template::pod(&template, owner, (name.clone(), uid), additions, |spec| {
            edit(&workload.object, index, &name, spec);
        })
    }
}

/// Adds the controller's fields to the spec of a pod.
fn edit(object: &WorkloadObject, index: Option<u32>, name: &str, spec: &mut PodSpec) {
    match object {
        WorkloadObject::Job(_) if index.is_some() => completion_index(spec),
        WorkloadObject::DaemonSet(_) => daemon_set::tolerate(spec),
        WorkloadObject::StatefulSet(set) => {
            let templates = set.spec.as_ref();
            let templates = templates.and_then(|spec| spec.volume_claim_templates.as_deref());
            mount_claims(spec, templates.unwrap_or_default(), name);
            let service = set.spec.as_ref().and_then(|spec| spec.service_name.clone());
            spec.subdomain = service.filter(|name| !name.is_empty()).or(spec.subdomain.take());
        }
        WorkloadObject::Job(_)
        | WorkloadObject::CronJob(_)
        | WorkloadObject::Deployment(_)
        | WorkloadObject::ReplicaSet(_)
        | WorkloadObject::ReplicationController(_) => {}
    }
}

/// Passes the completion index to every container.
fn completion_index(spec: &mut PodSpec) {
    const NAME: &str = "JOB_COMPLETION_INDEX";
    let inits = spec.init_containers.iter_mut().flatten();
    for container in inits.chain(&mut spec.containers) {
        let env = container.env.get_or_insert_default();
        if env.iter().any(|variable| variable.name == NAME) {
            continue;
        }
        env.push(EnvVar {
            name: NAME.to_owned(),
            value_from: Some(EnvVarSource {
                field_ref: Some(ObjectFieldSelector {
                    api_version: None,
                    field_path: format!("metadata.labels['{COMPLETION_INDEX}']"),
                }),
                ..EnvVarSource::default()
            }),
            ..EnvVar::default()
        });
    }
}
