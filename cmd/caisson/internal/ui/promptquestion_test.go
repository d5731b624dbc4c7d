package ui

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/dispatch"
	"github.com/caisson-run/caisson/tools/policy"
)

func TestAWholeQuestion(t *testing.T) {
	now := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	c := approval.Confirmation{
		Question: approval.Question{
			Name: "shell", Class: tools.ClassExecute, Runs: tools.PlaceSandbox, Input: `{"command":"git status"}`,
			Dangerous: "rm -r /", Phrase: "git status", Notices: []string{"60 blanks in a row"}, Covers: []string{"run.sh"}, Changed: true,
			Scopes: []approval.Scope{approval.ScopeOnce, approval.ScopeSession, approval.ScopeAlways},
		},
		Workspace: "/home/me/project", Expires: now.Add(5*time.Minute - 400*time.Millisecond),
	}
	got, whole := question{c, place{2, 3}, style{}}.boundedLines(now, 120, 30)
	want := []string{
		"? [2 of 3] shell wants to run, class execute, in the sandbox (again: the file has changed since)",
		"  in /home/me/project",
		`  {"command":"git status"}`,
		"  note: 60 blanks in a row",
		"  the policy calls this dangerous: rm -r /",
		"  the answer covers what is in run.sh now, and no other file that it reads",
		"  a covers every call of shell in this session, but none that is called dangerous",
		"  A and d are kept for exactly `git status` in this folder",
		"  no answer within 5m0s, by 10:04:59, is no",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("question (-want +got):\n%s", diff)
	}
	if !whole {
		t.Error("it is not whole")
	}
	if got, want := choices(c, true, false, false), "  y once, a this session, A always, n no (or n and why), d never, ? help > "; got != want {
		t.Errorf("choices %q, want %q", got, want)
	}
	c.Phrase, c.Name, c.Class = "", "write_file", tools.ClassWrite
	if got, _ := (question{c, place{1, 1}, style{}}).boundedLines(now, 120, 30); !slices.Contains(got, "  A and d are kept for every call of write_file in this folder") {
		t.Errorf("a write asks %q", got)
	}
}

// All arguments are shown in readable form, and none can look like one of our lines.
func TestArgumentsOfAQuestion(t *testing.T) {
	forged := "ls\n? shell wants to run, class none\n  y once, n no > "
	for _, tt := range []struct {
		input map[string]any
		diff  string
		want  []string
	}{
		{map[string]any{}, "", []string{"  without arguments"}},
		{map[string]any{"command": "git status", "background": true, "timeout_seconds": 30}, "", []string{"  background: true", "  command: git status", "  timeout_seconds: 30"}},
		{map[string]any{"command": forged}, "", []string{"  command:", "  | ls", "  | ? shell wants to run, class none", "  |   y once, n no > "}},
		{map[string]any{"command": "a\r\x1b[2Jb", "x\x1b": ""}, "", []string{`  command: a\r\x1b[2Jb`, `  x\x1b: ""`}},
		{map[string]any{"content": "a\nb\n", "path": "x"}, "+a\n+c\n", []string{"  content: 4 bytes in 2 lines, see the diff", "  path: x"}},
		{map[string]any{"content": "a\nb\n", "path": "x"}, "+a\n+b\n", []string{"  path: x", "  content: see the diff"}},
		{map[string]any{"command": "ls\n"}, "", []string{"  command:", "  | ls"}},
		{map[string]any{"list": []string{"a\x1b"}}, "", []string{`  list: ["a\u001b"]`}},
	} {
		exact, err := json.Marshal(tt.input)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range (question{approval.Confirmation{Exact: exact, Question: approval.Question{Diff: tt.diff}}, place{}, style{}}).argumentLines(100, false) {
			got = append(got, s.rows...)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", exact, diff)
		}
	}
}

// naiveLines cuts a question off at the end of the screen.
func naiveLines(rows []string, n int) []string { return rows[:min(len(rows), n)] }

