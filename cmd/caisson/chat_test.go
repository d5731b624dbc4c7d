package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-run/caisson/runner/record"
)

// step is the user's input after a text is shown, after the previous step's.
type step struct{ await, keys string }

const terminate = "SIGTERM"

// chatOn runs a conversation on a terminal. It returns its status, the terminal's
// content, and its world.
func chatOn(t *testing.T, term string, steps []step, turns string, args ...string) (status int, shown string, w *world) {
	t.Helper()
	w = newWorld(t, turns)
	status, shown = chatIn(t, w, term, steps, args...)
	return status, shown, w
}

// chatIn is chatOn in an existing world.
func chatIn(t *testing.T, w *world, term string, steps []step, args ...string) (status int, shown string) {
	t.Helper()
	master, slave := openTerminal(t)
	before := modeOf(t, slave)
	var text bytes.Buffer
	signals := make(chan os.Signal, 1)
	w.app.signals = signals
	done := make(chan struct{})
	go func() {
		defer close(done)
		seen, buf := 0, make([]byte, 4096)
		for !strings.Contains(text.String(), endMark) {
			n, err := master.Read(buf)
			if err != nil {
				return
			}
			text.Write(buf[:n])
			for len(steps) > 0 {
				at := strings.Index(text.String()[seen:], steps[0].await)
				if at < 0 {
					break
				}
				seen += at + len(steps[0].await)
				if steps[0].keys == terminate {
					signals <- syscall.SIGTERM
				} else {
					fmt.Fprint(master, steps[0].keys)
				}
				steps = steps[1:]
			}
		}
	}()
	w.use(slave)
	w.env = append(w.env, "TERM="+term)
	w.args[0] = "chat"
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	status = run(ctx, append(w.args, args...), w.env, w.app)
	if after := modeOf(t, slave); after != before {
		t.Errorf("the terminal is left as %+v, was %+v", after, before)
	}
	fmt.Fprint(slave, endMark)
	<-done
	if len(steps) > 0 {
		t.Errorf("%q never came:\n%q", steps[0].await, &text)
	}
	return status, strings.ReplaceAll(strings.TrimSuffix(text.String(), endMark), "\r\n", "\n")
}

const oneAnswer = "  - text: \"First paragraph.\\n\\n```\\ncode \\e[31m\\n```\\n\\nLast line.\"\n"

func TestAConversation(t *testing.T) {
	status, shown, _ := chatOn(t, "xterm-256color", []step{
		{"› ", "make it\r"},
		{"Last line.", ""},
		{"› ", "again\r"},
		{"second", ""},
		{"› ", "/quit\r"},
	}, oneAnswer+"  - text: the second answer\n")
	if status != 0 {
		t.Errorf("status %d\n%s", status, shown)
	}
	for _, want := range []string{"› make it", "First paragraph.", "code \\x1b[31m", "the second answer", "\x1b[?2004h", "\x1b[?2004l", "\x1b[>1u", "\x1b[<u"} {
		if !strings.Contains(shown, want) {
			t.Errorf("the terminal lacks %q:\n%q", want, shown)
		}
	}
	if n := strings.Count(shown, "Last line."); n != 1 {
		t.Errorf("the last paragraph was printed %d times:\n%q", n, shown)
	}
}

// Ctrl+C ends the turn but not the session, and keeps the draft.
func TestStoppingATurn(t *testing.T) {
	status, shown, _ := chatOn(t, "xterm", []step{
		{"› ", "begin\r"},
		{"sleep 1000", "a draft\x03"},
		{"stopped", ""},
		{"› a draft", "\r"},
		{"goes on", "\x03\x03\x03"},
	}, "  - calls: [{tool: shell, input: {command: sleep 1000}}]\n  - text: it goes on\n")
	if status != 0 || !strings.Contains(shown, "› a draft") {
		t.Errorf("status %d\n%q", status, shown)
	}
}

// TestUnsentMessageStays queues a message in a turn that reaches the limit of the session:
// it can't be sent, and becomes a draft together with what is behind it.
func TestUnsentMessageStays(t *testing.T) {
	w := newWorld(t, "  - calls: [{tool: shell, input: {command: sleep 1}}]\n  - text: the end\n")
	w.configure(t, "limits: {session: {max_tool_calls: 1}}\n")
	status, shown := chatIn(t, w, "xterm", []step{
		{"› ", "begin\r"},
		{"sleep 1", "first\rsecond\r"},
		{"2 queued", ""},
		{"the end", ""},
		{"limit", ""},
		{"› first", ""},
		{"second", "\x03\x03\x03"},
	})
	if status != 0 {
		t.Errorf("status %d\n%q", status, shown)
	}
}

