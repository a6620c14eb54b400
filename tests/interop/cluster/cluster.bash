# shellcheck shell=bash disable=SC2034,SC2154 # the scripts use its variables, and set $here
# Sourced by the scripts of this directory: a control plane (etcd, kube-apiserver, kube-controller-manager and kube-scheduler of
# Kubernetes 1.36.2) in its own namespaces, so that it uses no port of the host, and functions that start crib's node n1. First
# builds missing programs, and those in the array `programs`. With `audits`, the API server writes an audit log. Everything ends
# with the script.
#
#   CRIB_BINARY        a prebuilt crib
#   CRIB_CLUSTER_BIN   the directory of the programs, which are built there (default: crib/cluster-1.36.2 in the user's cache directory)
#   CRIB_CLUSTER_LOGS  a directory for the logs of all programs
#   CRIB_AS_KUBELET    if set, starts the agent as crib kubelet
#   CRIB_GO_KUBELET    if set, the node is the kubelet of Kubernetes instead of the agent, on the same runtime
#   CRIB_CONTAINERD    if set, the runtime is Debian's containerd, with an image crib.local/host of a few programs of this machine. Choose
#                      cases: those of jobs and Deployments pull the image, and statistics and addresses differ
#   CRIB_AUDIT         a file for the requests to the API server, as JSON lines

bin=${CRIB_CLUSTER_BIN:-${XDG_CACHE_HOME:-$HOME/.cache}/crib/cluster-1.36.2}
export CRIB_CLUSTER_BIN=$bin
programs=(etcd kubectl kube-apiserver kube-controller-manager kube-scheduler metrics-server ${CRIB_GO_KUBELET:+kubelet} "${programs[@]}")
if [[ -z ${CRIB_IN_BOX:-} ]]; then
  for program in "${programs[@]}"; do
    [[ -x $bin/$program ]] || "$here/build" "$bin" "$program"
  done
  [[ -n ${CRIB_BINARY:-} ]] || (cd "$here/../../.." && cargo build --quiet --package crib)
  CRIB_IN_BOX=yes exec unshare --net --mount --pid --fork --mount-proc --kill-child "$0" "$@"
fi
ip link set lo up
# The API server proxies only to nodes with a non-loopback address.
node_ip=192.0.2.1
ip address add "$node_ip/32" dev lo
# Pods of several nodes reach each other through this namespace.
echo 1 >/proc/sys/net/ipv4/ip_forward

