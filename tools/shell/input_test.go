package shell

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/dispatch"
	"github.com/caisson-run/caisson/tools/policy"
)

// hostTerminal is a [Background] with one program of the host on a terminal.
type hostTerminal struct {
	fakeBackground
	master *os.File
	state  Typed

	mu   sync.Mutex
	all  []byte
	last time.Time
}

// newHostTerminal starts a program in a directory.
func newHostTerminal(t *testing.T, dir string, argv ...string) *hostTerminal {
	t.Helper()
	h := &hostTerminal{}
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	h.master = master
	raw, err := master.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	number := 0
	if failed := raw.Control(func(fd uintptr) {
		err = errors.Join(unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0), unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}))
		if err == nil {
			number, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	}); failed != nil || err != nil {
		t.Fatal(failed, err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	c.Dir, c.Stdin, c.Stdout, c.Stderr = dir, slave, slave, slave
	c.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TERM=xterm", "PS1=$ ", "HISTFILE=", "INPUTRC=/dev/null", "LANG=C.UTF-8"}
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	_ = slave.Close()
	read := make(chan struct{})
	go func() {
		defer close(read)
		buf := make([]byte, 4<<10)
		for {
			n, err := master.Read(buf)
			h.mu.Lock()
			h.all, h.last = append(h.all, buf[:n]...), time.Now()
			h.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
		_ = c.Process.Kill()
		_ = c.Wait()
		_ = master.Close() // hangs up what is left
		<-read
	})
	h.settle(2 * time.Second)
	return h
}

// settle waits until the terminal has shown something and then nothing for a while.
func (h *hostTerminal) settle(most time.Duration) {
	for until := time.Now().Add(most); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		h.mu.Lock()
		quiet := len(h.all) > 0 && time.Since(h.last) > 50*time.Millisecond
		h.mu.Unlock()
		if quiet {
			return
		}
	}
}

func (h *hostTerminal) Typed(string) Typed { return h.state }

func (h *hostTerminal) Type(_ context.Context, _ string, in Typing) (Shown, error) {
	h.state = in.State
	h.mu.Lock()
	h.all = nil
	h.mu.Unlock()
	if _, err := h.master.Write(in.Bytes); err != nil {
		return Shown{}, err
	}
	h.settle(300 * time.Millisecond)
	h.mu.Lock()
	defer h.mu.Unlock()
	return Shown{State: "running", Running: true, New: h.all}, nil
}

// typingDispatcher has only shell_input, under a policy.
func typingDispatcher(t *testing.T, p policy.Policy, b Background, asks approval.Approver) *dispatch.Dispatcher {
	t.Helper()
	o := dispatch.Options{Policy: p, Emit: func(dispatch.Event) error { return nil }, Workspace: "/w"}
	if asks != nil {
		o.Broker = approval.NewBroker(approval.BrokerOptions{})
		detach := o.Broker.Attach("test", asks)
		t.Cleanup(detach)
	}
	d, err := dispatch.New(o)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Register(NewInput(Options{Background: b})); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close(context.Background()) })
	return d
}

// typedCall is a call with text, or with keys in angle brackets.
func typedCall(id int, in string) tools.Call {
	input := map[string]any{"handle": "background-1", "text": in}
	if keys, ok := strings.CutPrefix(in, "<"); ok && strings.HasSuffix(keys, ">") {
		delete(input, "text")
		input["keys"] = strings.Fields(strings.TrimSuffix(keys, ">"))
	}
	raw, _ := json.Marshal(input)
	return tools.Call{ID: fmt.Sprintf("tu_%d", id), Name: InputName, Input: raw}
}

// sandboxedWith is the policy in which everything in the sandbox runs, except one
// command.
func sandboxedWith(t *testing.T, commands map[string]policy.Mode) policy.Policy {
	t.Helper()
	p, err := policy.Preset("sandboxed")
	if err != nil {
		t.Fatal(err)
	}
	p.Commands = commands
	return p
}

const together = "in one answer" // the inputs of a try are calls of one answer

