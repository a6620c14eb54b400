// Command dial calls a runtime with the `:authority` values that grpc-go clients of unix sockets send: `dial SOCKET`.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A client has a target, and possibly its own dialer or authority.
type client struct {
	name    string
	target  string
	options []grpc.DialOption
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: dial SOCKET")
		os.Exit(2)
	}
	socket := os.Args[1]
	dialer := grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	})
	clients := []client{
		{name: "the scheme unix", target: "unix:" + socket},
		{name: "the scheme unix with slashes", target: "unix://" + socket},
		{name: "a path and a dialer", target: "passthrough:///" + socket, options: []grpc.DialOption{dialer}},
	}
	for _, authority := range []string{
		socket,
		strings.ReplaceAll(socket, "/", "%2F"),
		"unix:" + socket,
		"localhost",
		"[::]:50051",
		strings.Repeat("/long", 1000),
	} {
		clients = append(clients, client{
			name:    fmt.Sprintf("the authority %.40s", authority),
			target:  "unix:" + socket,
			options: []grpc.DialOption{grpc.WithAuthority(authority)},
		})
	}
	for _, client := range clients {
		if err := client.call(); err != nil {
			fmt.Fprintf(os.Stderr, "grpc-go with %s: %v\n", client.name, err)
			os.Exit(1)
		}
		fmt.Printf("-- grpc-go with %s\n", client.name)
	}
	fmt.Printf("%d passed, 0 failed\n", len(clients))
}

// Unary calls and a stream on one connection: HPACK refers to the headers of earlier calls.
func (c client) call() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	options := append(c.options, grpc.WithTransportCredentials(insecure.NewCredentials()))
	connection, err := grpc.NewClient(c.target, options...)
	if err != nil {
		return err
	}
	defer connection.Close()
	runtime := runtimeapi.NewRuntimeServiceClient(connection)
	for range 3 {
		if _, err := runtime.Version(ctx, &runtimeapi.VersionRequest{}); err != nil {
			return err
		}
	}
	stream, err := runtime.StreamPodSandboxes(ctx, &runtimeapi.StreamPodSandboxesRequest{})
	if err != nil {
		return err
	}
	for {
		if _, err := stream.Recv(); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
	}
}
