package redact

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/caisson-run/caisson/runner/internal/secrettest"
)

// TestKnownSecretsAreReplacedWhole redacts texts in which secrets are alike,
// adjacent or overlapping.
func TestKnownSecretsAreReplacedWhole(t *testing.T) {
	r := New([]Secret{
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
		if got := string(r.Bytes([]byte(text))); got != want || text != before {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}

// The escapes of each string are read, and the rest stays as it is.
func TestStringsOfJSONAreRedacted(t *testing.T) {
	r := New([]Secret{{"KEY", "a\"b/secret"}, {"NUMBER", "12345678"}})
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
		if got := string(r.JSON([]byte(text))); got != want {
			t.Errorf("%s became %s, want %s", text, got, want)
		}
	}
}

func drawSecrets(t *rapid.T) ([]Secret, []string) {
	var secrets []Secret
	values := secrettest.DrawValues(t)
	for i, v := range values {
		secrets = append(secrets, Secret{fmt.Sprintf("KEY_%d", i), v})
	}
	return secrets, values
}

// TestNoChunkingLetsASecretThrough writes texts with secrets in pieces of any
// sizes. The control redacts each piece by itself.
func TestNoChunkingLetsASecretThrough(t *testing.T) {
	naive := 0
	rapid.Check(t, func(t *rapid.T) {
		secrets, values := drawSecrets(t)
		text := []byte(strings.Repeat(" ", rapid.SampledFrom([]int{0, chunkBytes - 20, chunkBytes + MaxKeyBytes - 30}).Draw(t, "offset")) + secrettest.DrawText(t, values))
		r := New(secrets)
		var out, pieces bytes.Buffer
		s := r.NewWriter(&out)
		for rest := text; len(rest) > 0; {
			n := min(rapid.SampledFrom([]int{1, 3, 7, 64, 4095, chunkBytes, 1 << 20}).Draw(t, "piece"), len(rest))
			if n < 7 && len(rest) > 500 { // many small pieces are drawn slowly
				n = len(rest) - 500
			}
			if _, err := s.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		// Control: pieces that are shorter than a secret, each redacted by
		// itself.
		for piece := range slices.Chunk(bytes.TrimLeft(text, " "), minSecretBytes-1) {
			pieces.Write(r.Bytes(piece))
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if got := secrettest.FindLeak(out.String(), values); got != "" {
			t.Fatalf("%s got through", got)
		}
		if secrettest.FindLeak(pieces.String(), values) != "" {
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

// JSON stays JSON and means the same except for what was replaced. Without
// secrets it stays the same, byte for byte.
func TestRedactedJSONMeansTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		secrets, values := drawSecrets(t)
		text := rapid.String().Draw(t, "text")
		before := []byte(`{"a\/b":"` + secrettest.DrawEscaped(t, text) + `","c":[1,"\ud83d\ude00\ud83d","\\u0041","\u0000\u202e"]}`)
		r := New(secrets)
		if secrettest.FindLeak(text, values) == "" && string(r.Bytes([]byte(text))) == text && !bytes.Equal(r.JSON(before), before) {
			t.Fatalf("%s was changed", before)
		}
		after := r.JSON([]byte(`{"x":"` + secrettest.DrawEscaped(t, secrettest.DrawText(t, values)) + `","y":` + string(before) + `}`))
		if !json.Valid(after) {
			t.Fatalf("no JSON: %s", after)
		}
	})
	for _, text := range []string{``, `"`, `"\`, `"a\"`, `{"a":"`, `"\x"`} {
		if got := New(nil).JSON([]byte(text)); string(got) != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func TestLogWriter(t *testing.T) {
	text := []byte(`{"msg":"the key is pass\"word"}` + "\n")
	_, closed := io.Pipe()
	_ = closed.Close()
	r := New([]Secret{{"KEY", `pass"word`}})
	if n, err := r.LogWriter(io.Discard).Write(text); n != len(text) || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := r.LogWriter(closed).Write(text); n != 0 || err == nil {
		t.Errorf("a log that can't be written: %d, %v", n, err)
	}
}

func TestEveryShapeOfAKeyIsRedacted(t *testing.T) {
	r := New(nil)
	for _, key := range []string{
		"sk-proj-" + strings.Repeat("a1", 12), "ghp_" + strings.Repeat("a1", 18), "gho_" + strings.Repeat("a1", 18),
		"ghs_" + strings.Repeat("a1", 18), "ghu_" + strings.Repeat("a1", 18), "ghr_" + strings.Repeat("a1", 18),
		"github_pat_" + strings.Repeat("a1", 20), "AKIA" + strings.Repeat("A1", 8), "AIza" + strings.Repeat("a1", 17) + "b",
		"xoxb-" + strings.Repeat("12", 8), "gsk_" + strings.Repeat("a1", 20), "ASIA" + strings.Repeat("A1", 8),
		"glpat-" + strings.Repeat("a1", 10), "xai-" + strings.Repeat("a1", 20), "hf_" + strings.Repeat("a1", 17), "npm_" + strings.Repeat("a1", 18),
		"pypi-" + strings.Repeat("a1", 30), "dckr_pat_" + strings.Repeat("a1", 12), "sk_live_" + strings.Repeat("a1", 12), "rk_live_" + strings.Repeat("a1", 12),
	} {
		if got := string(r.Bytes([]byte("key=" + key + ","))); got != "key=[redacted:key]," {
			t.Errorf("%s: %s", key, got)
		}
	}
	for _, before := range []string{"\n", "\t", "\r", "\b", "\f", "\u0001", "\"", "/", "é", " "} {
		text := []byte(`"` + secrettest.Quote(before+"sk-"+strings.Repeat("a1", 12)) + `"`)
		if got := string(r.Bytes(text)); strings.Contains(got, "a1a1") || !json.Valid([]byte(got)) {
			t.Errorf("after %q: %s", before, got)
		}
	}
	for _, text := range []string{"task-runner", "sk-short", "xoxo", "a sk- b", "AKIAB"} {
		if got := string(r.Bytes([]byte(text))); got != text {
			t.Errorf("%s: %s", text, got)
		}
	}
}

// What looks like the end of a word may be the end of an escape. A key after
// that is replaced, even if a stream is cut there.
func TestKeysBehindOtherThings(t *testing.T) {
	const key = "ghp_0123456789abcdefABCDEF0123456789abcd"
	r := New(nil)
	for _, before := range []string{
		"", "-", " ", "=", "/", ":", "@", "[", "^", "`", "{", "~", "_", "é", "token=", "token%3D", "%3d", "%09", "%aA", "%fF", "%0f",
		`\n`, `\r`, `\t`, `\b`, `\f`, `\u000a`, `\uAF09`, `\ufaaf`, "\x1b[m", "\x1b[31m", "\x1b[1;31m\x1b[K", "\x1b[?25h", "\x1b[0m", `\u001b[31m`, `\x1b[0;1m`, `\e[m`, `\033[K`, "[31m ",
	} {
		want := before + "[redacted:key]"
		if got := string(r.Bytes([]byte(before + key))); got != want {
			t.Errorf("behind %q: %q", before, got)
		}
		for _, at := range []int{chunkBytes - len(before), chunkBytes - len(before) + 1, chunkBytes - len(before) - 10} {
			text := strings.Repeat(" ", at) + before + key + strings.Repeat(" ", MaxKeyBytes+10)
			if got := streamed(t, r, text, MaxKeyBytes); strings.TrimSpace(got) != strings.TrimSpace(want) {
				t.Errorf("behind %q at %d: %q", before, at, strings.TrimSpace(got))
			}
		}
	}
	// Control: inside a word it is no key, and stays.
	for _, before := range []string{
		"x", "0", "9", "A", "Z", "a", "z", "-x", "n", "xn", `\a`, `\nn`, "3D", "x3D", "%g0", "%0g", "%0", "u000a", "xu000a", `\x000a`, `\u00ga`, `\u000`, `\u000aa`, `u000a`,
		"m", "0m", "[m", "[31m", "x[31m", "\x1b]31m", "\x1b[/m", "\x1b[@m", "\x1b31m",
	} {
		if got := string(r.Bytes([]byte(before + key))); got != before+key {
			t.Errorf("inside a word: %q", got)
		}
		text := strings.Repeat(" ", chunkBytes-len(before)) + before + key + strings.Repeat(" ", MaxKeyBytes+10)
		if got := streamed(t, r, text, MaxKeyBytes); got != text {
			t.Errorf("inside a word of a stream: %q", strings.TrimSpace(got))
		}
	}
	// Adjacent keys, and keys in one another.
	sk := "sk-" + strings.Repeat("a1", 12)
	for text, want := range map[string]string{
		sk + "-" + sk: "[redacted:key]", sk + " " + key + "." + sk: "[redacted:key] [redacted:key].[redacted:key]", "x" + key + " " + key: "x" + key + " [redacted:key]",
		"sk-": "sk-", "a task-": "a task-", "sk- " + sk: "sk- [redacted:key]", "sk-sk-sk-x, " + sk: "sk-sk-sk-x, [redacted:key]",
		strings.Repeat("word ", 9) + "x" + key: strings.Repeat("word ", 9) + "x" + key,
	} {
		if got := string(r.Bytes([]byte(text))); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}

// TestUnquote compares with the JSON decoder.
func TestUnquote(t *testing.T) {
	piece := rapid.SampledFrom([]string{"a", "ü", `\n`, `\"`, `\\`, `\/`, `\b`, `\f`, `\r`, `\t`, `\u0041`, `\ud83d\ude00`, `\ud83d`, `\x`, `\u00`, `\u0022`, "key"})
	rapid.Check(t, func(t *rapid.T) {
		quoted := []byte(`"` + strings.Join(rapid.SliceOf(piece).Draw(t, "pieces"), "") + `"`)
		var want string
		err := json.Unmarshal(quoted, &want)
		if got, ok := unquote(quoted); ok != (err == nil) || ok && string(got) != want {
			t.Errorf("%s: %q, %t, want %q, %v", quoted, got, ok, want, err)
		}
	})
}
