//go:build linux

package runner

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestSecretsAreFoundAcrossBorders puts secrets at every place of a stream that
// comes in pieces of every size, and looks for what must not be there.
func TestSecretsAreFoundAcrossBorders(t *testing.T) {
	secrets := []Secret{{"KEY", "s3cret value, with spaces"}, {"OTHER", "aaaabaaaa"}}
	const shaped = "sk-abcdefghijklmnopqrstuvwxyz012345"
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, filler := range []string{"x", "some words\n", "-"} {
		for _, pieces := range []int{1, 7, 4096, 1 << 20} {
			for _, at := range []int{0, 1, redactChunk - 30, redactChunk - 1, redactChunk, redactChunk + redactHold - 10, redactChunk + redactHold, 3 * redactChunk} {
				body := strings.Repeat(filler, at/len(filler)+1)[:at]
				text := body + " " + secrets[0].Value + " " + secrets[1].Value + "\n" + shaped + "\n" + strings.Repeat(filler, rnd.IntN(9000)) + " " + shaped
				var out bytes.Buffer
				s := newRedactor(secrets).stream(&out)
				for rest := []byte(text); len(rest) > 0; {
					n := min(pieces, len(rest))
					if got, err := s.Write(rest[:n]); got != n || err != nil {
						t.Fatal(got, err)
					}
					rest = rest[n:]
				}
				if err := s.close(); err != nil {
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
	// The control: pieces redacted by themselves let a secret through.
	text := strings.Repeat("x", redactChunk-4) + " " + secrets[0].Value
	r := newRedactor(secrets)
	if naive := string(r.bytes([]byte(text[:redactChunk]))) + string(r.bytes([]byte(text[redactChunk:]))); !strings.Contains(naive, secrets[0].Value) {
		t.Error("the test's place is no border")
	}
}

// TestLongSecretsInStreams: a secret may be longer than what is usually held back.
func TestLongSecretsInStreams(t *testing.T) {
	for _, secret := range []string{strings.Repeat("ab. ", 600), strings.Repeat("ab. ", 5000)} {
		r := newRedactor([]Secret{{"LONG", secret}})
		for name, form := range map[string]string{"as it is": secret, "encoded": percentEvery(secret, 2, "%%%02X")} {
			before, after := strings.Repeat("-\n", redactChunk/2-5), strings.Repeat("\n", 6*len(secret)+redactHold)
			if got := streamed(t, r, before+form+after, redactHold); got != before+"[redacted:LONG]"+after {
				t.Errorf("%d bytes, %s: %d bytes came through", len(secret), name, len(got)-len(before)-len(after))
			}
		}
	}
}

func FuzzRedactedStream(f *testing.F) {
	const secret = "0123456789abcdef"
	f.Add([]byte("a "+secret+" b"), 3)
	f.Add(bytes.Repeat([]byte(secret), 9000), 100)
	f.Fuzz(func(t *testing.T, text []byte, pieces int) {
		if pieces < 1 {
			return
		}
		var out bytes.Buffer
		s := newRedactor([]Secret{{"K", secret}}).stream(&out)
		for rest := text; len(rest) > 0; {
			n := min(pieces, len(rest))
			_, _ = s.Write(rest[:n])
			rest = rest[n:]
		}
		if err := s.close(); err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(out.Bytes(), []byte(secret)) {
			t.Errorf("a secret got through %d bytes in pieces of %d", len(text), pieces)
		}
	})
}
