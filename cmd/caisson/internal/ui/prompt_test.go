package ui

import (
	"context"
	"errors"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
)

func confirmation() approval.Confirmation {
	return approval.Confirmation{Question: approval.Question{
		Name: "shell", Class: tools.ClassExecute, Input: `{"command":"rm -r build"}`,
		Projected: []string{"build"}, Diff: "--- a\n+++ b\n-old\n+new\n", Hidden: true,
		Scopes: []approval.Scope{approval.ScopeOnce, approval.ScopeSession},
	}}
}

// person is a terminal's user, who types into a pipe.
type person struct {
	*Prompt
	typing *io.PipeWriter
	out    *screen
}

func nonePending() []approval.Confirmation { return nil }

func newPerson(t *testing.T) *person {
	t.Helper()
	in, typing := io.Pipe()
	p := &person{typing: typing, out: &screen{t: t}}
	p.Prompt = &Prompt{In: in, Out: New(Options{Out: p.out}), Pending: nonePending}
	t.Cleanup(func() { typing.Close() })
	return p
}

// onChoices calls f whenever choices are shown.
func (s *screen) onChoices(f func()) {
	s.onWrite = func(written string) {
		if strings.HasSuffix(written, " > ") {
			f()
		}
	}
}

// typeLine writes a line in the background.
func (p *person) typeLine(text string) {
	go func() { _, _ = io.WriteString(p.typing, text+"\n") }()
}

// types writes a line whenever choices are shown.
func (p *person) types(text string) { p.out.onChoices(func() { p.typeLine(text) }) }

// answers answers successive choices with the texts. left returns how many are left.
func (p *person) answers(texts ...string) (left func() int) {
	p.out.onChoices(func() {
		if len(texts) > 0 {
			p.typeLine(texts[0])
			texts = texts[1:]
		}
	})
	return func() int { return len(texts) }
}

func TestAnswers(t *testing.T) {
	once, session := []approval.Scope{approval.ScopeOnce}, confirmation().Scopes
	all := append(slices.Clone(session), approval.ScopeAlways)
	allow := func(s approval.Scope) approval.Answer {
		return approval.Answer{Decision: approval.DecisionAllow, Scope: s}
	}
	because := func(s approval.Scope, reason string) approval.Answer {
		return approval.Answer{Decision: approval.DecisionDeny, Scope: s, Reason: reason}
	}
	deny := func(s approval.Scope) approval.Answer { return because(s, "") }
	for _, tc := range []struct {
		typed  string
		scopes []approval.Scope
		want   approval.Answer
	}{
		{"y", once, allow(approval.ScopeOnce)},
		{" YES ", all, allow(approval.ScopeOnce)},
		{"a", session, allow(approval.ScopeSession)},
		{"a", all, allow(approval.ScopeSession)},
		{"a", once, deny(approval.ScopeOnce)},
		{"A", all, allow(approval.ScopeAlways)},
		{"Always", all, allow(approval.ScopeAlways)},
		{"A", session, deny(approval.ScopeOnce)}, // not offered, and not the same as a
		{"always", once, deny(approval.ScopeOnce)},
		{"d", all, deny(approval.ScopeAlways)},
		{"never", all, deny(approval.ScopeAlways)},
		{"d", session, deny(approval.ScopeOnce)},
		{"n", all, deny(approval.ScopeOnce)},
		{"", all, deny(approval.ScopeOnce)},
		{"n  use make test", all, because(approval.ScopeOnce, "use make test")},
		{"No, use make test, y", once, because(approval.ScopeOnce, "use make test, y")},
		{"n ", all, deny(approval.ScopeOnce)},
		{"d: never here", all, because(approval.ScopeAlways, "never here")},
		{"d never here", session, deny(approval.ScopeOnce)}, // not offered
		{"nobody cares", all, deny(approval.ScopeOnce)},
		{"y because", all, deny(approval.ScopeOnce)},
		{"a because", all, deny(approval.ScopeOnce)},
		{"n " + strings.Repeat("y", 3000), all, because(approval.ScopeOnce, strings.Repeat("y", 3000))}, // the broker cuts it
		{"yy", all, deny(approval.ScopeOnce)},
		{"y\x1b[A", all, deny(approval.ScopeOnce)},
		{"y\x00", all, deny(approval.ScopeOnce)},
		{"у", all, deny(approval.ScopeOnce)}, // a Cyrillic letter
		{strings.Repeat("y", 3000), all, deny(approval.ScopeOnce)},
	} {
		p := newPerson(t)
		p.types(tc.typed)
		c := confirmation()
		c.Scopes = tc.scopes
		got, err := p.Approve(t.Context(), c)
		if err != nil || got != tc.want {
			t.Errorf("%q with %v: %+v, %v", tc.typed, tc.scopes, got, err)
		}
	}
}

