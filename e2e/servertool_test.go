//go:build linux

package e2e

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/replay"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox/oci"
	"github.com/caisson-run/caisson/tools/policy"
	toolshell "github.com/caisson-run/caisson/tools/shell"
)

// TestAToolOfAServer runs a tool with a server's name in a real sandbox: the
// model calls it by its wire name, and the records say its own.
func TestAToolOfAServer(t *testing.T) {
	runc, err := exec.LookPath("runc")
	if err != nil || os.Getuid() != 0 {
		t.Skip("needs root and runc")
	}
	root := t.TempDir()
	state, dir := filepath.Join(root, "state"), filepath.Join(root, "workspace")
	script := filepath.Join(root, "script.yaml")
	for _, d := range []string{state, dir} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	turns := "version: 1\nname: test\nturns:\n  - calls: [{tool: srv__do_it, input: {}}]\n  - text: Done.\n"
	if err := os.WriteFile(script, []byte(turns), 0o600); err != nil {
		t.Fatal(err)
	}
	model, err := replay.Open(script, replay.Options{})
	if err != nil {
		t.Fatal(err)
	}
	backend, err := oci.New(oci.Options{Kind: oci.Runc, RuntimePath: runc, GuestPath: filepath.Join(binaries(t), "caisson-guest"), StateDir: state})
	if err != nil {
		t.Fatal(err)
	}
	w, err := runner.OpenWorkspace(dir, runner.Protected{State: state})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close() // only read
	folder, err := sessiondir.Create(state, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close() // its end is not what is tested
	policy, err := policy.Preset("ci")
	if err != nil {
		t.Fatal(err)
	}
	report, err := runner.Run(t.Context(), runner.Options{
		Dir: folder, Task: "do it", Workspace: w,
		SandboxOptions: runner.SandboxOptions{Backend: backend, Image: images.Reference{Scheme: images.SchemeHost}, Resources: limits.DefaultResources()},
		ModelOptions:   runner.ModelOptions{Profiles: []loop.Profile{{Model: model}}, Budget: limits.Budget{Rounds: new(int64(5))}},
		PolicyOptions:  runner.PolicyOptions{Policy: policy},
		ToolOptions: runner.ToolOptions{Declared: []toolshell.Declared{{
			Name: "srv/do_it", Description: "Does it.", InputSchema: json.RawMessage(`{"type":"object","properties":{}}`),
			Template: toolshell.Template{Script: "echo done > made"},
		}}},
	})
	if err != nil || report.ExitStatus != 0 {
		t.Fatalf("ended with %d, %+v, %v", report.ExitStatus, report.Problem, err)
	}
	made, err := os.ReadFile(filepath.Join(dir, "made"))
	if err != nil || string(made) != "done\n" {
		t.Errorf("the tool made %q, %v", made, err)
	}
	text, err := os.ReadFile(filepath.Join(report.Dir, record.TraceFile))
	if err != nil {
		t.Fatal(err)
	}
	trace, err := record.ReadTrace(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	named := map[record.Kind]bool{}
	for _, r := range trace.Records {
		if line := string(r.Payload); strings.Contains(line, "srv__") {
			t.Errorf("%s says the wire name: %s", r.Kind, line)
		} else if strings.Contains(line, `"srv/do_it"`) {
			named[r.Kind] = true
		}
	}
	for _, kind := range []record.Kind{record.KindSessionCreated, record.KindToolCalled, record.KindToolCompleted, record.KindMessage} {
		if !named[kind] {
			t.Errorf("no %s names the tool", kind)
		}
	}
}