// tries make a shell run touch denied, or would. ./dbg runs its arguments.
var tries = map[string][]string{
	"plain":                   {"touch denied\n"},
	"the enter key":           {"touch denied", "<enter>"},
	"in two parts":            {"tou", "ch denied\n"},
	"in single letters":       strings.Split("touch denied\n", ""),
	"two parts at once":       {together, "tou", "ch denied\n"},
	"a continued line":        {"touch \\\n", "denied\n"},
	"a continued word":        {"tou\\\n", "ch denied\n"},
	"quotes":                  {"to''uch denied\n"},
	"a quote in two lines":    {"echo '\n", "'; touch denied\n"},
	"a backslash":             {"t\\ouch denied\n"},
	"a path":                  {"/usr/bin/touch denied\n"},
	"command":                 {"command touch denied\n"},
	"env":                     {"env touch denied\n"},
	"exec":                    {"exec touch denied\n"},
	"nohup":                   {"nohup touch denied\n"},
	"sh -c":                   {"sh -c 'touch denied'\n"},
	"eval":                    {"eval 'touch denied'\n"},
	"a variable":              {"x=touch; $x denied\n"},
	"a variable of before":    {"x=touch\n", "$x denied\n"},
	"a variable of a program": {"x='touch denied'\n", "eval $x\n"},
	"a pipe":                  {"echo touch denied | sh\n"},
	"a here-document":         {"sh <<E\ntouch denied\nE\n"},
	"its lines":               {"sh <<E\n", "touch denied\n", "E\n"},
	"a here-string":           {"sh <<<'touch denied'\n"},
	"a list":                  {"true; touch denied\n"},
	"and":                     {"true && touch denied\n"},
	"parentheses":             {"(touch denied)\n"},
	"a substitution":          {"echo $(touch denied)\n"},
	"a computed name":         {"$(echo touch) denied\n"},
	"braces":                  {"{touch,denied}\n"},
	"a glob":                  {"/usr/bin/touc? denied\n"},
	"escapes":                 {"$'\\x74ouch' denied\n"},
	"a condition":             {"if true\n", "then touch denied\n", "fi\n"},
	"a function":              {"f() { touch denied; }\n", "f\n"},
	"a function of arguments": {"f() { \"$@\"; }\n", "f touch denied\n"},
	"an alias":                {"alias g=touch\n", "g denied\n"},
	"a quoted alias":          {"al''ias g=touch\n", "g denied\n"},
	"an alias by printf":      {"printf -v 'BASH_ALIASES[g]' %s%s tou ch\n", "g denied\n"},
	"an alias by read":        {"read 'BASH_ALIASES[g]' < <(printf %s%s tou ch)\n", "g denied\n"},
	"an alias by a default":   {": ${BASH_ALIASES[g]:=tou''ch}\n", "g denied\n"},
	"an alias by a reference": {"declare -n r=BASH_ALIASES\n", "r[g]=tou; r[g]+=ch\n", "g denied\n"},
	"an alias by a variable":  {"x=BASH_; x+='ALIASES[g]'\n", "printf -v \"$x\" %s%s tou ch\n", "g denied\n"},
	"an alias by declare":     {"x='BASH_ALI' y='ASES[g]=tou' z=ch\n", "declare \"$x$y$z\"\n", "g denied\n"},
	"a trap":                  {"trap 'touch denied' DEBUG\n", "true\n"},
	"the prompt":              {"PS1='$(touch denied)'\n"},
	"before the prompt":       {"PROMPT_COMMAND='touch denied'\n"},
	"history":                 {"history -s touch denied\n", "<up>", "<enter>"},
	"the last command":        {"history -s 'touch denied'\n", "!touch\n"},
	"a replaced word":         {"touc denied\n", "^touc^touch\n"},
	"fc":                      {"touc denied\n", "fc -s touc=touch\n"},
	"search":                  {"history -s 'touch denied'\n", "<ctrl-r>", "tou", "<enter>"},
	"completion":              {"touc", "<tab>", " denied\n"},
	"completion in text":      {"touc\t denied\n"},
	"backspace":               {"touch deniedx", "<backspace>", "<enter>"},
	"the line's beginning":    {"ouch denied", "<home>", "t\n"},
	"ctrl-a":                  {"ouch denied", "<ctrl-a>", "t\n"},
	"left":                    {"tuch denied", "<left left left left left left left left left left>", "o\n"},
	"exchanged words":         {"denied touch", "<escape>", "t\n"},
	"exchanged letters":       {"touch deniedx", "<ctrl-h>", "\n"},
	"killed and yanked":       {"xtouch denied", "<ctrl-a>", "<delete>", "\n"},
	"a key's meaning":         {"bind '\"z\": \"touch denied\"'\n", "z\n"},
	"the erase character":     {"exec sh\n", "stty erase z\n", "toxzuch denied\n"},
	"after ctrl-c":            {"xx", "<ctrl-c>", "touch denied\n"},
	"ctrl-d":                  {"exec sh\n", "touch denied", "<ctrl-d>", "<enter>"},
	"after a read letter":     {"read -n1 x\n", "qtouch denied\n"},
	"half read":               {"read -n1 x\n", "qto", "uch denied\n"},
	"read whole":              {"read x; eval \"$x\"\n", "touch denied\n"},
	"read in parts":           {"read x; read y; $x $y\n", "touch\n", "denied\n"},
	"a program's argument":    {"./dbg touch denied\n"},
	"half of an argument":     {"./dbg to", "uch denied\n"},
}

