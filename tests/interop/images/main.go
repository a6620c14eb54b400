// Builds the images of the suites (critest's here, the others in their own files) as one OCI layout:
// `images DIRECTORY BUSYBOX PROGRAM [AGNHOST OTHER…]`. Those of the end-to-end suite are only made with its AGNHOST.
//
// BUSYBOX is Debian's busybox with its libraries: the shell of busybox-static runs its own `ls` instead of /bin/ls, which
// a spec masks. PROGRAM is the binary of ../program. The last line is `digest NAME sha256:…`: the image that critest
// refers to by a published digest, which cannot be rebuilt.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

const (
	e2e     = "registry.k8s.io/e2e-test-images/"
	staging = "gcr.io/k8s-staging-cri-tools/"

	passwd = `root:x:0:0:root:/root:/bin/sh
daemon:x:1:1:daemon:/usr/sbin:/bin/false
bin:x:2:2:bin:/bin:/bin/false
www-data:x:33:33:www-data:/var/www:/bin/false
operator:x:37:37:Operator:/var:/bin/false
nobody:x:65534:65534:nobody:/home:/bin/false
`
	group = "root:x:0:\ndaemon:x:1:\nbin:x:2:\nwww-data:x:33:\nnogroup:x:65534:\n"
)

// A file of a layer. Directories end with a slash.
type file struct {
	name string
	mode int64
	uid  int
	body []byte
	link string
	// Hard link to this path.
	hard string
}

// Command and user of an image.
type config struct {
	User       string              `json:"User,omitempty"`
	Env        []string            `json:"Env,omitempty"`
	Entrypoint []string            `json:"Entrypoint,omitempty"`
	Cmd        []string            `json:"Cmd,omitempty"`
	WorkingDir string              `json:"WorkingDir,omitempty"`
	StopSignal string              `json:"StopSignal,omitempty"`
	Volumes    map[string]struct{} `json:"Volumes,omitempty"`
}

