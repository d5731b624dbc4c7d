package oci

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
)

// inGroup returns how many processes are in a group. Zombies count.
func inGroup(t *testing.T, group int) (n int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	must(t, err)
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue // ended meanwhile
		}
		text := string(data)
		if fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:]); fields[2] == strconv.Itoa(group) {
			n++
		}
	}
	return n
}

// Without a PID namespace, no process of a sandbox is left as a zombie, whatever
// PID 1 does.
func TestNoZombies(t *testing.T) {
	t.Parallel()
	b := newBed(t, GVisor, os.Geteuid())
	b.backend.options.Isolation = sandbox.IsolationProcess
	for _, killed := range []bool{false, true} {
		sb := b.start(t, b.spec(t, "ses_zombies"+strconv.FormatBool(killed)))
		exit, err := sandbox.Run(t.Context(), sb, sandbox.Command{Argv: []string{"/bin/sh", "-c", "/bin/true; /bin/true"}})
		if err != nil || !exit.Status.Success() {
			t.Fatalf("%+v, %v", exit, err)
		}
		groups := containerOf(sb).groups
		if len(groups) != 3 {
			t.Fatalf("groups %v: want the kernel's, the file server's and the commands'", groups)
		}
		for _, g := range groups {
			if inGroup(t, g) == 0 {
				t.Errorf("nothing is in group %d while the sandbox runs", g)
			}
		}
		if killed {
			containerOf(sb).process.sendKill()
			<-sb.Done()
		}
		must(t, sb.Destroy(context.Background()))
		for _, g := range groups {
			if n := inGroup(t, g); n != 0 {
				t.Errorf("killed %t: %d processes are left in group %d", killed, n, g)
			}
		}
	}
}
