package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/tools"
)

// growthSizes are the numbers of things with which [BenchmarkGrowth] times a command.
var growthSizes = []int{1_000, 10_000, 100_000}

// BenchmarkGrowth is how much longer commands take on machines that have more of a thing.
// .ci/benchtable has the targets: most should not need the things at all.
func BenchmarkGrowth(b *testing.B) {
	const session = "ses_01JD0000000000000000000000"
	bind := []string{"exec", "--backend", "runc", "--mode", "bind", "--", "true"}
	for _, g := range []struct {
		name string
		fill func(b *testing.B, m *machine, n int)
		args []string
	}{
		{"bind", fillWorkspace, bind},
		{"overlay", fillWorkspace, []string{"exec", "--backend", "runc", "--mode", "overlay", "--", "true"}},
		{"objects", fillRepository, bind},
		{"sessions", func(b *testing.B, m *machine, n int) { fillSessions(b, m, n, bind) }, bind},
		{"changes", func(b *testing.B, m *machine, n int) {
			script := fmt.Sprintf("seq %d | split -l 1 -a 5", n)
			if err := runOn(b, m, "exec", "--backend", "runc", "--mode", "overlay", "--", "sh", "-c", script); err != nil {
				b.Fatal(err)
			}
		}, []string{"diff", "--stat"}},
		{"records", func(b *testing.B, m *machine, n int) { fillTrace(b, m, n, session) }, []string{"trace", "show", session}},
	} {
		b.Run(g.name, func(b *testing.B) {
			needBackend(b, "runc")
			var sides []side
			for _, n := range growthSizes {
				m := newMachine(b)
				g.fill(b, m, n)
				sides = append(sides, side{name: strconv.Itoa(n) + "-", op: func() error { return runOn(b, m, g.args...) }})
			}
			compare(b, sides...)
		})
	}
}

// runOn runs caisson in the workspace of a machine.
func runOn(b *testing.B, m *machine, args ...string) error {
	var failed bytes.Buffer
	c := exec.Command(filepath.Join(binaries(b), "caisson"), args...)
	c.Env, c.Dir, c.Stderr = m.env, m.workspace, &failed
	if err := c.Run(); err != nil {
		return fmt.Errorf("%w: %s", err, &failed)
	}
	return nil
}

// fillWorkspace makes n files in directories of 50.
func fillWorkspace(b *testing.B, m *machine, n int) {
	writeMany(b, m.workspace, n, func(i int) string { return fmt.Sprintf("d%d/s%d/f%d", i/1000, i/50, i) })
}

// fillRepository makes a repository with n loose objects.
func fillRepository(b *testing.B, m *machine, n int) {
	if out, err := exec.Command("git", "init", "-q", m.workspace).CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	writeMany(b, filepath.Join(m.workspace, ".git", "objects"), n, func(i int) string { return fmt.Sprintf("%02x/%038x", i%256, i) })
}

func writeMany(b *testing.B, root string, n int, name func(i int) string) {
	b.Helper()
	for i := range n {
		path := filepath.Join(root, name(i))
		err := os.WriteFile(path, []byte("content\n"), 0o644)
		if errors.Is(err, os.ErrNotExist) {
			if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
				err = os.WriteFile(path, []byte("content\n"), 0o644)
			}
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// fillSessions runs a session and copies the files that it leaves.
func fillSessions(b *testing.B, m *machine, n int, args []string) {
	if err := runOn(b, m, args...); err != nil {
		b.Fatal(err)
	}
	made, err := sessiondir.List(m.stateDir())
	if err != nil || len(made) != 1 {
		b.Fatal(made, err)
	}
	left := map[string][]byte{}
	for _, name := range []string{record.TraceFile, sessiondir.LogFile, "report.json"} {
		if left[name], err = os.ReadFile(filepath.Join(sessiondir.Path(m.stateDir(), made[0]), name)); err != nil {
			b.Fatal(err)
		}
	}
	for i := range n - 1 {
		id := ulid.MustNew(ulid.Timestamp(time.Now().Add(-time.Duration(i)*time.Second)), ulid.DefaultEntropy())
		dir := sessiondir.Path(m.stateDir(), "ses_"+id.String())
		err := os.Mkdir(dir, 0o700)
		for name, text := range left {
			err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), text, 0o600))
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// fillTrace makes a session of n records.
func fillTrace(b *testing.B, m *machine, n int, session string) {
	dir := sessiondir.Path(m.stateDir(), session)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		b.Fatal(err)
	}
	r, err := record.NewRecorder(record.RecorderOptions{Dir: dir, Session: session})
	if err != nil {
		b.Fatal(err)
	}
	write := func(p record.Payload) {
		if _, err := r.Write(record.Entry{Turn: "trn_01JD0000000000000000000000", Actor: record.ActorTool, Payload: p}); err != nil {
			b.Fatal(err)
		}
	}
	write(record.SessionCreated{Task: "many calls", Workspace: m.workspace, Tools: []record.OfferedTool{}, Configuration: []record.Source{}})
	write(record.TurnStarted{})
	for i := range (n - 2) / 2 {
		id := fmt.Sprintf("tu_%d", i)
		write(record.ToolCalled{CallID: id, Name: "shell", Class: tools.ClassExecute, Rule: "sandboxed execute", Summary: "go test ./store"})
		write(record.ToolCompleted{CallID: id, Name: "shell", Success: true, OutputBytes: 40, FilesModified: []string{}})
	}
	if err := r.Close(); err != nil {
		b.Fatal(err)
	}
}
