package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// idleSessions is how many of each build are started for the measure of memory.
const idleSessions = 5

// BenchmarkBefore measures sessions of the default configuration beside those of an earlier
// build, whose programs are in the directory E2E_BEFORE: caisson exec from its start to its
// end, with its processor time and the peak of its memory, and the memory of idle sandboxes.
// Both must attest the same.
func BenchmarkBefore(b *testing.B) {
	before := os.Getenv("E2E_BEFORE")
	if before == "" {
		b.Skip("E2E_BEFORE names no directory with the programs of an earlier build")
	}
	for _, name := range backendNames {
		b.Run(name, func(b *testing.B) {
			needBackend(b, name)
			builds := []*build{newBuild(b, "", binaries(b), name), newBuild(b, "before-", before, name)}
			var sides []side
			for _, one := range builds {
				sides = append(sides, side{name: one.name, op: one.execTrue})
			}
			compare(b, sides...)
			for _, one := range builds {
				one.reportMemory(b)
			}
			if ours, theirs := builds[0].attested, builds[1].attested; ours != theirs {
				b.Errorf("sandboxes attest %s, and before %s", ours, theirs)
			}
		})
	}
}

// build is a build of Caisson, with a home of its own.
type build struct {
	*machine
	name, backend string
	peaks         []int64 // in KiB
	// attested is the attestation of a sandbox without what differs between sandboxes.
	attested string
}

func newBuild(b *testing.B, name, dir, backend string) *build {
	b.Helper()
	m := newMachine(b)
	m.program = filepath.Join(dir, "caisson")
	return &build{machine: m, name: name, backend: backend}
}

func (u *build) execArgs(argv ...string) []string {
	return append([]string{"exec", "--workspace", u.workspace, "--backend", u.backend, "--"}, argv...)
}

func (u *build) execTrue() error {
	c := exec.Command(u.program, u.execArgs("true")...)
	c.Env, c.Dir = u.env, u.home
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	u.peaks = append(u.peaks, c.ProcessState.SysUsage().(*syscall.Rusage).Maxrss)
	return nil
}

// reportMemory reports the memory of the program and of idle sandboxes.
func (u *build) reportMemory(b *testing.B) {
	b.Helper()
	slices.Sort(u.peaks)
	b.ReportMetric(float64(u.peaks[len(u.peaks)/2]), u.name+"peak-KiB")
	var ids []string
	traces := filepath.Join(u.stateDir(), "sessions", "*", "trace.jsonl")
	old, err := filepath.Glob(traces)
	if err != nil {
		b.Fatal(err)
	}
	for range idleSessions {
		r := u.start(b, u.execArgs("sleep", "600")...)
		defer func() {
			_ = r.process.Process.Signal(syscall.SIGTERM)
			<-r.ended
		}()
	}
	for until := time.Now().Add(deadline); len(ids) < idleSessions; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(until) {
			b.Fatal("the sandboxes don't start")
		}
		all, _ := filepath.Glob(traces)
		ids = nil
		for _, path := range all {
			if id := u.readAttestation(path); id != "" && !slices.Contains(old, path) {
				ids = append(ids, id)
			}
		}
	}
	time.Sleep(4 * time.Second) // an idle guest gives memory back after two
	total, processes := memoryOf(b, ids)
	if processes < idleSessions {
		b.Fatalf("only %d processes are found", processes)
	}
	b.ReportMetric(float64(total)/idleSessions/1024, u.name+"idle-KiB")
}

// readAttestation reads the attestation of a session's sandbox, and returns the name of
// its container, "" if it has not started.
func (u *build) readAttestation(trace string) string {
	text, err := os.ReadFile(trace)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		var r struct {
			Kind    string `json:"kind"`
			Payload struct {
				Attestation map[string]any `json:"attestation"`
			} `json:"payload"`
		}
		if json.Unmarshal([]byte(line), &r) != nil || r.Kind != "sandbox.started" {
			continue
		}
		a := r.Payload.Attestation
		container, _ := a["container"].(string)
		for _, key := range []string{"container", "guest_sha256", "guest_version"} {
			delete(a, key)
		}
		rest, err := json.Marshal(a)
		if err != nil {
			return ""
		}
		session := filepath.Base(filepath.Dir(trace))
		u.attested = strings.NewReplacer(u.home, "HOME", u.workspace, "WORKSPACE", session, "SESSION").Replace(string(rest))
		return container
	}
	return ""
}
