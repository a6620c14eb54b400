# shellcheck shell=bash disable=SC2034,SC2154 # the rest is in helpers.bash of CRI-O's tests
# Sourced by CRI-O's tests after their own helpers.bash. Replaces the functions that start crio by ones that start
# `crib runtime` on the test's socket and in its directory. Functions that configure CRI-O do nothing.

setup_crio() {
  CNI_DEFAULT_NETWORK=${CNI_DEFAULT_NETWORK:-crio}
  CNI_TYPE=${CNI_TYPE:-bridge}
  prepare_network_conf
}

start_crio_no_setup() {
  local image config=$TESTDIR/crib.yaml
  # The only option that is passed on: the directories of CDI specifications.
  printf 'cdi:\n  spec_dirs: [%s]\n' "$TESTDIR/cdi" >"$config"
  "$CRIB" runtime --listen "unix://$CRIO_SOCKET" --state-dir "$TESTDIR/crib" --registry-mirror "*=http://$CRIB_REGISTRY" --config "$config" \
    --cni-conf-dir "$CRIO_CNI_CONFIG" --cni-bin-dir "$CRIO_CNI_PLUGIN" &>>"$CRIO_LOG" 3>&- 4>&- &
  CRIO_PID=$!
  until [[ -S $CRIO_SOCKET ]]; do
    kill -0 "$CRIO_PID" || return 1
    sleep 0.05
  done
  wait_until_reachable
  # The tests expect these images to exist.
  for image in "${IMAGES[@]}"; do
    crictl pull "$image" >/dev/null
  done
}

check_images() {
  REDIS_IMAGEREF=$(crictl inspecti -o json "$fedora" | jq -r '.status.repoDigests[0]')
  REDIS_IMAGEDIGEST=$REDIS_IMAGEREF
  REDIS_IMAGEID=$(crictl inspecti -o json "$fedora" | jq -r .status.id)
}

# Removes the pods of a test that leaves its runtime stopped.
cleanup_testdir() {
  local process mount
  for mount in $(awk -v at="$TESTDIR/" 'index($2, at) == 1 { print $2 }' /proc/self/mounts | sort -r); do
    umount "$mount"
  done
  for process in $(find /proc/[0-9]*/fd -maxdepth 1 -lname "$TESTDIR/crib/*" 2>/dev/null | cut -d/ -f3 | sort -u); do
    kill -KILL "$process" || true
  done
  rm -rf --one-file-system "$TESTDIR" || true
  unset TESTDIR
}

restart_crio() {
  stop_crio_no_clean ""
  start_crio
}

# The last image of the tests' list, a WebAssembly program, is not served.
readonly fedora=quay.io/crio/fedora-crio-ci:latest
IMAGES=(registry.k8s.io/pause:3.10.1 "$fedora")
