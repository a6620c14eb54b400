// Package pods tests a client of the Container Runtime Interface against a runtime of its own.
package pods

import (
	"bufio"
	"cmp"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// startRuntime returns a client of a `crib runtime` that ends, with all its pods, when the test does or dies.
func startRuntime(t *testing.T) (cri.RuntimeServiceClient, cri.ImageServiceClient) {
	dir := t.TempDir()
	runtime := exec.Command(cmp.Or(os.Getenv("CRIB_BIN"), "crib"), "runtime", "--until-stdin-closes", "--ephemeral",
		"--listen", "unix://"+dir+"/crib.sock", "--state-dir", dir+"/state")
	runtime.Stderr = t.Output()
	stdin, stdout := must(runtime.StdinPipe()), bufio.NewReader(must(runtime.StdoutPipe()))
	must(0, runtime.Start())
	t.Cleanup(func() { stdin.Close(); must(0, runtime.Wait()) })
	must(stdout.ReadString('\n')) // listening on unix://…
	connection := must(grpc.NewClient("unix:"+dir+"/crib.sock", grpc.WithTransportCredentials(insecure.NewCredentials())))
	return cri.NewRuntimeServiceClient(connection), cri.NewImageServiceClient(connection)
}

func TestLogAndExitCode(t *testing.T) {
	runtime, images := startRuntime(t)
	ctx, host := t.Context(), &cri.ImageSpec{Image: "crib.local/host"} // the host's root file system, read-only
	sandbox := &cri.PodSandboxConfig{Metadata: &cri.PodSandboxMetadata{Name: "job", Uid: "1", Namespace: "test"}, LogDirectory: t.TempDir()}
	config := &cri.ContainerConfig{Metadata: &cri.ContainerMetadata{Name: "main"}, Image: host,
		Command: []string{"sh", "-c", "echo hello; exit 7"}, LogPath: "main.log"}
	must(images.PullImage(ctx, &cri.PullImageRequest{Image: host}))
	pod := must(runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: sandbox})).PodSandboxId
	id := must(runtime.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: pod, Config: config, SandboxConfig: sandbox})).ContainerId
	must(runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: id}))
	status := &cri.ContainerStatus{}
	for status.State != cri.ContainerState_CONTAINER_EXITED {
		time.Sleep(10 * time.Millisecond)
		status = must(runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})).Status
	}
	log := string(must(os.ReadFile(status.LogPath)))
	if status.ExitCode != 7 || !strings.HasSuffix(log, " stdout F hello\n") {
		t.Errorf("exit code %d, log %q", status.ExitCode, log)
	}
}

// must panics on an error, which fails the test after its cleanups.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
