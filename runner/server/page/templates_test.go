package page

import (
	"bytes"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/server"
	"github.com/caisson-run/caisson/runner/trace"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
)

const hostile = "<img src=x onerror=alert(1)>\"'`</script><!--\u202e\x1b[31m\" style=\"a"

func hostileFrame() frame {
	return frame{Title: hostile, Section: "sessions", User: hostile, Form: strings.Repeat("0", 32), CanRun: true, CanAnswer: true, CanAdmin: true}
}

func hostileQuestion() question {
	return question{server.Confirmation{
		ID: strings.Repeat("a", 32), Turn: "trn_1", CallID: hostile, Name: tools.Name(hostile), Class: tools.ClassExecute, Runs: tools.PlaceHost,
		Summary: hostile, Display: hostile, Exact: map[string]any{hostile: hostile}, InputHash: hostile, Projected: []string{hostile}, Diff: "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-" + hostile + "\n+b\n",
		Dangerous: hostile, Phrase: hostile, Elided: true, Notices: []string{hostile}, Covers: []string{hostile}, Hidden: true, Changed: true,
		Description: hostile, Definition: hostile, Redefined: true, Session: hostile, Lasting: hostile, Scopes: []approval.Scope{approval.ScopeOnce, approval.ScopeSession, approval.ScopeAlways},
		Expires: time.Now(),
	}, "ses_1", strings.Repeat("0", 32), true, true}
}

func hostileSession(tab string) sessionView {
	v := sessionView{
		frame: hostileFrame(), Tab: tab, Here: true, Questions: []question{hostileQuestion()},
		Session: server.Session{
			ID: "ses_1", State: server.StateElsewhere, Title: hostile, Workspace: hostile, Model: hostile, Backend: hostile, Image: hostile, Policy: hostile,
			Client: hostile, Turn: "trn_1", Over: hostile, Unfinished: true, Mode: hostile,
		},
		Overview: trace.Overview{
			Turns: 2, ModelCalls: 1, Damage: hostile, Created: &record.SessionCreated{Budget: record.Budget{CostMicroUSD: new(int64(5))}},
			Ended: &record.SessionEnded{Problem: &record.Problem{Cause: hostile, Hint: hostile}, ChangedCount: record.ChangeCount{Files: 2}},
		},
	}
	v.Row = sessionRow{v.Session, "waiting", hostile}
	return v
}

// pageData has data with hostile texts for each template that is written on its own.
func pageData() map[string]any {
	steps := []any{
		trace.StepView(trace.Step{Kind: trace.StepUser, Seq: 3, Text: hostile}, time.Time{}, "/s/ses_1"),
		trace.StepView(trace.Step{Kind: trace.StepCall, Seq: 4, Call: &trace.Call{ID: hostile, Name: tools.Name(hostile), Input: hostile, Output: hostile}}, time.Time{}, "/s/ses_1"),
	}
	open := trace.StepView(trace.Step{Kind: trace.StepCall, Seq: 5, Call: &trace.Call{
		ID: hostile, Name: tools.Name(hostile), Input: hostile, Asked: []trace.Question{{Decision: hostile, By: hostile, Answered: time.Now()}},
	}}, time.Time{}, "/s/ses_1")
	return map[string]any{
		"login":   loginView{hostileFrame(), "/?" + hostile, true, hostile, hostile},
		"problem": problemView{hostileFrame(), &server.Problem{Detail: hostile, ErrorID: hostile, Errors: []server.Place{{Location: hostile, Message: hostile}}, Resolution: &server.Resolution{By: hostile, Reason: hostile}, Conflicts: []server.Note{{Path: hostile, Why: hostile}}}, "/"},
		"doctor": struct {
			frame
			Findings []Finding
		}{hostileFrame(), []Finding{{hostile, "failed", hostile, hostile}}},
		"batches": struct {
			frame
			batchList
		}{hostileFrame(), batchList{Faults: []string{hostile}, Left: 2, Rows: []batchRow{{Link: "/b/" + url.PathEscape(hostile) + "/", Title: hostile, Agents: hostile, Best: hostile, Rate: "1"}, {Problem: hostile}}}},
		"sessions":  sessionsView{frame: hostileFrame(), Show: "waiting", Query: hostile, Waiting: 1, Running: 2, Rows: []sessionRow{hostileSession("").Row}, Next: "/?before=ses_1", More: true, Workspace: hostile, Models: []string{hostile}},
		"session":   storyView{sessionView: hostileSession("story"), Chunks: []chunkView{{Number: 0}, {Number: 1, Loaded: true}, {Number: 2}}, Number: 1, Steps: steps, Open: []any{open}, Reading: true, Find: hostile, NotFound: true},
		"state":     hostileSession("story"),
		"questions": hostileSession("story"),
		"steps":     steps,
		"open":      open,
		"changes": changesView{
			sessionView: hostileSession("changes"), Done: hostile, Files: trace.ParsePatch("--- a/" + hostile + "\n+++ b/x\n@@ -1 +1 @@\n-" + hostile + "\n+b\n"),
			Diff: server.Diff{
				Mode: "overlay", Changes: "kept", Files: []record.Changed{{Path: hostile, Change: hostile}}, Conflicts: []server.Note{{Path: hostile, Why: hostile}},
				LeftOut: []server.Note{{Path: hostile, Why: hostile}}, HostExecuted: []record.HostExecuted{{Path: hostile, By: hostile}}, PatchPartial: true,
			},
		},
		"timelinepage": struct {
			sessionView
			Timeline  trace.TimelineView
			TurnChart trace.TurnChart
			Reading   bool
		}{hostileSession("timeline"), trace.TimelineView{}, trace.TurnChart{}, true},
		"records": struct {
			sessionView
			Records    []record.Record
			Prev, Next int64
		}{hostileSession("records"), []record.Record{{Seq: 7, Kind: hostile, Payload: []byte(hostile)}}, 1, 9},
	}
}