func TestTheQuestionShowsWhatWouldRun(t *testing.T) {
	p := newPerson(t)
	p.types("n")
	if _, err := p.Approve(t.Context(), confirmation()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"? shell wants to run, class execute", `{"command":"rm -r build"}`, "would change: build", "  -old", "  +new",
		"characters that terminals don't show", "y once, a this session, n no (or n and why), ? help >",
	} {
		if !strings.Contains(p.out.String(), want) {
			t.Errorf("the question lacks %q:\n%s", want, p.out)
		}
	}
}

// tty keeps lines until they are read, like a terminal.
type tty struct {
	lines chan string
	reads atomic.Int32
}

func (t *tty) Read(p []byte) (int, error) {
	t.reads.Add(1)
	return copy(p, <-t.lines), nil
}

// pressed drops waiting input, like a terminal.
func (t *tty) pressed(context.Context, time.Duration) (bool, error) {
	for len(t.lines) > 0 {
		<-t.lines
	}
	return false, nil
}

// Input between two questions answers neither: nothing reads it, and the terminal drops
// it.
func TestWhatWasTypedBeforeIsNoAnswer(t *testing.T) {
	keyboard := &tty{lines: make(chan string, 10)}
	out := &screen{t: t}
	p := &Prompt{In: keyboard, Out: New(Options{Out: out}), Pressed: keyboard.pressed, Pending: nonePending}
	out.onChoices(func() { keyboard.lines <- "n\n" })
	for i := range 3 {
		keyboard.lines <- "y\n"
		keyboard.lines <- "a\n"
		if got, err := p.Approve(t.Context(), confirmation()); err != nil || got.Decision != approval.DecisionDeny {
			t.Errorf("question %d: %+v, %v", i, got, err)
		}
	}
	if n := keyboard.reads.Load(); n != 3 {
		t.Errorf("%d reads for 3 questions", n)
	}
}

