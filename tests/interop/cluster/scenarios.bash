# shellcheck shell=bash disable=SC2016 # scripts of containers
# Sourced by `compare`: the scenarios for its nodes. A scenario runs in its own namespace ($namespace; `n` is kubectl in it), whose
# pods are deleted at its end. Each state lasts longer than a kubelet's relist period, one second, so that both nodes observe it.

# pod NAME SPEC: creates a pod with this spec, in which IMAGE stands for an image that always exists.
pod() {
  printf 'apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec: {terminationGracePeriodSeconds: 5, %s}\n' "$1" \
    "${2//IMAGE/image: crib.local/host, imagePullPolicy: IfNotPresent}" | n create -f -
}
# runs NAME SECONDS [STATUS]: prints a container that runs for this time and exits with the status.
runs() { printf '{name: %s, IMAGE, command: [sh, -c, "sleep %s; exit %s"]}' "$1" "$2" "${3:-0}"; }
polite='command: [sh, -c, "trap \"exit 0\" TERM; while :; do sleep 0.1; done"]'
# becomes POD PATH VALUE: waits until a field has this value.
becomes() { n wait "pod/$1" --for "jsonpath={$2}=$3" --timeout 90s; }
phase() { becomes "$1" .status.phase "$2"; }
ready() { n wait "pod/$1" --for condition=Ready --timeout 60s; }
waiting() { becomes "$1" '.status.containerStatuses[0].state.waiting.reason' "$2"; }
restarts() { becomes "$1" '.status.containerStatuses[0].restartCount' "$2"; }
reported() { within 60 n_reported "$1" "$2"; }
n_reported() { n get events --field-selector "involvedObject.name=$1" | grep -q "$2"; }