// An image: its names, its configuration, and its layers from the lowest up.
type image struct {
	names  []string
	config config
	layers []layer
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type layer struct {
	descriptor descriptor
	diffID     string
}

type layout struct {
	directory string
	index     []descriptor
}

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: images DIRECTORY BUSYBOX PROGRAM [AGNHOST OTHER…]")
		os.Exit(2)
	}
	if err := build(os.Args[1], os.Args[2], os.Args[3], os.Args[4:]); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func build(directory, busybox, program string, agnhost []string) error {
	out := &layout{directory: directory}
	if err := os.MkdirAll(filepath.Join(directory, "blobs/sha256"), 0o755); err != nil {
		return err
	}
	tools, err := applets(busybox)
	if err != nil {
		return err
	}
	own, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	base, err := out.layer(append(tools,
		file{name: "etc/passwd", mode: 0o644, body: []byte(passwd)},
		file{name: "etc/group", mode: 0o644, body: []byte(group)},
		file{name: "tmp/", mode: 0o1777},
		file{name: "root/", mode: 0o700},
		file{name: "home/", mode: 0o755},
		file{name: "proc/", mode: 0o755},
		file{name: "sys/", mode: 0o755},
		file{name: "dev/", mode: 0o755},
		file{name: "var/www/", mode: 0o755},
	))
	if err != nil {
		return err
	}
	extras, err := out.layer([]file{
		{name: "usr/libexec/crib-interop", mode: 0o755, body: own},
		{name: "usr/bin/pgrep", link: "/usr/libexec/crib-interop"},
		{name: "usr/bin/ipcs", link: "/usr/libexec/crib-interop"},
	})
	if err != nil {
		return err
	}
	// A copy, not a link, so that the process has the expected name.
	nginx, err := out.layer([]file{{name: "usr/sbin/nginx", mode: 0o755, body: own}})
	if err != nil {
		return err
	}
	hostPort, err := out.layer([]file{{name: "etc/nginx/port", mode: 0o644, body: []byte("12003\n")}})
	if err != nil {
		return err
	}
	httpd, err := out.layer([]file{{name: "usr/local/bin/httpd", mode: 0o755, body: own}})
	if err != nil {
		return err
	}
	escalates, err := out.layer([]file{{name: "nnp", mode: 0o4755, body: own}})
	if err != nil {
		return err
	}
	pause, err := out.layer([]file{{name: "pause", mode: 0o755, body: own}})
	if err != nil {
		return err
	}
	groups, err := out.layer([]file{
		{name: "etc/passwd", mode: 0o644, body: []byte(passwd + "default-user:x:1000:1000::/home/default-user:/bin/sh\n")},
		{name: "etc/group", mode: 0o644, body: []byte(group + "default-user:x:1000:\ngroup-defined-in-image:x:50000:default-user\n")},
	})
	if err != nil {
		return err
	}

	idle := config{Cmd: []string{"sh"}}
	web := config{Cmd: []string{"nginx", "-g", "daemon off;"}, StopSignal: "SIGTERM"}
	images := []image{
		{[]string{e2e + "busybox:1.29-2"}, idle, []layer{base, extras}},
		{[]string{e2e + "nginx:1.14-2"}, web, []layer{base, extras, nginx}},
		{[]string{e2e + "httpd:2.4.39-4"}, config{Cmd: []string{"httpd"}}, []layer{base, httpd}},
		{[]string{e2e + "nonewprivs:1.3"}, config{Entrypoint: []string{"/nnp"}}, []layer{base, escalates}},
		{[]string{"registry.k8s.io/pause:3.9", "k8s.gcr.io/pause:3.9"}, config{User: "65535:65535", Entrypoint: []string{"/pause"}}, []layer{pause}},
		{[]string{staging + "hostnet-nginx-" + runtime.GOARCH + ":latest"}, web, []layer{base, nginx, hostPort}},
		{[]string{staging + "test-image-predefined-group:latest"}, config{User: "1000", Cmd: []string{"sh"}}, []layer{base, groups}},
	}
	users := map[string]string{
		"uid": "1002", "username": "www-data", "uid-group": "1003:users", "username-group": "www-data:www-data",
	}
	for name, user := range users {
		images = append(images, image{[]string{staging + "test-image-user-" + name + ":latest"}, config{User: user, Cmd: []string{"sh"}}, []layer{base}})
	}
	// Each has a file of its own, so that the images differ.
	marked := [][]string{
		{"test-image-latest:latest"}, {"test-image-tag:test"}, {"test-image-tag:all"}, {"test-image-digest:latest"},
		{"test-image-1:latest"}, {"test-image-2:latest"}, {"test-image-3:latest"},
		{"test-image-tags:1", "test-image-tags:2", "test-image-tags:3"},
	}
	for _, names := range marked {
		mark, err := out.layer([]file{{name: "mark", mode: 0o644, body: []byte(names[0] + "\n")}})
		if err != nil {
			return err
		}
		full := make([]string, len(names))
		for i, name := range names {
			full[i] = staging + name
		}
		images = append(images, image{full, idle, []layer{base, mark}})
	}

	for _, suite := range []func(*layout, layer, []byte) ([]image, error){containerdImages, crioImages} {
		more, err := suite(out, base, own)
		if err != nil {
			return err
		}
		images = append(images, more...)
	}
	if len(agnhost) > 0 {
		more, err := nodeImages(out, base, own, agnhost[0], agnhost[1:])
		if err != nil {
			return err
		}
		images = append(images, more...)
	}
	for _, each := range images {
		if err := out.image(each.names, each.config, each.layers); err != nil {
			return err
		}
	}
	return out.finish()
}

// applets returns busybox, its libraries, and a hard link for each applet, so that masking one does not mask all.
func applets(busybox string) ([]file, error) {
	list, err := exec.Command(busybox, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("failed to list the applets of %s: %w", busybox, err)
	}
	files, err := linked(busybox, "bin/busybox")
	if err != nil {
		return nil, err
	}
	for _, name := range strings.Fields(string(list)) {
		if name != "busybox" {
			files = append(files, file{name: "bin/" + name, mode: 0o755, hard: "bin/busybox"})
		}
	}
	return files, nil
}

