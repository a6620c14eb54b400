package main

const ghcr = "ghcr.io/containerd/"

// The images of containerd's CRI integration tests, under their names.
func containerdImages(out *layout, base layer, own []byte) ([]image, error) {
	groups, err := out.layer([]file{
		{name: "etc/group", mode: 0o644, body: []byte("root:x:0:root\ndaemon:x:1:\nbin:x:2:\nwheel:x:10:root\nnogroup:x:65534:\n")},
		{name: "etc/os-release", mode: 0o644, body: []byte("ID=interop\n")},
	})
	if err != nil {
		return nil, err
	}
	pause, err := out.layer([]file{{name: "pause", mode: 0o755, body: own}})
	if err != nil {
		return nil, err
	}
	consumer, err := out.layer([]file{
		{name: "usr/bin/stress", mode: 0o755, body: own},
		{name: "consumer", mode: 0o755, body: own},
	})
	if err != nil {
		return nil, err
	}
	const content = "test_content\n"
	copied, err := out.layer([]file{
		{name: "test_dir/test_file", mode: 0o644, body: []byte(content)},
		{name: "C:/weird_test_dir/weird_test_file", mode: 0o644, body: []byte(content)},
		{name: ":colon_prefixed/colon_prefixed_file", mode: 0o644, body: []byte(content)},
	})
	if err != nil {
		return nil, err
	}
	owned, err := out.layer([]file{{name: "test_dir/", mode: 0o755, uid: 65534}})
	if err != nil {
		return nil, err
	}
	// Like the real nginx, it opens its log by name.
	nginx, err := out.layer([]file{{name: "nginx-start", mode: 0o755, body: []byte(
		"#!/bin/sh\necho 'start worker processes' >/dev/stderr || exit 1\nexec sleep 1000000\n")}})
	if err != nil {
		return nil, err
	}
	idle := config{Cmd: []string{"sh"}}
	volumes := map[string]struct{}{"/test_dir": {}, "C:/weird_test_dir": {}, "/:colon_prefixed": {}}
	return []image{
		{[]string{ghcr + "alpine:3.14.0", ghcr + "busybox:1.36"}, idle, []layer{base, groups}},
		{[]string{"registry.k8s.io/pause:3.10.2"}, config{User: "65535:65535", Entrypoint: []string{"/pause"}}, []layer{pause}},
		{[]string{e2e + "resource-consumer:1.10"}, config{Entrypoint: []string{"/consumer"}}, []layer{base, consumer}},
		{[]string{ghcr + "volume-copy-up:2.2"}, config{Cmd: idle.Cmd, Volumes: volumes}, []layer{base, copied}},
		{[]string{ghcr + "volume-ownership:2.1"}, config{Cmd: idle.Cmd, Volumes: map[string]struct{}{"/test_dir": {}}}, []layer{base, owned}},
		{[]string{ghcr + "nginx:1.27.0"}, config{Cmd: []string{"/nginx-start"}}, []layer{base, nginx}},
	}, nil
}
