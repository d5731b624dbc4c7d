//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/programs"
)

// Where nothing is limited, as in a user's runc sandbox, no number is said: "0
// processes" would be one.
func TestDoctorTrialLimits(t *testing.T) {
	s := &setup{conf: config.Config{File: config.File{Bounds: config.Bounds{RefuseLost: new(false)}}}}
	for _, tt := range []struct {
		name   string
		limits sandbox.AttestedLimits
		words  string
	}{
		{"both", sandbox.AttestedLimits{MemoryBytes: 2 << 30, PIDs: 256}, ", 2.0 GiB of memory, 256 processes"},
		{"processes alone", sandbox.AttestedLimits{PIDs: 256}, ", memory without a limit, 256 processes"},
		{"none", sandbox.AttestedLimits{}, ", memory without a limit, processes without a limit"},
	} {
		got := s.attested(sandbox.Attestation{Limits: tt.limits}, sandbox.Info{}, 0, nil)
		if got.Result != resultOK || !strings.HasSuffix(got.Detail, tt.words) {
			t.Errorf("%s: %+v, want the end %q", tt.name, got, tt.words)
		}
	}
}

// The directory that a trial starts on is like the workspace: of its owner, and
// on its file system where a place is.
func TestTrialWorkspace(t *testing.T) {
	workspace, here := t.TempDir(), t.TempDir()
	const owner = 4242
	if os.Geteuid() == 0 {
		if err := os.Chown(workspace, owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	path, err := makeTrialWorkspace(workspace, "/proc", here)
	if err != nil || filepath.Dir(path) != here || !sameFileSystem(path, workspace) {
		t.Fatalf("%q, %v: want one below %s", path, err, here)
	}
	if info, err := os.Stat(path); err != nil || os.Geteuid() == 0 && info.Sys().(*syscall.Stat_t).Uid != owner {
		t.Errorf("%v, %v: want the workspace's owner", info, err)
	}
	// The control: where no place is on the workspace's file system, the first is taken.
	if path, err := makeTrialWorkspace("/proc", here, workspace); err != nil || filepath.Dir(path) != here {
		t.Errorf("%q, %v", path, err)
	}
}

// TestTrialOnAnotherFileSystem checks that a start on another file system than the
// workspace's is a warning. The controls are a start on the same one, and a failure.
func TestTrialOnAnotherFileSystem(t *testing.T) {
	here := t.TempDir()
	trial := filepath.Join(here, "trial")
	if err := os.Mkdir(trial, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ result, workspace, want string }{
		{resultOK, here, resultOK}, {resultOK, "/proc", resultWarning}, {resultFailed, "/proc", resultFailed},
	} {
		f := warnOfFileSystem(finding{Check: checkTrial, Result: tt.result, Detail: "started"}, trial, tt.workspace)
		warned := tt.want == resultWarning
		if f.Result != tt.want || strings.Contains(f.Detail, "tried in "+here+", on another file system") != warned || (f.Mend != "") != warned {
			t.Errorf("%s on %s: %+v, want %s", tt.result, tt.workspace, f, tt.want)
		}
	}
}

// What a backend that can't be used is told to do fits the cause.
func TestUnusableBackend(t *testing.T) {
	for _, tt := range []struct {
		backend string
		err     error
		words   string
	}{
		{"docker", &programs.NotFoundError{Name: "caisson-guest"}, "Build it with make build"},
		{"runc", &programs.NotFoundError{Name: "caisson-guest"}, "Build it with make build"},
		{"gvisor", fmt.Errorf("check gvisor: %w: %w: %w", sandbox.ErrUnavailable, sandbox.ErrNoNamespaces, os.ErrPermission), "seccomp=unconfined"},
		{"runc", &programs.NotFoundError{Name: "runc"}, "Install runc or crun"},
		{"docker", fmt.Errorf("ask the engine: %w", sandbox.ErrUnavailable), "Start a Docker engine"},
	} {
		if f := unusable(tt.backend, tt.err); f.Result != resultFailed || !strings.Contains(f.Mend, tt.words) {
			t.Errorf("%s, %v: %+v, want %q", tt.backend, tt.err, f, tt.words)
		}
	}
}
