package ollama

import (
	"strings"
	"testing"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/internal/wiretest"
)

// FuzzAnswer checks that any answer is read without a panic, that the deltas equal its
// text, and that an error comes without an answer.
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
		wiretest.CheckRead(t, resp, err, deltas.String(), true)
	})
}