work=$(mktemp -d "${TMPDIR:-/tmp}/crib-cluster.XXXXXX")
logs=${CRIB_CLUSTER_LOGS:-$work/logs}
seen=$work/seen
mkdir -p "$work/keys" "$work/static" "$work/disk" "$logs"
rm -f "$logs"/*.log
crib=${CRIB_BINARY:-$here/../../../target/debug/crib}
endpoint=unix://$work/crib.sock
finish() {
  local status=$? name
  for name in metrics-server agent2 runtime2 registrar driver agent runtime registry kube-scheduler kube-controller-manager kube-apiserver etcd; do
    stop "$name"
  done
  [[ -z ${containerd:-} ]] || { kill "$containerd" && wait "$containerd"; } 2>/dev/null || true
  # Secrets of pods are on a tmpfs; a kubelet has one for each volume. containerd leaves the mounts of running containers.
  for name in "$work" ${containerd:+"$root"}; do
    awk -v below="$name/" 'index($2, below) == 1 { print $2 }' /proc/self/mounts | xargs --no-run-if-empty umount --lazy 2>/dev/null ||
      true
  done
  rm -rf --one-file-system "$work" ${containerd:+"$root"}
  exit "$status"
}
trap finish EXIT

# start NAME COMMAND…: starts a command in the background, with its own log. Cases run in subshells, so process ids are in files.
start() {
  local name=$1
  shift
  "$@" >>"$logs/$name.log" 2>&1 &
  echo $! >"$work/$name.pid"
  # The shell does not print a message when it ends.
  disown
}
# stop NAME [SIGNAL]: stops it and waits until it has exited.
stop() {
  local pid
  [[ -e $work/$1.pid ]] || return 0
  pid=$(<"$work/$1.pid")
  kill -s "${2:-TERM}" "$pid" 2>/dev/null || true
  while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
  rm "$work/$1.pid"
}
# within SECONDS COMMAND…: repeats the command until it succeeds. The file $seen has its last output.
within() {
  local until=$((SECONDS + $1))
  shift
  until "$@" >"$seen" 2>&1; do
    if ((SECONDS >= until)); then
      return 1
    fi
    sleep 0.2
  done
}

# Keys, tokens and kubeconfigs.
openssl genrsa -out "$work/keys/accounts.key" 2048 2>/dev/null
openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=crib-test-ca -keyout "$work/keys/ca.key" -out "$work/keys/ca.crt" \
  2>/dev/null
openssl req -newkey rsa:2048 -nodes -subj /CN=kube-apiserver -keyout "$work/keys/server.key" -out "$work/keys/server.csr" \
  2>/dev/null
openssl x509 -req -in "$work/keys/server.csr" -CA "$work/keys/ca.crt" -CAkey "$work/keys/ca.key" -days 1 \
  -extfile <(echo subjectAltName=IP:127.0.0.1) -out "$work/keys/server.crt" 2>/dev/null
openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj "/O=system:masters/CN=kube-apiserver-kubelet-client" \
  -addext basicConstraints=critical,CA:FALSE -addext extendedKeyUsage=clientAuth -keyout "$work/keys/kubelet-client.key" \
  -out "$work/keys/kubelet-client.crt" 2>/dev/null
# The API server uses this one for requests to metrics-server.
openssl req -newkey rsa:2048 -nodes -subj /CN=front-proxy -keyout "$work/keys/proxy.key" -out "$work/keys/proxy.csr" 2>/dev/null
openssl x509 -req -in "$work/keys/proxy.csr" -CA "$work/keys/ca.crt" -CAkey "$work/keys/ca.key" -days 1 \
  -extfile <(echo extendedKeyUsage=clientAuth) -out "$work/keys/proxy.crt" 2>/dev/null
cat >"$work/keys/tokens.csv" <<TOKENS
admin-token,admin,admin,system:masters
node-token,system:node:n1,node,system:nodes
node2-token,system:node:n2,node2,system:nodes
bootstrap-token,bootstrap,bootstrap,system:bootstrappers
TOKENS
for user in admin node node2 bootstrap; do
  cat >"$work/$user.kubeconfig" <<CONFIG
apiVersion: v1
kind: Config
current-context: test
clusters: [{name: test, cluster: {server: "https://127.0.0.1:6443", certificate-authority: keys/ca.crt}}]
contexts: [{name: test, context: {cluster: test, user: $user}}]
users: [{name: $user, user: {token: $user-token}}]
CONFIG
done
k() { "$bin/kubectl" --kubeconfig "$work/admin.kubeconfig" --request-timeout 10s "$@"; }

audit=()
[[ -z ${audits:-} ]] || CRIB_AUDIT=${CRIB_AUDIT:-$work/audit.log}
if [[ -n ${CRIB_AUDIT:-} ]]; then
  printf 'apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: RequestResponse}]\n' >"$work/audit.yaml"
  audit=(--audit-policy-file "$work/audit.yaml" --audit-log-path "$CRIB_AUDIT" --audit-log-maxsize 4000)
fi
start_apiserver() {
  start kube-apiserver "$bin/kube-apiserver" --etcd-servers http://127.0.0.1:2379 --secure-port 6443 \
    --bind-address 127.0.0.1 --advertise-address 127.0.0.1 --endpoint-reconciler-type none \
    --tls-cert-file "$work/keys/server.crt" --tls-private-key-file "$work/keys/server.key" \
    --client-ca-file "$work/keys/ca.crt" --service-cluster-ip-range 10.96.0.0/16 --token-auth-file "$work/keys/tokens.csv" --allow-privileged \
    --kubelet-client-certificate "$work/keys/kubelet-client.crt" --kubelet-client-key "$work/keys/kubelet-client.key" \
    --requestheader-client-ca-file "$work/keys/ca.crt" --requestheader-allowed-names front-proxy \
    --requestheader-username-headers X-Remote-User --requestheader-group-headers X-Remote-Group \
    --proxy-client-cert-file "$work/keys/proxy.crt" --proxy-client-key-file "$work/keys/proxy.key" \
    --kubelet-preferred-address-types InternalIP --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction \
    --service-account-issuer https://kubernetes.default.svc --api-audiences https://kubernetes.default.svc \
    --service-account-key-file "$work/keys/accounts.key" --service-account-signing-key-file "$work/keys/accounts.key" "${audit[@]}"
}
# Fields without a kubelet flag, or whose default in a cluster differs. No pod is evicted, no matter how full this machine is.
cat >"$work/kubelet.yaml" <<CONFIG
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
failSwapOn: false
podLogsDir: $work/agent/logs
authentication: {x509: {clientCAFile: $work/keys/kubelet-client.crt}}
staticPodPath: $work/static
evictionHard: {}
CONFIG
if [[ -n ${CRIB_GO_KUBELET:-} ]]; then
  # It writes only below its own directory, and creates no cgroups.
  cat >>"$work/kubelet.yaml" <<CONFIG
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
makeIPTablesUtilChains: false
volumePluginDir: $work/agent/volume-plugins
CONFIG
else
  echo "cgroupRoot: /crib-cluster-$$" >>"$work/kubelet.yaml"
fi
printf 'apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nevictionHard: {}\n' >"$work/agent.yaml"
start_agent() {
  local program=()
  [[ -z ${CRIB_AS_KUBELET:-} ]] || program=("$crib" kubelet)
  [[ -z ${CRIB_GO_KUBELET:-} ]] || program=("$bin/kubelet")
  if ((${#program[@]})); then
    start agent "${program[@]}" --container-runtime-endpoint "$endpoint" --root-dir "$work/agent" \
      --hostname-override n1 --node-ip "$node_ip" --kubeconfig "${1:-$work/node.kubeconfig}" --config "$work/kubelet.yaml" "${@:2}"
    return
  fi
  start agent "$crib" agent --runtime-endpoint "$endpoint" --root-dir "$work/agent" --node-name n1 \
    --node-ip "$node_ip" --kubeconfig "${1:-$work/node.kubeconfig}" --adopt-node \
    --client-ca-file "$work/keys/kubelet-client.crt" --manifests "$work/static" --config "$work/agent.yaml" "${@:2}"
}
start etcd "$bin/etcd" --data-dir "$work/etcd" --listen-client-urls http://127.0.0.1:2379 \
  --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380 --unsafe-no-fsync
start_apiserver
within 120 k get --raw /readyz || {
  echo "${0##*/}: the API server did not become ready: see $logs" >&2
  tail -n 20 "$logs/kube-apiserver.log" >&2
  exit 1
}
start kube-controller-manager "$bin/kube-controller-manager" --kubeconfig "$work/admin.kubeconfig" --leader-elect=false \
  --service-account-private-key-file "$work/keys/accounts.key" --root-ca-file "$work/keys/ca.crt" --secure-port 0 \
  --allocate-node-cidrs --cluster-cidr 10.244.0.0/16 --service-cluster-ip-range 10.96.0.0/16 \
  --cluster-signing-cert-file "$work/keys/ca.crt" --cluster-signing-key-file "$work/keys/ca.key"
