# shellcheck shell=bash disable=SC2034,SC2154 # the scripts use its variables, and set $here
# Sourced by the scripts of this directory. Provides a temporary directory, images, a `crib registry` that serves them, and a
# `crib runtime` that pulls from it, and removes all of them at exit. CRIB may name a prebuilt crib, CLIENTS the directory of
# `tests/interop/clients`, BUSYBOX a busybox other than the one in PATH.

readonly hosts=(registry.k8s.io k8s.gcr.io gcr.io ghcr.io quay.io)
work=
started=()
# Directories outside of $work that this run created; they are removed at exit if empty.
borrowed=()
# Prefix of each command of the suite: empty, or a command that enters the suite's namespaces.
inside=()

say() { printf -- '-- %s\n' "$*"; }
die() {
  printf '%s: %s\n' "${0##*/}" "$*" >&2
  exit 1
}

clean_up() {
  local status=$? pid i
  trap - EXIT
  set +e
  # Stop the runtime first, because it was started last.
  for ((i = ${#started[@]} - 1; i >= 0; i--)); do
    pid=${started[i]}
    kill "$pid" 2>/dev/null
    wait "$pid" 2>/dev/null
  done
  ((${#borrowed[@]} == 0)) || rmdir "${borrowed[@]}"
  [[ -z $work ]] || rm -rf --one-file-system "$work"
  exit "$status"
}

# until_there FILE PID LOG: waits until a program creates FILE, which means that it is ready.
until_there() {
  local file=$1 pid=$2 log=$3
  until [[ -s $file || -S $file ]]; do
    kill -0 "$pid" 2>/dev/null || die "program exited during startup: $(cat "$log")"
    sleep 0.05
  done
}

open_box() {
  trap clean_up EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  [[ -n ${CLIENTS:-} ]] || command -v go >/dev/null || die "go not found in PATH: it builds the official clients"
  work=$(mktemp -d "${TMPDIR:-/tmp}/crib-interop.XXXXXX")
  mkdir "$work/logs" "$work/tmp"
}

# Runs the rest in its own network and mount namespaces, so that the suite's bridges and mounts do not affect the host.
enter_namespaces() {
  unshare --net --mount --propagation slave sh -c \
    "mount --make-rshared / && ip link set lo up && echo >'$work/namespaces' made && exec sleep infinity" &
  started+=($!)
  until_there "$work/namespaces" $! /dev/null
  inside=(nsenter --target "$!" --net --mount)
}

build_crib() {
  if [[ -n ${CRIB:-} ]]; then
    crib=$CRIB
  else
    (cd "$here/../.." && cargo build --quiet --package crib)
    crib=${CARGO_TARGET_DIR:-$here/../../target}/debug/crib
  fi
}

# Sets $clients to the directory of the Go programs.
build_clients() {
  clients=${CLIENTS:-$work/clients}
  [[ -n ${CLIENTS:-} ]] || "$here/clients" "$clients"
}

# Sets $digest to the digest of the image that critest refers to by a published digest.
build_images() {
  local busybox list
  busybox=${BUSYBOX:-$(command -v busybox)} || die "busybox not found: apt-get install busybox"
  [[ $(PATH=/nowhere "$busybox" sh -c 'ls / && echo anyhow' 2>&1) != *anyhow ]] ||
    die "$busybox runs its own ls without /bin/ls, like busybox-static: apt-get install busybox, or set BUSYBOX"
  list=$("$clients/images" "$work/layout" "$busybox" "$clients/program")
  digest=${list##*sha256:}
}

# start_registry ADDRESS: sets $registry to the address.
start_registry() {
  local log=$work/logs/registry.log
  "${inside[@]}" "$crib" registry --listen "$1" --load "$work/layout" --ready-file "$work/registry.address" \
    >"$log" 2>&1 &
  started+=($!)
  until_there "$work/registry.address" $! "$log"
  registry=$(cat "$work/registry.address")
  registry=${registry#http://}
}

# Sets $endpoint to the socket's URL.
start_runtime() {
  local log=$work/logs/runtime.log host mirrors=()
  for host in "${hosts[@]}"; do
    [[ -z ${registry:-} ]] || mirrors+=(--registry-mirror "$host=http://$registry")
  done
  "${inside[@]}" "$crib" runtime --listen "unix://$work/crib.sock" --state-dir "$work/state" --ephemeral "${mirrors[@]}" \
    >"$log" 2>&1 &
  started+=($!)
  until_there "$work/crib.sock" $! "$log"
  endpoint=unix://$work/crib.sock
}
