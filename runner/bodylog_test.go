package runner

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/runner/redact"
)

// readBodies returns the requests in a session's file of bodies, put together again.
func readBodies(t testing.TB, dir string) map[int64]string {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, record.BridgeFile))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	out := map[int64]string{}
	lines := bufio.NewReader(f)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return out
		}
		var b record.BridgeBodies
		if err := json.Unmarshal(line, &b); err != nil {
			t.Fatal(err)
		}
		base := out[b.Base]
		out[b.Call] = base[:b.Shared] + b.Request + base[len(base)-b.SharedEnd:]
	}
}

// TestBodyLog checks that bodies can be put together again, and that a conversation takes
// little more room than its last request.
func TestBodyLog(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		dir := t.TempDir()
		l, want, text := newBodyLog(dir, nil), map[int64]string{}, ""
		for call := range int64(rapid.IntRange(1, 8).Draw(r, "calls")) {
			text += rapid.SampledFrom([]string{"", "a", "ab", "äö", "語", "\xff", `"\`, "\n"}).Draw(r, "more")
			if rapid.Bool().Draw(r, "other") {
				text = rapid.String().Draw(r, "text")
			}
			if err := l.add(call+1, []byte(text), nil); err != nil {
				t.Fatal(err)
			}
			want[call+1] = strings.ToValidUTF8(text, "\uFFFD")
		}
		if _, _, err := l.lines.Close(); err != nil {
			t.Fatal(err)
		}
		got := readBodies(t, dir)
		for call, text := range want {
			if got[call] != text {
				t.Fatalf("call %d is %q, want %q", call, got[call], text)
			}
		}
	})
	dir := t.TempDir()
	l := newBodyLog(dir, nil)
	for n := range 50 {
		request := `{"messages":[` + strings.Repeat(`{"role":"user","content":"some words of a message"},`, n) + `],"stream":true}`
		side := `{"title":"` + strings.Repeat("x", n) + `"}`
		if err := l.add(int64(2*n+1), []byte(request), []byte("answer")); err != nil {
			t.Fatal(err)
		}
		if err := l.add(int64(2*n+2), []byte(side), nil); err != nil {
			t.Fatal(err)
		}
	}
	sum, omitted, err := l.lines.Close()
	if err != nil || len(sum) != 64 || omitted != 0 {
		t.Fatal(sum, omitted, err)
	}
	if info, err := os.Stat(filepath.Join(dir, record.BridgeFile)); err != nil || info.Size() > 100*200 {
		t.Errorf("the bodies take %d bytes: %v", info.Size(), err)
	}
}

// TestBodyLogHasNoSecrets checks both bodies. The control has other text.
func TestBodyLogHasNoSecrets(t *testing.T) {
	const key = "sk-ant-0123456789abcdef0123456789"
	dir := t.TempDir()
	l := newBodyLog(dir, []redact.Secret{{Name: "KEY", Value: key}})
	if err := l.add(1, []byte(`{"a":"`+key+`","b":"shown"}`), []byte("said "+key)); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, record.BridgeFile))
	if err != nil || strings.Contains(string(text), key) || !strings.Contains(string(text), "shown") {
		t.Errorf("%s, %v", text, err)
	}
}
