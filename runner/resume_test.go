package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/boundary"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/internal/history"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/sessiondir"
	"github.com/caisson-run/caisson/sandbox"
)

const resumedTurns = `
  - text: I look first.
    calls:
      - {tool: list_dir, input: {path: .}}
      - {tool: read_file, input: {path: greet.sh}}
  - calls:
      - {tool: shell, input: {command: work}}
  - calls:
      - {tool: shell, input: {command: long}}
      - {tool: write_file, input: {path: "../out", content: x}}
  - calls:
      - {tool: read_file, input: {path: greet.sh}}
  - text: done
`

// newResumedBench returns a bench of a session with calls of several kinds.
func newResumedBench(t *testing.T) *bench {
	b := newBench(t, resumedTurns)
	b.file("greet.sh", "echo Helo\n")
	b.file("AGENTS.md", "Use tabs.\n")
	b.opts.InstructionFiles = true
	b.opts.SessionBudget = limits.Budget{ToolCalls: new(int64(40))}
	b.backend.Scripts["work"] = says("worked\n")
	b.backend.Scripts["long"] = says(strings.Repeat("a long line of output\n", 4000))
	return b
}

// says returns a script that writes text.
func says(text string) fakesandbox.Script {
	return func(_ context.Context, _ *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
		fmt.Fprint(cmd.Stdout, text)
		return sandbox.ExitStatus{}
	}
}

// reopen returns a bench that resumes the session of b, whose process is gone.
func (b *bench) reopen(turns string) *bench {
	b.t.Helper()
	if err := b.opts.Dir.Close(); err != nil {
		b.t.Fatal(err)
	}
	return b.goOn(turns)
}

func (b *bench) goOn(turns string) *bench {
	b.t.Helper()
	c := *b
	dir, err := sessiondir.Reopen(filepath.Dir(filepath.Dir(b.opts.Dir.Path)), b.opts.Dir.Session, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { dir.Close() })
	c.opts.Dir, c.opts.Task = dir, ""
	c.opts.Profiles = []loop.Profile{{Model: player(b.t, turns)}}
	return &c
}

// random matches nonces and the numbers of handles.
var random = regexp.MustCompile(`caisson-output-[0-9a-f]+|command-\d+`)

// conversation returns what the model was told and answered: roles, texts, calls by name and results,
// without ids and without the results of the calls numbered in interrupted.
func conversation(t *testing.T, records []record.Record, interrupted map[int]bool) []string {
	t.Helper()
	calls, names := map[string]int{}, map[string]string{}
	var out []string
	for _, m := range of[record.Message](t, records) {
		for _, b := range m.Blocks {
			switch {
			case b.Text != nil:
				out = append(out, fmt.Sprintf("%s: %s", m.Role, random.ReplaceAllString(b.Text.Text, "X")))
			case b.ToolUse != nil:
				calls[b.ToolUse.ID], names[b.ToolUse.ID] = len(calls), fmt.Sprintf("%s %s", b.ToolUse.Name, b.ToolUse.Input)
				out = append(out, names[b.ToolUse.ID])
			case b.ToolResult != nil:
				text := random.ReplaceAllString(loop.NormalizeResult(b.ToolResult.Content[0].Text), "X")
				if interrupted[calls[b.ToolResult.ToolUseID]] {
					text = "interrupted"
				}
				out = append(out, names[b.ToolResult.ToolUseID]+" = "+text)
			}
		}
	}
	return out
}

// interruptedCalls returns the numbers of the calls that were interrupted by a kill. Each has one
// result that says so.
func interruptedCalls(t *testing.T, records []record.Record) map[int]bool {
	t.Helper()
	calls, results := map[string]int{}, map[string][]string{}
	for _, m := range of[record.Message](t, records) {
		for _, b := range m.Blocks {
			if b.ToolUse != nil {
				calls[b.ToolUse.ID] = len(calls)
			} else if r := b.ToolResult; r != nil {
				results[r.ToolUseID] = append(results[r.ToolUseID], r.Content[0].Text)
			}
		}
	}
	lost := map[int]bool{}
	for _, r := range of[record.SessionResumed](t, records) {
		for _, id := range r.Interrupted {
			if got := results[id]; len(got) != 1 || !strings.HasPrefix(got[0], "Interrupted: it ") {
				t.Errorf("%s was interrupted and has the results %q", id, got)
			}
			lost[calls[id]] = true
		}
	}
	return lost
}

