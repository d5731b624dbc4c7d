package dispatch_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/shell"
)

// TestLastingAnswersCoverNothingElse is acceptance cases C39 and C40: a lasting
// allow of `git status` covers no command that contains it, looks like it or
// changes what it does. The control matches a prefix, a word or the known parts, as
// other systems do.
func TestLastingAnswersCoverNothingElse(t *testing.T) {
	asked := map[string][]approval.Scope{}
	answer := approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeAlways}
	ran := map[string]bool{}
	s := newSpecification(t, given{
		grants: filepath.Join(t.TempDir(), "approvals.json"),
		person: func(_ context.Context, c approval.Confirmation) (approval.Answer, error) {
			var in struct{ Command string }
			if err := json.Unmarshal(c.Exact, &in); err != nil {
				t.Error(err)
			}
			asked[in.Command] = c.Scopes
			return answer, nil
		},
		run: func(_ context.Context, cmd shell.Command) (shell.Result, error) {
			ran[cmd.Script] = true
			return shell.Result{}, nil
		},
	})
	id := 0
	run := func(command string) {
		t.Helper()
		id++
		input, err := json.Marshal(map[string]string{"command": command})
		s.must(err)
		s.round(use(fmt.Sprintf("tu_%d", id), "shell", string(input)))
	}
	run("git status")
	run("ls -l")
	clear(asked)
	answer = approval.Answer{Decision: approval.DecisionDeny, Scope: approval.ScopeOnce}
	for _, same := range []string{"git status", "  git   'status' "} {
		clear(ran)
		if run(same); len(asked) != 0 || !ran[same] {
			t.Errorf("control: %q is asked about, though it was allowed for good", same)
		}
	}
	clear(ran)
	hostile := []string{
		"git status; id", "git status && id", "git status || id", "git status | sh", "git status & id", "git status\nid", "git status\r\nid",
		"git status $(id)", "git status `id`", "git status <(id)", "git status >~/.x", "git status 2>&1", "git status <<EOF\nid\nEOF",
		"a=b git status", "PATH=. git status", "(git status)", "{ git status; }", "! git status", "if git status; then id; fi",
		"env -S 'git status'", "env git status", "command git status", "exec git status", "eval git status", "time git status",
		"git -c core.pager=x status", "git --exec-path=. status", "git status --short", "git statuS", "gıt status", "git\u00a0status", "git stat\\us $x",
		strings.Repeat("git status; ", 60) + "id", "alias git=id; git status", "git() { id; }; git status", "ls -l; git status",
		"find . -exec git status ;", "rg --pre git status", "tar --checkpoint-action=exec=id -cf x .", "go test -exec id ./...", "sed 1e f", "awk 'BEGIN{system(\"id\")}'",
	}
	for _, command := range hostile {
		run(command)
		if scopes, ok := asked[command]; !ok || ran[command] {
			t.Errorf("%q ran without a question", command)
		} else if slices.Contains(scopes, approval.ScopeAlways) && strings.ContainsAny(command, ";|&$`<>\n(") {
			t.Errorf("%q could be allowed for good", command)
		}
	}
	covered := 0
	for _, command := range hostile {
		if strings.HasPrefix(command, "git status") || strings.Contains(command, "git status") {
			covered++
		}
	}
	if covered < 20 {
		t.Errorf("control: a match of the prefix or a part covers %d of these only", covered)
	}
}