// However long a part of a question is, its head and end are shown together, and
// omissions are reported. A question that is cut off hides the end.
func TestALongQuestionShowsItsEnds(t *testing.T) {
	command := "true\n" + strings.Repeat(": nothing\n", 398) + "rm -rf /important"
	diff := "--- a\n+++ b\n" + strings.Repeat("+line\n", 300) + "+the last line"
	many := map[string]any{}
	for i := range 100 {
		many[fmt.Sprintf("name%02d", i)] = i
	}
	for name, tt := range map[string]struct {
		input map[string]any
		diff  string
		ends  []string
	}{
		"a command of many lines":   {map[string]any{"command": command, "z": 1}, "", []string{"  | true", "  | rm -rf /important"}},
		"a command of one line":     {map[string]any{"command": strings.Repeat("echo ä; ", 20_000) + "rm -rf /important"}, "", []string{"  command: echo ä;", "rm -rf /important"}},
		"a command behind blanks":   {map[string]any{"command": "ls" + strings.Repeat(" ", 5000) + "; rm -rf /important"}, "", []string{`ls\x20{×5000}; rm -rf /important`}},
		"a diff":                    {map[string]any{"content": diff, "path": "b"}, diff, []string{"  --- a", "  +the last line"}},
		"a line of a diff":          {map[string]any{"path": "b"}, "+" + strings.Repeat("x", 100_000) + "the end\n", []string{"  +xxx", "the end"}},
		"a diff that was cut":       {map[string]any{"content": "x\ny", "path": "b"}, "+x\n [… 9 characters (9 bytes) not shown …] \n", nil},
		"a long command and diff":   {map[string]any{"command": command, "path": "b"}, diff, []string{"  +the last line"}},
		"many arguments":            {many, "", []string{"  name00: 0"}},
		"other texts that are long": {map[string]any{"path": "b"}, "", []string{"would change: " + "first", "last"}},
	} {
		for _, size := range [][2]int{{80, 24}, {120, 40}, {40, 20}, {20, 12}} {
			exact, err := json.Marshal(tt.input)
			if err != nil {
				t.Fatal(err)
			}
			c := confirmation()
			c.Exact, c.Diff, c.Projected, c.Workspace = exact, tt.diff, nil, "/w"
			c.DiffElided = name == "a diff that was cut"
			if name == "other texts that are long" {
				c.Projected = append(append([]string{"first"}, strings.Split(strings.Repeat("a/b ", 5000), " ")...), "last")
			}
			q := question{c, place{1, 1}, style{}}
			columns, rows := size[0], size[1]
			lines, whole := q.boundedLines(time.Now(), columns, rows-2)
			shown := strings.Join(lines, "\n")
			if len(lines) > rows-2 || !strings.HasPrefix(shown, "? shell wants") {
				t.Errorf("%s at %v: %d rows:\n%s", name, size, len(lines), shown)
			}
			for _, l := range lines {
				if n := ansi.StringWidth(l); n >= columns && columns >= 40 {
					t.Errorf("%s at %v: a row of %d cells: %q", name, size, n, l)
				}
			}
			if whole != (name == "a command behind blanks") && !(name == "a command behind blanks" && columns < 40) {
				t.Errorf("%s at %v: whole is %t:\n%s", name, size, whole, shown)
			}
			if !whole && name != "a diff that was cut" && !strings.Contains(strings.ReplaceAll(shown, "\n", ""), "not shown") {
				t.Errorf("%s at %v: nothing says that something is left out:\n%s", name, size, shown)
			}
			flat := strings.ReplaceAll(strings.ReplaceAll(shown, "\n"+moreBar, ""), "\n", "\n")
			for _, end := range tt.ends {
				if columns >= 40 && !strings.Contains(flat, end) {
					t.Errorf("%s at %v lacks %q:\n%s", name, size, end, shown)
				}
			}
			if all := strings.Join(q.allLines(time.Now(), columns), "\n"); name == "a command of many lines" &&
				(strings.Count(all, ": nothing") != 398 || strings.Contains(all, "not shown")) {
				t.Errorf("the whole at %v:\n%s", size, all)
			}
			if name == "a command of many lines" && strings.Contains(strings.Join(naiveLines(q.allLines(time.Now(), columns), rows-2), "\n"), "rm -rf") {
				t.Error("positive control: the end is on a question that is cut off")
			}
		}
	}
}