// The read of a withdrawn question continues. What it gets before the next question
// doesn't answer that one.
func TestWhatWasTypedAfterAWithdrawnQuestionIsNoAnswer(t *testing.T) {
	keyboard := &tty{lines: make(chan string, 10)}
	out := &screen{t: t}
	p := &Prompt{In: keyboard, Out: New(Options{Out: out}), Pressed: keyboard.pressed, Pending: nonePending}
	ctx, cancel := context.WithCancel(t.Context())
	out.onChoices(cancel)
	if _, err := p.Approve(ctx, confirmation()); err == nil {
		t.Fatal("answered")
	}
	keyboard.lines <- "y\n"
	for len(p.lines) == 0 {
		runtime.Gosched() // until the read has it
	}
	out.onChoices(func() { keyboard.lines <- "n\n" })
	if got, err := p.Approve(t.Context(), confirmation()); err != nil || got.Decision != approval.DecisionDeny {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestTheEndOfInputIsNobody(t *testing.T) {
	p := newPerson(t)
	p.typing.Close()
	for range 2 {
		if got, err := p.Approve(t.Context(), confirmation()); err == nil {
			t.Errorf("answered %+v", got)
		}
	}
}

func TestAQuestionEndsWithItsContext(t *testing.T) {
	p := newPerson(t)
	cause := errors.New("cancelled")
	ctx, cancel := context.WithCancelCause(t.Context())
	p.out.onWrite = func(string) { cancel(cause) }
	if _, err := p.Approve(ctx, confirmation()); !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
}

func TestQuestionsComeOneAtATime(t *testing.T) {
	p := newPerson(t)
	p.types("y")
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			if got, err := p.Approve(t.Context(), confirmation()); err != nil || got.Decision != approval.DecisionAllow {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	wg.Wait()
}

func TestNothingIsWrittenBehindAQuestion(t *testing.T) {
	p := newPerson(t)
	p.out.onChoices(func() {
		go func() {
			p.Out.Print("sandbox started")
			p.typeLine("n")
		}()
	})
	if _, err := p.Approve(t.Context(), confirmation()); err != nil {
		t.Fatal(err)
	}
	if got := p.out.String(); !strings.HasSuffix(got, "n no (or n and why), ? help > sandbox started\n") || strings.Count(got, "sandbox started") != 1 {
		t.Errorf("on the screen, the typed line not echoed:\n%s", got)
	}
}

// l lists every waiting question, each in one safe line, and answers none.
func TestTheQuestionsThatWaitAreListed(t *testing.T) {
	p := newPerson(t)
	first, second, gone := confirmation(), confirmation(), confirmation()
	first.ID, first.Seq = "one", 1
	second.ID, second.Seq, second.Name, second.Input = "two", 2, "write_file", "a\nb\x1b[31m "+strings.Repeat("long ", 100)
	gone.ID, gone.Seq, gone.Name = "gone", 0, "answered_here"
	p.Pending = func() []approval.Confirmation { return []approval.Confirmation{second, first, gone} }
	p.queue.left = map[string]bool{"gone": true}
	left := p.answers("l", "n")
	got, err := p.Approve(t.Context(), first)
	if err != nil || got.Decision != approval.DecisionDeny || left() != 0 {
		t.Errorf("%+v, %v, %d answers left", got, err, left())
	}
	shown := p.out.String()
	one, two := strings.Index(shown, "  * 1. shell, class execute: "), strings.Index(shown, "    2. write_file, class execute: ")
	if one < 0 || two < one || strings.Contains(shown, "answered_here") || !strings.Contains(shown, "l list, ? help > ") {
		t.Errorf("the list is\n%s", shown)
	}
	line, _, _ := strings.Cut(shown[max(two, 0):], "\n")
	if strings.ContainsAny(line, "\x1b\r") || !strings.HasSuffix(line, "…") {
		t.Errorf("the line of the second question is %q", line)
	}
}

// A question only leaves out arguments that the diff shows.
func TestArgumentsAreLeftToTheDiff(t *testing.T) {
	c := approval.Confirmation{
		Question: approval.Question{Name: "patch_file", Class: tools.ClassWrite, Diff: "--- a/x\n+++ b/x\n context\n-old text\n+new text\n+more\n"},
		Exact:    []byte(`{"path":"x","old":"old text\n","new":"text\nmore\n","hidden":"context\n","all":true}`),
	}
	q := question{c, place{1, 1}, style{}}
	lines, whole := q.boundedLines(time.Now(), 80, 30)
	for _, text := range []string{strings.Join(lines, "\n"), strings.Join(q.allLines(time.Now(), 80), "\n")} {
		for _, want := range []string{"  new, old, path: see the diff", "  | context", "  all: true", "  +new text"} {
			if !whole || !strings.Contains(text, want) {
				t.Errorf("whole is %t, without %q:\n%s", whole, want, text)
			}
		}
	}
	for name, change := range map[string]func(*question){
		"of a command":          func(q *question) { q.Class = tools.ClassExecute },
		"of a diff that is cut": func(q *question) { q.DiffElided = true },
		"without a diff":        func(q *question) { q.Diff = "" },
	} {
		changed := q
		change(&changed)
		if lines, _ := changed.boundedLines(time.Now(), 80, 5); strings.Contains(strings.Join(lines, "\n"), "see the diff") {
			t.Errorf("arguments %s are left to the diff:\n%s", name, strings.Join(lines, "\n"))
		}
	}
}

// keyboard delivers single keys or lines.
type keyboard struct {
	single bool
	reads  chan string
}

func (k *keyboard) SetSingle(on bool) { k.single = on }

func (k *keyboard) Read(p []byte) (int, error) {
	text, ok := <-k.reads
	if !ok {
		return 0, io.EOF
	}
	return copy(p, text), nil
}

func (k *keyboard) Typed(context.Context, time.Duration) (string, error) {
	select {
	case text := <-k.reads:
		return text, nil
	default:
		return "", nil
	}
}

// pressing is a user at a keyboard, who types the texts one by one, each once the
// choices are shown. Bars separate input that is typed fast but read separately.
func pressing(t *testing.T, texts ...string) *person {
	t.Helper()
	p := newPerson(t)
	k := &keyboard{reads: make(chan string, 100)}
	p.In, p.Keys = k, k
	p.out.onChoices(func() {
		if len(texts) == 0 {
			return
		}
		text := texts[0]
		texts = texts[1:]
		if !k.single && !strings.HasSuffix(text, "\n") {
			t.Errorf("%q is typed where a line is read", text)
		}
		for read := range strings.SplitSeq(text, "|") {
			k.reads <- read
		}
	})
	t.Cleanup(func() {
		close(k.reads)
		if k.single || len(texts) > 0 || len(k.reads) > 0 {
			t.Errorf("single keys: %t, not typed: %q, not read: %d", k.single, texts, len(k.reads))
		}
	})
	return p
}

// TestOneKeyAnswers: a key needs no Enter, and a line still answers.
func TestOneKeyAnswers(t *testing.T) {
	long := confirmation()
	long.Diff = "--- /dev/null\n+++ b/long\n" + strings.Repeat("+line\n", 120)
	for name, tc := range map[string]struct {
		c     approval.Confirmation
		typed []string
		want  approval.Answer
		shown string
	}{
		"y":                     {confirmation(), []string{"y"}, approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeOnce}, "? help > y\n"},
		"a line":                {confirmation(), []string{"y\n"}, approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeOnce}, "? help > y\n"},
		"a":                     {confirmation(), []string{"a"}, approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeSession}, ""},
		"n":                     {confirmation(), []string{"n"}, approval.Answer{Decision: approval.DecisionDeny, Scope: approval.ScopeOnce}, ""},
		"Enter":                 {confirmation(), []string{"\n"}, approval.Answer{Decision: approval.DecisionDeny, Scope: approval.ScopeOnce}, ""},
		"a reason":              {confirmation(), []string{"r", "use make\n"}, approval.Answer{Decision: approval.DecisionDeny, Scope: approval.ScopeOnce, Reason: "use make"}, "no, because >"},
		"a fast reason":         {confirmation(), []string{"r", "use| make\n"}, approval.Answer{Decision: approval.DecisionDeny, Scope: approval.ScopeOnce, Reason: "use make"}, "no, because >"},
		"Enter and a reason":    {confirmation(), []string{"r", "\n", "use make\n"}, approval.Answer{Decision: approval.DecisionDeny, Scope: approval.ScopeOnce, Reason: "use make"}, "no, because >"},
		"no reason":             {confirmation(), []string{"r", "\n", "\n"}, approval.Answer{Decision: approval.DecisionDeny, Scope: approval.ScopeOnce}, ""},
		"another key":           {confirmation(), []string{"x", " ", "y"}, approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeOnce}, "that is none of these keys\n"},
		"another line":          {confirmation(), []string{"yess\n"}, approval.Answer{Decision: approval.DecisionDeny, Scope: approval.ScopeOnce}, "none of these keys, so it is no\n"},
		"a file of 120 lines":   {long, []string{"v", "y"}, approval.Answer{Decision: approval.DecisionAllow, Scope: approval.ScopeOnce}, strings.Repeat("  +line\n", 120)},
		"not seen, help, a key": {long, []string{"y", "?", "n"}, approval.Answer{Decision: approval.DecisionDeny, Scope: approval.ScopeOnce}, "n  refuse this call; so does Enter\n"},
	} {
		t.Run(name, func(t *testing.T) {
			p := pressing(t, tc.typed...)
			got, err := p.Approve(t.Context(), tc.c)
			if err != nil || got != tc.want || !strings.Contains(p.out.String(), tc.shown) {
				t.Errorf("%+v, %v, want %+v and %q:\n%s", got, err, tc.want, tc.shown, p.out)
			}
		})
	}
	t.Run("the end", func(t *testing.T) {
		if got, err := pressing(t, "\x04").Approve(t.Context(), confirmation()); !errors.Is(err, errInputEnded) {
			t.Errorf("Ctrl-D answers %+v, %v", got, err)
		}
	})
}

