package caisson_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-run/caisson"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/boundary"
	"github.com/caisson-run/caisson/loop/replay"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/policy"
)

// options returns options with an available backend, or skips the test.
func options(t *testing.T) caisson.SandboxOptions {
	t.Helper()
	if testing.Short() {
		t.Skip("starts sandboxes")
	}
	dir := t.TempDir()
	guest := filepath.Join(dir, "caisson-guest")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", guest, "./cmd/caisson-guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	runsc, err := filepath.Abs("bin/runsc")
	if err == nil {
		_, err = os.Stat(runsc)
	}
	if err != nil {
		if os.Getenv("REQUIRE_BACKENDS") != "" {
			t.Fatal(err)
		}
		t.Skip("no bin/runsc: make build builds it")
	}
	o := caisson.SandboxOptions{
		HostOptions: caisson.HostOptions{StateDir: filepath.Join(dir, "state"), CacheDir: filepath.Join(dir, "cache"), Guest: guest, Runsc: runsc},
		Workspace:   filepath.Join(dir, "workspace"), Backend: "gvisor",
	}
	must(t, os.Mkdir(o.Workspace, 0o755))
	// The sandbox's user must reach the workspace.
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			break
		}
	}
	must(t, os.Mkdir(o.StateDir, 0o700))
	return o
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func script(t *testing.T, turns string) loop.Model {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script.yaml")
	must(t, os.WriteFile(path, []byte("version: 1\nname: test\nturns:\n"+turns), 0o600))
	m, err := replay.Open(path, replay.Options{})
	must(t, err)
	return m
}

func TestNewSandbox(t *testing.T) {
	o := options(t)
	data := t.TempDir()
	must(t, os.WriteFile(filepath.Join(data, "file"), []byte("data\n"), 0o644))
	o.Mounts = []sandbox.Mount{{Path: data, Target: "/data", ReadOnly: true}}
	o.Caches = []string{"go", "~/.tool"}
	const command = `echo made >file && cat file /data/file && ls ~/.tool && touch ~/.tool/kept$(ls ~/.tool | wc -l) && echo $GOCACHE`
	for _, mode := range []sandbox.WorkspaceMode{"", sandbox.ModeOverlay} {
		t.Run("mode "+string(mode), func(t *testing.T) {
			o.Mode = mode
			box, err := caisson.NewSandbox(t.Context(), o)
			must(t, err)
			var out strings.Builder
			p, err := box.Start(t.Context(), sandbox.Command{Argv: []string{"sh", "-c", command}, Stdout: &out})
			must(t, err)
			want := "made\ndata\n/home/agent/.cache/go-build\n"
			if mode == sandbox.ModeOverlay && os.Getuid() == 0 { // others can't mount the cache copy-on-write
				want = "made\ndata\nkept0\n/home/agent/.cache/go-build\n"
			}
			if exit, err := p.Wait(); err != nil || !exit.Status.Success() || out.String() != want {
				t.Errorf("%s, %v, output %q, want %q", exit.Status, err, out.String(), want)
			}
			if err := errors.Join(box.Destroy(context.Background()), box.Destroy(context.Background())); err != nil {
				t.Error(err)
			}
			_, err = os.Stat(filepath.Join(o.Workspace, "file"))
			if kept := err == nil; kept != (mode == "") {
				t.Errorf("the file is in the workspace: %t", kept)
			}
			_ = os.Remove(filepath.Join(o.Workspace, "file"))
			left, _ := filepath.Glob(filepath.Join(o.StateDir, "sessions", "*", "*"))
			if len(left) != 0 {
				t.Errorf("left behind: %q", left)
			}
			kept, _ := filepath.Glob(filepath.Join(o.StateDir, "caches", "*", "*", "kept*"))
			if len(kept) != 1 || filepath.Base(kept[0]) != "kept0" {
				t.Errorf("in the caches: %q", kept)
			}
		})
	}
}

// TestCopyBounds checks that too large a workspace is refused in copy mode, and that
// programs can set the bounds.
func TestCopyBounds(t *testing.T) {
	o := caisson.Options{SandboxOptions: options(t)}
	o.Backend, o.Mode = "docker", sandbox.ModeCopy
	must(t, os.MkdirAll(filepath.Join(o.Workspace, "large"), 0o755))
	must(t, os.WriteFile(filepath.Join(o.Workspace, "large", "file"), make([]byte, 2<<20), 0o644))
	for _, most := range []struct{ bytes, entries int64 }{{1 << 20, 0}, {0, 2}} {
		o.CopyBytes, o.CopyEntries = most.bytes, most.entries
		box, err := caisson.NewSandbox(t.Context(), o.SandboxOptions)
		if errors.Is(err, sandbox.ErrUnavailable) && os.Getenv("REQUIRE_BACKENDS") == "" {
			t.Skip(err)
		}
		if err == nil {
			err = box.Destroy(context.Background())
			t.Fatalf("%v is no bound: %v", most, err)
		}
		for _, want := range []string{`"large" (2MiB, 2 entries)`, "CopyBytes", "an image that has them"} {
			if !errors.Is(err, sandbox.ErrInvalid) || !strings.Contains(err.Error(), want) {
				t.Errorf("with the bounds %v: %v, want %q", most, err, want)
			}
		}
		o.Profiles = []loop.Profile{{Model: script(t, "  - calls: [{tool: shell, input: {command: ls}}]\n  - text: Done.\n")}}
		if r, err := caisson.Run(t.Context(), o, "list"); err == nil && r.Err == nil {
			t.Errorf("a session with the bounds %v: %+v", most, r)
		}
	}
}

