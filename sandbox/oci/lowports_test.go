package oci

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/sandbox"
)

// TestLowPortsLeaveNothing: no thread of the guest, or of a command, has the
// capability of ports below 1024 in any set, once the guest has opened them.
func TestLowPortsLeaveNothing(t *testing.T) {
	b := newBed(t, Runc, os.Geteuid())
	spec := b.spec(t, "low-ports")
	spec.Egress = &sandbox.EgressPlan{Names: true, Capture: []int{22, 443}}
	sb := b.start(t, spec)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p, err := sb.Start(ctx, sandbox.Command{Argv: []string{"sleep", "60"}, Dir: sandbox.WorkspaceDir})
	must(t, err)
	pid := containerOf(sb).process.pid
	own, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/pid")
	must(t, err)
	files, err := filepath.Glob("/proc/[0-9]*/task/[0-9]*/status")
	must(t, err)
	threads, processes := 0, map[string]bool{}
	for _, file := range files {
		process := strings.Split(file, "/")[2]
		if ns, err := os.Readlink("/proc/" + process + "/ns/pid"); err != nil || ns != own {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			continue // a thread that has ended
		}
		threads++
		processes[process] = true
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":\t")
			if !strings.HasPrefix(name, "Cap") {
				continue
			}
			if set, err := strconv.ParseUint(value, 16, 64); err != nil || set&(1<<unix.CAP_NET_BIND_SERVICE) != 0 {
				t.Errorf("%s has %s %s", file, name, value)
			}
		}
	}
	if threads < 4 || len(processes) < 2 {
		t.Errorf("%d threads of %d processes were examined, want those of the guest and a command", threads, len(processes))
	}
	cancel()
	_, err = p.Wait()
	must(t, err)
}