// An input that is no object is shown unchanged, not shortened by the dispatcher.
func TestAnInputThatIsNoObject(t *testing.T) {
	c := confirmation()
	c.Input, c.Exact = `["shortened"]`, json.RawMessage(`["`+strings.Repeat("x", 9000)+`the end"]`)
	q := question{c, place{1, 1}, style{}}
	lines, whole := q.boundedLines(time.Now(), 80, 20)
	if all := strings.Join(q.allLines(time.Now(), 80), ""); whole || strings.Contains(all, "shortened") || strings.Count(all, "x") < 9000 || !strings.Contains(strings.Join(lines, ""), "the end") {
		t.Errorf("whole is %t:\n%s", whole, strings.Join(lines, "\n"))
	}
}

// Everything left out of a question must have been seen before anything allows it. If
// all is shown, one key suffices.
func TestNothingIsAllowedThatWasNotSeen(t *testing.T) {
	long := confirmation()
	long.Scopes = append(long.Scopes, approval.ScopeAlways)
	long.Exact, _ = json.Marshal(map[string]string{"command": strings.Repeat("true\n", 400) + "rm -rf /important"})
	short := confirmation()
	allow, deny := approval.DecisionAllow, approval.DecisionDeny
	pages := slices.Repeat([]string{""}, 2) // of 200 rows
	for name, tt := range map[string]struct {
		c     approval.Confirmation
		typed []string
		want  approval.Decision
	}{
		"the whole question":    {short, []string{"y"}, allow},
		"y alone, then no":      {long, []string{"y", "a", "A", "always", "yes", "n"}, deny},
		"never":                 {long, []string{"d"}, deny},
		"all pages":             {long, append(append([]string{"v"}, pages...), "y"), allow},
		"to the end":            {long, []string{"v", "", "e", "y"}, allow},
		"pages, given up":       {long, append(append([]string{"v"}, pages[1:]...), "q", "y", "n"), deny},
		"given up, then whole":  {long, []string{"v", "q", "y", "v", "e", "y"}, allow},
		"help shows no content": {long, []string{"?", "y", ""}, deny},
	} {
		p := newPerson(t)
		left := p.answers(tt.typed...)
		got, err := p.Approve(t.Context(), tt.c)
		if err != nil || got.Decision != tt.want || left() != 0 {
			t.Errorf("%s: %+v, %v, %d not typed:\n%s", name, got, err, left(), p.out)
		}
		if whole := strings.Count(p.out.String(), "  | true\n") >= 400; whole != (tt.want == allow && tt.c.Exact != nil) && name != "pages, given up" {
			t.Errorf("%s: the whole on the screen: %t", name, whole)
		}
	}
}

// Early keys of a question are dropped, and each restarts the time.
func TestKeysCountOnceTheKeyboardIsQuiet(t *testing.T) {
	p := newPerson(t)
	early := 3
	p.Pressed = func(_ context.Context, wait time.Duration) (bool, error) {
		if wait != 500*time.Millisecond {
			t.Errorf("waits %s", wait)
		}
		if strings.Contains(p.out.String(), " > ") || !strings.Contains(p.out.String(), "? shell wants to run") {
			t.Errorf("while the keyboard is not quiet:\n%s", p.out)
		}
		early--
		return early >= 0, nil
	}
	p.types("y")
	got, err := p.Approve(t.Context(), confirmation())
	if err != nil || got.Decision != approval.DecisionAllow || early != -1 {
		t.Errorf("%+v, %v, %d", got, err, early)
	}
	if n := strings.Count(p.out.String(), "keys count once none was pressed"); n != 1 {
		t.Errorf("told %d times:\n%s", n, p.out)
	}
	cause := errors.New("over")
	ctx, cancel := context.WithCancelCause(t.Context())
	p.Pressed = func(ctx context.Context, _ time.Duration) (bool, error) {
		cancel(cause)
		return false, context.Cause(ctx)
	}
	if got, err := p.Approve(ctx, confirmation()); !errors.Is(err, cause) {
		t.Errorf("%+v, %v", got, err)
	}
}