func TestRun(t *testing.T) {
	o := options(t)
	var zones []string
	clock := tools.NewFunc(tools.Definition{
		Name: "current_time", Description: "Returns the time.", Class: tools.ClassRead,
		InputSchema: []byte(`{"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]}`),
	}, func(_ context.Context, in struct{ Zone string }) (string, error) {
		zones = append(zones, in.Zone)
		return "noon", nil
	})
	model := script(t, `  - calls:
      - {tool: current_time, input: {zone: Lisbon}}
      - {tool: shell, input: {command: "echo made >file"}}
  - text: Done.
`)
	r, err := caisson.Run(t.Context(), caisson.Options{SandboxOptions: o, Profiles: []loop.Profile{{Model: model}}, Tools: []tools.Factory{clock}}, "Make a file.")
	must(t, err)
	if r.Err != nil || r.Answer != "Done." || r.Turns != 1 || strings.Join(r.Changed, " ") != "file" || !strings.Contains(r.Patch, "+made") {
		t.Errorf("report %+v", r)
	}
	if strings.Join(zones, " ") != "Lisbon" {
		t.Errorf("the tool was called with %q", zones)
	}
	if text, err := os.ReadFile(filepath.Join(r.Dir, "trace.jsonl")); err != nil || !strings.Contains(string(text), `"name":"current_time"`) {
		t.Errorf("records: %v", err)
	}
}

// TestRunRefusesWhatAsks: nobody can be asked, so a policy that asks refuses.
func TestRunRefusesWhatAsks(t *testing.T) {
	o := options(t)
	policy, err := policy.Preset("default")
	must(t, err)
	model := script(t, "  - calls: [{tool: shell, input: {command: \"echo made >file\"}}]\n  - text: Done.\n")
	r, err := caisson.Run(t.Context(), caisson.Options{SandboxOptions: o, Profiles: []loop.Profile{{Model: model}}, Policy: policy}, "Make a file.")
	must(t, err)
	if r.Err == nil || len(r.Changed) != 0 {
		t.Errorf("report %+v", r)
	}
}

func TestOpen(t *testing.T) {
	o := options(t)
	model := script(t, "  - text: First.\n  - calls: [{tool: shell, input: {command: \"exit 3\"}}]\n  - text: Second.\n")
	s, err := caisson.Open(t.Context(), caisson.Options{SandboxOptions: o, Profiles: []loop.Profile{{Model: model}}})
	must(t, err)
	for _, want := range []string{"First.", "Second."} {
		if got, err := s.Ask(t.Context(), "go on"); err != nil || got != want {
			t.Errorf("answer %q, %v; want %q", got, err, want)
		}
	}
	var out strings.Builder
	if status, err := s.Exec(t.Context(), sandbox.Command{Argv: []string{"sh", "-c", "cat; echo made >file; exit 3"}, Stdin: strings.NewReader("in"), Stdout: &out}); err != nil || status.Code != 3 || out.String() != "in" {
		t.Errorf("a command: %v, %v, output %q", status, err, &out)
	}
	if _, err := s.Exec(t.Context(), sandbox.Command{Argv: []string{"true"}, MaxMemory: 1 << 30}); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("a bound that has no effect: %v", err)
	}
	if _, err := s.Exec(t.Context(), sandbox.Command{Argv: []string{"true"}, Identity: 1}); !errors.Is(err, sandbox.ErrInvalid) {
		t.Errorf("a command of another identity: %v", err)
	}
	if read, err := s.Call(t.Context(), "read_file", []byte(`{"path": "file"}`)); err != nil || !strings.Contains(boundary.ResultText(read.Content), "made") {
		t.Errorf("a call: %+v, %v", read, err)
	}
	if r := s.Close(); r.Err != nil || r.Turns != 3 || r.Reason != loop.StopAnswered {
		t.Errorf("report %+v", r)
	}
}

