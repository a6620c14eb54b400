# shellcheck shell=bash disable=SC2034,SC2154 # the rest is in helpers.bash of CRI-O's tests
# Read by CRI-O's tests after their own helpers.bash: starts `crib runtime` where those start crio, on the socket and in the
# directory of the test. What configures CRI-O does nothing here.

setup_crio() {
  CNI_DEFAULT_NETWORK=${CNI_DEFAULT_NETWORK:-crio}
  CNI_TYPE=${CNI_TYPE:-bridge}
  prepare_network_conf
}

start_crio_no_setup() {
  local image config=$TESTDIR/crib.yaml
  # The one option that is passed on: where CDI's files are.
  printf 'cdi:\n  spec_dirs: [%s]\n' "$TESTDIR/cdi" >"$config"
  "$CRIB" runtime --listen "unix://$CRIO_SOCKET" --state-dir "$TESTDIR/crib" --registry-mirror "*=http://$CRIB_REGISTRY" --config "$config" \
    --cni-conf-dir "$CRIO_CNI_CONFIG" --cni-bin-dir "$CRIO_CNI_PLUGIN" &>>"$CRIO_LOG" 3>&- 4>&- &
  CRIO_PID=$!
  until [[ -S $CRIO_SOCKET ]]; do
    kill -0 "$CRIO_PID" || return 1
    sleep 0.05
  done
  wait_until_reachable
  # The tests expect these to be there already.
  for image in "${IMAGES[@]}"; do
    crictl pull "$image" >/dev/null
  done
}

check_images() {
  REDIS_IMAGEREF=$(crictl inspecti -o json "$fedora" | jq -r '.status.repoDigests[0]')
  REDIS_IMAGEDIGEST=$REDIS_IMAGEREF
  REDIS_IMAGEID=$(crictl inspecti -o json "$fedora" | jq -r .status.id)
}

# A test that leaves its runtime stopped leaves its pods to this.
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

# The last image in the tests' own list, a program in WebAssembly, is not served.
readonly fedora=quay.io/crio/fedora-crio-ci:latest
IMAGES=(registry.k8s.io/pause:3.10.1 "$fedora")