// A plain conversation has no escape sequences or carriage returns, and words instead
// of signs.
func TestAPlainConversation(t *testing.T) {
	status, shown, _ := chatOn(t, "xterm", []step{
		{"your turn", "make it\n"},
		{"Last line.", ""},
		{"your turn", "/help\n"},
		{"/quit", ""},
		{"your turn", "\x04"},
	}, "  - calls: [{tool: shell, input: {command: echo hi}}]\n"+oneAnswer, "--plain")
	if status != 0 || strings.ContainsAny(shown, "\x1b\r\a") || strings.ContainsAny(shown, "✓✗●") || !strings.Contains(shown, "done: shell echo hi") {
		t.Errorf("status %d\n%q", status, shown)
	}
}

// Only keys pressed after a question was shown completely answer it. Earlier ones and a
// paste don't.
func TestAQuestionOfAConversation(t *testing.T) {
	for _, tt := range []struct {
		answer []step
		ran    bool
	}{
		{[]step{{"? help", "y\r"}}, true},
		{[]step{{"? help", "y"}}, true},
		{[]step{{"? help", "n\r"}}, false},
		{[]step{{"? help", "\x1b[200~y\r\x1b[201~"}, {"no single key", "n\r"}}, false},
		{[]step{{"? help", "yes please\r"}, {"no single key", "n\r"}}, false},
	} {
		_, shown, w := chatOn(t, "xterm", slices.Concat([]step{
			{"› ", "make it\ry\r"}, // the second line waits for the turn's end
		}, tt.answer, []step{
			{"the end", ""},
			{"the end", ""}, // of the second turn
			{"› ", "/quit\r"},
		}), "  - calls: [{tool: write_file, input: {path: one, content: x}}]\n  - text: the end\n  - text: the end\n", "--mode", "bind")
		if !strings.Contains(shown, "\a\x1b]9;caisson: a question waits\a") {
			t.Errorf("nothing draws attention:\n%q", shown)
		}
		if _, err := os.Stat(filepath.Join(w.dir, "one")); (err == nil) != tt.ran {
			t.Errorf("%q: %v\n%q", tt.answer, err, shown)
		}
	}
}

// A signal that ends a conversation keeps its draft, readable by the user only.
func TestDraftsAreKept(t *testing.T) {
	status, _, w := chatOn(t, "xterm", []step{{"› ", "a draft"}, {"› a draft", terminate}}, oneAnswer)
	if status != 143 {
		t.Errorf("status %d", status)
	}
	found, _ := filepath.Glob(filepath.Join(w.dir, "../home/.local/state/caisson/sessions/*/draft.txt"))
	if len(found) != 1 {
		t.Fatalf("drafts: %v", found)
	}
	info, err := os.Stat(found[0])
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if text, _ := os.ReadFile(found[0]); string(text) != "a draft" {
		t.Errorf("the draft is %q", text)
	}
}

func TestAPlainConversationShowsItsDraft(t *testing.T) {
	_, _, w := chatOn(t, "xterm", []step{{"› ", "make it\r"}, {"Last line.", ""}, {"› ", "a draft"}, {"› a draft", terminate}}, oneAnswer)
	status, shown := chatIn(t, w, "xterm", []step{{"a draft is kept:", ""}, {"you: a draft", ""}, {"your turn", "/quit\n"}}, "--resume", "last", "--plain")
	if status != 0 {
		t.Errorf("status %d\n%q", status, shown)
	}
}

