//! ◆ The fields of objects that create pods.

use super::{Type, all, done, no_effect, some, warned};

const STATUS: &str = "the controller finds it out";
const ROLLOUT: &str = "when `crib run --watch` sees that the template changed";
const NO_UPDATES: &str = "no earlier version is kept";

pub(super) const TYPES: &[Type] = &[
    some("Deployment", "apiVersion kind metadata spec", &[no_effect("status", STATUS)]),
    some(
        "DeploymentSpec",
        "minReadySeconds progressDeadlineSeconds replicas revisionHistoryLimit selector template",
        &[
            warned("paused", "has no effect: the pods are started all the same"),
            done("strategy", ROLLOUT),
        ],
    ),
    some("ReplicaSet", "apiVersion kind metadata spec", &[no_effect("status", STATUS)]),
    some(
        "ReplicaSetSpec",
        "replicas selector template",
        &[no_effect("minReadySeconds", "nothing waits for it")],
    ),
    some("ReplicationController", "apiVersion kind metadata spec", &[no_effect("status", STATUS)]),
    some(
        "ReplicationControllerSpec",
        "replicas selector template",
        &[no_effect("minReadySeconds", "nothing waits for it")],
    ),
    some("DaemonSet", "apiVersion kind metadata spec", &[no_effect("status", STATUS)]),
    some(
        "DaemonSetSpec",
        "selector template",
        &[
            no_effect("minReadySeconds", "there is one node, and one pod"),
            no_effect("revisionHistoryLimit", NO_UPDATES),
            done("updateStrategy", ROLLOUT),
        ],
    ),
    some("StatefulSet", "apiVersion kind metadata spec", &[no_effect("status", STATUS)]),
    some(
        "StatefulSetSpec",
        "minReadySeconds ordinals persistentVolumeClaimRetentionPolicy podManagementPolicy replicas selector serviceName \
         template volumeClaimTemplates",
        &[no_effect("revisionHistoryLimit", NO_UPDATES), done("updateStrategy", ROLLOUT)],
    ),
    all("StatefulSetOrdinals", "start"),
    all("DeploymentStrategy", "rollingUpdate type"),
    all("RollingUpdateDeployment", "maxSurge maxUnavailable"),
    all("DaemonSetUpdateStrategy", "rollingUpdate type"),
    some(
        "RollingUpdateDaemonSet",
        "maxUnavailable",
        &[no_effect("maxSurge", "the pod ends before the next one starts")],
    ),
    all("StatefulSetUpdateStrategy", "rollingUpdate type"),
    some(
        "RollingUpdateStatefulSetStrategy",
        "partition",
        &[no_effect("maxUnavailable", "pods are replaced one by one")],
    ),
    some(
        "StatefulSetPersistentVolumeClaimRetentionPolicy",
        "",
        &[
            done("whenDeleted", "`Retain`; a warning that the claims are kept: `Delete`"),
            no_effect("whenScaled", "claims are kept"),
        ],
    ),
    some("Job", "apiVersion kind metadata spec", &[no_effect("status", STATUS)]),
    some(
        "JobSpec",
        "activeDeadlineSeconds backoffLimit backoffLimitPerIndex completionMode completions managedBy manualSelector \
         maxFailedIndexes parallelism podFailurePolicy podReplacementPolicy selector successPolicy template",
        &[
            done("suspend", "no pod is started, and `crib run` does not wait for the Job"),
            no_effect("ttlSecondsAfterFinished", "everything is removed when `crib run` ends"),
        ],
    ),
    some("CronJob", "apiVersion kind metadata spec", &[no_effect("status", STATUS)]),
    some(
        "CronJobSpec",
        "concurrencyPolicy failedJobsHistoryLimit jobTemplate schedule startingDeadlineSeconds successfulJobsHistoryLimit",
        &[
            done(
                "suspend",
                "no Job is started, unless `crib run --now` says so, and `crib run` does not wait for the CronJob",
            ),
            done("timeZone", "without it the schedule is in UTC"),
        ],
    ),
    all("JobTemplateSpec", "metadata spec"),
    all("PodFailurePolicy", "rules"),
    all("PodFailurePolicyRule", "action onExitCodes onPodConditions"),
    all("PodFailurePolicyOnExitCodesRequirement", "containerName operator values"),
    all("PodFailurePolicyOnPodConditionsPattern", "status type"),
    all("SuccessPolicy", "rules"),
    all("SuccessPolicyRule", "succeededCount succeededIndexes"),
    all("PodTemplateSpec", "metadata spec"),
    all("LabelSelector", "matchExpressions matchLabels"),
    all("LabelSelectorRequirement", "key operator values"),
];
