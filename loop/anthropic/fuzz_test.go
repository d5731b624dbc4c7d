package anthropic

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/internal/wiretest"
)

// FuzzAnswer checks that any answer is read without a panic, that the deltas equal its
// text, and that an error comes without an answer.
func FuzzAnswer(f *testing.F) {
	const start = `data: {"type":"message_start","message":{"usage":{"input_tokens":25}}}` + "\n\n"
	for _, s := range []string{
		"", "[]", "null", "\xff\xfe", start, `{"type":"error","error":{"type":"overloaded_error"}}`,
		`{"type":"message","content":[{"type":"text","text":"Hi."},{"type":"tool_use","id":"a","name":"x","input":{"n":1}},null,{}],"stop_reason":"tool_use","usage":[]}`,
		start + "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"H\"}}\n\n" +
			"data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"i.\"}}\n\ndata: {\"type\":\"message_stop\"}\n\n",
		start + "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":-1,\"content_block\":{\"type\":\"tool_use\",\"id\":1,\"name\":null,\"input\":[]}}\n\n" +
			"data: {\"type\":\"content_block_delta\",\"index\":-1,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{\"}}\n\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"max_tokens\"}}\n\ndata: {\"type\":\"message_stop\"}\n\n",
		start + "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"thinking\"}}\n\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"signature_delta\",\"signature\":\"E\"}}\n\ndata: {\"type\":\"error\",\"error\":1}\n\n",
	} {
		f.Add(s, true)
		f.Add(s, false)
	}
	f.Fuzz(func(t *testing.T, body string, stream bool) {
		var deltas strings.Builder
		mediaType := map[bool]string{false: "application/json", true: "text/event-stream"}[stream]
		resp, err := readResponse(&http.Response{
			Header: http.Header{"Content-Type": {mediaType}}, Body: io.NopCloser(strings.NewReader(body)),
		}, func(d loop.Delta) { deltas.WriteString(d.Text) })
		wiretest.CheckRead(t, resp, err, deltas.String(), true)
	})
}
