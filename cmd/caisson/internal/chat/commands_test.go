package chat

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/sandbox/programs"
	"github.com/caisson-run/caisson/tools"
)

// newHostChat returns a chat with programs on PATH. Those in own are in the workspace.
// Each writes its name and standard input to a file.
func newHostChat(t *testing.T, names, own []string, env map[string]string) (c *chat, written func() string) {
	t.Helper()
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	for _, name := range append(names, own...) {
		bin := filepath.Join(dir, "bin")
		if slices.Contains(own, name) {
			bin = filepath.Join(dir, "work")
		}
		if err := os.MkdirAll(bin, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n{ echo \"$0 $*\"; /bin/cat; } > "+out+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	environ := []string{"PATH=" + dir + "/work:" + dir + "/bin"}
	c = &chat{Options: Options{
		Dir: dir, Getenv: func(name string) string { return env[name] }, Queue: func(int, func()) {},
		Command: func(name string, args ...string) (*exec.Cmd, error) {
			return programs.Command(t.Context(), environ, []string{dir + "/work"}, name, args...)
		},
		External: (*exec.Cmd).Run,
	}}
	return c, func() string {
		text, _ := os.ReadFile(out)
		_ = os.Remove(out)
		return strings.ReplaceAll(string(text), dir, "DIR")
	}
}

// TestCopy: the clipboard gets no control characters, and not by a program of the
// workspace.
func TestCopy(t *testing.T) {
	c, written := newHostChat(t, []string{"xsel"}, []string{"xclip", "wl-copy"}, map[string]string{"DISPLAY": ":0", "WAYLAND_DISPLAY": "w"})
	c.answer = "run\tthis:\nls\x1b[201~\nrm -rf \u202e~"
	c.copyAnswer("")
	if got, want := written(), "DIR/bin/xsel --clipboard --input\nrun\tthis:\nls\\x1b[201~\nrm -rf \\u202e~"; got != want {
		t.Errorf("copied %q, want %q", got, want)
	}
	honest := "Voici\u00a0: 10\u202f000 €\r\n\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \u0915\u094d\u200d\u0937 👩\u200d💻 ❤\ufe0f \u05d0\u200e\ufffd\n"
	if got, hidden := tools.CopyText(honest); got != honest || hidden {
		t.Errorf("%q is copied as %q", honest, got)
	}
	for text, want := range map[string]string{
		"ls\rid": `ls\rid`, "\x9b\xff": `\x9b\xff`, "\u009b": `\u009b`, "\x7f": `\x7f`, "a\u2066b": `a\u2066b`, "\U000e0041": `\U000e0041`, "\U000e0100": `\U000e0100`,
	} {
		if got, hidden := tools.CopyText(text); got != want || !hidden {
			t.Errorf("%q is copied as %q, hidden %t", text, got, hidden)
		}
	}
	if c, written = newHostChat(t, nil, []string{"xclip"}, map[string]string{"DISPLAY": ":0"}); true {
		c.answer = "\x1b[201~"
		c.copyAnswer("")
	}
	if text, err := os.ReadFile(filepath.Join(c.Dir, "answer.md")); err != nil || string(text) != `\x1b[201~` || written() != "" {
		t.Errorf("the file has %q, %v", text, err)
	}
}

// TestUnknownCommand: an unknown command leaves the draft, so that the next command
// works.
func TestUnknownCommand(t *testing.T) {
	c := &chat{notes: time.NewTimer(time.Hour), Options: Options{Dir: t.TempDir(), Queue: func(int, func()) {}}}
	for _, k := range "/foo" {
		c.composer.pressKey(key{kind: keyText, text: string(k)})
	}
	c.sendDraft()
	if c.composer.text != "" {
		t.Errorf("the draft is %q", c.composer.text)
	}
	if !slices.Equal(c.composer.history, []string{"/foo"}) {
		t.Errorf("the history has %q", c.composer.history)
	}
}

// TestOpenFile: $PAGER and $EDITOR name a program with options, never one in the
// workspace.
func TestOpenFile(t *testing.T) {
	c, written := newHostChat(t, []string{"less", "code"}, []string{"vi", "own"}, map[string]string{"OPTION": "a b"})
	for text, want := range map[string]string{
		"less -R":                   "DIR/bin/less -R /f\n",
		`code --wait "$OPTION"`:     "DIR/bin/code --wait a b /f\n",
		"own -R":                    "",
		"./own":                     "",
		c.Dir + "/work/own":         "",
		c.Dir + "/bin/less":         "DIR/bin/less /f\n",
		"less | own":                "",
		"less; own":                 "",
		"less $(own)":               "",
		"'":                         "",
		"vi":                        "",
		c.Dir + "/work/../work/vi":  "",
		c.Dir + "/work/../bin/less": "DIR/work/../bin/less /f\n",
	} {
		if err := c.openFile(text, "/f"); (err == nil) != (want != "") {
			t.Errorf("%s: %v", text, err)
		}
		if got := written(); got != want {
			t.Errorf("%s ran %q, want %q", text, got, want)
		}
	}
}
