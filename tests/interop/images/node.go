package main

import (
	"path/filepath"
	"strings"
)

// The images that the end-to-end suite of Kubernetes 1.36.2 gives to pods of a node, under their names. AGNHOST is its program for
// them, which is statically linked; its image has the other files, too: programs that tests run there, and a server's certificate.
func nodeImages(out *layout, base layer, own []byte, agnhost string, others []string) ([]image, error) {
	files, err := linked(agnhost, "agnhost")
	if err != nil {
		return nil, err
	}
	for _, path := range others {
		name := filepath.Base(path)
		if !strings.Contains(name, ".") {
			name = "bin/" + name
		}
		more, err := linked(path, name)
		if err != nil {
			return nil, err
		}
		files = append(files, more...)
	}
	tools, err := out.layer(append(files,
		file{name: "agnhost-2", link: "agnhost"},
		file{name: "uploads/", mode: 0o755},
		file{name: "etc/passwd", mode: 0o644, body: []byte(passwd + "user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh\n")},
		file{name: "etc/group", mode: 0o644, body: []byte(group + "user-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n")},
	))
	if err != nil {
		return nil, err
	}
	nginx, err := out.layer([]file{{name: "usr/sbin/nginx", mode: 0o755, body: own}})
	if err != nil {
		return nil, err
	}
	escalates, err := out.layer([]file{{name: "nnp", mode: 0o4755, body: own}})
	if err != nil {
		return nil, err
	}
	ipcs, err := out.layer([]file{{name: "usr/bin/ipcs", mode: 0o755, body: own}})
	if err != nil {
		return nil, err
	}
	nmeter, err := out.layer([]file{{name: "usr/bin/nmeter", mode: 0o755, body: own}})
	if err != nil {
		return nil, err
	}
	pause, err := out.layer([]file{{name: "pause", mode: 0o755, body: own}})
	if err != nil {
		return nil, err
	}
	idle := config{Cmd: []string{"sh"}}
	web := config{Cmd: []string{"nginx", "-g", "daemon off;"}, StopSignal: "SIGTERM"}
	return []image{
		{[]string{e2e + "agnhost:2.63.0", e2e + "agnhost:2.55"}, config{Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}}, []layer{base, tools, nmeter}},
		{[]string{e2e + "sample-device-plugin:1.7"}, config{Entrypoint: []string{"sample-device-plugin"}}, []layer{base, tools}},
		{[]string{e2e + "busybox:1.37.0-1", e2e + "glibc-dns-testing:2.0.0"}, idle, []layer{base, nmeter}},
		{[]string{e2e + "nginx:1.15-4", e2e + "nginx:1.27-0"}, web, []layer{base, nginx}},
		{[]string{e2e + "nonewprivs:1.4"}, config{Entrypoint: []string{"/nnp"}}, []layer{base, escalates}},
		{[]string{e2e + "nonroot:1.5"}, config{User: "1234", Cmd: []string{"sh"}}, []layer{base}},
		{[]string{e2e + "ipc-utils:1.4"}, idle, []layer{base, ipcs}},
		{[]string{"registry.k8s.io/pause:3.10.2"}, config{User: "65535:65535", Entrypoint: []string{"/pause"}}, []layer{pause}},
	}, nil
}