// linked returns the program at a path under a name, after its libraries.
func linked(path, name string) ([]file, error) {
	// ldd fails for a static program, which needs no libraries.
	libraries, _ := exec.Command("ldd", path).Output()
	files := []file{}
	for _, word := range strings.Fields(string(libraries)) {
		if !strings.HasPrefix(word, "/") {
			continue
		}
		body, err := os.ReadFile(word)
		if err != nil {
			return nil, err
		}
		files = append(files, file{name: strings.TrimPrefix(word, "/"), mode: 0o755, body: body})
	}
	body, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return append(files, file{name: name, mode: 0o755, body: body}), nil
}

// layer writes a gzipped archive of the files.
func (l *layout) layer(files []file) (layer, error) {
	var plain bytes.Buffer
	archive := tar.NewWriter(&plain)
	for _, f := range files {
		header := &tar.Header{Name: f.name, Mode: f.mode, Uid: f.uid, Gid: f.uid, Size: int64(len(f.body)), Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		switch {
		case f.hard != "":
			header.Typeflag, header.Linkname = tar.TypeLink, f.hard
		case f.link != "":
			header.Typeflag, header.Linkname, header.Mode = tar.TypeSymlink, f.link, 0o777
		case strings.HasSuffix(f.name, "/"):
			header.Typeflag = tar.TypeDir
		}
		if err := archive.WriteHeader(header); err != nil {
			return layer{}, err
		}
		if _, err := archive.Write(f.body); err != nil {
			return layer{}, err
		}
	}
	if err := archive.Close(); err != nil {
		return layer{}, err
	}
	var packed bytes.Buffer
	zip, err := gzip.NewWriterLevel(&packed, gzip.BestSpeed)
	if err != nil {
		return layer{}, err
	}
	if _, err := zip.Write(plain.Bytes()); err != nil {
		return layer{}, err
	}
	if err := zip.Close(); err != nil {
		return layer{}, err
	}
	d, err := l.blob("application/vnd.oci.image.layer.v1.tar+gzip", packed.Bytes())
	return layer{d, digest(plain.Bytes())}, err
}

// image writes configuration and manifest, and lists the manifest under each name.
func (l *layout) image(names []string, run config, layers []layer) error {
	run.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, run.Env...)
	diffIDs, descriptors := []string{}, []descriptor{}
	for _, each := range layers {
		diffIDs = append(diffIDs, each.diffID)
		descriptors = append(descriptors, each.descriptor)
	}
	document, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "config": run,
		"rootfs": map[string]any{"type": "layers", "diff_ids": diffIDs},
	})
	if err != nil {
		return err
	}
	configuration, err := l.blob("application/vnd.oci.image.config.v1+json", document)
	if err != nil {
		return err
	}
	const manifestType = "application/vnd.oci.image.manifest.v1+json"
	document, err = json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": configuration, "layers": descriptors,
	})
	if err != nil {
		return err
	}
	manifest, err := l.blob(manifestType, document)
	if err != nil {
		return err
	}
	for _, name := range names {
		manifest.Annotations = map[string]string{
			"io.containerd.image.name":          name,
			"org.opencontainers.image.ref.name": name,
		}
		l.index = append(l.index, manifest)
		if strings.Contains(name, "/test-image-digest:") {
			defer fmt.Println("digest", name, manifest.Digest)
		}
	}
	return nil
}

func (l *layout) blob(mediaType string, body []byte) (descriptor, error) {
	d := descriptor{MediaType: mediaType, Digest: digest(body), Size: len(body)}
	path := filepath.Join(l.directory, "blobs/sha256", strings.TrimPrefix(d.Digest, "sha256:"))
	return d, os.WriteFile(path, body, 0o644)
}

func (l *layout) finish() error {
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "manifests": l.index})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(l.directory, "index.json"), index, 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(l.directory, "oci-layout"), []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644)
}

func digest(body []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(body)) }
