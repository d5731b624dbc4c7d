package guest_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest"
	"github.com/caisson-run/caisson/sandbox/guest/internal/guesttest"
)

func TestCommandOutcomes(t *testing.T) {
	c, g := dial(t, guesttest.Options{})
	write(t, g, "text", "no program\n", 0o644)
	write(t, g, "script", "echo hi\n", 0o755)
	write(t, g, "orphan", "#!/no/such/interpreter\n", 0o755)
	for _, tt := range []struct {
		name           string
		cmd            sandbox.Command
		status         sandbox.ExitStatus
		stdout, stderr string // stderr must only contain it
	}{
		{name: "both streams", cmd: sandbox.Command{Argv: []string{"sh", "-c", "echo out; echo err >&2"}}, stdout: "out\n", stderr: "err\n"},
		{name: "exit code", cmd: sandbox.Command{Argv: []string{"sh", "-c", "exit 255"}}, status: sandbox.ExitStatus{Code: 255}},
		{name: "signal", cmd: sandbox.Command{Argv: []string{"sh", "-c", "kill -SEGV $$"}}, status: sandbox.ExitStatus{Code: -1, Signal: 11}},
		{name: "stdin is empty", cmd: sandbox.Command{Argv: []string{"cat"}}},
		{name: "stdin", cmd: sandbox.Command{Argv: []string{"cat"}, Stdin: strings.NewReader("in\x00\xff\n")}, stdout: "in\x00\xff\n"},
		{name: "stdin not read", cmd: sandbox.Command{Argv: []string{"true"}, Stdin: strings.NewReader(strings.Repeat("x", 4<<20))}},
		{name: "default environment", cmd: sandbox.Command{Argv: []string{"env"}}, stdout: strings.Join(sandbox.DefaultEnv(), "\n") + "\n"},
		{name: "variables beside an environment", cmd: sandbox.Command{Argv: []string{"/usr/bin/env"}, Env: []string{"A=1", "B=2"}, Variables: []string{"B=3", "C=4"}}, stdout: "A=1\nB=3\nC=4\n"},
		{name: "variables beside the sandbox's own", cmd: sandbox.Command{Argv: []string{"/bin/sh", "-c", "echo $SANDBOX $A"}, Variables: []string{"A=1"}}, stdout: "caisson 1\n"},
		{name: "own environment", cmd: sandbox.Command{Argv: []string{"/usr/bin/env"}, Env: []string{"A=1\n2", "B=\xff"}}, stdout: "A=1\n2\nB=\xff\n"},
		{name: "exact arguments", cmd: sandbox.Command{Argv: []string{"printf", "%s|", "", "a b", "c\nd", "\xff\xfe", "-n"}}, stdout: "|a b|c\nd|\xff\xfe|-n|"},
		{name: "not found", cmd: sandbox.Command{Argv: []string{"no-such-program"}}, status: sandbox.ExitStatus{Code: 127}, stderr: "not found"},
		{name: "path not found", cmd: sandbox.Command{Argv: []string{"./none"}}, status: sandbox.ExitStatus{Code: 127}, stderr: "not found"},
		{name: "not executable", cmd: sandbox.Command{Argv: []string{"./text"}}, status: sandbox.ExitStatus{Code: 126}, stderr: "permission denied"},
		{name: "a directory", cmd: sandbox.Command{Argv: []string{"/workspace"}}, status: sandbox.ExitStatus{Code: 126}, stderr: "permission denied"},
		{name: "exec format", cmd: sandbox.Command{Argv: []string{"./script"}}, status: sandbox.ExitStatus{Code: 126}, stderr: "exec format"},
		{name: "no interpreter", cmd: sandbox.Command{Argv: []string{"./orphan"}}, status: sandbox.ExitStatus{Code: 126}, stderr: "interpreter"},
		{name: "too many arguments", cmd: sandbox.Command{Argv: append([]string{"true"}, slicesOf(strings.Repeat("x", 120<<10), 20)...)}, status: sandbox.ExitStatus{Code: 126}, stderr: "too long"},
		{name: "5000 variables", cmd: sandbox.Command{Argv: []string{"/bin/sh", "-c", "echo $V4999"}, Env: variables(5000)}, stdout: "4999\n"},
		{name: "own timeout", cmd: sandbox.Command{Argv: []string{"sleep", "100"}, Timeout: 100 * time.Millisecond}, status: sandbox.ExitStatus{Code: -1, Signal: 15, TimedOut: true}},
		{name: "own streams by name", cmd: sandbox.Command{Argv: []string{"sh", "-c", "echo out >/proc/self/fd/1; echo err >/proc/self/fd/2"}}, stdout: "out\n", stderr: "err\n"},
		{name: "no terminal", cmd: sandbox.Command{Argv: []string{"sh", "-c", "echo >/dev/tty"}}, status: sandbox.ExitStatus{Code: 2}, stderr: "/dev/tty"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := start(t.Context(), t, c, tt.cmd)()
			if diff := cmp.Diff(tt.status, r.Status); diff != "" {
				t.Errorf("status (-want +got):\n%s\nstderr: %s", diff, r.stderr)
			}
			if diff := cmp.Diff(tt.stdout, r.stdout); diff != "" {
				t.Errorf("stdout (-want +got):\n%s", diff)
			}
			if !strings.Contains(r.stderr, tt.stderr) || tt.stderr == "" && r.stderr != "" {
				t.Errorf("stderr is %q", r.stderr)
			}
			sum := sha256.Sum256([]byte(r.stdout))
			want := sandbox.Stream{Total: int64(len(r.stdout)), Live: int64(len(r.stdout)), SHA256: hex.EncodeToString(sum[:])}
			if diff := cmp.Diff(want, r.Stdout); diff != "" {
				t.Errorf("stdout's account (-want +got):\n%s", diff)
			}
		})
	}
}

