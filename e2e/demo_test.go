package e2e

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// TestDemo runs what `make demo` runs, as root and as an ordinary user, with
// nothing in the environment: no engine, no key.
func TestDemo(t *testing.T) {
	needBackend(t, "gvisor")
	users := map[string]uint32{"whoever tests": uint32(os.Getuid())}
	if os.Getuid() == 0 {
		users["an ordinary user"] = ordinary
	}
	for name, uid := range users {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.become(t, uid, uid)
			out := m.demo(t, "greeting", "gvisor")
			for _, want := range []string{
				"exit code 1", "FAIL", // the test fails first
				`+for name in "$@"; do`,        // the change, as a diff
				"The test passes now.",         // the answer
				`"backend":"gvisor"`,           // the attestation
				`"network":"none"`,             //
				"OPENAI_API_KEY",               // how to use a real model
				"1 file changed, 1 insertion(", // the diffstat
			} {
				if !strings.Contains(out, want) {
					t.Errorf("the demo does not show %q:\n%s", want, out)
				}
			}
			for name := range treeOf(t, m.home) {
				t.Errorf("the demo left %s", name)
			}
		})
	}
}

// TestGreetingOnEachBackend replays the demo's task everywhere.
func TestGreetingOnEachBackend(t *testing.T) {
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		newMachine(t).example(t, "greeting", backend)
	})
}

// TestWordcount replays the Go example in the embedded sandbox: a cold build of what its test
// needs of the standard library, which takes minutes. With SAMPLE, it is on runc.
func TestWordcount(t *testing.T) {
	t.Parallel()
	backend := "gvisor"
	if os.Getenv("SAMPLE") != "" {
		backend = "runc"
	}
	needBackend(t, backend)
	m := newMachine(t)
	m.env = append(m.env, "PATH="+needGoInHostImage(t)+":"+hostPath)
	m.example(t, "wordcount", backend)
}

// example replays an example: its tests fail first and pass at the end, really
// run, and one file has changed.
func (m *machine) example(t *testing.T, name, backend string) {
	t.Helper()
	source := filepath.Join("..", "examples", name)
	if err := os.CopyFS(m.workspace, os.DirFS(filepath.Join(source, "workspace"))); err != nil {
		t.Fatal(err)
	}
	before := treeOf(t, m.workspace)
	script, err := filepath.Abs(filepath.Join(source, "script.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	out := m.runTask(t, "--backend", backend, "--model", "replay/"+script, "-f", filepath.Join(filepath.Dir(script), "task.txt"))
	out.want(t, 0)
	if got := shellEndings(t, out.records); !slices.Equal(got, []string{"exit code 1", "exit code 0"}) {
		t.Errorf("its test ended with %q, want a failure and then a success", got)
	}
	changed := out.records.end(t).Changed
	if len(changed) != 1 || before[changed[0].Path] == treeOf(t, m.workspace)[changed[0].Path] {
		t.Errorf("changed files %+v, want the one that was wrong", changed)
	}
	m.wantNothingLeft(t, out.records[0].Session)
}

// shellEndings is how each command ended, by the first words of its result.
func shellEndings(t *testing.T, all records) []string {
	t.Helper()
	var endings []string
	for _, result := range all.results(t) {
		if before, _, ok := strings.Cut(result.text(), " after "); ok && strings.HasPrefix(before, "exit code ") {
			endings = append(endings, before)
		}
	}
	return endings
}

// needGoInHostImage gives the folder of Go's programs, or ends the test where
// commands on the host image find no Go: it lies outside of what that shows.
func needGoInHostImage(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("go")
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil || !strings.HasPrefix(path, "/usr/") {
		lacking(t, "", "needs Go below /usr, where the host image has it")
	}
	return filepath.Dir(path)
}

// checkout is a folder with the examples and the binaries, readable by all, as
// a clone has them after `make build`.
var checkout = sync.OnceValues(func() (string, error) {
	dir, err := shared()
	if err != nil {
		return "", err
	}
	return dir, os.CopyFS(filepath.Join(dir, "examples"), os.DirFS(filepath.Join("..", "examples")))
})

// demo runs the demo script as the machine's user and gives what it printed.
func (m *machine) demo(t *testing.T, args ...string) string {
	t.Helper()
	binaries(t)
	dir, err := checkout()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), deadline, errors.New("the demo does not end"))
	defer cancel()
	demo := exec.CommandContext(ctx, "sh", append([]string{filepath.Join(dir, "examples", "demo.sh")}, args...)...)
	demo.Dir = m.home
	demo.Env = m.env
	demo.SysProcAttr = &syscall.SysProcAttr{Credential: m.user}
	out, err := demo.CombinedOutput()
	if err != nil {
		t.Fatalf("demo: %v\n%s", err, out)
	}
	return string(out)
}
