package ollama

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/internal/modelhttp"
)

// FuzzAnswer checks that any answer can be read without a panic, that the deltas equal
// the text of the answer, and that an error comes without an answer.
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{
		"", `{"message":{"content":"Hi."},"done":true}`, `{"error":"x"}`, `{"error parsing":{"a":1}}`, "[]", "null", "\xff\xfe",
		`{"message":{"content":["Hi."],"tool_calls":[{"function":{"name":1,"arguments":{"a":1}}},{}]},"done":"true","eval_count":-1}`,
		"{\"message\":{\"thinking\":\"hm\"}}\n{\"message\":null,\"done\":true,\"done_reason\":\"length\"}",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, body string) {
		var deltas strings.Builder
		resp, err := readResponse(strings.NewReader(body), func(d loop.Delta) { deltas.WriteString(d.Text) })
		if err != nil {
			w := &modelhttp.Watcher{}
			if text := w.ModelError(err).Error(); len(text) > 2500 || !utf8.ValidString(text) {
				t.Errorf("error %q", text)
			}
			if len(resp.Message.Blocks) > 0 {
				t.Error("an error with an answer")
			}
			return
		}
		text := ""
		for _, b := range resp.Message.Blocks {
			if b.Text != nil {
				text += b.Text.Text
			}
		}
		if text != deltas.String() {
			t.Errorf("delivered %q, answered %q", deltas.String(), text)
		}
	})
}
