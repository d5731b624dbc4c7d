package livesandbox

import (
	"bytes"
	"errors"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/runner/internal/secrettest"
	"github.com/caisson-run/caisson/runner/redact"
	"github.com/caisson-run/caisson/sandbox"
)

// newLogOf is newLog with secrets.
func newLogOf(t *testing.T, secrets ...redact.Secret) *backgroundLog {
	t.Helper()
	g := newLog(t)
	g.spill.redact = redact.New(secrets)
	for i := range g.streams {
		g.streams[i] = g.spill.redact.NewWriter(g.file)
	}
	return g
}

// TestBackgroundLogHidesHalfSecrets reads the log with a secret half written, in each of its forms and
// at each place, and then what follows.
func TestBackgroundLogHidesHalfSecrets(t *testing.T) {
	const secret = "?x/p ass.Word+ü!"
	forms := map[string]string{
		"as it is": secret, "JSON": secrettest.Quote("\"" + secret), "a query": url.QueryEscape(secret), "a path": url.PathEscape(secret),
		"lower case": secrettest.LowerEscapes(url.QueryEscape(secret)), "user information": url.User(secret).String(), "each byte": secrettest.PercentEncode(secret, 1, "%%%02X"),
		"some bytes": secrettest.PercentEncode(secret, 3, "%%%02x"), "twice": url.QueryEscape(url.QueryEscape(secret)), "a query with a space only": "a+plain+password",
	}
	for name, form := range forms {
		for cut := 1; cut < len(form); cut++ {
			g := newLogOf(t, redact.Secret{Name: "KEY", Value: secret}, redact.Secret{Name: "JSON", Value: "\"" + secret}, redact.Secret{Name: "PLAIN", Value: "a plain password"})
			g.write(t, 0, "say "+form[:cut])
			if half, _ := g.text(t); half != "say " {
				t.Errorf("%s: of %q, %q is shown", name, form[:cut], half)
				break
			}
			g.write(t, 0, form[cut:]+" and more\n")
			if whole, _ := g.text(t); strings.Contains(whole, form[len(form)-4:]) || !strings.HasSuffix(whole, "] and more\n") {
				t.Errorf("%s: cut at %d: %q", name, cut, whole)
				break
			}
			g.closeFile()
		}
	}
}

// TestBackgroundLogHidesHalfKeys does so with private keys.
func TestBackgroundLogHidesHalfKeys(t *testing.T) {
	for kind, key := range secrettest.PrivateKeys(t) {
		for name, text := range map[string]string{"as it is": key, "in a string": `{"k": "` + strings.ReplaceAll(key, "\n", `\n`) + `"}`} {
			lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\\' })
			step := 2
			if len(text) > 500 {
				step = 41
			}
			for cut := 1; cut < len(text); cut += step {
				g := newLogOf(t)
				g.write(t, 0, "see\n"+text[:cut])
				g.text(t)
				g.write(t, 0, text[cut:]+"\nthe end\n")
				got, _ := g.text(t)
				for _, line := range lines {
					line = strings.TrimPrefix(line, "n")
					if len(line) > 16 && !strings.Contains(line, "---") && strings.Contains(got, line) && isBase64(line) {
						t.Fatalf("%s %s, cut at %d: %q is shown", kind, name, cut, line)
					}
				}
				if !strings.HasSuffix(got, "\nthe end\n") {
					t.Fatalf("%s %s, cut at %d: %q", kind, name, cut, got)
				}
				g.closeFile()
			}
		}
	}
}

// TestBackgroundLogShowsWhatIsNoSecret: nothing is held back forever, and a complete secret not at all.
func TestBackgroundLogShowsWhatIsNoSecret(t *testing.T) {
	secrets := []redact.Secret{{Name: "KEY", Value: "correct horse!"}, {Name: "LONGER", Value: "my correct horn and more"}}
	for text, want := range map[string]string{
		"say correct horse!": "say [redacted:KEY]", "my correct ho": "", "my corrects?": "my corrects?", "ab": "a", "a b": "a ", "any key": "any key", "x sk-abc": "x ",
		strings.Repeat("k", redact.MaxKeyBytes+7): strings.Repeat("k", redact.MaxKeyBytes+7),
		"-----BEGIN PRIVATE KEY-----\nor other words, with more of them behind, so that nothing of it waits\nfor an end ": "-----BEGIN PRIVATE KEY-----\nor other words, with more of them behind, so that nothing of it waits\nfor an end ",
	} {
		g := newLogOf(t, secrets...)
		g.write(t, 0, text)
		if got, _ := g.text(t); got != want {
			t.Errorf("of %q, %q is shown, want %q", text, got, want)
		}
	}
}

