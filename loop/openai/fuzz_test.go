package openai

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
	call := `{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"x","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}`
	seeds := []string{
		"", "data: [DONE]\n\n", "data: " + call + "\n\n", call, `{"choices":[{"message":{"content":"Hi."}}]}`,
		"data: {\"choices\":[{\"delta\":{\"content\":[{\"text\":1}]},\"finish_reason\":1}],\"usage\":[]}\n\n",
		"data: {\"error\":{\"code\":429}}\n\n", "data: {\"choices\":[{\"index\":null,\"delta\":{\"tool_calls\":[{},{\"function\":{}}]}}]}\n\n",
		"data: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\",\"output\":[{\"type\":\"message\",\"content\":[{\"text\":\"Hi.\"}]},{\"type\":\"function_call\",\"arguments\":{}}]}}\n\n",
		"data: {\"type\":\"response.output_text.delta\",\"delta\":\"Hi\"}\n\ndata: {\"type\":\"response.output_item.done\",\"item\":{\"type\":\"reasoning\"}}\n\ndata: {\"type\":\"response.failed\",\"response\":{\"error\":{}}}\n\n",
		": x\nevent: y\ndata: 1\ndata: 2\n\n", "data: {\"choices\":[null,{\"delta\":null}]}\n\n", "\xff\xfe",
	}
	if len(seeds) == 0 {
		f.Fatal("no seeds")
	}
	for _, s := range seeds {
		for api := range 2 {
			f.Add(s, true, api == 1)
			f.Add(s, false, api == 1)
		}
	}
	f.Fuzz(func(t *testing.T, body string, stream, responses bool) {
		var deltas strings.Builder
		onDelta := func(d loop.Delta) { deltas.WriteString(d.Text) }
		var (
			resp loop.Response
			err  error
		)
		m := &Model{}
		m.options.Stream = stream
		if responses {
			m.options.API = Responses
		}
		mediaType := map[bool]string{false: "application/json", true: "text/event-stream"}[stream]
		resp, err = m.readResponse(&http.Response{
			Header: http.Header{"Content-Type": {mediaType}}, Body: io.NopCloser(strings.NewReader(body)),
		}, onDelta)
		// The events of Responses repeat the text at its end.
		wiretest.CheckRead(t, resp, err, deltas.String(), !responses)
	})
}