start kube-scheduler "$bin/kube-scheduler" --kubeconfig "$work/admin.kubeconfig" --leader-elect=false --secure-port 0
start_containerd() {
  # It uses fixed paths below /run.
  mount -t tmpfs tmpfs /run
  # shellcheck source=../start-containerd.bash
  CRIB_ALONE=yes source "$here/../start-containerd.bash"
  trap finish EXIT
  endpoint=unix://$root/s
  host_image "$root/host.tar"
  ctr --address "$root/s" --namespace k8s.io images import "$root/host.tar" >/dev/null
}
# host_image FILE: writes the image crib.local/host:latest with this machine's shells, coreutils and perl.
host_image() {
  local layer=$work/host digest
  mkdir -p "$layer"/{root,tmp,usr}
  local link
  for link in bin lib lib64 sbin; do
    [[ ! -L /$link ]] || { mkdir -p "$layer/usr/$link" && ln -s "usr/$link" "$layer/$link"; }
  done
  dpkg --listfiles bash coreutils dash debianutils libacl1 libattr1 libc6 libcrypt1 libgmp10 libpcre2-8-0 libselinux1 libtinfo6 perl-base |
    grep '^/' | grep -v '^/usr/share/' | while IFS= read -r file; do [[ -d $file ]] || printf '%s\n' "${file#/}"; done |
    sed -E 's,^(bin|lib|lib64|sbin)/,usr/\1/,' | tar --create --directory / --files-from - | tar --extract --directory "$layer"
  [[ -e $layer/usr/bin/sh ]] || ln -s dash "$layer/usr/bin/sh"
  tar --create --file "$work/layer.tar" --directory "$layer" .
  digest=$(sha256sum "$work/layer.tar" | cut -d' ' -f1)
  printf '{"architecture":"%s","os":"linux","config":{"Env":["PATH=/usr/bin:/bin"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
    "$(dpkg --print-architecture)" "$digest" >"$work/config.json"
  printf '[{"Config":"config.json","RepoTags":["crib.local/host:latest"],"Layers":["layer.tar"]}]' >"$work/manifest.json"
  tar --create --file "$1" --directory "$work" manifest.json config.json layer.tar
}
# start_node FLAG…: starts a runtime with these flags, and the node n1.
start_node() {
  if [[ -n ${CRIB_CONTAINERD:-} ]]; then
    start_containerd
  else
    start runtime "$crib" runtime --listen "$work/crib.sock" --state-dir "$work/state" --ephemeral "$@"
    within 60 grep -q listening "$logs/runtime.log"
  fi
  start_agent
  within 60 k get serviceaccount default
}

field() { k get "$1" -o "jsonpath={$2}"; }
is() { [[ $(field "$1" "$2") == "$3" ]]; }
has_no() { [[ -z $(k get "$1" --ignore-not-found -o name) ]]; }

# run_cases [NAME…]: runs the functions case_NAME, or all of the script in their order, each in a subshell, and prints a line for
# each: ok, or FAILED with the end of its output. Fails if one fails.
run_cases() {
  local cases=("$@") failed=0 name result
  ((${#cases[@]})) || mapfile -t cases < <(sed -n 's/^case_\([a-z0-9_]*\)() .*/\1/p' "$0")
  for name in "${cases[@]}"; do
    # In a tested condition, the shell ignores `set -e`: its result is checked afterwards.
    set +e
    (
      set -e
      trap - EXIT
      "case_$name"
    ) >"$work/out" 2>&1
    result=$?
    set -e
    if ((result == 0)); then
      echo "ok      $name"
    else
      echo "FAILED  $name"
      sed 's/^/        /' "$work/out" "$seen" | tail -n 8
      failed=$((failed + 1))
    fi
  done
  echo "$((${#cases[@]} - failed)) of ${#cases[@]} cases are as expected"
  ((failed == 0))
}