// A resumed conversation shows its last message and answer, has its draft, and
// continues.
func TestAConversationIsResumed(t *testing.T) {
	status, shown, w := chatOn(t, "xterm", []step{
		{"› ", "make it\r"},
		{"Last line.", ""},
		{"› ", "a draft"},
		{"› a draft", terminate},
	}, oneAnswer+"  - text: the second answer\n")
	id := filepath.Base(filepath.Dir(w.onlyTrace(t)))
	if status != 143 || !strings.Contains(shown, "caisson chat --resume "+id) {
		t.Fatalf("status %d\n%q", status, shown)
	}
	for _, name := range []string{"last", id} {
		steps := []step{{"› make it", ""}, {"Last line.", ""}, {"› a draft", "\r"}, {"the second answer", ""}, {"› ", "/quit\r"}}
		if name == id {
			steps = []step{{"› a draft", ""}, {"the second answer", ""}, {"› ", "/quit\r"}}
		}
		status, shown = chatIn(t, w, "xterm", steps, "--resume", name)
		if status != 0 || !strings.Contains(shown, "caisson chat --resume "+id) {
			t.Errorf("%s: status %d\n%q", name, status, shown)
		}
	}
	w.onlyTrace(t)
	if drafts, _ := filepath.Glob(filepath.Join(filepath.Dir(w.onlyTrace(t)), "draft.txt")); len(drafts) > 0 {
		t.Error("the draft is there after it was sent")
	}
}

// A conversation that was killed in a turn continues that turn.
func TestAnUnfinishedTurnIsResumed(t *testing.T) {
	_, _, w := chatOn(t, "xterm", []step{{"› ", "make it\r"}, {"the end", ""}, {"› ", "/quit\r"}},
		"  - calls: [{tool: list_dir, input: {path: .}}]\n  - text: the end\n")
	path := w.onlyTrace(t)
	text, err := os.ReadFile(path)
	must(t, err)
	var kept []byte
	for line := range bytes.Lines(text) { // as if killed here
		if kept = append(kept, line...); bytes.Contains(line, []byte(`"tool.completed"`)) {
			break
		}
	}
	if err := os.WriteFile(path, kept, 0o600); err != nil || len(kept) == len(text) {
		t.Fatal(err)
	}
	status, shown := chatIn(t, w, "xterm", []step{{"› make it", ""}, {"going on", ""}, {"the end", ""}, {"› ", "/quit\r"}}, "--resume", "last")
	if status != 0 {
		t.Errorf("status %d\n%q", status, shown)
	}
}

// An unknown session is refused before the terminal is used.
func TestAnUnknownConversationIsRefused(t *testing.T) {
	for _, name := range []string{"20260101T000000-nosuch", "../x", "last"} {
		status, shown, _ := chatOn(t, "xterm", nil, oneAnswer, "--resume", name)
		if status != 42 || !strings.Contains(strings.Join(strings.Fields(shown), " "), map[bool]string{true: "no such file", false: "no session"}[name == "../x"]) || strings.Contains(shown, "\x1b[?2004h") {
			t.Errorf("%s: status %d\n%q", name, status, shown)
		}
	}
}

func (w *world) onlyTrace(t *testing.T) string {
	t.Helper()
	found, _ := filepath.Glob(filepath.Join(w.dir, "../home/.local/state/caisson/sessions/*/"+record.TraceFile))
	if len(found) != 1 {
		t.Fatalf("traces: %v", found)
	}
	return found[0]
}

// Only a plain conversation works without a terminal.
func TestAConversationNeedsATerminal(t *testing.T) {
	w := newWorld(t, oneAnswer)
	w.args[0] = "chat"
	var out bytes.Buffer
	w.app.stderr = &out
	w.env = append(w.env, "TERM=xterm")
	if status := run(t.Context(), w.args, w.env, w.app); status != 42 || !strings.Contains(out.String(), "caisson run") {
		t.Errorf("status %d: %s", status, &out)
	}
	out.Reset()
	w.app.stdin = strings.NewReader("make it\n/cost\n")
	if status := run(t.Context(), append(w.args, "--plain"), w.env, w.app); status != 0 || !strings.Contains(out.String(), "you: make it\n") || !strings.Contains(out.String(), "Last line.") {
		t.Errorf("status %d: %s", status, &out)
	}
	if at, cost := strings.Index(out.String(), "Last line."), strings.Index(out.String(), "1 model calls"); cost < at {
		t.Errorf("the command did not wait for the turn:\n%s", &out)
	}
	text, err := os.ReadFile(w.onlyTrace(t))
	if err != nil || !bytes.Contains(text, []byte(`"rounds":25`)) {
		t.Errorf("a turn is not bounded to 25 rounds: %v", err)
	}
}
