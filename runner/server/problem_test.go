package server

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caisson-run/caisson/limits/state"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
)

// Each kind of fault has a hint in words for clients.
func TestHintsOfFaultsSpeakToClients(t *testing.T) {
	for _, kind := range []runner.FaultKind{
		runner.FaultModel, runner.FaultModelKey, runner.FaultStuck, runner.FaultSandboxStart, runner.FaultSandboxLost, runner.FaultLimit,
		runner.FaultRecords, runner.FaultNoApprover, runner.FaultLateAnswer, runner.FaultNoAnswer, runner.FaultCancelled, runner.FaultConflicts,
		runner.FaultNotApplied, runner.FaultLeft, runner.FaultCommand, runner.FaultCommandLost, runner.FaultReplaced, runner.FaultDisk, runner.FaultOther,
	} {
		for _, overlay := range []bool{false, true} {
			got := sessionHint(runner.Fault{Kind: kind, Overlay: overlay, LogFile: "/s/log", ErrorID: "err_1"})
			if got == "" || commandLine.MatchString(got) || (strings.Contains(got, "/s/log under err_1") != (kind == runner.FaultModel || kind == runner.FaultModelKey)) {
				t.Errorf("%s: %q", kind, got)
			}
		}
	}
}

// A client gets hints for clients also in a session that another program
// recorded. Hints with a place in the log stay as they are.
func TestProblemsOfEndedSessions(t *testing.T) {
	recorded := &record.Problem{Cause: "it failed", Hint: "caisson doctor --all, or /s/log"}
	for want, end := range map[string]record.SessionEnded{
		recorded.Hint: {Reason: loop.StopProviderFailed},
		"Choose another image, or ask the server's operator to check its engine or runtime.": {Reason: loop.StopSandboxStart},
		"What was done is in the workspace.":                                                 {Reason: loop.StopCancelled},
		"The workspace is unchanged; GET /sessions/{id}/diff shows the changes.":             {Reason: loop.StopCancelled, Overlay: &record.OverlayResult{}},
		"The next session tries again.":                                                      {Reason: loop.StopAnswered, Left: []string{"a mount"}},
		recordsHint:                                                                          {Reason: loop.StopAnswered},
	} {
		end.Problem = recorded
		if got := pastProblem("ses_1", end); got.Hint != want || got.Cause != recorded.Cause {
			t.Errorf("%s: %+v, want %q", end.Reason, got, want)
		}
	}
}

var commandLine = regexp.MustCompile(`(^|[\s("'])--[a-z]|\bcaisson (doctor|run|diff|apply|approvals|sandbox)\b`)

// No record that the server sends, and no view of a session, names a flag or a
// command, however the session ends and whatever it begins with.
func TestRecordsSpeakToClients(t *testing.T) {
	const shell = "  - calls: [{tool: shell, input: {command: say hi}}]\n  - text: done\n"
	for name, tc := range map[string]struct {
		policy, turns string
		create        error
		opts          func(*runner.Options)
		contains      string
	}{
		"a start without namespaces":   {"sandboxed", shell, sandbox.ErrNoNamespaces, nil, "use the docker backend"},
		"another start":                {"sandboxed", shell, sandbox.ErrUnavailable, nil, "Choose another image"},
		"a start that nothing needed":  {"sandboxed", "  - text: done\n", sandbox.ErrUnavailable, nil, "calls that need the sandbox will fail"},
		"a limit":                      {"sandboxed", shell, nil, func(o *runner.Options) { o.Budget.Rounds = new(int64(1)) }, "Raise that limit"},
		"an answer that came too late": {"default", shell, nil, func(o *runner.Options) { o.ConfirmTimeout = time.Millisecond }, "Answer while the question waits."},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTestEnv(t, tc.turns)
			w.policy, w.opts = tc.policy, tc.opts
			if tc.create != nil {
				w.backend.OnCreate = func(context.Context, int) error { return tc.create }
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

// An error that is not about its request shows a client no file and no variable
// of the server's host. The log has the error, under the ID that the client
// gets.
func TestProblemsKeepTheHostToThemselves(t *testing.T) {
	host := errors.New("open /host/file: OUR_KEY is not set")
	for name, test := range map[string]struct {
		err    error
		status int
		code   string
	}{
		"state directory":  {&state.DirError{Path: "/host/state", Err: host}, 503, "configuration"},
		"records":          {runner.Fault{Kind: runner.FaultRecords, Dir: "/host/records", Err: host}, 503, "records"},
		"configuration":    {&PrepareError{Code: "configuration", Err: host}, 503, "configuration"},
		"model":            {&PrepareError{Code: "model", Err: host}, 503, "model"},
		"sandbox":          {&PrepareError{Code: "sandbox", Err: host}, 503, "sandbox"},
		"a file":           {&PrepareError{Code: "input", Err: host}, 422, "input"},
		"any error":        {host, 500, "internal"},
		"an unknown code":  {&PrepareError{Code: "new", Err: host}, 500, "internal"},
		"a cause, no hint": {&PrepareError{Code: "sandbox", Problem: record.Problem{Cause: "it is full"}, Err: host}, 503, "sandbox"},
	} {
		core, logged := observer.New(zap.InfoLevel)
		w := newTestEnv(t, "  - text: Never asked.\n", func(o *Options) {
			o.Logger = zap.New(core)
			o.Prepare = func(context.Context, NewSession) (runner.Options, func(), error) {
				return runner.Options{}, nil, test.err
			}
		})
		a := w.post("/sessions", fmt.Sprintf(`{"workspace":%q}`, w.dir))
		p := a.requireProblem(t, test.status, test.code)
		if strings.Contains(a.text, "/host") || strings.Contains(a.text, "OUR_KEY") {
			t.Errorf("%s: %s", name, a.text)
		}
		if p.ErrorID == "" && name != "no overlay" || !strings.Contains(p.Detail, p.ErrorID) {
			t.Errorf("%s: no place in the log: %s", name, a.text)
		}
		found := false
		for _, e := range logged.All() {
			text := fmt.Sprint(e.ContextMap())
			found = found || strings.Contains(text, "/host") && strings.Contains(text, "error_id:"+p.ErrorID)
		}
		if !found {
			t.Errorf("%s: the log lacks %s: %v", name, p.ErrorID, logged.All())
		}
	}
}