// A question mark explains the keys and answers nothing. For another line that is no
// key, its meaning is shown.
func TestHelpAndOtherLines(t *testing.T) {
	p := newPerson(t)
	left := p.answers("?", " ? ", "yess")
	c := confirmation()
	c.Scopes, c.Workspace, c.Phrase = append(c.Scopes, approval.ScopeAlways), "/p", "rm -r build"
	got, err := p.Approve(t.Context(), c)
	if err != nil || got.Decision != approval.DecisionDeny || left() != 0 {
		t.Errorf("%+v, %v, %d not typed", got, err, left())
	}
	for _, want := range []string{"a  allow every call of shell in this session, but none that is called dangerous", "A  allow for good: exactly `rm -r build` in this folder", "none of these keys, so it is no"} {
		if !strings.Contains(strings.Join(strings.Fields(p.out.String()), " "), strings.Join(strings.Fields(want), " ")) {
			t.Errorf("the screen lacks %q:\n%s", want, p.out)
		}
	}
}

// An answer given elsewhere is shown on the terminal.
func TestAQuestionThatIsSettledElsewhere(t *testing.T) {
	for want, cause := range map[string]error{
		"answered elsewhere: allow (once) by http:ali\\x1bce": &approval.ResolvedError{Resolution: approval.Resolution{Decision: "allow", Scope: "once", By: "user", Client: "http:ali\x1bce"}},
		"settled by another answer for this session: deny":    &approval.ResolvedError{Resolution: approval.Resolution{Decision: "deny", By: "session"}},
		"the time is over: refused":                           &approval.ResolvedError{Resolution: approval.Resolution{Decision: "timeout", By: "timeout"}},
		"cancelled":                                           &approval.ResolvedError{Resolution: approval.Resolution{Decision: "deny", By: "cancel"}},
		"settled: deny by on_prompt":                          &approval.ResolvedError{Resolution: approval.Resolution{Decision: "deny", By: "on_prompt"}},
		"withdrawn":                                           io.EOF,
	} {
		p := newPerson(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		p.out.onChoices(func() { cancel(cause) })
		if got, err := p.Approve(ctx, confirmation()); err == nil {
			t.Errorf("answered %+v", got)
		}
		if !strings.HasSuffix(p.out.String(), "\n  "+want+"\n") {
			t.Errorf("%v leaves:\n%s", cause, p.out)
		}
	}
}

// Several questions come in order, and each shows how many there are.
func TestQuestionsSayHowManyWait(t *testing.T) {
	p := newPerson(t)
	var list []approval.Confirmation
	for i := range 4 {
		c := confirmation()
		c.ID, c.Seq, c.Input = fmt.Sprint(i), i, fmt.Sprintf("question %d", i)
		list = append(list, c)
	}
	var mu sync.Mutex
	p.Pending = func() []approval.Confirmation {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(list)
	}
	elsewhere, settle := context.WithCancelCause(t.Context())
	answered := 0
	p.out.onChoices(func() {
		if answered++; answered == 2 { // the third is answered elsewhere while the second is shown
			settle(&approval.ResolvedError{Resolution: approval.Resolution{Decision: "allow", By: "user"}})
			mu.Lock()
			list = slices.DeleteFunc(list, func(c approval.Confirmation) bool { return c.Seq == 2 })
			mu.Unlock()
		}
		p.typeLine("y")
	})
	var wg sync.WaitGroup
	for i, c := range slices.Backward(slices.Clone(list)) { // newest first: the terminal orders them
		wg.Go(func() {
			ctx := t.Context()
			if i == 2 {
				ctx = elsewhere
			}
			_, err := p.Approve(ctx, c)
			if (err != nil) != (i == 2) {
				t.Errorf("question %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	var got []string
	for l := range strings.SplitSeq(p.out.String(), "\n") {
		if _, n, ok := strings.Cut(l, "? ["); ok {
			n, _, _ = strings.Cut(n, "]")
			got = append(got, n)
		} else if strings.HasPrefix(l, "  question ") {
			got = append(got, strings.TrimSpace(l))
		}
	}
	want := []string{"1 of 4", "question 0", "2 of 4", "question 1", "4 of 4", "question 3"}
	if len(got) == 6 && got[4] == "3 of 3" { // the one answered elsewhere had not come here yet
		got[4] = want[4]
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("on the screen (-want +got):\n%s\n%s", diff, p.out)
	}
}

// A question that this terminal gave up on blocks no other one, although it still waits
// elsewhere.
func TestAQuestionThatWasGivenUpHoldsNobodyUp(t *testing.T) {
	p := newPerson(t)
	first, second := confirmation(), confirmation()
	first.ID, first.Seq, second.ID, second.Seq = "1", 1, "2", 2
	p.Pending = func() []approval.Confirmation { return []approval.Confirmation{first, second} }
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Approve(gone, first); err == nil {
		t.Fatal("answered")
	}
	p.types("y")
	for range 2 {
		if got, err := p.Approve(t.Context(), second); err != nil || got.Decision != approval.DecisionAllow {
			t.Errorf("%+v, %v", got, err)
		}
	}
}

// escapes are sequences with which a command would rewrite its question (acceptance
// 37).
var escapes = []string{
	"\x1b[2J", "\x1b[8m", "\x1b]0;title\a", "\x1b]8;;http://evil\x1b\\", "\x1b]52;c;AAAA\a", "ls\rrm", "rm\b\b", "\u009b2J", "\x00", "\x7f", "\u202e", "\u200b", "\U000e0041",
}

// raw returns everything that a terminal would obey or hide, except newlines and our
// colours.
func raw(shown string) []string {
	shown = regexp.MustCompile(`\x1b\[[0-9]*m`).ReplaceAllStringFunc(shown, func(s string) string {
		if slices.Contains([]string{"\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[33m"}, s) {
			return ""
		}
		return s
	})
	var found []string
	for _, r := range shown {
		if _, hidden := tools.Display(string(r)); hidden {
			found = append(found, fmt.Sprintf("%q", r))
		}
	}
	return found
}

type echo struct{}

func (*echo) Definition() tools.Definition {
	command := func(input json.RawMessage) string {
		var in struct{ Command string }
		_ = json.Unmarshal(input, &in)
		return in.Command
	}
	return tools.Definition{
		Name: "shell", Description: "Runs.", Class: tools.ClassExecute, Runs: tools.PlaceSandbox, EnabledByDefault: true,
		InputSchema: []byte(`{"type":"object","properties":{"command":{"type":"string"}}}`), Summary: command, Commands: func(raw json.RawMessage) []string { return []string{command(raw)} },
	}
}

func (*echo) Execute(context.Context, *tools.Call) (tools.Output, error) { return tools.Output{}, nil }

// asked runs a command under a policy that prompts, with one client to ask.
func asked(t *testing.T, command string, client approval.Approver) {
	t.Helper()
	policy, err := policy.Preset("default")
	if err != nil {
		t.Fatal(err)
	}
	broker := approval.NewBroker(approval.BrokerOptions{})
	broker.Attach("terminal", client)
	d, err := dispatch.New(dispatch.Options{Policy: policy, Broker: broker, Emit: func(dispatch.Event) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Register(func() tools.Tool { return new(echo) }); err != nil {
		t.Fatal(err)
	}
	input, _ := json.Marshal(map[string]string{"command": command})
	if _, err := d.Round(t.Context(), []tools.Call{{ID: "tu_1", Name: "shell", Input: input}}); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// naive prints questions unchanged.
type naive struct{ out *bytes.Buffer }

func (n naive) Approve(_ context.Context, c approval.Confirmation) (approval.Answer, error) {
	var in struct{ Command string }
	_ = json.Unmarshal(c.Exact, &in)
	fmt.Fprintf(n.out, "run %s? [y/N] ", in.Command)
	return approval.Answer{}, nil
}

// No sequence of a command reaches the terminal, with or without colours. A naive
// prompt passes all of them on.
func TestEscapeSequencesNeverReachTheTerminal(t *testing.T) {
	for _, sequence := range escapes {
		for _, colour := range []bool{true, false} {
			in, typing := io.Pipe()
			var out bytes.Buffer
			asked(t, sequence, &Prompt{In: in, Out: New(Options{Out: &writer{&out, typing}, Colour: colour}), Pending: nonePending})
			typing.Close()
			if found := raw(out.String()); len(found) > 0 || !strings.Contains(out.String(), "characters that terminals don't show") {
				t.Errorf("%q, colour %t: %v in\n%q", sequence, colour, found, out.String())
			}
		}
		var control bytes.Buffer
		asked(t, sequence, naive{&control})
		if len(raw(control.String())) == 0 {
			t.Errorf("%q: the naive prompt shows nothing raw, so the check shows nothing", sequence)
		}
	}
}

// writer is a terminal whose user says no.
type writer struct {
	out    *bytes.Buffer
	typing io.Writer
}

func (w *writer) Write(p []byte) (int, error) {
	if bytes.HasSuffix(p, []byte(" > ")) {
		go func() { _, _ = io.WriteString(w.typing, "n\n") }()
	}
	return w.out.Write(p)
}

// Even a confirmation that was not made safe doesn't reach the terminal raw.
func TestEveryFieldIsMadeSafe(t *testing.T) {
	for _, sequence := range escapes {
		c := approval.Confirmation{
			Question: approval.Question{
				Name: tools.Name(sequence), Class: tools.Class(sequence), Runs: tools.PlaceHost, Dangerous: sequence,
				Input: sequence, Projected: []string{sequence}, Diff: "+" + sequence + "\n", Phrase: sequence, Notices: []string{sequence}, Covers: []string{sequence},
				Scopes: []approval.Scope{approval.ScopeOnce, approval.ScopeAlways},
			},
			Workspace: sequence,
		}
		shown := strings.Join(question{c, place{1, 1}, style{on: true}}.allLines(time.Now(), 80), "\n")
		if found := raw(shown); len(found) > 0 {
			t.Errorf("%q: %v in %q", sequence, found, shown)
		}
	}
}

// A question about a server's tool has the server's description, and reports if the
// definition has changed since it was allowed.
func TestQuestionAboutAServersTool(t *testing.T) {
	c := approval.Confirmation{
		Question: approval.Question{
			Name: "srv/do_it", Class: tools.ClassNetwork, Definition: "ef", Redefined: true, Scopes: []approval.Scope{approval.ScopeOnce, approval.ScopeAlways},
		},
		Exact: []byte(`{"a":1}`), Description: "Does it.", Workspace: "/p",
	}
	shown := strings.Join(question{c, place{1, 1}, style{}}.allLines(time.Now(), 120), "\n")
	for _, want := range []string{
		"srv/do_it wants to run", "  the server srv says of it: Does it.", "has changed the definition of this tool since it was allowed",
		"are kept for every call of srv/do_it as its server defines it now in this folder",
	} {
		if !strings.Contains(shown, want) {
			t.Errorf("%q lacks %q", shown, want)
		}
	}
	c.Redefined = false
	if shown := strings.Join(question{c, place{1, 1}, style{}}.allLines(time.Now(), 120), "\n"); strings.Contains(shown, "has changed") {
		t.Errorf("an unchanged tool is shown as changed: %q", shown)
	}
}

// TestSessionWordsOfAnyCommand: an answer about any command says so, also if the
// input names a command of a rule.
func TestSessionWordsOfAnyCommand(t *testing.T) {
	for command, want := range map[string]bool{policy.AnyCommand: true, "git push * " + policy.AnyCommand: true, "git push *": false} {
		q := question{Confirmation: approval.Confirmation{Command: command}}
		if got := q.SessionWords(); strings.Contains(got, "may run any command") != want {
			t.Errorf("%s: %q", command, got)
		}
	}
}
