package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// onTerminal is a call that starts a command on a terminal.
func onTerminal(command string) scriptCall {
	return call("shell", map[string]any{"command": command, "background": true, "terminal": true})
}

// types is a call that types into a terminal, and waits generously.
func types(handle, text string) scriptCall {
	return call("shell_input", map[string]any{"handle": handle, "text": text, "wait_ms": 10_000})
}

func presses(handle string, keys ...string) scriptCall {
	return call("shell_input", map[string]any{"handle": handle, "keys": keys, "wait_ms": 10_000})
}

// screenOf is a call that returns a terminal's screen.
func screenOf(handle string) scriptCall {
	return call("shell_input", map[string]any{"handle": handle, "screen": true, "wait_ms": 1000})
}

// installer asks three questions, one of them without an echo.
const installer = `printf 'Install to [/opt]? '; read dir
stty -echo; printf 'Password: '; read pass; stty echo; echo
printf 'Continue (y/n)? '; read yes
[ "$yes" = y ] && echo "$dir $pass" >installed && echo "It is in $dir"
`

// TestModelUsesTerminals drives an interpreter, a pager and an installer on each backend, and
// looks at what the model is told and what is recorded.
func TestModelUsesTerminals(t *testing.T) {
	if !isInUsr(t, "python3") || !isInUsr(t, "less") {
		lacking(t, "", "needs python3 and less")
	}
	onBackendsAtOnce(t, func(t *testing.T, backend string) {
		m := newMachine(t)
		m.write(t, "install.sh", installer)
		m.write(t, "long.txt", "first line\n"+strings.Repeat("another line\n", 200)+"last line\n")
		args := m.playing(
			t,
			/* 1 */ []scriptCall{onTerminal("python3 -i -q")},
			/* 2 */ []scriptCall{types("background-1", "print(40 + 2)\n")},
			/* 3 */ []scriptCall{types("background-1", "import sys; sys.stdin.isatty(), sys.stdout.isatty()\n")},
			/* 4 */ []scriptCall{types("background-1", "while True: pass\n\n")},
			/* 5 */ []scriptCall{presses("background-1", "ctrl-c")},
			/* 6 */ []scriptCall{presses("background-1", "ctrl-d")},
			/* 7 */ []scriptCall{onTerminal("less long.txt")},
			/* 8 */ []scriptCall{screenOf("background-2")},
			/* 9 */ []scriptCall{types("background-2", "G")},
			/* 10 */ []scriptCall{screenOf("background-2")},
			/* 11 */ []scriptCall{presses("background-2", "up", "home")},
			/* 12 */ []scriptCall{types("background-2", "q")},
			/* 13 */ []scriptCall{onTerminal("sh install.sh")},
			/* 14 */ []scriptCall{types("background-3", "")},
			/* 15 */ []scriptCall{types("background-3", "/usr/local/x\n")},
			/* 16 */ []scriptCall{types("background-3", "hidden\n")},
			/* 17 */ []scriptCall{types("background-3", "y\n")},
			/* 18 */ []scriptCall{types("background-3", "more\n")},
			/* 19 */ []scriptCall{types("background-9", "x")},
			/* 20 */ []scriptCall{background("sleep 100")},
			/* 21 */ []scriptCall{types("background-4", "x")},
		)
		out := m.runTask(t, append([]string{"--backend", backend, "--grace", "300ms"}, args...)...)
		out.want(t, 0)
		results := out.records.results(t)
		if len(results) != 21 {
			t.Fatalf("%d results", len(results))
		}
		for n, wants := range map[int][]string{
			1:  {"started on a terminal: background-1"},
			2:  {"\n42\n"},
			3:  {"(True, True)"},
			5:  {"KeyboardInterrupt"},
			6:  {" after "},
			8:  {"the screen, with the cursor in row 24, column ", "]\nfirst line\nanother line\n"},
			10: {"\nanother line\nlast line\n"},
			12: {"[background-2: exit code 0 after "},
			14: {"Install to [/opt]? "},
			15: {"/usr/local/x\nPassword: "},
			16: {"Continue (y/n)? "},
			17: {"It is in /usr/local/x", "exit code 0 after"},
			18: {"Nothing was typed: background-3 has ended: exit code 0"},
			19: {`no background command with the handle "background-9"`},
			21: {"background-4 has no terminal"},
		} {
			text := results[n-1].text()
			for _, want := range wants {
				if !strings.Contains(text, want) {
					t.Errorf("call %d lacks %q:\n%s", n, want, text)
				}
			}
		}
		if text := results[15].text(); strings.Contains(text, "hidden") {
			t.Errorf("a password is shown:\n%s", text)
		}
		if got, err := os.ReadFile(filepath.Join(m.workspace, "installed")); err != nil || string(got) != "/usr/local/x hidden\n" {
			t.Errorf("installed %q, %v", got, err)
		}
		recordings := 0
		for _, r := range out.records.of("sandbox.background_ended") {
			p := decode[struct {
				Handle    string `json:"handle"`
				Recording struct {
					Path string `json:"path"`
				} `json:"recording"`
			}](t, r)
			if p.Handle != "background-3" {
				continue
			}
			cast, err := os.ReadFile(filepath.Join(m.stateDir(), "sessions", r.Session, p.Recording.Path))
			if err != nil || !strings.Contains(string(cast), "It is in /usr/local/x") || strings.Contains(string(cast), "hidden") {
				t.Errorf("recording %q: %v", cast, err)
			}
			recordings++
		}
		if recordings != 1 {
			t.Errorf("%d ends of background-3", recordings)
		}
		m.wantNothingLeft(t, out.records[0].Session)
	})
}

// TestDeniedCommandInATerminal: in a shell that a script starts, which no rule sees, the denied
// command doesn't run, other commands do, and keys are refused. The control has no rule.
func TestDeniedCommandInATerminal(t *testing.T) {
	backend := anyBackend(t)
	for _, denied := range []bool{true, false} {
		m := newMachine(t)
		m.write(t, "open", "#!/bin/sh\nPS1='go: ' ENV= exec sh -i\n")
		if err := os.Chmod(filepath.Join(m.workspace, "open"), 0o755); err != nil {
			t.Fatal(err)
		}
		if denied {
			m.config(t, "policy:\n  preset: ci\n  commands: {\"touch denied\": deny}\n")
		}
		args := m.playing(
			t,
			/* 1 */ []scriptCall{onTerminal("./open")},
			/* 2 */ []scriptCall{types("background-1", "touch allowed\n")},
			/* 3 */ []scriptCall{types("background-1", "touch den"), types("background-1", "ied\n")},
			/* 4 */ []scriptCall{presses("background-1", "up")},
			/* 5 */ []scriptCall{types("background-1", "\nexit 3\n")},
		)
		out := m.runTask(t, append([]string{"--backend", backend}, args...)...)
		out.want(t, 0)
		results := out.records.results(t)
		if _, err := os.Stat(filepath.Join(m.workspace, "allowed")); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Join(m.workspace, "denied")); (err != nil) != denied {
			t.Errorf("denied %t: %v", denied, err)
		}
		if text := results[3].text(); strings.Contains(text, "Nothing was typed") != denied {
			t.Errorf("denied %t: %s", denied, text)
		}
		if text := results[4].text(); strings.Contains(text, "can't tell what this input") != denied {
			t.Errorf("denied %t: keys: %s", denied, text)
		}
	}
}
