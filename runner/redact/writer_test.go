package redact

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/runner/internal/secrettest"
)

// TestSecretsAreFoundAcrossBorders puts secrets at every place of a stream with
// pieces of every size.
func TestSecretsAreFoundAcrossBorders(t *testing.T) {
	secrets := []Secret{{"KEY", "s3cret value, with spaces"}, {"OTHER", "aaaabaaaa"}}
	const shaped = "sk-abcdefghijklmnopqrstuvwxyz012345"
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, filler := range []string{"x", "some words\n", "-"} {
		for _, pieces := range []int{1, 7, 4096, 1 << 20} {
			for _, at := range []int{0, 1, chunkBytes - 30, chunkBytes - 1, chunkBytes, chunkBytes + MaxKeyBytes - 10, chunkBytes + MaxKeyBytes, 3 * chunkBytes} {
				body := strings.Repeat(filler, at/len(filler)+1)[:at]
				text := body + " " + secrets[0].Value + " " + secrets[1].Value + "\n" + shaped + "\n" + strings.Repeat(filler, rnd.IntN(9000)) + " " + shaped
				var out bytes.Buffer
				s := New(secrets).NewWriter(&out)
				for rest := []byte(text); len(rest) > 0; {
					n := min(pieces, len(rest))
					if got, err := s.Write(rest[:n]); got != n || err != nil {
						t.Fatal(got, err)
					}
					rest = rest[n:]
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				name := fmt.Sprintf("%q, pieces of %d, at %d", filler, pieces, at)
				for _, secret := range []string{secrets[0].Value, secrets[1].Value, shaped} {
					if strings.Contains(out.String(), secret) {
						t.Errorf("%s: %q got through", name, secret)
					}
				}
				if !s.changed || s.wrote != int64(out.Len()) {
					t.Errorf("%s: changed %t, wrote %d of %d", name, s.changed, s.wrote, out.Len())
				}
				if !strings.HasPrefix(out.String(), body[:max(0, len(body)-len(filler)*3)]) {
					t.Errorf("%s: what is no secret was changed", name)
				}
			}
		}
	}
	// Control: pieces redacted by themselves let a secret through.
	text := strings.Repeat("x", chunkBytes-4) + " " + secrets[0].Value
	r := New(secrets)
	if naive := string(r.Bytes([]byte(text[:chunkBytes]))) + string(r.Bytes([]byte(text[chunkBytes:]))); !strings.Contains(naive, secrets[0].Value) {
		t.Error("the test's place is no border")
	}
}

// A secret may be longer than what is usually held back.
func TestLongSecretsInStreams(t *testing.T) {
	for _, secret := range []string{strings.Repeat("ab. ", 600), strings.Repeat("ab. ", 5000)} {
		r := New([]Secret{{"LONG", secret}})
		for name, form := range map[string]string{"as it is": secret, "encoded": secrettest.PercentEncode(secret, 2, "%%%02X")} {
			before, after := strings.Repeat("-\n", chunkBytes/2-5), strings.Repeat("\n", 6*len(secret)+MaxKeyBytes)
			if got := streamed(t, r, before+form+after, MaxKeyBytes); got != before+"[redacted:LONG]"+after {
				t.Errorf("%d bytes, %s: %d bytes came through", len(secret), name, len(got)-len(before)-len(after))
			}
		}
	}
}

// A stream is cut at or before a place where no secret is divided. If a secret
// is at the beginning of all that is held, there is no such place.
func TestBordersOfStreams(t *testing.T) {
	const value, encoded = "a.b.c.d.e", "%61.b.c.d.e"
	key := "-----BEGIN PRIVATE KEY-----\n" + strings.Repeat("MIIEvQIBADANBgkqhkiG\n", 9) + "MIIEvQIBADANBgkqhki"
	for _, c := range []struct {
		buf      string
		at, want int
	}{
		{"x abcdef y", 1, 1},
		{"x abcdef y", 2, 2},
		{"x abcdef y", 3, 2},
		{"x abcdef y", 7, 2},
		{"x abcdef y", 8, 8},
		{"x (a.b.c.d.e) y", 2, 2},
		{"x (a.b.c.d.e) y", 3, 3},
		{"x (a.b.c.d.e) y", 4, 3},
		{"x (a.b.c.d.e) y", 11, 3},
		{"x (a.b.c.d.e) y", 12, 12},
		{"x (%61.b.c.d.e) y", 3, 3},
		{"x (%61.b.c.d.e) y", 4, 3},
		{"x (%61.b.c.d.e) y", 13, 3},
		{"x (%61.b.c.d.e) y", 14, 14},
		{"x (%61.b.c.d.e) y", 15, 15},
		{"-" + value, 8, 1},
		{value, 4, 4},
		{encoded, 8, 8},
		{value + value, 13, 9},
		{"- " + key + value + "\n", 2 + len(key) + 4, 2},
		{"- " + key + encoded + "\n", 2 + len(key) + 4, 2},
	} {
		s := New([]Secret{{"K", value}}).NewWriter(io.Discard)
		s.buf = []byte(c.buf)
		if got := s.findBorder(c.at); got != c.want {
			t.Errorf("%.60q… of %d bytes at %d: %d, want %d", c.buf, len(c.buf), c.at, got, c.want)
		}
	}
}

// The last bytes written decide whether a key begins, and only they are kept.
func TestWhatStreamsRemember(t *testing.T) {
	const key = "ghp_0123456789abcdefABCDEF0123456789abcd"
	for before, want := range map[string]string{"x": "x" + key, " ": " [redacted:key]", "": "[redacted:key]"} {
		for _, first := range []string{"", strings.Repeat("-", lookBehind)} {
			var out bytes.Buffer
			s := New(nil).NewWriter(&out)
			for _, text := range []string{first, before, key} {
				s.buf = []byte(text)
				if err := s.writeFirst(len(text)); err != nil || len(s.before) > lookBehind {
					t.Errorf("%v, %d bytes are kept", err, len(s.before))
				}
			}
			if got := out.String(); got != first+want || s.changed != strings.Contains(want, "redacted") {
				t.Errorf("behind %q: %q, changed: %t", first+before, got, s.changed)
			}
		}
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("no space left") }

// The caller gets the error of the writer below, from Write or, for what was
// held, from Close.
func TestWriterThatFails(t *testing.T) {
	w := New(nil).NewWriter(failingWriter{})
	if n, err := w.Write(make([]byte, 2*chunkBytes)); n != 0 || err == nil {
		t.Errorf("%d, %v", n, err)
	}
	w = New(nil).NewWriter(failingWriter{})
	if n, err := w.Write([]byte("x")); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if err := w.Close(); err == nil || w.Changed() {
		t.Errorf("%v, changed: %t", err, w.Changed())
	}
}

func FuzzWriter(f *testing.F) {
	const secret = "0123456789abcdef"
	f.Add([]byte("a "+secret+" b"), 3)
	f.Add(bytes.Repeat([]byte(secret), 9000), 100)
	f.Fuzz(func(t *testing.T, text []byte, pieces int) {
		if pieces < 1 {
			return
		}
		var out bytes.Buffer
		s := New([]Secret{{"K", secret}}).NewWriter(&out)
		for rest := text; len(rest) > 0; {
			n := min(pieces, len(rest))
			_, _ = s.Write(rest[:n])
			rest = rest[n:]
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(out.Bytes(), []byte(secret)) {
			t.Errorf("a secret got through %d bytes in pieces of %d", len(text), pieces)
		}
	})
}

// TestFlushHoldsBackOnlySecrets: what may be the beginning of a secret waits, but
// no other word before a pause, and no end of a control sequence.
func TestFlushHoldsBackOnlySecrets(t *testing.T) {
	r := New([]Secret{{"KEY", "hunter2-pass"}})
	for text, want := range map[string]string{
		"press any key": "press any key", "$ git pus": "$ git pus", "task-list": "task-list", "\x1b[?25h": "\x1b[?25h", "\x1b[5;1A": "\x1b[5;1A",
		"a hunter": "a ", "\x1b[mh": "\x1b[m", "x sk": "x ", "x sk-abc": "x ", "TOKEN_ghp_ab": "TOKEN_", "my-s": "my", "b AKIA0123": "b ", "x a%4": "x ", "x%68unt": "",
		"\x1b[01;31m\x1b[Kgh": "\x1b[01;31m\x1b[K",
	} {
		var out bytes.Buffer
		w := r.NewWriter(&out)
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil || out.String() != want {
			t.Errorf("%q: %q, %v", text, out.String(), err)
		}
	}
}
