package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
)

// Without limits, as in a user's runc sandbox, no number is shown: "0
// processes" would be one.
func TestDoctorTrialLimits(t *testing.T) {
	var s SmokeTest
	for _, tt := range []struct {
		name   string
		limits sandbox.AttestedLimits
		words  string
	}{
		{"both", sandbox.AttestedLimits{MemoryBytes: 2 << 30, PIDs: 256}, ", 2.0 GiB of memory, 256 processes"},
		{"processes alone", sandbox.AttestedLimits{PIDs: 256}, ", memory without a limit, 256 processes"},
		{"none", sandbox.AttestedLimits{}, ", memory without a limit, processes without a limit"},
	} {
		got := s.checkAttestation(sandbox.Attestation{Limits: tt.limits, Localhost: []string{"127.0.0.1"}}, sandbox.Info{}, 0, nil)
		if got.Result != OK || !strings.HasSuffix(got.Detail, tt.words) {
			t.Errorf("%s: %+v, want the end %q", tt.name, got, tt.words)
		}
	}
	if got := s.checkAttestation(sandbox.Attestation{Backend: "gvisor", Isolation: sandbox.IsolationProcess}, sandbox.Info{}, 0, nil); !strings.HasPrefix(got.Detail, "gvisor without namespaces in ") {
		t.Errorf("without namespaces: %+v", got)
	}
	if got := s.checkAttestation(sandbox.Attestation{}, sandbox.Info{}, 0, nil); got.Result != Warning || !strings.Contains(got.Detail, "localhost has no address") {
		t.Errorf("without localhost: %+v", got)
	}
}

// The directory that a trial starts on is like the workspace: it has the same
// owner, and is on its file system if a place is.
func TestTrialWorkspace(t *testing.T) {
	workspace, here := t.TempDir(), t.TempDir()
	const owner = 4242
	if os.Geteuid() == 0 {
		if err := os.Chown(workspace, owner, owner); err != nil {
			t.Fatal(err)
		}
	}
	path, err := makeWorkspace(workspace, "/proc", here)
	if err != nil || filepath.Dir(path) != here || !sameFileSystem(path, workspace) {
		t.Fatalf("%q, %v: want one below %s", path, err, here)
	}
	if info, err := os.Stat(path); err != nil || os.Geteuid() == 0 && info.Sys().(*syscall.Stat_t).Uid != owner {
		t.Errorf("%v, %v: want the workspace's owner", info, err)
	}
	// Control: if no place is on the workspace's file system, the first is
	// used.
	if path, err := makeWorkspace("/proc", here, workspace); err != nil || filepath.Dir(path) != here {
		t.Errorf("%q, %v", path, err)
	}
}

// A start on another file system than the workspace's is a warning. The
// controls are a start on the same one, and a failure.
func TestTrialOnAnotherFileSystem(t *testing.T) {
	here := t.TempDir()
	trial := filepath.Join(here, "trial")
	if err := os.Mkdir(trial, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		result    Result
		workspace string
		want      Result
	}{
		{OK, here, OK}, {OK, "/proc", Warning}, {Failed, "/proc", Failed},
	} {
		f := warnOfFileSystem(Finding{Check: checkStart, Result: tt.result, Detail: "started"}, trial, tt.workspace)
		warned := tt.want == Warning
		if f.Result != tt.want || strings.Contains(f.Detail, "tried in "+here+", which is on another file system") != warned || (f.Hint != "") != warned {
			t.Errorf("%s on %s: %+v, want %s", tt.result, tt.workspace, f, tt.want)
		}
	}
}
