//! ◆ The fields of containers.

use super::{Type, all, no_effect, refused, some};

pub(super) const TYPES: &[Type] = &[
    some(
        "Container",
        "args command env envFrom image imagePullPolicy lifecycle livenessProbe name ports readinessProbe resizePolicy \
         resources restartPolicy restartPolicyRules securityContext startupProbe stdin stdinOnce terminationMessagePath \
         terminationMessagePolicy tty volumeMounts workingDir",
        &[refused(
            "volumeDevices",
            "block devices are not supported yet: use volumeMounts and volumeMode Filesystem, or mount the device with a hostPath volume",
        )],
    ),
    all("ContainerPort", "containerPort hostIP hostPort name protocol"),
    all("ContainerResizePolicy", "resourceName restartPolicy"),
    all("ContainerRestartRule", "action exitCodes"),
    all("ContainerRestartRuleOnExitCodes", "operator values"),
    all("EnvVar", "name value valueFrom"),
    all("EnvVarSource", "configMapKeyRef fieldRef fileKeyRef resourceFieldRef secretKeyRef"),
    all("ConfigMapKeySelector", "key name optional"),
    all("SecretKeySelector", "key name optional"),
    all("FileKeySelector", "key optional path volumeName"),
    all("ObjectFieldSelector", "apiVersion fieldPath"),
    all("ResourceFieldSelector", "containerName divisor resource"),
    all("EnvFromSource", "configMapRef prefix secretRef"),
    all("ConfigMapEnvSource", "name optional"),
    all("SecretEnvSource", "name optional"),
    all("Lifecycle", "postStart preStop stopSignal"),
    some(
        "LifecycleHandler",
        "exec httpGet sleep",
        &[no_effect("tcpSocket", "the kubelet ignores this handler too")],
    ),
    all(
        "Probe",
        "exec failureThreshold grpc httpGet initialDelaySeconds periodSeconds successThreshold tcpSocket \
         terminationGracePeriodSeconds timeoutSeconds",
    ),
    all("ExecAction", "command"),
    all("GRPCAction", "port service"),
    all("HTTPGetAction", "host httpHeaders path port scheme"),
    all("HTTPHeader", "name value"),
    all("SleepAction", "seconds"),
    all("TCPSocketAction", "host port"),
    some(
        "ResourceRequirements",
        "limits requests",
        &[refused(
            "claims",
            "not supported yet: mount a device of this machine with a hostPath volume into a privileged container",
        )],
    ),
    some(
        "SecurityContext",
        "allowPrivilegeEscalation appArmorProfile capabilities privileged procMount readOnlyRootFilesystem runAsGroup \
         runAsNonRoot runAsUser seLinuxOptions seccompProfile",
        &[no_effect("windowsOptions", "pods run on Linux")],
    ),
    all("AppArmorProfile", "localhostProfile type"),
    all("Capabilities", "add drop"),
    all("SELinuxOptions", "level role type user"),
    all("SeccompProfile", "localhostProfile type"),
    all(
        "VolumeMount",
        "mountPath mountPropagation name readOnly recursiveReadOnly subPath subPathExpr",
    ),
];