// isBase64 reports whether a line has nothing but digits of base64.
func isBase64(line string) bool {
	return !strings.ContainsFunc(line, func(r rune) bool {
		return !strings.ContainsRune("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=", r)
	})
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("no space left") }

// TestBackgroundLogThatCannotBeWritten is not called whole.
func TestBackgroundLogThatCannotBeWritten(t *testing.T) {
	for name, c := range map[string]func(t *testing.T, g *backgroundLog){
		"by a command": func(t *testing.T, g *backgroundLog) {
			g.streams[1] = g.spill.redact.NewWriter(failingWriter{})
			g.write(t, 1, strings.Repeat("x ", 64<<10))
			if !g.full {
				t.Error("more is written to the file")
			}
		},
		"as it is read": func(t *testing.T, g *backgroundLog) {
			g.streams[1] = g.spill.redact.NewWriter(failingWriter{})
			g.write(t, 1, "x ")
			if _, k := g.text(t); k.Whole || !g.full {
				t.Error("it is called whole, or more is written")
			}
		},
		"at its end": func(t *testing.T, g *backgroundLog) {
			g.streams[1] = g.spill.redact.NewWriter(failingWriter{})
			g.write(t, 1, "x ")
			g.closeFile()
		},
		"by its end": func(_ *testing.T, g *backgroundLog) {
			g.file.Close()
			g.closeFile()
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newLog(t)
			c(t, g)
			if _, k := g.text(t); k.Whole {
				t.Error("it is called whole")
			}
		})
	}
	g := newLog(t)
	g.write(t, 0, "all of it")
	g.addEnd(sandbox.Exit{Stdout: sandbox.Stream{Total: 9, Live: 9}})
	if total := g.closeFile(); total != 9 || g.closeFile() != 9 {
		t.Errorf("%d bytes", total)
	}
	if text, k := g.text(t); !k.Whole || text != "all of it" || len(openFiles(t, g.path)) != 0 {
		t.Errorf("the control: %q, whole: %t", text, k.Whole)
	}
	less := newLog(t)
	less.write(t, 0, "all but one byte of it")
	less.addEnd(sandbox.Exit{Stdout: sandbox.Stream{Total: 23}})
	if _, k := less.text(t); k.Whole || k.Total != 23 {
		t.Errorf("whole: %t, %d bytes", k.Whole, k.Total)
	}
	if err := os.Remove(g.path); err != nil {
		t.Fatal(err)
	}
	if _, err := g.openKept(); err == nil {
		t.Error("a file that is gone was opened")
	}
}

// TestBackgroundLogKeepsItsEnd: beyond the bound, output is kept from the start of a line, in which no
// earlier secret can continue.
func TestBackgroundLogKeepsItsEnd(t *testing.T) {
	g := newLog(t)
	g.kept = backgroundBytes - 10
	g.write(t, 0, "0123456789")
	if g.full || g.tail != nil {
		t.Error("what there is room for is not kept")
	}
	g.kept = backgroundBytes - 10
	g.write(t, 0, "0123456789X")
	if !g.full || string(g.tail) != "0123456789X" {
		t.Errorf("the end is %q", g.tail)
	}
	long := "the secret's beginning\n" + strings.Repeat("a line of a secret\n", 400)
	for text, want := range map[string]string{
		"": "", strings.Repeat("x", tailHold): "", strings.Repeat("x", tailHold+3): "xxx",
		strings.Repeat("x", tailHold) + "half\nwhole\n":    "whole\n",
		strings.Repeat("x", tailHold) + "\nwhole\n\nagain": "whole\n\nagain",
	} {
		g := newLog(t)
		g.full = true
		g.write(t, 0, text)
		if got := g.lastText(); string(got) != want {
			t.Errorf("of %d bytes %q is shown, want %q", len(text), got, want)
		}
	}
	g = newLogOf(t, redact.Secret{Name: "KEY", Value: long})
	g.full = true
	g.write(t, 0, long[1:]+"after\n")
	if got := g.lastText(); len(got) != 0 {
		t.Errorf("of the end of a secret %q is shown", got)
	}
	const most = captureBytes + tailHold
	g = newLog(t)
	g.full = true
	g.write(t, 0, strings.Repeat("x", most)+"the end")
	if len(g.tail) != most || !bytes.HasSuffix(g.tail, []byte("xthe end")) {
		t.Errorf("%d bytes are kept of one piece", len(g.tail))
	}
	for range 3 * most / 8 {
		g.write(t, 0, "pieces. ")
	}
	if len(g.tail) > 2*most || !bytes.Equal(bytes.TrimLeft(g.tail, "xthend "), []byte(strings.Repeat("pieces. ", len(g.tail)/8))) {
		t.Errorf("%d bytes are kept of many pieces", len(g.tail))
	}
}