var (
	valueOf  = regexp.MustCompile(`([a-z])="[^"]*"`)
	comment  = regexp.MustCompile(`<!--`)
	badParts = regexp.MustCompile(`(?i)<img|<[^>]* style=|<[^>]* on[a-z]+=|<script[^>]*>[^<]|ZgotmplZ|\x1b|\x{202e}|javascript:`)
)

// TestTemplates: each template can be written, and hostile texts add no element, attribute, style or script
// to it, nor a character that can't be seen.
func TestTemplates(t *testing.T) {
	templates := parseTemplates()
	for name, data := range pageData() {
		var out bytes.Buffer
		if err := templates.ExecuteTemplate(&out, name, data); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		// Quoted values of attributes are harmless, whatever they are, but for a style's.
		if bad := badParts.FindString(valueOf.ReplaceAllString(out.String(), `$1=""`)); bad != "" || comment.MatchString(out.String()) {
			t.Errorf("%s has %q", name, bad)
		}
		if name != "doctor" && name != "records" && !strings.Contains(out.String(), "&lt;img") { // the control: the text is there
			t.Errorf("%s doesn't show the text", name)
		}
		checkNesting(t, name, out.String())
	}
	if !badParts.MatchString(`<p style="">`) || !badParts.MatchString("<a onclick=x>") || !badParts.MatchString("<script>a") {
		t.Error("the check sees nothing")
	}
}

var (
	tag   = regexp.MustCompile(`<(/?)([a-z0-9]+)((?:[^">]|"[^"]*")*)>`)
	idOf  = regexp.MustCompile(` id="([^"]*)"`)
	refOf = regexp.MustCompile(` (?:for|aria-labelledby|aria-describedby)="([^"]*)"`)
)

// checkNesting checks that elements are closed in order, ids are unique, and labels lead to ids.
func checkNesting(t *testing.T, name, html string) {
	t.Helper()
	void := map[string]bool{"meta": true, "link": true, "input": true, "br": true, "rect": true, "line": true}
	ids := map[string]bool{}
	var open []string
	for _, m := range tag.FindAllStringSubmatch(html, -1) {
		switch {
		case m[1] == "" && !void[m[2]]:
			open = append(open, m[2])
		case m[1] == "/":
			if len(open) == 0 || open[len(open)-1] != m[2] {
				t.Errorf("%s: </%s> closes %v", name, m[2], open)
				return
			}
			open = open[:len(open)-1]
		}
		if id := idOf.FindStringSubmatch(m[3]); id != nil {
			if ids[id[1]] {
				t.Errorf("%s: two elements have the id %q", name, id[1])
			}
			ids[id[1]] = true
		}
	}
	if len(open) > 0 {
		t.Errorf("%s: %v stay open", name, open)
	}
	for _, m := range refOf.FindAllStringSubmatch(html, -1) {
		if !ids[m[1]] {
			t.Errorf("%s: nothing has the id %q", name, m[1])
		}
	}
}
