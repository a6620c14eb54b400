# shellcheck shell=bash disable=SC2034,SC2154 # what it sets is for the scripts, and they say where $here is
# Sourced by the scripts beside it: a directory of their own, images, `crib registry` that serves them, `crib runtime` that
# pulls from it; all of it is taken away at the end. CRIB may name a ready-made crib,
# BUSYBOX another busybox than the one on the PATH.

readonly hosts=(registry.k8s.io k8s.gcr.io gcr.io ghcr.io quay.io)
work=
started=()
# Directories outside of $work that this run made: they are empty again at its end.
borrowed=()
# What goes before each command that the suite runs: nothing, or the way into namespaces of its own.
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
  # The runtime first: it was started last.
  for ((i = ${#started[@]} - 1; i >= 0; i--)); do
    pid=${started[i]}
    kill "$pid" 2>/dev/null
    wait "$pid" 2>/dev/null
  done
  ((${#borrowed[@]} == 0)) || rmdir "${borrowed[@]}"
  [[ -z $work ]] || rm -rf --one-file-system "$work"
  exit "$status"
}

# until_there FILE PID LOG: waits until a program has made a file, which says that it serves.
until_there() {
  local file=$1 pid=$2 log=$3
  until [[ -s $file || -S $file ]]; do
    kill -0 "$pid" 2>/dev/null || die "it ended at once: $(cat "$log")"
    sleep 0.05
  done
}

open_box() {
  trap clean_up EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  command -v go >/dev/null || die "go is not on the PATH: the official clients are built from their module"
  work=$(mktemp -d "${TMPDIR:-/tmp}/crib-interop.XXXXXX")
  mkdir "$work/logs" "$work/tmp"
}

# Gives what follows a network and mounts of its own: a suite that makes bridges or mounts does not touch the host's.
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

# Leaves the digest of the image that critest knows by a published one in $digest.
build_images() {
  local busybox list
  busybox=${BUSYBOX:-$(command -v busybox)} || die "there is no busybox: apt-get install busybox"
  [[ $(PATH=/nowhere "$busybox" sh -c 'ls / && echo anyhow' 2>&1) != *anyhow ]] ||
    die "$busybox runs ls without a file of that name, as busybox-static does: apt-get install busybox, or set BUSYBOX"
  CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$work/program" ./program
  go build -o "$work/images" ./images
  list=$("$work/images" "$work/layout" "$busybox" "$work/program")
  digest=${list##*sha256:}
}

# start_registry ADDRESS: leaves the address in $registry.
start_registry() {
  local log=$work/logs/registry.log
  "${inside[@]}" "$crib" registry --listen "$1" --load "$work/layout" --ready-file "$work/registry.address" \
    >"$log" 2>&1 &
  started+=($!)
  until_there "$work/registry.address" $! "$log"
  registry=$(cat "$work/registry.address")
  registry=${registry#http://}
}

# Leaves the socket's URL in $endpoint.
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
