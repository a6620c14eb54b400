//! ◆ The fields of objects that create pods.

use super::{Type, all, done, no_effect, some, warned};

const STATUS: &str = "the controller finds it out";
const NO_UPDATES: &str = "the object does not change while `crib run` runs";
const NO_ROLLOUT: &str = "there is no earlier version of the pods to replace";

pub(super) const TYPES: &[Type] = &[
    some(
        "Deployment",
        "apiVersion kind metadata spec",
        &[no_effect("status", STATUS)],
    ),
    some(
        "DeploymentSpec",
        "replicas selector template",
        &[
            no_effect("minReadySeconds", NO_ROLLOUT),
            warned("paused", "has no effect: the pods are started all the same"),
            no_effect("progressDeadlineSeconds", NO_ROLLOUT),
            no_effect("revisionHistoryLimit", NO_UPDATES),
            no_effect("strategy", NO_ROLLOUT),
        ],
    ),
    some(
        "ReplicaSet",
        "apiVersion kind metadata spec",
        &[no_effect("status", STATUS)],
    ),
    some(
        "ReplicaSetSpec",
        "replicas selector template",
        &[no_effect("minReadySeconds", "nothing waits for it")],
    ),
    some(
        "DaemonSet",
        "apiVersion kind metadata spec",
        &[no_effect("status", STATUS)],
    ),
    some(
        "DaemonSetSpec",
        "selector template",
        &[
            no_effect("minReadySeconds", NO_ROLLOUT),
            no_effect("revisionHistoryLimit", NO_UPDATES),
            no_effect("updateStrategy", NO_ROLLOUT),
        ],
    ),
    some(
        "StatefulSet",
        "apiVersion kind metadata spec",
        &[no_effect("status", STATUS)],
    ),
    some(
        "StatefulSetSpec",
        "minReadySeconds ordinals persistentVolumeClaimRetentionPolicy podManagementPolicy replicas selector serviceName \
         template volumeClaimTemplates",
        &[
            no_effect("revisionHistoryLimit", NO_UPDATES),
            no_effect("updateStrategy", NO_ROLLOUT),
        ],
    ),
    all("StatefulSetOrdinals", "start"),
    some(
        "StatefulSetPersistentVolumeClaimRetentionPolicy",
        "",
        &[
            done(
                "whenDeleted",
                "`Retain`; a warning that the claims are kept: `Delete`",
            ),
            no_effect("whenScaled", NO_UPDATES),
        ],
    ),
    some(
        "Job",
        "apiVersion kind metadata spec",
        &[no_effect("status", STATUS)],
    ),
    some(
        "JobSpec",
        "activeDeadlineSeconds backoffLimit backoffLimitPerIndex completionMode completions managedBy manualSelector \
         maxFailedIndexes parallelism podFailurePolicy podReplacementPolicy selector successPolicy template",
        &[
            done(
                "suspend",
                "no pod is started, and `crib run` does not wait for the Job",
            ),
            no_effect(
                "ttlSecondsAfterFinished",
                "everything is removed when `crib run` ends",
            ),
        ],
    ),
    some(
        "CronJob",
        "apiVersion kind metadata spec",
        &[no_effect("status", STATUS)],
    ),
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
    all(
        "PodFailurePolicyOnExitCodesRequirement",
        "containerName operator values",
    ),
    all("PodFailurePolicyOnPodConditionsPattern", "status type"),
    all("SuccessPolicy", "rules"),
    all("SuccessPolicyRule", "succeededCount succeededIndexes"),
    all("PodTemplateSpec", "metadata spec"),
    all("LabelSelector", "matchExpressions matchLabels"),
    all("LabelSelectorRequirement", "key operator values"),
];
