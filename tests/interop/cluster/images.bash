# shellcheck shell=bash disable=SC2154 # the scripts set $here, $bin and $work
# Sourced by the scripts of this directory: builds the images of the end-to-end suites from programs of this machine, as an OCI
# layout.

# build_images DIR: needs agnhost in $bin; also builds an image of sample-device-plugin if that is there.
build_images() {
  local clients=$work/clients sources others=()
  mkdir -p "$clients"
  (cd "$here/.." && go build -o "$clients/" ./images && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$clients/" ./program)
  sources=$(cd "$here" && go list -m -f '{{.Dir}}' k8s.io/kubernetes)/test/images/agnhost
  [[ ! -x $bin/sample-device-plugin ]] || others=("$bin/sample-device-plugin")
  "$clients/images" "$1" "$(command -v busybox)" "$clients/program" "$bin/agnhost" "$(command -v bash)" "$(command -v curl)" \
    "$(command -v ip)" "$sources/porter/localhost.crt" "$sources/porter/localhost.key" "${others[@]}"
}