// TestDeniedCommandsAreNotTyped types a denied command into a shell in many ways.
// The control is each of them without the rule: then it runs.
func TestDeniedCommandsAreNotTyped(t *testing.T) {
	if len(tries) < 40 {
		t.Fatalf("%d tries", len(tries))
	}
	for name, try := range tries {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, denied := range []bool{true, false} {
				var rules map[string]policy.Mode
				if denied {
					rules = map[string]policy.Mode{"touch *": policy.ModeDeny}
				}
				dir := t.TempDir()
				if err := os.WriteFile(filepath.Join(dir, "dbg"), []byte("#!/bin/sh\n\"$@\"\n"), 0o700); err != nil {
					t.Fatal(err)
				}
				d := typingDispatcher(t, sandboxedWith(t, rules), newHostTerminal(t, dir, "bash", "--norc", "--noprofile", "-i"), nil)
				refused := typeAll(t, d, try)
				if denied != (refused > 0) {
					t.Errorf("denied %t: %d inputs are refused", denied, refused)
				}
				if got := appears(filepath.Join(dir, "denied"), denied); got == denied {
					t.Errorf("denied %t: the command ran: %t", denied, got)
				}
			}
		})
	}
}

// typeAll types inputs and returns how many were refused.
func typeAll(t *testing.T, d *dispatch.Dispatcher, inputs []string) (refused int) {
	t.Helper()
	var rounds [][]tools.Call
	for i, in := range inputs {
		switch {
		case in == together:
		case inputs[0] == together && len(rounds) > 0:
			rounds[0] = append(rounds[0], typedCall(i, in))
		default:
			rounds = append(rounds, []tools.Call{typedCall(i, in)})
		}
	}
	for _, round := range rounds {
		results, err := d.Round(t.Context(), round)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range results {
			if r.IsError {
				refused++
			}
		}
	}
	return refused
}

// appears reports whether a file appears, soon or not at all.
func appears(path string, not bool) bool {
	wait := 30 * time.Second
	if not {
		wait = 100 * time.Millisecond
	}
	for until := time.Now().Add(wait); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(path); err == nil {
			return true
		}
	}
	return false
}

// TestOtherTextIsTyped under a rule that it doesn't concern.
func TestOtherTextIsTyped(t *testing.T) {
	b := &fakeTyping{}
	d := typingDispatcher(t, sandboxedWith(t, map[string]policy.Mode{"touch *": policy.ModeDeny}), b, nil)
	for _, in := range []string{"yes\n", "n", "\n", "break main\n", "run\n", "print *ptr\n", "x/4i $pc\n", "bt", "<enter>", "<ctrl-c>", "/usr/local\n", "q", " ", "make -j2 && ls -l | head\n", "cat <<E\nhello\nE\n"} {
		if typeAll(t, d, []string{in}) != 0 {
			t.Errorf("%q is refused", in)
		}
	}
	if want := "yes\rn\rbreak main\rrun\rprint *ptr\rx/4i $pc\rbt\r\x03/usr/local\rq make -j2 && ls -l | head\rcat <<E\rhello\rE\r"; string(b.typed) != want {
		t.Errorf("typed %q", b.typed)
	}
}

// fakeTyping is a [Background] that only keeps what is typed.
type fakeTyping struct {
	fakeBackground
	state Typed
	typed []byte
	err   error
	shown Shown
}

func (f *fakeTyping) Typed(string) Typed { return f.state }

func (f *fakeTyping) Type(_ context.Context, _ string, in Typing) (Shown, error) {
	f.state = in.State
	f.typed = append(f.typed, in.Bytes...)
	return f.shown, f.err
}

// answers answers each question, and keeps it.
type answers struct {
	decision approval.Decision
	scope    approval.Scope
	asked    []approval.Confirmation
}

