//go:build linux

package server

import (
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
)

// TestProblemsSpeakToClients puts every text of the program that names a flag or
// a command into a problem, as cause and as hint: a client sees neither.
func TestProblemsSpeakToClients(t *testing.T) {
	commandLine := regexp.MustCompile(`(^|[\s("'])--[a-z]|\bcaisson [a-z]+ `)
	texts := 0
	for _, dir := range []string{"runner", "sandbox", "images", "tools", filepath.Join("cmd", "caisson")} {
		err := filepath.WalkDir(filepath.Join("..", "..", dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				lit, ok := n.(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING {
					return true
				}
				text, err := strconv.Unquote(lit.Value)
				if err != nil || !commandLine.MatchString(text) || strings.Contains(text, "\n") {
					return true
				}
				texts++
				got := clientProblem(record.Problem{Cause: "the image can't be used with --image", Hint: text}, askOtherwise)
				if commandLine.MatchString(got.Hint) || strings.Contains(got.Cause, "--") || got.Hint == "" {
					t.Errorf("%q becomes %+v", text, got)
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if texts < 50 { // the control
		t.Errorf("%d texts name a flag or a command", texts)
	}
	for text, want := range map[string]string{
		"Look at the engine or runtime (caisson doctor), and run the task again. What was done is in the workspace.": "What was done is in the workspace.",
		"Make room on that file system; what was written before can be read.":                                        "Make room on that file system. What was written before can be read.",
		"Take --mode bind, on a copy of the folder if need be.":                                                      askOtherwise,
		"": askOtherwise,
	} {
		if got := clientProblem(record.Problem{Hint: text}, askOtherwise).Hint; got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}

// TestRecordsSpeakToClients: no record that the server sends, and no view of a
// session, names a flag or a command, however the session ends and whatever it
// begins with.
func TestRecordsSpeakToClients(t *testing.T) {
	commandLine := regexp.MustCompile(`(^|[\s("'])--[a-z]|\bcaisson (doctor|run|diff|apply|approvals)\b`)
	hinted := &runner.Error{Problem: record.Problem{Cause: "no backend for --backend docker", Hint: "Name one with --backend. Or start an engine."}, Err: sandbox.ErrUnavailable}
	for _, p := range []string{hinted.Cause, hinted.Hint, runner.NamespacesHint} { // the control
		if !commandLine.MatchString(p) {
			t.Fatalf("%q names no flag", p)
		}
	}
	const shell = "  - calls: [{tool: shell, input: {command: say hi}}]\n  - text: done\n"
	for name, tc := range map[string]struct {
		policy, turns string
		create        error
		opts          func(*runner.Options)
		contains      string
	}{
		"a start with a hint of its own": {"sandboxed", shell, hinted, nil, "Or start an engine."},
		"a start without namespaces":     {"sandboxed", shell, sandbox.ErrNoNamespaces, nil, "use the docker backend"},
		"another start":                  {"sandboxed", shell, sandbox.ErrUnavailable, nil, recordsHint},
		"a start that nothing needed":    {"sandboxed", "  - text: done\n", hinted, nil, "calls that need the sandbox will fail"},
		"a limit":                        {"sandboxed", shell, nil, func(o *runner.Options) { o.Budget.Rounds = new(int64(1)) }, "Raise that limit"},
		"an answer that came too late":   {"default", shell, nil, func(o *runner.Options) { o.ConfirmTimeout = time.Millisecond }, "Answer while the question waits."},
		"facts of the beginning": {"sandboxed", shell, nil, func(o *runner.Options) {
			o.Choice.Why = "asked for by --backend"
			o.Warnings = []string{"the image of --image is old"}
			o.Ignored = []record.Ignored{{Name: ".caisson/config.yaml", Why: "--ignore-project-config"}}
		}, "the image of image is old"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTestEnv(t, tc.turns)
			w.policy, w.opts = tc.policy, tc.opts
			if tc.create != nil {
				w.backend.create = func(context.Context) error { return tc.create }
			}
			id := w.startSession("bind")
			f := w.followEvents(id, "")
			w.waitForTurn(id, w.startTurn(id, "go"))
			w.do(aliceToken, "DELETE", "/sessions/"+id, "")
			f.rest()
			var texts []string
			for _, e := range w.followEvents(id, "").rest() {
				texts = append(texts, e.data)
			}
			texts = append(texts, w.get("/sessions/"+id).text, w.get("/sessions").text)
			for _, text := range texts {
				if at := commandLine.FindString(text); at != "" {
					t.Errorf("%q in %s", at, text)
				}
			}
			if all := strings.Join(texts, "\n"); !strings.Contains(all, tc.contains) {
				t.Errorf("%q is not in %s", tc.contains, all)
			}
		})
	}
}