// TestResumeAnywhere cuts off a session's records after each one, in the middle of the next, and
// resumes: whole records stay, each interrupted call has one result, and the rest of the
// conversation is the same.
func TestResumeAnywhere(t *testing.T) {
	b := newResumedBench(t)
	whole, records := b.run(t.Context())
	text, err := os.ReadFile(filepath.Join(whole.Dir, record.TraceFile))
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.SplitAfter(text, []byte("\n"))
	lines = lines[:len(lines)-1]
	if err := b.opts.Dir.Close(); err != nil {
		t.Fatal(err)
	}
	for n := 1; n < len(lines)-2; n++ { // the turn has not ended
		t.Run(fmt.Sprintf("%d %s", n, records[n-1].Kind), func(t *testing.T) {
			kept := bytes.Join(lines[:n], nil)
			torn := lines[n][:len(lines[n])/2]
			if err := os.WriteFile(filepath.Join(whole.Dir, record.TraceFile), append(bytes.Clone(kept), torn...), 0o600); err != nil {
				t.Fatal(err)
			}
			c := *b
			c.t = t
			d := (&c).goOn(resumedTurns)
			r, got := d.run(t.Context())
			if err := d.opts.Dir.Close(); err != nil {
				t.Fatal(err)
			}
			now, err := os.ReadFile(filepath.Join(whole.Dir, record.TraceFile))
			if err != nil || !bytes.HasPrefix(now, kept) {
				t.Fatalf("the records that were there are not kept: %v", err)
			}
			resumed := of[record.SessionResumed](t, got)
			if len(resumed) != 1 || resumed[0].TornBytes != int64(len(torn)) {
				t.Errorf("resumed %+v", resumed)
			}
			lost := interruptedCalls(t, got)
			if diff := cmp.Diff(conversation(t, records, lost), conversation(t, got, lost)); diff != "" {
				t.Errorf("the conversation (-undisturbed +resumed):\n%s", diff)
			}
			if r.Reason != loop.StopAnswered || r.Turns != 1 || r.Usage.ToolCalls != whole.Usage.ToolCalls {
				t.Errorf("ended by %s after %d turns, used %+v, want %+v", r.Reason, r.Turns, r.Usage, whole.Usage)
			}
			if ended := of[record.TurnCompleted](t, got); len(ended) != 1 || ended[0].Usage.ToolCalls != whole.Usage.ToolCalls {
				t.Errorf("the turn ended %+v", ended)
			}
		})
	}
}

// cut cuts an ended session's records off before the first of a kind, and closes its directory.
func (b *bench) cut(kind record.Kind) {
	b.t.Helper()
	path := filepath.Join(b.opts.Dir.Path, record.TraceFile)
	text, err := os.ReadFile(path)
	if err != nil {
		b.t.Fatal(err)
	}
	var kept []byte
	for line := range bytes.Lines(text) {
		rec, err := record.Decode(line)
		if err != nil {
			b.t.Fatal(err)
		}
		if rec.Kind == kind {
			break
		}
		kept = append(kept, line...)
	}
	if err := os.WriteFile(path, kept, 0o600); err != nil {
		b.t.Fatal(err)
	}
	if err := b.opts.Dir.Close(); err != nil {
		b.t.Fatal(err)
	}
}

// TestResumeWithTask resumes an interrupted turn's session with another task: the turn gets an end, its
// calls get results, and the model is told of the fresh sandbox.
func TestResumeWithTask(t *testing.T) {
	b := newBench(t, "  - calls:\n      - {tool: shell, input: {command: work}}\n  - text: done\n")
	b.backend.Scripts["work"] = says("worked\n")
	b.run(t.Context())
	b.cut(record.KindToolCompleted)
	c := b.goOn("  - text: unused\n  - text: another answer\n")
	c.opts.Task = "another task"
	r, records := c.run(t.Context())
	if r.Answer != "another answer" || r.Turns != 2 {
		t.Errorf("answer %q after %d turns", r.Answer, r.Turns)
	}
	cancelled := of[record.TurnCancelled](t, records)
	if len(cancelled) != 1 || cancelled[0].By != "session" || cancelled[0].Usage.ToolCalls != 1 || r.Usage.Rounds != 2 {
		t.Errorf("the turn ended %+v, used %+v", cancelled, r.Usage)
	}
	if lost := interruptedCalls(t, records); len(lost) != 1 {
		t.Errorf("interrupted %v", lost)
	}
	if got := strings.Join(conversation(t, records, nil), "\n"); !strings.Contains(got, "user: another task") || !strings.Contains(got, "a fresh sandbox") || strings.Count(got, "system: ") != 1 {
		t.Errorf("conversation:\n%s", got)
	}
	starts := of[record.SandboxStarted](t, records)
	if len(starts) < 1 {
		t.Error("nothing is attested")
	}
}

