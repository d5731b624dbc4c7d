package livesandbox

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/runner/internal/fakesandbox"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/shell"
)

// startOnTerminal starts a script on a terminal.
func startOnTerminal(t *testing.T, b *backgrounds, script string) string {
	t.Helper()
	handle, err := b.Begin(t.Context(), shell.Command{Script: script, Command: sandbox.Command{
		Terminal: &sandbox.Terminal{TerminalSize: sandbox.TerminalSize{Rows: 24, Columns: 80}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return handle
}

// TestTypeIntoATerminal types into a program that asks, until it has ended: what is shown, what
// is remembered for the policy, what is recorded, and the errors.
func TestTypeIntoATerminal(t *testing.T) {
	b, ended := startedBackgrounds(t, map[string]fakesandbox.Script{
		"ask": func(_ context.Context, _ *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
			_, _ = fmt.Fprint(cmd.Stdout, "\x1b[2Jname? ")
			name, err := bufio.NewReader(cmd.Stdin).ReadString('\r')
			_, _ = fmt.Fprintf(cmd.Stdout, "\r\n\x1b[1mhello %s\x1b[0m %s %v\r\n", strings.TrimSuffix(name, "\r"), logKey, err)
			return sandbox.ExitStatus{Code: 3}
		},
		"plain": fakesandbox.WaitForEnd(make(chan struct{})),
	})
	handle := startOnTerminal(t, b, "ask")
	shown, err := b.Type(t.Context(), handle, shell.Typing{Wait: 5 * time.Second, Screen: true})
	if err != nil || string(shown.New) != "\x1b[2Jname? " || shown.Screen != "name?" || shown.Row != 1 || shown.Column != 7 || !shown.Running {
		t.Errorf("%+v, %v", shown, err)
	}
	state := shell.Typed{Line: "bo", Unknown: true}
	if _, err := b.Type(t.Context(), handle, shell.Typing{Bytes: []byte("bo"), State: state}); err != nil || b.Typed(handle) != state {
		t.Errorf("%v, remembered %+v", err, b.Typed(handle))
	}
	shown, err = b.Type(t.Context(), handle, shell.Typing{Bytes: []byte("b\r"), Wait: 5 * time.Second, Screen: true})
	if err != nil || !strings.Contains(string(shown.New), "hello bob") || strings.Contains(string(shown.New)+shown.Screen, logKey) || b.Typed(handle) != (shell.Typed{}) {
		t.Errorf("%+v, %v", shown, err)
	}
	if !strings.HasPrefix(shown.Screen, "name?\nhello bob [redacted:OPENAI_API_KEY]") {
		t.Errorf("screen %q", shown.Screen)
	}
	<-b.find(handle).done
	shown, err = b.Type(t.Context(), handle, shell.Typing{Wait: time.Minute})
	if err != nil || shown.Running || !strings.HasPrefix(shown.State, "exit code 3 after ") {
		t.Errorf("%+v, %v", shown, err)
	}
	_, err = b.Type(t.Context(), handle, shell.Typing{Bytes: []byte("x")})
	if own, ok := errors.AsType[*tools.Error](err); !ok || own.Reason != "ended" || !strings.Contains(own.Message, "Nothing was typed: background-1 has ended: exit code 3") {
		t.Errorf("typed after the end: %v", err)
	}
	if _, err := b.Type(t.Context(), "background-9", shell.Typing{}); !errors.Is(err, shell.ErrNoOutput) || b.Typed("background-9") != (shell.Typed{}) {
		t.Errorf("unknown handle: %v", err)
	}
	plain, err := b.Begin(t.Context(), shell.Command{Script: "plain"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Type(t.Context(), plain, shell.Typing{}); !errors.Is(err, shell.ErrNoTerminal) {
		t.Errorf("no terminal: %v", err)
	}
	b.endAll()
	for _, e := range ended() {
		if (e.Recording != nil) != (e.Handle == handle) {
			t.Errorf("%s: recording %+v", e.Handle, e.Recording)
		}
		if e.Recording == nil {
			continue
		}
		if text, err := os.ReadFile(filepath.Join(b.x.spill.dir, e.Recording.Path)); err != nil || !strings.Contains(string(text), "hello bob") || strings.Contains(string(text), logKey) {
			t.Errorf("recording %q, %v", text, err)
		}
	}
}

// TestTerminalThatDoesNotRead takes some inputs and then refuses more. Its reader ends with it.
func TestTerminalThatDoesNotRead(t *testing.T) {
	started, read := make(chan struct{}), make(chan error, 1)
	b, _ := startedBackgrounds(t, map[string]fakesandbox.Script{
		"deaf": func(ctx context.Context, box *fakesandbox.Sandbox, cmd sandbox.Command) sandbox.ExitStatus {
			s := fakesandbox.WaitForEnd(started)(ctx, box, cmd)
			go func() {
				var err error
				for p := make([]byte, 1); err == nil; {
					_, err = cmd.Stdin.Read(p)
				}
				read <- err
			}()
			return s
		},
	})
	handle := startOnTerminal(t, b, "deaf")
	<-started
	for i := range typedInputs + 1 {
		_, err := b.Type(t.Context(), handle, shell.Typing{Bytes: []byte("x")})
		own, refused := errors.AsType[*tools.Error](err)
		if refused != (i == typedInputs) || refused && (own.Reason != "busy" || !strings.Contains(own.Message, "has not read the last 16 inputs")) {
			t.Errorf("input %d: %v", i, err)
		}
	}
	b.endAll()
	if err := <-read; err == nil {
		t.Error("the reader goes on")
	}
}

// TestTerminalKeepsTheEnd of a flood, and says how much is lost.
func TestTerminalKeepsTheEnd(t *testing.T) {
	term := newTerminal(sandbox.TerminalSize{Rows: 24, Columns: 80}, redact.New(nil), nil)
	line := []byte(strings.Repeat("x", 99) + "\n")
	for range 20_000 {
		_, _ = term.Write(line)
	}
	output, lost := term.takeNew()
	if len(output) < recentBytes || len(output) > 2*recentBytes || lost != 2_000_000-int64(len(output)) {
		t.Errorf("%d bytes, %d lost", len(output), lost)
	}
	if output, lost = term.takeNew(); len(output) != 0 || lost != 0 {
		t.Errorf("again %d bytes, %d lost", len(output), lost)
	}
}

// TestTerminalHidesSplitSecrets: a secret that the screen breaks, and one in two looks. The
// control is a terminal that knows no secret.
func TestTerminalHidesSplitSecrets(t *testing.T) {
	for known, r := range map[bool]*redact.Redactor{true: redact.New([]redact.Secret{{Name: "KEY", Value: logKey}}), false: redact.New(nil)} {
		term := newTerminal(sandbox.TerminalSize{Rows: 24, Columns: 80}, r, nil)
		half, shown := len(logKey)/2, ""
		for _, piece := range []string{strings.Repeat(".", 80-half) + logKey[:half], logKey[half:], "\r\nname? "} {
			_, _ = term.Write([]byte(piece))
			output, _ := term.takeNew()
			shown += string(output)
		}
		var s shell.Shown
		if err := term.draw(&s); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(shown, logKey) == known || strings.Contains(strings.ReplaceAll(s.Screen, "\n", ""), logKey) == known || !strings.HasSuffix(shown, "name? ") {
			t.Errorf("known %t: shown %q, screen %q", known, shown, s.Screen)
		}
	}
}

func TestCursorKeysFollowTheirMode(t *testing.T) {
	term := newTerminal(sandbox.TerminalSize{}, redact.New(nil), nil)
	for _, c := range []struct{ output, keys, want string }{
		{"", "\x1b[A\x1b[5~a", "\x1b[A\x1b[5~a"}, {"\x1b[?1h", "\x1b[A\x1b[5~a", "\x1bOA\x1b[5~a"}, {"\x1b[?1l", "\x1b[H", "\x1b[H"}, {"\x1b[?1h", "\x1b[F", "\x1bOF"},
	} {
		_, _ = term.Write([]byte(c.output))
		if got := term.cursorMode([]byte(c.keys)); string(got) != c.want {
			t.Errorf("after %q: %q", c.output, got)
		}
	}
}

// TestDrawScreen: a full screen, answers that nobody reads, and output that costs too much.
func TestDrawScreen(t *testing.T) {
	for name, c := range map[string]struct{ output, want string }{
		"cursor movements": {"one\r\ntwo\x1b[1;2HN\x1b[3;1Hthree", "oNe\ntwo\nthree"},
		"the other screen": {"shell\x1b[?1049h\x1b[2J\x1b[Hpager", "pager"},
		"and back":         {"shell\x1b[?1049h\x1b[2J\x1b[Hpager\x1b[?1049l", "shell"},
		"queries":          {"a\x1b[c\x1b[6n\x1b[>c\x1b]11;?\x07\x1b[?2048h\x1b[5nb", "ab"},
		"wide characters":  {"日本é", "日本é"},
		"invalid":          {"\x1b[999;999Ha\xff\x1b[\x1bP\x9c", ""},
	} {
		term := newTerminal(sandbox.TerminalSize{Rows: 24, Columns: 80}, redact.New(nil), nil)
		_, _ = term.Write([]byte(c.output))
		var shown shell.Shown
		if err := term.draw(&shown); err != nil || c.want != "" && shown.Screen != c.want {
			t.Errorf("%s: %q, %v", name, shown.Screen, err)
		}
	}
	term := newTerminal(sandbox.TerminalSize{Rows: 24, Columns: 80}, redact.New(nil), nil)
	_, _ = term.Write([]byte("a" + strings.Repeat("\x1b[65535b", 30_000)))
	began := time.Now()
	if err := term.draw(&shell.Shown{}); err == nil || time.Since(began) > 20*drawTime {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
}

// FuzzDrawScreen: no output breaks the emulator or makes it wait.
func FuzzDrawScreen(f *testing.F) {
	f.Add([]byte("\x1b[?1049h\x1b[2J\x1b[H日本\x1b[5b\x1b[3;9r\x1b[L\x1b[M\x1bP$q\x1b\\\x1b]0;t\x07"), uint16(24), uint16(80))
	f.Fuzz(func(t *testing.T, output []byte, rows, columns uint16) {
		term := newTerminal(sandbox.TerminalSize{Rows: rows%100 + 1, Columns: columns%200 + 1}, redact.New(nil), nil)
		_, _ = term.Write(output)
		var shown shell.Shown
		if err := term.draw(&shown); err != nil && len(output) < 1<<10 {
			t.Error(err)
		}
	})
}
