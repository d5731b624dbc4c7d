package deploy

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"testing"

	containerd "github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
)

var update = flag.Bool("update", false, "write the seccomp profile")

// noCapabilities is a container without capabilities.
var noCapabilities = &specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{}}}

// TestContainerdSeccomp checks that the profile in which the end-to-end tests run a job is
// containerd's of a container without capabilities: what Kubernetes calls RuntimeDefault.
func TestContainerdSeccomp(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the profile is for amd64")
	}
	profile := containerd.DefaultProfile(noCapabilities)
	rules := profile.Syscalls
	profile.Syscalls = nil
	head, err := json.Marshal(profile)
	if err != nil {
		t.Fatal(err)
	}
	var want bytes.Buffer
	fmt.Fprintf(&want, "%s,\n\"syscalls\": [", bytes.TrimSuffix(head, []byte("}")))
	for i, rule := range rules {
		line, err := json.Marshal(rule)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&want, "%s\n%s", map[bool]string{true: ","}[i > 0], line)
	}
	want.WriteString("\n]}\n")
	const file = "../../e2e/testdata/seccomp-containerd.json"
	if *update {
		if err := os.WriteFile(file, want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%s is not what go test -run Seccomp -update writes: %v", file, err)
	}
}
