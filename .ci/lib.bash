# shellcheck shell=bash
# Sourced by the scripts beside it.

# test_binaries: reads the messages of `cargo test --no-run --message-format=json-render-diagnostics`, and prints for each test
# program a line of its target's name, the directory in which cargo runs it, and its path, separated by tabs.
test_binaries() {
  sed -nE '/"reason":"compiler-artifact"/!d; /"profile":\{[^}]*"test":true/!d
    s,.*"manifest_path":"([^"]*)/Cargo\.toml".*"target":\{[^}]*"name":"([^"]*)".*"executable":"([^"]*)".*,\2\t\1\t\3,p'
}

# make_user NAME: an ordinary user with 65536 subordinate user and group ids, if there is none of the name.
make_user() {
  local name=$1 kind end first last
  id "$name" >/dev/null 2>&1 || useradd --create-home --shell /bin/bash "$name"
  for kind in uid gid; do
    ! grep -q "^$name:" "/etc/sub$kind" 2>/dev/null || continue
    end=$(awk -F: '$2 + $3 > end { end = $2 + $3 } END { print end ? end : 100000 }' "/etc/sub$kind" 2>/dev/null || true)
    first=${end:-100000} last=$((${end:-100000} + 65535))
    usermod "--add-sub${kind}s" "$first-$last" "$name"
  done
}

# remove_user NAME: ends whatever runs as the user, and removes it.
remove_user() {
  local name=$1 process tries
  for process in $(ps -o pid= -u "$name"); do kill -KILL "$process"; done
  for ((tries = 0; tries < 50; tries++)); do
    userdel --remove "$name" 2>/dev/null && break
    sleep 0.1
  done
}