// TestTextIsNoKey: a key in or at the beginning of a text or sequence answers nothing.
// The question is asked again, and takes one key or one with Enter.
func TestTextIsNoKey(t *testing.T) {
	c := confirmation()
	c.Scopes = append(c.Scopes, approval.ScopeAlways)
	for _, text := range []string{
		"A|l|s|o| |a|d|d| |t|e|s|t|s", "y|e|s| |p|l|e|a|s|e|\n", "a|nd", "d|o", "y|\n|\n", "y|y", "v|y",
		"yy", "\x00", "\xff", "\x1b[A", "\x1b[|A", "\x1b|y", "\x1b[200~|y|\n",
	} {
		for next, want := range map[string]approval.Answer{
			"n":    {Decision: approval.DecisionDeny, Scope: approval.ScopeOnce},
			"A":    {Decision: approval.DecisionAllow, Scope: approval.ScopeAlways},
			"y|\n": {Decision: approval.DecisionAllow, Scope: approval.ScopeOnce},
		} {
			p := pressing(t, text, next)
			got, err := p.Approve(t.Context(), c)
			if err != nil || got != want || strings.Count(p.out.String(), "that was no single key") != 1 {
				t.Errorf("%q, then %q: %+v, %v\n%s", text, next, got, err, p.out)
			}
		}
	}
}

