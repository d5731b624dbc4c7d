package openai

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/internal/modelhttp"
)

// FuzzAnswer checks that any answer can be read without a panic, that the deltas
// equal the text of the answer, and that an error comes without an answer.
func FuzzAnswer(f *testing.F) {
	call := `{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"x","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}`
	seeds := []string{
		"", "data: [DONE]\n\n", "data: " + call + "\n\n", call, `{"choices":[{"message":{"content":"Hi."}}]}`,
		"data: {\"choices\":[{\"delta\":{\"content\":[{\"text\":1}]},\"finish_reason\":1}],\"usage\":[]}\n\n",
		"data: {\"error\":{\"code\":429}}\n\n", "data: {\"choices\":[{\"index\":null,\"delta\":{\"tool_calls\":[{},{\"function\":{}}]}}]}\n\n",
		": x\nevent: y\ndata: 1\ndata: 2\n\n", "data: {\"choices\":[null,{\"delta\":null}]}\n\n", "\xff\xfe",
	}
	if len(seeds) == 0 {
		f.Fatal("no seeds")
	}
	for _, s := range seeds {
		f.Add(s, true)
		f.Add(s, false)
	}
	f.Fuzz(func(t *testing.T, body string, stream bool) {
		var deltas strings.Builder
		onDelta := func(d loop.Delta) { deltas.WriteString(d.Text) }
		var (
			resp loop.Response
			err  error
		)
		if stream {
			resp, err = readStream(&http.Response{Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}, onDelta)
		} else {
			resp, err = readWhole([]byte(body), onDelta)
		}
		if err != nil {
			w := &modelhttp.Watcher{}
			if text := w.ModelError(err).Error(); len(text) > 2000 || !utf8.ValidString(text) {
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