func (a *answers) Approve(_ context.Context, c approval.Confirmation) (approval.Answer, error) {
	a.asked = append(a.asked, c)
	return approval.Answer{Decision: a.decision, Scope: a.scope}, nil
}

// TestTypingAsks: what is asked about, and what an answer for the session covers.
func TestTypingAsks(t *testing.T) {
	for name, c := range map[string]struct {
		rules  map[string]policy.Mode
		preset bool // with the built-in dangerous commands
		inputs []string
		asked  int
		key    string // of the last question
		danger string
	}{
		"no rule, no pattern":    {inputs: []string{"ls\n", "<up>", "rm -rf /\n"}},
		"a danger":               {preset: true, inputs: []string{"rm -rf", " /\n"}, asked: 1, danger: "rm -rf /"},
		"a danger for a program": {preset: true, inputs: []string{"shell rm -rf /\n"}, asked: 1, danger: "rm -rf /"},
		"a danger each time":     {preset: true, inputs: []string{"rm -rf /\n", "rm -rf /\n"}, asked: 2, danger: "rm -rf /"},
		"keys beside a danger":   {preset: true, inputs: []string{"ls\n", "<up>", "<up>", "\n"}, asked: 1, key: policy.AnyCommand},
		"python":                 {preset: true, inputs: []string{"def f(x):\n    return \"it's\" + x\n\n", "print(f('a'))\n"}},
		"a command":              {rules: map[string]policy.Mode{"git push *": policy.ModePrompt}, inputs: []string{"git pu", "sh\n", "git push\n"}, asked: 1, key: "git push *"},
		"keys, then the command": {rules: map[string]policy.Mode{"git push *": policy.ModePrompt}, inputs: []string{"<up>", "<up>", "ls\n"}, asked: 1, key: policy.AnyCommand},
		"the command, then keys": {rules: map[string]policy.Mode{"git push *": policy.ModePrompt}, inputs: []string{"git push\n", "<up>"}, asked: 2, key: policy.AnyCommand},
		"the command after keys": {rules: map[string]policy.Mode{"git push *": policy.ModePrompt}, inputs: []string{"<up>", "\n", "git push\n"}, asked: 2, key: `git push * "$@"`},
		"an allowed command":     {rules: map[string]policy.Mode{"ls *": policy.ModeAuto}, inputs: []string{"ls"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := sandboxedWith(t, c.rules)
			if !c.preset {
				p.Dangerous = nil
			}
			a := &answers{decision: approval.DecisionAllow, scope: approval.ScopeSession}
			d := typingDispatcher(t, p, &fakeTyping{}, a)
			if refused := typeAll(t, d, c.inputs); refused != 0 {
				t.Errorf("%d are refused", refused)
			}
			if len(a.asked) != c.asked {
				t.Fatalf("%d questions: %+v", len(a.asked), a.asked)
			}
			if c.asked == 0 {
				return
			}
			last := a.asked[c.asked-1]
			if last.Command != c.key || last.Dangerous != c.danger {
				t.Errorf("question %+v", last)
			}
			if c.key == policy.AnyCommand && !strings.Contains(strings.Join(last.Notices, "\n"), "the policy can't tell what it runs") {
				t.Errorf("notices %q", last.Notices)
			}
			if len(last.Scopes) > 2 {
				t.Errorf("it can be answered for good: %v", last.Scopes)
			}
		})
	}
}

// TestAllowedCommandIsNoAllowedTyping: a rule that lets a command run says nothing
// about the same text in a terminal.
func TestAllowedCommandIsNoAllowedTyping(t *testing.T) {
	p, err := policy.Preset("default")
	if err != nil {
		t.Fatal(err)
	}
	p.Commands = map[string]policy.Mode{"ls *": policy.ModeAuto}
	a := &answers{decision: approval.DecisionDeny, scope: approval.ScopeOnce}
	b := &fakeTyping{}
	if refused := typeAll(t, typingDispatcher(t, p, b, a), []string{"ls", "ls\n"}); refused != 2 || len(a.asked) != 2 || len(b.typed) != 0 {
		t.Errorf("%d refused, %d asked, typed %q", refused, len(a.asked), b.typed)
	}
}

// TestRestrictedShellRestrictsTyping: a rule for shell binds shell_input.
func TestRestrictedShellRestrictsTyping(t *testing.T) {
	p := sandboxedWith(t, nil)
	p.Tools = map[string]policy.Mode{"shell": policy.ModeDeny}
	if refused := typeAll(t, typingDispatcher(t, p, &fakeTyping{}, nil), []string{"ls\n", "<enter>"}); refused != 2 {
		t.Errorf("%d refused", refused)
	}
}

