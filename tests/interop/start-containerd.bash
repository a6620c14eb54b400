# shellcheck shell=bash
# Sourced by scripts that need Debian's containerd: starts it in its own namespaces, in which all processes end with the script,
# with the socket $root/s and the log $root/log. Its directories are below $root, which is removed at the end; the host's
# containerd is not affected. The script must define `here`, and `again`: its own command line with CRIB set.
#
# Requires root, and Debian's containerd, containernetworking-plugins, iptables, busybox and iproute2.
for program in containerd ctr runc iptables busybox; do
  command -v "$program" >/dev/null || {
    echo "${0##*/}: $program not found: apt-get install containerd iptables busybox" >&2
    exit 1
  }
done
[[ -n ${CRIB_ALONE:-} ]] || exec "$here/alone" "${again[@]}"

root=$(mktemp --directory)
# Other processes that the script starts.
servers=()
containerd=
clean_up() {
  local status=$? server
  trap - EXIT
  set +e
  for server in "${servers[@]}" $containerd; do { kill "$server" && wait "$server"; } 2>/dev/null; done
  rm -rf "$root"
  exit "$status"
}
trap clean_up EXIT

# The sandbox image: busybox, which sleeps.
pause=crib.local/pause:1
mkdir -p "$root/pause/layer/bin" "$root/cni" "$root/tmp"
cp "$(command -v busybox)" "$root/pause/layer/bin/busybox"
# Debian's busybox is dynamically linked, busybox-static is not.
{ ldd "$root/pause/layer/bin/busybox" 2>/dev/null || true; } | { grep -o '/[^ ]*' || true; } |
  while IFS= read -r library; do cp --parents "$library" "$root/pause/layer"; done
(
  cd "$root/pause"
  tar --create --file layer.tar --directory layer .
  digest=$(sha256sum layer.tar | cut -d' ' -f1)
  printf '{"architecture":"%s","os":"linux","config":{"Cmd":["/bin/busybox","sleep","2147483647"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
    "$(dpkg --print-architecture)" "$digest" >config.json
  printf '[{"Config":"config.json","RepoTags":["%s"],"Layers":["layer.tar"]}]' "$pause" >manifest.json
  tar --create --file ../pause.tar manifest.json config.json layer.tar
)

for plugins in /usr/lib/cni /opt/cni/bin; do [[ ! -d $plugins ]] || break; done
cat >"$root/cni/10-check.conflist" <<JSON
{"cniVersion": "0.4.0", "name": "check", "plugins": [
  {"type": "bridge", "bridge": "check0", "isGateway": true, "ipMasq": false,
   "ipam": {"type": "host-local", "dataDir": "$root/addresses", "ranges": [[{"subnet": "10.88.0.0/16"}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
JSON
cat >"$root/containerd.toml" <<TOML
version = 2
root = "$root/lib"
state = "$root/run"
[grpc]
address = "$root/s"
[plugins."io.containerd.internal.v1.opt"]
path = "$root/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "$pause"
# Root in a container may not lower oom_score_adj.
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "$plugins"
conf_dir = "$root/cni"
TOML
containerd --config "$root/containerd.toml" >"$root/log" 2>&1 &
containerd=$!
for ((tries = 0; ; tries++)); do
  ctr --address "$root/s" version >/dev/null 2>&1 && break
  ((tries < 300)) && kill -0 "$containerd" || {
    echo "${0##*/}: containerd did not become ready:" >&2
    tail -n 20 "$root/log" >&2
    exit 1
  }
  sleep 0.1
done
ctr --address "$root/s" --namespace k8s.io images import "$root/pause.tar" >/dev/null