// TestResumeAfterEnd resumes ended sessions: one without an answer is asked to go on, one with an
// answer needs a task and continues its numbering.
func TestResumeAfterEnd(t *testing.T) {
	b := newBench(t, "  - calls:\n      - {tool: list_dir, input: {path: .}}\n  - text: closing\n")
	b.opts.Budget.Rounds = new(int64(1))
	if r, _ := b.run(t.Context()); r.Reason != loop.StopLimit {
		t.Fatalf("ended by %s", r.Reason)
	}
	c := b.reopen("  - text: unused\n  - text: unused\n  - text: done now\n")
	r, records := c.run(t.Context())
	if r.Answer != "done now" || r.Turns != 2 || len(of[record.SessionEnded](t, records)) != 2 {
		t.Errorf("answer %q after %d turns", r.Answer, r.Turns)
	}
	if err := c.opts.Dir.Close(); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(filepath.Join(r.Dir, record.TraceFile))
	if err != nil {
		t.Fatal(err)
	}
	d := c.goOn("  - text: more\n")
	if _, err := Run(t.Context(), d.opts); resumeReason(err) != ResumeNothing {
		t.Errorf("without a task: %v", err)
	}
	if now, err := os.ReadFile(filepath.Join(r.Dir, record.TraceFile)); err != nil || !bytes.Equal(now, before) {
		t.Errorf("a refused session has other records than before: %v", err)
	}
}

// TestRecap: Caisson's notices before the message are not the message.
func TestRecap(t *testing.T) {
	text := func(role loop.Role, s boundary.Text) loop.Message { return loop.NewText(role, s) }
	past := &history.Past{Turns: 2, Used: limits.Usage{Rounds: 2}, Last: &history.Turn{Start: 2, Ended: true, Reason: loop.StopAnswered}, Messages: []loop.Message{
		text(loop.RoleUser, "first"), text(loop.RoleAssistant, "first answer"),
		text(loop.RoleUser, loop.NoticePrefix+settleNotice+"its changes were applied."), text(loop.RoleUser, "second"), text(loop.RoleAssistant, "second answer"),
	}}
	want := Recap{Message: "second", Answer: "second answer", Turns: 2, Used: past.Used}
	if diff := cmp.Diff(want, (&Session{past: &resumption{Past: past}}).Recap()); diff != "" {
		t.Errorf("recap (-want +got):\n%s", diff)
	}
	past.Last.Reason, want.Answer = loop.StopCancelled, ""
	if diff := cmp.Diff(want, (&Session{past: &resumption{Past: past}}).Recap()); diff != "" {
		t.Errorf("recap of a turn that was stopped (-want +got):\n%s", diff)
	}
	if got := (&Session{}).Recap(); got != (Recap{}) {
		t.Errorf("recap of a new session: %+v", got)
	}
}

func resumeReason(err error) ResumeReason {
	e, ok := errors.AsType[*ResumeError](err)
	if !ok {
		return ""
	}
	return e.Reason
}

