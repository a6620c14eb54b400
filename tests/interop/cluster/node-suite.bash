# shellcheck shell=bash disable=SC2154 # the scripts set $work, $bin, $crib and $reports
# Sourced by e2e-node and guest-job: the files that the node suite of Kubernetes needs, and a run of the suite.

# write_suite DRIVER [LINE…]: writes $work/suite: the kubelet under test, the suite, and a KubeletConfiguration with the cgroup driver and
# the lines, otherwise as test/e2e_node/jenkins/default-kubelet-config.yaml.
write_suite() {
  mkdir -p "$work/suite"
  if [[ -n ${CRIB_GO_KUBELET:-} ]]; then
    ln -s "$bin/kubelet" "$work/suite/kubelet"
  else
    printf '#!/bin/bash\nexec -a "$0" %q kubelet "$@"\n' "$crib" >"$work/suite/kubelet"
    chmod +x "$work/suite/kubelet"
  fi
  ln -s "$bin/e2e_node.test" "$work/suite/"
  cat >"$work/suite/base.yaml" <<CONFIG
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failSwapOn: false
cgroupDriver: $1
cgroupRoot: /
volumePluginDir: $work/tmp
volumeStatsAggPeriod: 10s
fileCheckFrequency: 10s
serializeImagePulls: false
evictionPressureTransitionPeriod: 30s
evictionHard: {memory.available: 250Mi, nodefs.available: 1%, nodefs.inodesFree: 1%}
evictionMinimumReclaim: {nodefs.available: 1%, nodefs.inodesFree: 1%}
CONFIG
  shift
  printf '%s\n' "$@" >>"$work/suite/base.yaml"
  # The suite does not check the configuration of these machines' kernels.
  echo 'os: Linux' >"$work/suite/system.yaml"
}

# run_suite NODE_IP ENDPOINT RUNTIME_CGROUP [GINKGO-FLAG…]: prints the failures and the counts, and returns the suite's exit code. Without
# flags, the specs with the label NodeConformance run. CRIB_SERVER_START is how long the suite waits for its API server.
run_suite() {
  local node_ip=$1 endpoint=$2 runtime_cgroup=$3 result=0
  shift 3
  (($#)) || set -- --label-filter NodeConformance
  "$bin/ginkgo" --procs 4 --timeout 3h --silence-skips --no-color --json-report report.json --output-dir "$reports" "$@" \
    "$work/suite/e2e_node.test" -- --k8s-bin-dir "$work/suite" --report-dir "$reports" --container-runtime-endpoint "$endpoint" \
    --prepull-images=false --server-start-timeout "${CRIB_SERVER_START:-2m}" --system-spec-file "$work/suite/system.yaml" \
    --kubelet-config-file "$work/suite/base.yaml" \
    --kubelet-flags="--node-ip $node_ip --runtime-cgroups $runtime_cgroup" ${CRIB_STANDALONE:+--standalone-mode} \
    >"$reports/output.log" 2>&1 || result=$?
  sed -n '/^Summarizing/,$p' "$reports/output.log"
  grep -aE '^Ran [0-9]+ of|Passed \|' "$reports/output.log"
  return "$result"
}