func write(t *testing.T, g *guesttest.Guest, name, text string, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(g.Workspace, name), []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func slicesOf(s string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = s
	}
	return out
}

func variables(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = "V" + itoa(i) + "=" + itoa(i)
	}
	return out
}

func TestCommandInvalid(t *testing.T) {
	c, g := dial(t, guesttest.Options{})
	write(t, g, "file", "", 0o644)
	for name, target := range map[string]string{"out": "/etc", "up": "..", "proc": "/proc/self/fd"} {
		if err := os.Symlink(target, filepath.Join(g.Workspace, name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, cmd := range map[string]sandbox.Command{
		"no program":          {},
		"empty program":       {Argv: []string{""}},
		"NUL":                 {Argv: []string{"echo", "a\x00b"}},
		"long argument":       {Argv: []string{"true", strings.Repeat("x", 128<<10+1)}},
		"all too long":        {Argv: append([]string{"true"}, slicesOf(strings.Repeat("x", 100<<10), 30)...)},
		"variable":            {Argv: []string{"true"}, Env: []string{"NOVALUE"}},
		"variable's name":     {Argv: []string{"true"}, Env: []string{"=x"}},
		"variable with NUL":   {Argv: []string{"true"}, Env: []string{"A=\x00"}},
		"relative directory":  {Argv: []string{"true"}, Dir: "sub"},
		"directory elsewhere": {Argv: []string{"true"}, Dir: "/etc"},
		"directory's sibling": {Argv: []string{"true"}, Dir: "/workspacex"},
		"directory by dots":   {Argv: []string{"true"}, Dir: "/workspace/../etc"},
		"directory by link":   {Argv: []string{"true"}, Dir: "/workspace/out"},
		"directory above":     {Argv: []string{"true"}, Dir: "/workspace/up"},
		"magic link":          {Argv: []string{"true"}, Dir: "/workspace/proc/0"},
		"no such directory":   {Argv: []string{"true"}, Dir: "/workspace/none"},
		"directory is a file": {Argv: []string{"true"}, Dir: "/workspace/file"},
		"directory with NUL":  {Argv: []string{"true"}, Dir: "/workspace/\x00"},
		"negative timeout":    {Argv: []string{"true"}, Timeout: -1},
		"negative grace":      {Argv: []string{"true"}, Grace: -1},
		"negative live":       {Argv: []string{"true"}, Output: sandbox.OutputLimits{Live: -1}},
		"huge tail":           {Argv: []string{"true"}, Output: sandbox.OutputLimits{Tail: 1 << 30}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := c.Start(t.Context(), cmd); !errors.Is(err, sandbox.ErrInvalid) {
				t.Errorf("error is %v, want one of ErrInvalid", err)
			}
		})
	}
	if r := sh(t, c, "echo still here"); r.stdout != "still here\n" {
		t.Errorf("afterwards: %+v", r)
	}
}

func TestCommandDir(t *testing.T) {
	c, g := dial(t, guesttest.Options{})
	deep := filepath.Join(g.Workspace, "a", "b c")
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("a/b c", filepath.Join(g.Workspace, "inside")); err != nil {
		t.Fatal(err)
	}
	private := filepath.Join(g.Workspace, "private")
	if err := os.Mkdir(private, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(private, sandbox.CommandUID, sandbox.CommandGID); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{
		"":                          "/workspace",
		"/workspace":                "/workspace",
		"/workspace/":               "/workspace",
		"/workspace/a/b c":          "/workspace/a/b c",
		"/workspace//a/./b c/../..": "/workspace",
		"/workspace/inside":         "/workspace/a/b c",
		"/workspace/private":        "/workspace/private",
	} {
		r := start(t.Context(), t, c, sandbox.Command{Argv: []string{"pwd", "-P"}, Dir: dir})()
		if r.stdout != want+"\n" {
			t.Errorf("in %q: pwd says %q and %q, want %q", dir, r.stdout, r.stderr, want)
		}
	}
}

func TestOutputBeyondLive(t *testing.T) {
	c, _ := dial(t, guesttest.Options{})
	whole := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // 1 MiB
	for _, tt := range []struct {
		name      string
		live      int64
		tail      int
		wantTail  int
		wantLive  int
		wantTotal int
	}{
		{"all live", 1 << 20, 100, 0, 1 << 20, 1 << 20},
		{"one byte over", 1<<20 - 1, 100, 1, 1<<20 - 1, 1 << 20},
		{"head and tail", 1000, 100, 100, 1000, 1 << 20},
		{"tail holds the rest", 1<<20 - 50, 100, 50, 1<<20 - 50, 1 << 20},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := start(t.Context(), t, c, sandbox.Command{
				Argv: []string{"cat"}, Stdin: bytes.NewReader(whole),
				Output: sandbox.OutputLimits{Live: tt.live, Tail: tt.tail},
			})()
			sum := sha256.Sum256(whole)
			want := sandbox.Stream{Total: int64(tt.wantTotal), Live: int64(tt.wantLive), SHA256: hex.EncodeToString(sum[:])}
			if tt.wantTail > 0 {
				want.Tail = whole[len(whole)-tt.wantTail:]
			}
			if diff := cmp.Diff(want, r.Stdout); diff != "" {
				t.Errorf("stdout's account (-want +got):\n%s", diff)
			}
			if r.stdout != string(whole[:tt.wantLive]) {
				t.Errorf("%d live bytes are not the first ones", len(r.stdout))
			}
		})
	}
}

// TestLastByte runs many short commands: the last byte before an exit must
// never be lost.
func TestLastByte(t *testing.T) {
	c, _ := dial(t, guesttest.Options{})
	for range 300 {
		if r := sh(t, c, "printf 'x%.0s' 1 2 3; printf end"); r.stdout != "xxxend" {
			t.Fatalf("stdout is %q", r.stdout)
		}
	}
}

// TestEnvironmentOfTheSandbox checks the environment of commands that name
// none, in each directory.
func TestEnvironmentOfTheSandbox(t *testing.T) {
	env := sandbox.Environment([]string{"FROM_IMAGE=yes", "HOME=/evil"}, []string{"/opt/tool/bin"})
	c, g := dial(t, guesttest.Options{}, func(o *guest.Options) { o.Env = env })
	if err := os.Mkdir(filepath.Join(g.Workspace, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	want := strings.Join(env, "\n") + "\n"
	if !strings.Contains(want, "FROM_IMAGE=yes\n") || !strings.Contains(want, "PATH=/opt/tool/bin:/usr/local/sbin:") {
		t.Fatalf("the control lacks what the image has: %s", want)
	}
	if r := start(t.Context(), t, c, sandbox.Command{Argv: []string{"/usr/bin/env"}})(); r.stdout != want {
		t.Errorf("environment (-want +got):\n%s", cmp.Diff(want, r.stdout))
	}
	r := start(t.Context(), t, c, sandbox.Command{Argv: []string{"/usr/bin/env"}, Dir: sandbox.WorkspaceDir + "/sub"})()
	if want := strings.Replace(want, "PWD=/workspace\n", "PWD=/workspace/sub\n", 1); r.stdout != want {
		t.Errorf("environment in a directory (-want +got):\n%s", cmp.Diff(want, r.stdout))
	}
}
