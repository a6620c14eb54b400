//! ◆ The fields of objects that create pods.

use super::{Type, all, done, no_effect, some, warned};

const STATUS: &str = "the controller determines the status";
const ROLLOUT: &str = "applies when `crib run --watch` detects a changed template";
const NO_UPDATES: &str = "crib keeps no earlier revisions";

pub(super) const TYPES: &[Type] = &[
    some("Deployment", "apiVersion kind metadata spec", &[no_effect("status", STATUS)]),
    some(
        "DeploymentSpec",
        "minReadySeconds progressDeadlineSeconds replicas revisionHistoryLimit selector template",
        &[
            warned("paused", "has no effect: crib starts the pods anyway"),
            done("strategy", ROLLOUT),
        ],
    ),
    some("ReplicaSet", "apiVersion kind metadata spec", &[no_effect("status", STATUS)]),
    some(
        "ReplicaSetSpec",
        "replicas selector template",
        &[no_effect("minReadySeconds", "crib does not wait for `minReadySeconds`")],
    ),
    some("ReplicationController", "apiVersion kind metadata spec", &[no_effect("status", STATUS)]),
    some(
        "ReplicationControllerSpec",
        "replicas selector template",
        &[no_effect("minReadySeconds", "crib does not wait for `minReadySeconds`")],
    ),
    some("DaemonSet", "apiVersion kind metadata spec", &[no_effect("status", STATUS)]),
    some(
        "DaemonSetSpec",
        "selector template",
        &[
            no_effect("minReadySeconds", "there is one node and one pod"),
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
        &[no_effect("maxSurge", "crib ends the old pod before it starts the new one")],
    ),
    all("StatefulSetUpdateStrategy", "rollingUpdate type"),
    some(
        "RollingUpdateStatefulSetStrategy",
        "partition",
        &[no_effect("maxUnavailable", "crib replaces pods one at a time")],
    ),
    some(
        "StatefulSetPersistentVolumeClaimRetentionPolicy",
        "",
        &[
            done("whenDeleted", "only `Retain`; crib warns about `Delete`, and keeps the claims"),
            no_effect("whenScaled", "crib always keeps the claims"),
        ],
    ),
    some("Job", "apiVersion kind metadata spec", &[no_effect("status", STATUS)]),
    some(
        "JobSpec",
        "activeDeadlineSeconds backoffLimit backoffLimitPerIndex completionMode completions managedBy manualSelector \
         maxFailedIndexes parallelism podFailurePolicy podReplacementPolicy selector successPolicy template",
        &[
            done(
                "suspend",
                "`crib run` starts no pod of a suspended Job, and does not wait for it",
            ),
            no_effect("ttlSecondsAfterFinished", "`crib run` removes everything when it ends"),
        ],
    ),
    some("CronJob", "apiVersion kind metadata spec", &[no_effect("status", STATUS)]),
    some(
        "CronJobSpec",
        "concurrencyPolicy failedJobsHistoryLimit jobTemplate schedule startingDeadlineSeconds successfulJobsHistoryLimit",
        &[
            done(
                "suspend",
                "`crib run` starts a Job of a suspended CronJob only with `--now`, and otherwise does not wait for the CronJob",
            ),
            done("timeZone", "the default is UTC"),
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
