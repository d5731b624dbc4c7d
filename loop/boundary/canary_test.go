package boundary

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func leaks(id string) map[string]string {
	reversed := []byte(id)
	slices.Reverse(reversed)
	var percent, entities strings.Builder
	for _, b := range []byte(id) {
		fmt.Fprintf(&percent, "%%%02x", b)
		fmt.Fprintf(&entities, "&#%d;", b)
	}
	return map[string]string{
		"plain": id, "upper case": strings.ToUpper(id), "apart": strings.Join(strings.Split(id, ""), " - "), "zero width": strings.Join(strings.Split(id, ""), "\u200b"),
		"reversed": string(reversed), "hexadecimal": hex.EncodeToString([]byte(id)), "percent": percent.String(), "entities": entities.String(),
		"base64": base64.StdEncoding.EncodeToString([]byte(id)), "base64 in a text": base64.StdEncoding.EncodeToString([]byte("x" + id + "yz")),
		"base64 in another": base64.StdEncoding.EncodeToString([]byte("xy" + id + "z")), "query": "https://evil.example/?q=" + id + "&x=1",
		"percent before it": "%" + id, "backslash before it": `\x` + id,
		"behind a control character": "\u009b" + id, "control characters in it": id[:5] + "\x1b[" + id[5:9] + "\u009b" + id[9:], "escaped control character in it": id[:5] + "&#155;" + id[5:],
		"control sequence in it": id[:5] + "\x1b[38;5;196m" + id[5:],
	}
}

func TestCanaries(t *testing.T) {
	line := string(Plant())
	made := strings.Fields(line)[2]
	for _, id := range []string{made, "20" + made[2:], "3c" + made[2:]} { // behind =, these two are escapes
		testCanary(t, strings.Replace(line, made, id, 1), id)
	}
}

func testCanary(t *testing.T, line, id string) {
	t.Helper()
	var c Canaries
	c.WatchPlanted("Keep this.\n\n" + line)
	for name, leak := range leaks(id) {
		text := "Before. " + leak + " After."
		safe, n := c.Redact(text)
		if n != 1 || !strings.Contains(safe, canaryMark) || !strings.HasPrefix(safe, "Before. ") || !strings.HasSuffix(safe, " After.") {
			t.Errorf("%s: %d leaks, %q", name, n, safe)
		}
		if _, n := new(Canaries).Redact(text); n != 0 {
			t.Errorf("control: %s: found without a canary", name)
		}
		for size := 1; size <= 7; size += 3 {
			s := c.Stream()
			var shown strings.Builder
			for rest := text; rest != ""; rest = rest[min(size, len(rest)):] {
				shown.WriteString(s.Write(rest[:min(size, len(rest))]))
			}
			shown.WriteString(s.Flush())
			if _, n := c.Redact(shown.String()); n != 0 || !strings.HasPrefix(shown.String(), "Before. ") {
				t.Errorf("%s in pieces of %d: %q", name, size, shown.String())
			}
		}
	}
	for _, text := range []string{"", "an answer", id[:15], strings.Repeat(id[:1], 100)} {
		if safe, n := c.Redact(text); safe != text || n != 0 {
			t.Errorf("%q became %q", text, safe)
		}
	}
	for name, wrapped := range map[string]Text{"wrapper": Wrap("x"), "wrapper of a worker": WrapForWorker("x")} {
		id := string(wrapped)[len("<"+Tag+"-"):][:nonceDigits]
		if _, n := c.Redact("the tag was " + id); n != 0 {
			t.Errorf("control: the ID of a %s is found before it is looked for", name)
		}
		c.WatchWrappers("A file: " + string(wrapped))
		if _, n := c.Redact("the tag was " + id); n != 1 {
			t.Errorf("the ID of a %s is not found", name)
		}
	}
	before := len(c.watched)
	for _, text := range []string{"<" + Tag + "-", "<" + Tag + "-12>", "<" + Tag + "-" + strings.Repeat("x", nonceDigits) + ">"} {
		c.WatchWrappers(text)
	}
	if len(c.watched) != before {
		t.Error("what is no ID is looked for")
	}
}

// BenchmarkRedact redacts the arguments of a large call in a long session.
func BenchmarkRedact(b *testing.B) {
	var c Canaries
	for range 500 {
		c.WatchWrappers(string(Wrap("x")))
	}
	text := strings.Repeat("0123456789abcdef", 100_000/16)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, n := c.Redact(text); n != 0 {
			b.Fatal("a leak")
		}
	}
}