func TestBadOptions(t *testing.T) {
	state := t.TempDir()
	must(t, os.Chmod(state, 0o700))
	model := script(t, "  - text: Done.\n")
	host := caisson.HostOptions{StateDir: state, CacheDir: t.TempDir(), Environ: []string{}}
	for name, tt := range map[string]struct {
		o    caisson.Options
		want string
	}{
		"no model":     {caisson.Options{SandboxOptions: caisson.SandboxOptions{HostOptions: host, Workspace: t.TempDir()}}, "Options.Profiles is missing"},
		"no workspace": {caisson.Options{SandboxOptions: caisson.SandboxOptions{HostOptions: host}, Profiles: []loop.Profile{{Model: model}}}, "Workspace is missing"},
		"no directory": {caisson.Options{SandboxOptions: caisson.SandboxOptions{HostOptions: host, Workspace: "/nonexistent"}, Profiles: []loop.Profile{{Model: model}}}, "/nonexistent"},
		"system":       {caisson.Options{SandboxOptions: caisson.SandboxOptions{HostOptions: host, Workspace: "/etc"}, Profiles: []loop.Profile{{Model: model}}}, "directory of the system"},
		"image":        {caisson.Options{SandboxOptions: caisson.SandboxOptions{HostOptions: host, Workspace: t.TempDir(), Image: "Not An Image"}, Profiles: []loop.Profile{{Model: model}}}, "Not An Image"},
		"backend":      {caisson.Options{SandboxOptions: caisson.SandboxOptions{HostOptions: host, Workspace: t.TempDir(), Backend: "vm"}, Profiles: []loop.Profile{{Model: model}}}, "vm"},
		"writable mount in overlay mode": {caisson.Options{SandboxOptions: caisson.SandboxOptions{
			HostOptions: host, Workspace: t.TempDir(), Mode: sandbox.ModeOverlay, Mounts: []sandbox.Mount{{Path: t.TempDir(), Target: "/data"}},
		}, Profiles: []loop.Profile{{Model: model}}}, "is writable"},
		"mount of the state directory": {caisson.Options{SandboxOptions: caisson.SandboxOptions{
			HostOptions: host, Workspace: t.TempDir(), Mounts: []sandbox.Mount{{Path: state, Target: "/data", ReadOnly: true}},
		}, Profiles: []loop.Profile{{Model: model}}}, "Caisson's state directory"},
		"mount of another type": {caisson.Options{SandboxOptions: caisson.SandboxOptions{
			HostOptions: host, Workspace: t.TempDir(), Mounts: []sandbox.Mount{{Type: sandbox.MountTmpfs, Target: "/data", Bytes: 1 << 20}},
		}, Profiles: []loop.Profile{{Model: model}}}, "more than Path, Target and ReadOnly"},
		"cache":     {caisson.Options{SandboxOptions: caisson.SandboxOptions{HostOptions: host, Workspace: t.TempDir(), Caches: []string{"bazel"}}, Profiles: []loop.Profile{{Model: model}}}, "unknown cache \"bazel\""},
		"cache use": {caisson.Options{SandboxOptions: caisson.SandboxOptions{HostOptions: host, Workspace: t.TempDir(), CacheUse: "forzen"}, Profiles: []loop.Profile{{Model: model}}}, "forzen"},
		"no state":  {caisson.Options{SandboxOptions: caisson.SandboxOptions{HostOptions: caisson.HostOptions{Environ: []string{"HOME=here"}}, Workspace: t.TempDir()}, Profiles: []loop.Profile{{Model: model}}}, "no state directory"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := caisson.Run(t.Context(), tt.o, "task")
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

func TestDoctor(t *testing.T) {
	o := options(t)
	findings, err := caisson.Doctor(t.Context(), caisson.Options{SandboxOptions: o})
	must(t, err)
	results := map[string]string{}
	for _, f := range findings {
		if f.Detail == "" {
			t.Errorf("%s, %s: no detail", f.Check, f.Result)
		}
		results[f.Check] = f.Result
	}
	for _, check := range []string{"gvisor", "sandbox start", "network"} {
		if results[check] != "ok" {
			t.Errorf("%s is %q, want ok:\n%+v", check, results[check], findings)
		}
	}
	o.Guest, o.Environ = "/nonexistent", []string{"PATH="}
	findings, err = caisson.Doctor(t.Context(), caisson.Options{SandboxOptions: o})
	must(t, err)
	for _, f := range findings {
		if f.Check == "gvisor" && (f.Result != "failed" || !strings.Contains(f.Detail, "caisson-guest")) {
			t.Errorf("without a guest: %+v", f)
		}
	}
	o.Backend, o.Isolation = "runc", sandbox.IsolationProcess
	if _, err := caisson.Doctor(t.Context(), caisson.Options{SandboxOptions: o}); !errors.As(err, new(*sandbox.IncapableError)) {
		t.Errorf("runc without namespaces: %v", err)
	}
}
