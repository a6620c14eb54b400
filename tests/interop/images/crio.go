package main

// The images of CRI-O's tests, under their names.
func crioImages(out *layout, base layer, own []byte) ([]image, error) {
	pause, err := out.layer([]file{{name: "pause", mode: 0o755, body: own}})
	if err != nil {
		return nil, err
	}
	// The tests only run redis; they do not use it.
	tools, err := out.layer([]file{
		{name: "bin/bash", mode: 0o755, body: []byte("#!/bin/sh\nexec /bin/sh \"$@\"\n")},
		{name: "etc/", mode: 0o755, uid: 5000},
		{name: "etc/passwd", mode: 0o644, body: []byte(passwd + "test:x:5000:5000::/home/test:/bin/bash\nredis:x:998:998::/data:/bin/false\n")},
		{name: "etc/group", mode: 0o644, body: []byte(group + "test:x:5000:\nredis:x:998:\n")},
		{name: "home/test/", mode: 0o755, uid: 5000},
		{name: "usr/local/bin/docker-entrypoint.sh", mode: 0o755, body: []byte("#!/bin/sh\nexec \"$@\"\n")},
		{name: "usr/local/bin/redis-server", mode: 0o755, body: []byte("#!/bin/sh\necho 'Ready to accept connections'\nexec sleep 1000000\n")},
		{name: "data/", mode: 0o755, uid: 998},
		{name: "usr/bin/findmnt", mode: 0o755, body: own},
	})
	if err != nil {
		return nil, err
	}
	ci := config{
		Entrypoint: []string{"docker-entrypoint.sh"},
		Cmd:        []string{"redis-server"},
		WorkingDir: "/data",
		Volumes:    map[string]struct{}{"/data": {}, "/imagevolume": {}},
	}
	idle := config{Cmd: []string{"sh"}}
	return []image{
		{[]string{"quay.io/crio/pause:latest", "quay.io/crio/pause:go"}, config{Entrypoint: []string{"/pause"}}, []layer{pause}},
		{[]string{"quay.io/crio/alpine:3.9"}, idle, []layer{base}},
		{[]string{"registry.k8s.io/pause:3.10.1"}, config{User: "65535:65535", Entrypoint: []string{"/pause"}}, []layer{pause}},
		{[]string{"quay.io/crio/fedora-crio-ci:latest"}, ci, []layer{base, tools}},
	}, nil
}
