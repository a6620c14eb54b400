//go:build tools

// Package kubelet pins the kubelet, so that `go mod tidy` keeps it.
package kubelet

import _ "k8s.io/kubernetes/cmd/kubelet/app"