// TestResumeIsRefused checks refused ways to resume. Nothing is written, and the session can still be
// resumed properly.
func TestResumeIsRefused(t *testing.T) {
	const turns = "  - calls:\n      - {tool: list_dir, input: {path: .}}\n  - text: done\n"
	path := func(b *bench) string { return filepath.Join(b.opts.Dir.Path, record.TraceFile) }
	edit := func(b *bench, change func([]byte) []byte) {
		text, err := os.ReadFile(path(b))
		if err == nil {
			err = os.WriteFile(path(b), change(text), 0o600)
		}
		if err != nil {
			b.t.Fatal(err)
		}
	}
	for name, tt := range map[string]struct {
		spoil func(b *bench)
		want  ResumeReason
	}{
		"changed": {func(b *bench) {
			edit(b, func(text []byte) []byte { return bytes.Replace(text, []byte(`"do it"`), []byte(`"do me"`), 1) })
		}, ResumeDamaged},
		"missing": {func(b *bench) {
			edit(b, func(text []byte) []byte {
				lines := bytes.SplitAfter(text, []byte("\n"))
				return bytes.Join(append(lines[:2:2], lines[3:]...), nil)
			})
		}, ResumeDamaged},
		"no record": {func(b *bench) { edit(b, func([]byte) []byte { return nil }) }, ResumeDamaged},
		"another workspace": {func(b *bench) {
			w, err := OpenWorkspace(b.t.TempDir(), Protected{})
			if err != nil {
				b.t.Fatal(err)
			}
			b.t.Cleanup(func() { w.Close() })
			b.opts.Workspace = w
		}, ResumeOtherWorkspace},
		"another directory": {func(b *bench) {
			err := errors.Join(os.Rename(b.dir, b.dir+"-old"), os.Mkdir(b.dir, 0o755))
			w, openErr := OpenWorkspace(b.dir, Protected{})
			if err := errors.Join(err, openErr); err != nil {
				b.t.Fatal(err)
			}
			b.t.Cleanup(func() { w.Close() })
			b.opts.Workspace = w
		}, ResumeOtherWorkspace},
		"another mode":   {func(b *bench) { b.opts.Mode = sandbox.ModeOverlay }, ResumeOtherMode},
		"another target": {func(b *bench) { b.opts.Target = "/app" }, ResumeOtherTarget},
		"no model":       {func(b *bench) { b.opts.Profiles = nil }, ResumeNoModel},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, turns)
			b.run(t.Context())
			b.cut(record.KindTurnCompleted)
			c := b.goOn(turns)
			tt.spoil(c)
			before, err := os.ReadFile(path(b))
			if err != nil {
				t.Fatal(err)
			}
			if s, err := Open(t.Context(), c.opts); resumeReason(err) != tt.want {
				t.Errorf("Open() = %v, want %s", err, tt.want)
				if err == nil {
					s.Close()
				}
			}
			if now, err := os.ReadFile(path(b)); err != nil || !bytes.Equal(now, before) {
				t.Errorf("the records were changed: %v", err)
			}
		})
	}
	t.Run("alive", func(t *testing.T) {
		b := newBench(t, turns)
		b.run(t.Context())
		if _, err := sessiondir.Reopen(filepath.Dir(filepath.Dir(b.opts.Dir.Path)), b.opts.Dir.Session, nil); !errors.Is(err, sessiondir.ErrAlive) {
			t.Errorf("Reopen() = %v", err)
		}
	})
}

// TestResumeReadsLongValues resumes after a result that was too long for its record and contained a
// key: the model gets the whole result without the key. A changed file is refused.
func TestResumeReadsLongValues(t *testing.T) {
	const turns = "  - calls:\n      - {tool: shell, input: {command: long}}\n  - calls:\n      - {tool: list_dir, input: {path: .}}\n  - text: done\n"
	for _, changed := range []bool{false, true} {
		b := newBench(t, turns)
		long := strings.Repeat("\"\"\"\"\"\"\"\"\"\"\"\"\"\"\n", 2800)
		b.backend.Scripts["long"] = says(long + testKey)
		b.run(t.Context())
		path := filepath.Join(b.opts.Dir.Path, record.TraceFile)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		lines := bytes.SplitAfter(text, []byte("\n"))
		at := slices.IndexFunc(lines, func(l []byte) bool { return bytes.Contains(l, []byte(`"spilled"`)) })
		if at < 0 {
			t.Fatal("nothing was too long")
		}
		if err := errors.Join(os.WriteFile(path, bytes.Join(lines[:at+1], nil), 0o600), b.opts.Dir.Close()); err != nil {
			t.Fatal(err)
		}
		if changed {
			files, err := filepath.Glob(filepath.Join(b.opts.Dir.Path, record.SpillDir, "rec_*"))
			if err != nil || len(files) == 0 {
				t.Fatal(files, err)
			}
			for _, f := range files {
				if err := os.WriteFile(f, []byte("other"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
		}
		c := b.goOn("  - text: done\n")
		heard := &listener{Model: c.opts.Profiles[0].Model}
		c.opts.Profiles[0].Model = heard
		r, err := Run(t.Context(), c.opts)
		if changed {
			if resumeReason(err) != ResumeDamaged {
				t.Errorf("a changed value: %v", err)
			}
			continue
		}
		if err != nil || r.Reason != loop.StopAnswered {
			t.Fatal(r.Reason, err)
		}
		got := heard.heard
		if !strings.Contains(got, "[redacted:OPENAI_API_KEY]") || strings.Contains(got, testKey) || strings.Contains(got, "bytes left out here") {
			t.Errorf("the model got %d bytes: %.200q … %.200q", len(got), got, got[max(len(got)-200, 0):])
		}
	}
}
