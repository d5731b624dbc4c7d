package runner

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/zap"
	"pgregory.net/rapid"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/tools"
)

// secretText is what keys and passwords are made of, and what JSON, HTML and
// patterns find hard.
var secretText = rapid.StringOfN(rapid.RuneFrom([]rune("abcXYZ0189-_./+=\"\\<>&'% ü\u2028\t")), minSecretBytes, 40, -1)

// fillers are what stands around them.
var fillers = rapid.SampledFrom([]string{"", " ", "x", "\n", "some words ", "-", "sk-", "[redacted:", `\`, `"`, "é", "\x1b[0m", strings.Repeat("padding ", 700), strings.Repeat("k", 5000)})

// TestKnownSecretsAreReplacedWhole redacts texts in which secrets are alike, follow
// one another or overlap.
func TestKnownSecretsAreReplacedWhole(t *testing.T) {
	r := newRedactor([]Secret{
		{"SHORT", "shorter"},
		{"EIGHT", "of eight"},
		{"INNER", "secret-one"},
		{"OUTER", "secret-one-and-more"},
		{"FIRST", "xy1234567x"},
		{"SECOND", "xy7654321"},
		{"AROUND", "my secret-one"},
		{"AT", "p@ssw0rd!"},
		{"SPACE", "a b secret"},
	})
	for text, want := range map[string]string{
		"":                                     "",
		"a shorter of eigh":                    "a shorter of eigh",
		"of eight":                             "[redacted:EIGHT]",
		"xof eightof eightx":                   "x[redacted:EIGHT][redacted:EIGHT]x",
		"secret-one secret-one-and-more.":      "[redacted:INNER] [redacted:OUTER].",
		"my secret-one or p@ssw0rd!":           "[redacted:AROUND] or [redacted:AT]",
		"xy1234567xy7654321":                   "[redacted:FIRST]y7654321",
		"%73ecret-one, secret%2Done-and-more%": "[redacted:INNER], [redacted:OUTER]%",
		"%73ecret-one%73ecret-one%7":           "[redacted:INNER][redacted:INNER]%7",
		"%73ecret-one%252Dand-more.":           "[redacted:INNER].",
		"%2573ecret-one %73ecret-one-and-more": "[redacted:INNER] [redacted:OUTER]",
		"my+secret-one, %61+b+secret":          "[redacted:AROUND], [redacted:SPACE]",
		"+a%20b+secret":                        "+[redacted:SPACE]",
		"%252573ecret-one":                     "%252573ecret-one",
		"100% +%zz %4 %":                       "100% +%zz %4 %",
	} {
		before := strings.Clone(text)
		if got := string(r.bytes([]byte(text))); got != want || text != before {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}

// TestStringsOfJSONAreRedacted reads the escapes of each string, and leaves what is
// no string as it is.
func TestStringsOfJSONAreRedacted(t *testing.T) {
	r := newRedactor([]Secret{{"KEY", "a\"b/secret"}, {"NUMBER", "12345678"}})
	for text, want := range map[string]string{
		`"12345678"`:           `"[redacted:NUMBER]"`,
		`["","x12345678","c"]`: `["","x[redacted:NUMBER]","c"]`,
		`{"12345678":1,"\u0031\u0032345678":[2]}`:   `{"[redacted:NUMBER]":1,"[redacted:NUMBER]":[2]}`,
		`["a",12345678,"b"]`:                        `["a",12345678,"b"]`,
		`{"a":"\u0061\"b\/secret, \"x\"","b":"\/"}`: `{"a":"[redacted:KEY], \"x\"","b":"\/"}`,
		`{"a":"\\","b":"a\"b/secret"}`:              `{"a":"\\","b":"[redacted:KEY]"}`,
		`["\x 12345678","12345678"]`:                `["\x [redacted:NUMBER]","[redacted:NUMBER]"]`,
		`12345678 "and no end`:                      `[redacted:NUMBER] "and no end`,
		`"\u0031\u0032345678"`:                      `"[redacted:NUMBER]"`,
		`{"a":"\u0062"}`:                            `{"a":"\u0062"}`,
		`["\u0031"]12345678`:                        `["\u0031"]12345678`,
	} {
		if got := string(r.json([]byte(text))); got != want {
			t.Errorf("%s became %s, want %s", text, got, want)
		}
	}
}

// drawSecrets draws secrets of which none is in the marks or the fillers.
func drawSecrets(t *rapid.T) []Secret {
	var secrets []Secret
	for i, value := range rapid.SliceOfNDistinct(secretText, 1, 3, rapid.ID).Draw(t, "secrets") {
		if strings.Contains(strings.Repeat("padding ", 7), value) || strings.Trim(value, "k- x") == "" {
			value += "Q9Z"
		}
		secrets = append(secrets, Secret{fmt.Sprintf("KEY_%d", i), value})
	}
	return secrets
}

// drawText draws a text with secrets in it.
func drawText(t *rapid.T, secrets []Secret) string {
	var b strings.Builder
	for range rapid.IntRange(1, 6).Draw(t, "parts") {
		b.WriteString(fillers.Draw(t, "before"))
		b.WriteString(rapid.SampledFrom(secrets).Draw(t, "secret").Value)
	}
	b.WriteString(fillers.Draw(t, "after"))
	return b.String()
}

// leak says which secret a text has, as it is or as JSON writes it.
func leak(text string, secrets []Secret) string {
	for _, s := range secrets {
		for _, form := range []string{s.Value, quotedInner(s.Value)} {
			if strings.Contains(text, form) {
				return s.Name + " " + form
			}
		}
	}
	return ""
}

// TestNoChunkingLetsASecretThrough writes texts with secrets in pieces of any
// sizes. The control redacts each piece by itself.
func TestNoChunkingLetsASecretThrough(t *testing.T) {
	naive := 0
	rapid.Check(t, func(t *rapid.T) {
		secrets := drawSecrets(t)
		text := []byte(strings.Repeat(" ", rapid.SampledFrom([]int{0, redactChunk - 20, redactChunk + redactHold - 30}).Draw(t, "offset")) + drawText(t, secrets))
		r := newRedactor(secrets)
		var out, pieces bytes.Buffer
		s := r.stream(&out)
		for rest := text; len(rest) > 0; {
			n := min(rapid.SampledFrom([]int{1, 3, 7, 64, 4095, redactChunk, 1 << 20}).Draw(t, "piece"), len(rest))
			if n < 7 && len(rest) > 500 { // many small pieces are drawn slowly
				n = len(rest) - 500
			}
			if _, err := s.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		// The control: pieces that are shorter than a secret, each redacted by itself.
		for piece := range slices.Chunk(bytes.TrimLeft(text, " "), minSecretBytes-1) {
			pieces.Write(r.bytes(piece))
		}
		if err := s.close(); err != nil {
			t.Fatal(err)
		}
		if got := leak(out.String(), secrets); got != "" {
			t.Fatalf("%s got through", got)
		}
		if leak(pieces.String(), secrets) != "" {
			naive++
		}
		if !bytes.Contains(out.Bytes(), []byte("[redacted:KEY_")) {
			t.Fatal("nothing stands in its place")
		}
	})
	if naive == 0 {
		t.Error("pieces redacted by themselves let nothing through: the test cuts no secret")
	}
}

// TestNoRecordHasASecret puts secrets into every kind of place of a record:
// texts, arguments as a model wrote them with escapes of its choice, arguments
// that are no JSON, names, long values. No file of the session has one.
func TestNoRecordHasASecret(t *testing.T) {
	naive, rounds, base := 0, 0, t.TempDir()
	rapid.Check(t, func(t *rapid.T) {
		secrets := drawSecrets(t)
		rounds++
		dir := filepath.Join(base, strconv.Itoa(rounds))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		r, err := NewRecorder(RecorderOptions{Dir: dir, Session: "ses_01JD0000000000000000000000", Secrets: secrets})
		if err != nil {
			t.Fatal(err)
		}
		r.fsync = func(*os.File) error { return nil }
		text := drawText(t, secrets)
		escaped := escapeSome(t, text)
		result := text
		if rapid.IntRange(0, 4).Draw(t, "a long one") == 0 {
			result += strings.Repeat(text, 70_000/len(text)+1)
		}
		for _, p := range []Payload{
			Warning{Message: text},
			Message{Role: loop.RoleAssistant, Blocks: []loop.Block{
				{ToolUse: &loop.ToolUse{Input: json.RawMessage(`{"command":"` + escaped + `"}`)}},
				{ToolUse: &loop.ToolUse{Input: json.RawMessage(`{}`), InputError: "no object", Raw: `{"command":"` + quotedInner(text)}},
			}},
			Message{Role: loop.RoleTool, Blocks: []loop.Block{{ToolResult: &loop.ToolResult{Content: []tools.Block{{Text: result}}}}}},
			ToolCompleted{Metadata: map[string]any{text: []any{text}}, FilesModified: []string{text}},
		} {
			if _, err := r.Write(Entry{Actor: ActorTool, Payload: p}); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		err = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			got, err := os.ReadFile(path)
			if found := leak(string(got), secrets); found != "" {
				t.Fatalf("%s has %s", d.Name(), found)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		trace, err := os.ReadFile(filepath.Join(dir, TraceFile))
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(trace) {
			var all any
			if err := json.Unmarshal(line, &all); err != nil {
				t.Fatalf("a record is no JSON any more: %v", err)
			}
			everyString(all, func(s string) {
				if found := leak(s, secrets); found != "" {
					t.Fatalf("a text of a record has %s", found)
				}
			})
		}
		// The control: without reading escapes, a model's spelling hides a key.
		var decoded string
		if json.Unmarshal(newRedactor(secrets).bytes([]byte(`"`+escaped+`"`)), &decoded) == nil && leak(decoded, secrets) != "" {
			naive++
		}
	})
	if naive == 0 {
		t.Error("escapes hide no key from the naive way: the test writes none")
	}
}

// escapeSome writes a text as JSON with escapes that it does not need.
func escapeSome(t *rapid.T, text string) string {
	var b strings.Builder
	every := rapid.IntRange(1, 9).Draw(t, "escape every")
	for i, r := range []rune(text) {
		switch {
		case i%every == 0 && r <= 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		case r == '/':
			b.WriteString(`\/`)
		default:
			b.WriteString(quotedInner(string(r)))
		}
	}
	return b.String()
}

func everyString(v any, visit func(string)) {
	switch v := v.(type) {
	case string:
		visit(v)
	case []any:
		for _, e := range v {
			everyString(e, visit)
		}
	case map[string]any:
		for k, e := range v {
			visit(k)
			everyString(e, visit)
		}
	}
}

// TestRedactedJSONMeansTheSame but for what was replaced: JSON stays JSON, and
// one without secrets stays as it is, byte for byte.
func TestRedactedJSONMeansTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		secrets := drawSecrets(t)
		text := rapid.String().Draw(t, "text")
		before := []byte(`{"a\/b":"` + escapeSome(t, text) + `","c":[1,"\ud83d\ude00\ud83d","\\u0041","\u0000\u202e"]}`)
		r := newRedactor(secrets)
		if leak(text, secrets) == "" && string(r.bytes([]byte(text))) == text && !bytes.Equal(r.json(before), before) {
			t.Fatalf("%s was changed", before)
		}
		after := r.json([]byte(`{"x":"` + escapeSome(t, drawText(t, secrets)) + `","y":` + string(before) + `}`))
		if !json.Valid(after) {
			t.Fatalf("no JSON: %s", after)
		}
	})
	for _, text := range []string{``, `"`, `"\`, `"a\"`, `{"a":"`, `"\x"`} {
		if got := newRedactor(nil).json([]byte(text)); string(got) != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

// TestPatchAndReportHaveNoSecret looks at what stands beside the trace.
func TestPatchAndReportHaveNoSecret(t *testing.T) {
	secret := Secret{"KEY", `a<b>&c"d-secret`}
	s := &Session{dir: t.TempDir(), opts: Options{Secrets: []Secret{secret}}}
	diff := "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+key = " + secret.Value + "\n"
	r := Report{Patch: diff, SessionEnded: SessionEnded{Answer: "the key is " + secret.Value, Problem: &Problem{Cause: secret.Value}}}
	if err := s.writePatch(&r); err != nil {
		t.Fatal(err)
	}
	if err := s.writeReport(r); err != nil {
		t.Fatal(err)
	}
	patch, err := os.ReadFile(filepath.Join(s.dir, "workspace.patch"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "# keys were left out of this diff: it does not apply as it is\n" + strings.Replace(diff, secret.Value, "[redacted:KEY]", 1); string(patch) != want {
		t.Errorf("patch %q, want %q", patch, want)
	}
	if r.Patch != diff {
		t.Error("the user's own patch was changed")
	}
	var got Report
	text, err := os.ReadFile(filepath.Join(s.dir, "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &got); err != nil || got.Answer != "the key is [redacted:KEY]" || got.Problem.Cause != "[redacted:KEY]" {
		t.Errorf("report %s, %v", text, err)
	}
	// Without a secret both are as they are.
	r.Patch = "-a\n+b\n"
	if err := s.writePatch(&r); err != nil {
		t.Fatal(err)
	}
	if patch, _ := os.ReadFile(filepath.Join(s.dir, "workspace.patch")); string(patch) != r.Patch {
		t.Errorf("patch %q", patch)
	}
}

// TestLogHasNoSecret writes entries as they are written for operators.
func TestLogHasNoSecret(t *testing.T) {
	state := t.TempDir()
	if err := os.Chmod(state, 0o700); err != nil {
		t.Fatal(err)
	}
	secrets := []Secret{{"KEY", "pass\"word\\with\nall"}, {"OTHER", "an ordinary one"}}
	f, err := NewFolder(state, secrets)
	if err != nil {
		t.Fatal(err)
	}
	f.Log.Info("the key is "+secrets[0].Value, zap.String("url", "https://x/?k="+secrets[1].Value), zap.Error(errors.New(secrets[0].Value)))
	text, err := os.ReadFile(filepath.Join(f.Dir, LogFile))
	if err != nil {
		t.Fatal(err)
	}
	var entry map[string]any
	if err := json.Unmarshal(text, &entry); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	everyString(entry, func(s string) {
		if found := leak(s, secrets); found != "" {
			t.Errorf("the log has %s", found)
		}
	})
	if entry["msg"] != "the key is [redacted:KEY]" || entry["error"] != "[redacted:KEY]" {
		t.Errorf("entry %s", text)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	_, closed := io.Pipe()
	_ = closed.Close()
	r := newRedactor(secrets)
	if n, err := r.writer(io.Discard).Write(text); n != len(text) || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := r.writer(closed).Write(text); n != 0 || err == nil {
		t.Errorf("a log that can't be written: %d, %v", n, err)
	}
}

// TestKeysBehindOtherThings: what looks like the end of a word may be the end of
// an escape, and then a key stands behind it, also where a stream is cut there.
func TestKeysBehindOtherThings(t *testing.T) {
	const key = "ghp_0123456789abcdefABCDEF0123456789abcd"
	r := newRedactor(nil)
	for _, before := range []string{
		"", "-", " ", "=", "/", ":", "@", "[", "^", "`", "{", "~", "_", "é", "token=", "token%3D", "%3d", "%09", "%aA", "%fF", "%0f",
		`\n`, `\r`, `\t`, `\b`, `\f`, `\u000a`, `\uAF09`, `\ufaaf`, "\x1b[m", "\x1b[31m", "\x1b[1;31m\x1b[K", "\x1b[?25h", "\x1b[0m", `\u001b[31m`, `\x1b[0;1m`, `\e[m`, `\033[K`, "[31m ",
	} {
		want := before + "[redacted:key]"
		if got := string(r.bytes([]byte(before + key))); got != want {
			t.Errorf("behind %q: %q", before, got)
		}
		for _, at := range []int{redactChunk - len(before), redactChunk - len(before) + 1, redactChunk - len(before) - 10} {
			text := strings.Repeat(" ", at) + before + key + strings.Repeat(" ", redactHold+10)
			if got := streamed(t, r, text, redactHold); strings.TrimSpace(got) != strings.TrimSpace(want) {
				t.Errorf("behind %q at %d: %q", before, at, strings.TrimSpace(got))
			}
		}
	}
	// The control: inside a word it is none, and stays.
	for _, before := range []string{
		"x", "0", "9", "A", "Z", "a", "z", "-x", "n", "xn", `\a`, `\nn`, "3D", "x3D", "%g0", "%0g", "%0", "u000a", "xu000a", `\x000a`, `\u00ga`, `\u000`, `\u000aa`, `u000a`,
		"m", "0m", "[m", "[31m", "x[31m", "\x1b]31m", "\x1b[/m", "\x1b[@m", "\x1b31m",
	} {
		if got := string(r.bytes([]byte(before + key))); got != before+key {
			t.Errorf("inside a word: %q", got)
		}
		text := strings.Repeat(" ", redactChunk-len(before)) + before + key + strings.Repeat(" ", redactHold+10)
		if got := streamed(t, r, text, redactHold); got != text {
			t.Errorf("inside a word of a stream: %q", strings.TrimSpace(got))
		}
	}
	// Keys beside and in one another.
	sk := "sk-" + strings.Repeat("a1", 12)
	for text, want := range map[string]string{
		sk + "-" + sk: "[redacted:key]", sk + " " + key + "." + sk: "[redacted:key] [redacted:key].[redacted:key]", "x" + key + " " + key: "x" + key + " [redacted:key]",
		"sk-": "sk-", "a task-": "a task-", "sk- " + sk: "sk- [redacted:key]", "sk-sk-sk-x, " + sk: "sk-sk-sk-x, [redacted:key]",
		strings.Repeat("word ", 9) + "x" + key: strings.Repeat("word ", 9) + "x" + key,
	} {
		if got := string(r.bytes([]byte(text))); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}