scenario_succeeds() {
  pod p "restartPolicy: Never, containers: [$(runs app 3)]"
  phase p Succeeded
}
scenario_fails() {
  pod p "restartPolicy: Never, containers: [$(runs app 3 3), $(runs other 6)]"
  phase p Failed
}
scenario_crash_loop() {
  pod p "containers: [$(runs app 3 1)]"
  restarts p 2
  waiting p CrashLoopBackOff
}
scenario_init_containers() {
  pod p "restartPolicy: OnFailure, initContainers: [$(runs one 3), $(runs two 3)], containers: [$(runs app 3)]"
  phase p Succeeded
}
scenario_init_fails() {
  pod p "restartPolicy: Never, initContainers: [$(runs one 3 7)], containers: [$(runs app 3)]"
  phase p Failed
}
scenario_sidecar() {
  pod p "restartPolicy: Never, initContainers: [{name: side, IMAGE, restartPolicy: Always, $polite}], containers: [$(runs app 3)]"
  phase p Succeeded
}
scenario_graceful_delete() {
  pod p 'containers: [{name: app, IMAGE, command: [sh, -c, "trap \"sleep 3; exit 4\" TERM; while :; do sleep 0.1; done"]}]'
  ready p
  n delete pod p --timeout 60s
}
scenario_killed_after_grace_period() {
  pod p 'containers: [{name: app, IMAGE, command: [sh, -c, "trap : TERM; while :; do sleep 0.1; done"]}]'
  ready p
  n delete pod p --grace-period 3 --timeout 60s
}
scenario_force_delete() {
  pod p "containers: [{name: app, IMAGE, $polite}]"
  ready p
  n delete pod p --force
  sleep 4
}
scenario_config() {
  n create configmap settings --from-literal color=blue
  n create secret generic login --from-literal password=s3cret
  pod p 'restartPolicy: Never, volumes: [{name: c, configMap: {name: settings}}, {name: s, secret: {secretName: login}}], containers: [{name: app, IMAGE,
    command: [sh, -c, "test $(cat /c/color)$(cat /s/password)$COLOR$PASSWORD = blues3cretblues3cret && sleep 3"],
    volumeMounts: [{name: c, mountPath: /c}, {name: s, mountPath: /s}],
    env: [{name: COLOR, valueFrom: {configMapKeyRef: {name: settings, key: color}}}, {name: PASSWORD, valueFrom: {secretKeyRef: {name: login, key: password}}}]}]'
  phase p Succeeded
}
scenario_missing_volume() {
  pod p "volumes: [{name: c, configMap: {name: later}}], containers: [{name: app, IMAGE, volumeMounts: [{name: c, mountPath: /c}], $polite}]"
  reported p FailedMount
  n create configmap later --from-literal color=blue
  ready p
}
scenario_missing_variable() {
  pod p "containers: [{name: app, IMAGE, $polite, env: [{name: COLOR, valueFrom: {configMapKeyRef: {name: later, key: color}}}]}]"
  waiting p CreateContainerConfigError
  n create configmap later --from-literal color=blue
  ready p
}
scenario_bad_image() {
  pod p 'containers: [{name: app, image: "localhost:1/none:1"}]'
  waiting p ImagePullBackOff
}
scenario_image_is_never_pulled() {
  pod p 'containers: [{name: app, image: "localhost:1/none:1", imagePullPolicy: Never}]'
  waiting p ErrImageNeverPull
}
scenario_invalid_image_name() {
  pod p 'containers: [{name: app, image: "Not/A:Name"}]'
  waiting p InvalidImageName
}
scenario_bad_command() {
  pod p 'restartPolicy: Never, containers: [{name: app, IMAGE, command: [/no/such/program]}]'
  phase p Failed
}
scenario_readiness_gate() {
  pod p "readinessGates: [{conditionType: example.com/Gate}], containers: [{name: app, IMAGE, $polite}]"
  becomes p '.status.containerStatuses[0].ready' true
  sleep 2
  n patch pod p --subresource status --patch '{"status": {"conditions": [{"type": "example.com/Gate", "status": "True"}]}}'
  ready p
}
scenario_ephemeral_container() {
  pod p "containers: [{name: app, IMAGE, $polite}]"
  ready p
  n patch pod p --subresource ephemeralcontainers \
    --patch '{"spec": {"ephemeralContainers": [{"name": "debug", "image": "crib.local/host", "imagePullPolicy": "IfNotPresent", "command": ["sleep", "3"]}]}}'
  becomes p '.status.ephemeralContainerStatuses[0].state.terminated.exitCode' 0
}
scenario_static_pod() {
  printf 'apiVersion: v1\nkind: Pod\nmetadata: {name: fixed, namespace: %s}\nspec: {terminationGracePeriodSeconds: 5, %s}\n' "$namespace" \
    "containers: [{name: app, image: crib.local/host, imagePullPolicy: IfNotPresent, $polite}]" >"$work/static.new"
  mv "$work/static.new" "$work/static/fixed.yaml"
  exists() { n get pod fixed-n1; }
  within 60 exists
  ready fixed-n1
  rm "$work/static/fixed.yaml"
  n wait pod/fixed-n1 --for delete --timeout 90s
}
scenario_job() {
  n create job once --image crib.local/host -- sh -c 'sleep 3'
  n wait job/once --for condition=Complete --timeout 60s
}
scenario_deadline() {
  pod p "activeDeadlineSeconds: 4, containers: [{name: app, IMAGE, $polite}]"
  phase p Failed
}
scenario_host_network() {
  pod p "restartPolicy: Never, hostNetwork: true, containers: [$(runs app 3)]"
  phase p Succeeded
}
scenario_pre_stop() {
  pod p "containers: [{name: app, IMAGE, $polite, lifecycle: {preStop: {exec: {command: [sleep, '3']}}}}, {name: other, IMAGE, $polite, lifecycle: {preStop: {exec: {command: [sh, -c, 'exit 3']}}}}]"
  ready p
  n delete pod p --timeout 60s
}
scenario_post_start_fails() {
  pod p "restartPolicy: Never, containers: [{name: app, IMAGE, $polite, lifecycle: {postStart: {exec: {command: [sh, -c, 'sleep 2; exit 3']}}}}]"
  phase p Succeeded
}
scenario_liveness() {
  pod p "containers: [{name: app, IMAGE, $polite, livenessProbe: {exec: {command: [sh, -c, 'exit 1']}, initialDelaySeconds: 3, periodSeconds: 1, failureThreshold: 1}}]"
  restarts p 1
}
scenario_probes() {
  pod p "containers: [{name: app, IMAGE, command: [sh, -c, 'sleep 3; touch /tmp/up; sleep 3; touch /tmp/ready; sleep 3; rm /tmp/ready; sleep 3600'],
    startupProbe: {exec: {command: [test, -e, /tmp/up]}, periodSeconds: 1, failureThreshold: 30},
    readinessProbe: {exec: {command: [test, -e, /tmp/ready]}, periodSeconds: 1, failureThreshold: 1}}]"
  ready p
  n wait pod/p --for condition=Ready=false --timeout 60s
}
scenario_token() {
  n create serviceaccount robot
  pod p "serviceAccountName: robot, volumes: [{name: t, projected: {sources: [{serviceAccountToken: {path: token, audience: vault, expirationSeconds: 600}}]}}],
    containers: [{name: app, IMAGE, $polite, volumeMounts: [{name: t, mountPath: /t}]}]"
  ready p
}
scenario_finalizer() {
  pod p "restartPolicy: Never, containers: [$(runs app 3)]"
  n patch pod p --patch '{"metadata": {"finalizers": ["example.com/held"]}}'
  phase p Succeeded
  n delete pod p --wait=false
  sleep 4
  n patch pod p --patch '{"metadata": {"finalizers": null}}'
}
scenario_node_selector() {
  pod p "nodeName: n1, nodeSelector: {disk: none}, containers: [$(runs app 3)]"
  phase p Failed
}
scenario_node_affinity() {
  pod p "nodeName: n1, affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: disk, operator: In, values: [ssd]}]}]}}}, containers: [$(runs app 3)]"
  phase p Failed
}
scenario_too_large() {
  pod p "nodeName: n1, containers: [{name: app, IMAGE, $polite, resources: {requests: {cpu: 9000, memory: 900Ti}}}]"
  phase p Failed
}
scenario_host_port_is_taken() {
  pod first "containers: [{name: app, IMAGE, $polite, ports: [{containerPort: 80, hostPort: 8088}]}]"
  ready first
  pod second "nodeName: n1, containers: [{name: app, IMAGE, $polite, ports: [{containerPort: 80, hostPort: 8088}]}]"
  phase second Failed
}
scenario_forbidden_sysctl() {
  pod p "securityContext: {sysctls: [{name: kernel.msgmax, value: '65536'}]}, containers: [$(runs app 3)]"
  phase p Failed
}
scenario_node_label() {
  k label node n1 compared=yes
  pod p "restartPolicy: Never, nodeName: n1, nodeSelector: {compared: 'yes'}, containers: [$(runs app 3)]"
  phase p Succeeded
  k label node n1 compared-
}
scenario_unknown_runtime_class() {
  printf 'apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: vm}\nhandler: kata\n' | n create -f -
  pod p "runtimeClassName: vm, containers: [$(runs app 3)]"
  reported p FailedCreatePodSandBox
}
scenario_evicted_by_the_api() {
  pod p "containers: [{name: app, IMAGE, $polite}]"
  ready p
  printf '{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}' >"$work/$namespace.json"
  n create --raw "/api/v1/namespaces/$namespace/pods/p/eviction" -f "$work/$namespace.json"
  n wait pod/p --for delete --timeout 60s
}
scenario_deleted_while_pulling() {
  pod p "initContainers: [$(runs one 60)], containers: [$(runs app 60)]"
  becomes p '.status.initContainerStatuses[0].started' true
  n delete pod p --grace-period 1 --timeout 60s
}
scenario_termination_message() {
  pod p "restartPolicy: Never, containers: [{name: app, IMAGE, command: [sh, -c, 'sleep 3; echo last words >/dev/termination-log; exit 1']},
    {name: logs, IMAGE, terminationMessagePolicy: FallbackToLogsOnError, command: [sh, -c, 'sleep 3; echo last line; exit 1']}]"
  phase p Failed
}
scenario_restart_rules() {
  pod p "restartPolicy: Never, containers: [{name: app, IMAGE, command: [sh, -c, 'sleep 3; exit 42'], restartPolicy: Never,
    restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [42]}}]}]"
  restarts p 1
}
scenario_annotated() {
  pod p "containers: [{name: app, IMAGE, $polite}]"
  ready p
  n annotate pod p note=yes
  n label pod p color=blue
  sleep 3
}
scenario_image_is_replaced() {
  pod p "containers: [{name: app, IMAGE, $polite}]"
  ready p
  n patch pod p --patch '{"spec": {"containers": [{"name": "app", "image": "crib.local/behave/start-takes-1ms"}]}}'
  restarts p 1
}
scenario_volumes() {
  pod p "restartPolicy: Never, volumes: [{name: e, emptyDir: {}}, {name: m, emptyDir: {medium: Memory}}, {name: h, hostPath: {path: /no/such, type: Directory}}],
    containers: [{name: app, IMAGE, $polite, volumeMounts: [{name: e, mountPath: /e}, {name: h, mountPath: /h}]}]"
  reported p FailedMount
}
scenario_all_containers_are_restarted() {
  pod p "restartPolicy: Never, initContainers: [$(runs one 2)], containers: [{name: app, IMAGE, $polite}, {name: other, IMAGE,
    command: [sh, -c, 'sleep 4; exit 42'], restartPolicy: Never, restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [42]}}]}]"
  restarts p 1
}
scenario_sidecar_restarts() {
  pod p "initContainers: [{name: side, IMAGE, restartPolicy: Always, command: [sh, -c, 'sleep 4; exit 1']}], containers: [{name: app, IMAGE, $polite}]"
  becomes p '.status.initContainerStatuses[0].restartCount' 1
}
scenario_claim() {
  printf 'apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: compared}\nspec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce],
  storageClassName: "", claimRef: {namespace: %s, name: data}, hostPath: {path: /tmp}}\n' "$namespace" | n create -f -
  printf 'apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\nspec: {accessModes: [ReadWriteOnce], storageClassName: "",
  volumeName: compared, resources: {requests: {storage: 1Gi}}}\n' | n create -f -
  n wait pvc/data --for jsonpath='{.status.phase}'=Bound --timeout 60s
  pod p "volumes: [{name: d, persistentVolumeClaim: {claimName: data}}], containers: [{name: app, IMAGE, $polite, volumeMounts: [{name: d, mountPath: /d}]}]"
  ready p
}
scenario_stateful_set() {
  printf 'apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: web}\nspec: {replicas: 2, serviceName: web, selector: {matchLabels: {app: web}},
  template: {metadata: {labels: {app: web}}, spec: {terminationGracePeriodSeconds: 1, containers: [{name: app, %s, %s}]}}}\n' \
    'image: crib.local/host, imagePullPolicy: IfNotPresent' "$polite" | n create -f -
  n rollout status statefulset/web --timeout 90s
  n scale statefulset/web --replicas 0
  n wait pods --all --for delete --timeout 60s
}
scenario_downward_api() {
  pod p "restartPolicy: Never, volumes: [{name: d, downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}], containers: [{name: app, IMAGE,
    command: [sh, -c, 'test \$NAME\$(cat /d/name) = pp && test -n \"\$NODE\$IP\" && sleep 3'], volumeMounts: [{name: d, mountPath: /d}],
    env: [{name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}, {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}},
      {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]}]"
  phase p Succeeded
}
scenario_runs_as_root() {
  pod p "containers: [{name: app, IMAGE, $polite, securityContext: {runAsNonRoot: true}}]"
  waiting p CreateContainerConfigError
}
scenario_pull_secret_is_missing() {
  pod p "imagePullSecrets: [{name: none}], containers: [{name: app, IMAGE, $polite}]"
  ready p
  reported p FailedToRetrieveImagePullSecret
}
scenario_service_variables() {
  n create service clusterip web --tcp 80
  pod p "restartPolicy: Never, containers: [{name: app, IMAGE, command: [sh, -c, 'test \$WEB_SERVICE_PORT = 80 && sleep 3']}]"
  phase p Succeeded
}