func TestInputErrors(t *testing.T) {
	for input, want := range map[string]string{
		`{"handle":"b","text":"a","keys":["enter"]}`:                             "give text or keys, not both",
		`{"handle":"b","text":"a\u0003"}`:                                        `control character '\x03'; name keys in keys`,
		`{"handle":"b","keys":["ctrl-1"]}`:                                       `there is no key "ctrl-1". Keys are enter,`,
		`{"handle":"b","text":"` + strings.Repeat("a", maxInputBytes+1) + `"}`:   "has 4097 bytes, at most 4096",
		`{"handle":"b","text":"none"}`:                                           `no background command with the handle "b"`,
		`{"handle":"b","text":"plain"}`:                                          "b has no terminal, so nothing can be typed; start it again with terminal: true.",
		`{"handle":"b","text":"` + strings.Repeat("a", maxInputBytes-1) + `\n"}`: "",
		`{"handle":"b","wait_ms":60001}`:                                         "wait_ms",
	} {
		b := &fakeTyping{}
		switch {
		case strings.Contains(input, "none"):
			b.err = ErrNoOutput
		case strings.Contains(input, "plain"):
			b.err = ErrNoTerminal
		}
		d := typingDispatcher(t, sandboxedWith(t, nil), b, nil)
		got, err := d.Round(t.Context(), []tools.Call{{ID: "tu_1", Name: InputName, Input: json.RawMessage(input)}})
		if err != nil || got[0].IsError != (want != "") || !strings.Contains(resultText(got[0]), want) {
			t.Errorf("%.60s: %v %q", input, err, resultText(got[0]))
		}
		if want != "" && b.err == nil && len(b.typed) > 0 {
			t.Errorf("%.60s: typed", input)
		}
	}
}

func TestTerminalNeedsBackground(t *testing.T) {
	f := &fakeBackground{}
	d, _ := dispatcherFor(t, noRunner, Options{Background: f})
	got, err := d.Round(t.Context(), shellCalls(`{"command":"vi","terminal":true}`))
	if err != nil || !got[0].IsError || !strings.Contains(resultText(got[0]), "give background too") {
		t.Errorf("%v %q", err, resultText(got[0]))
	}
	got, err = d.Round(t.Context(), shellCalls(`{"command":"vi","terminal":true,"background":true}`))
	if err != nil || got[0].IsError || !strings.Contains(resultText(got[0]), "started on a terminal: background-1") {
		t.Errorf("%v %q", err, resultText(got[0]))
	}
	if len(f.begun) != 1 || f.begun[0].Terminal == nil || f.begun[0].Terminal.Columns != 80 || f.begun[0].Variables[0] != "TERM=xterm-256color" {
		t.Errorf("begun %+v", f.begun)
	}
}

func TestShownText(t *testing.T) {
	for want, s := range map[string]Shown{
		"[b: running; 22 bytes new]\n12%\nred é\n":                                {State: "running", New: []byte("10%\r12%\n\x1b[31mred\x1b[0m é\n")[2:]},
		"[b: running; 3 bytes left out, which shell_output has; 2 bytes new]\nab": {State: "running", New: []byte("ab"), LeftOut: 3},
		"[b: running; the screen, with the cursor in row 2, column 3]\nx\n":       {State: "running", New: []byte("ab"), Screen: "x", Row: 2, Column: 3},
		"[b: running; the screen can't be drawn (why); 6 bytes new]\n b":          {State: "running", New: []byte("ab\b\b \b"), Undrawn: "why"},
	} {
		if got := s.format("b"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestShownSecretsWithEscapes: a secret that only the plain text has whole.
func TestShownSecretsWithEscapes(t *testing.T) {
	for name, output := range map[string]string{
		"a colour":    "hun\x1b[1mter2-pass\x1b[0m\n",
		"a backspace": "hunX\bter2-pass\n",
		"a return":    "1234562-pass\rhunter\n",
	} {
		redact := func(text []byte) []byte { return bytes.ReplaceAll(text, []byte("hunter2-pass"), []byte("…")) }
		for _, after := range []func([]byte) []byte{redact, nil} {
			s := Shown{New: redact([]byte(output)), Redact: after}
			if got := s.format("b"); strings.Contains(got, "hunter2-pass") != (after == nil) {
				t.Errorf("%s, redacted %t: %q", name, after != nil, got)
			}
		}
	}
}
