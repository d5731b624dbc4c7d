package runner

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
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

// newResumedBench is a session with calls of several kinds.
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

// reopen returns a bench that goes on with the session of b, whose process is gone.
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

// conversation is what the model was told and answered: roles, texts, calls by name
// and results. Ids are left out, and so are the results of the calls with the numbers in
// interrupted.
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

// interruptedCalls returns the numbers of the calls that were under way when a process was
// killed: each has one result, which reports it.
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

// TestResumeAnywhere cuts the records of a session off after each of them, in the middle
// of the next, and goes on: whole records stay, each call that was under way has one
// result, and the conversation is the same but for those.
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