// A question that v shows on one screen is not shown twice.
func TestAShortQuestionIsPagedOnce(t *testing.T) {
	p := newPerson(t)
	p.answers("v", "n")
	if _, err := p.Approve(t.Context(), confirmation()); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(p.out.String(), "wants to run"); n != 2 {
		t.Errorf("the question was shown %d times:\n%s", n, p.out)
	}
}

// Lines are only broken between choices. An answer without room after them gets its own
// row, which shows its end.
func TestALongAnswerShowsItsEnd(t *testing.T) {
	out := &screen{t: t, columns: 40, rows: 24}
	r := New(Options{Out: out, Size: func() (int, int) { return 40, 24 }, Chat: true})
	defer r.Close()
	resume := r.Suspend()
	r.choose(choices(confirmation(), true, true, false))
	reason := "n " + strings.Repeat("a long reason ", 5) + "ends"
	for i := range reason {
		r.Retype(reason[:i+1], false)
	}
	want := "  y once, a this session,\n  n no (or n and why), l list,\n  ? help > \n  > …n a long reason a long reason ends"
	want = strings.ReplaceAll(want, " \n", "\n")
	if got := strings.TrimRight(strings.ReplaceAll(out.String(), " \n", "\n"), " \n"); got != want {
		t.Errorf("the screen has\n%s\nwant\n%s", got, want)
	}
	r.Retype(reason, true)
	resume()
}

// An answer typed while the screen's width changes leaves no rows behind.
func TestAnAnswerOnAResizedScreen(t *testing.T) {
	out := &screen{t: t, columns: 100, rows: 24, reflow: true}
	r := New(Options{Out: out, Size: func() (int, int) { return out.columns, 24 }, Reflow: true, Chat: true})
	defer r.Close()
	defer r.Suspend()()
	r.choose(choices(confirmation(), true, true, false))
	reason := ""
	for _, columns := range []int{50, 90, 43, 99, 60} {
		out.resize(columns, 24)
		reason += "because "
		r.Retype("n "+reason, false)
		if n := strings.Count(out.String(), "y once"); n != 1 {
			t.Errorf("%d columns show the choices %d times:\n%s", columns, n, out)
		}
	}
	if n := strings.Count(out.String(), "because"); n < 4 || n > 5 {
		t.Errorf("the reason is\n%s", out)
	}
}
