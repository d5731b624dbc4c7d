package mcp

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"
)

// FuzzServer has a server that lists, sends and answers anything. Whatever it is, a
// call ends, and so does the set.
func FuzzServer(f *testing.F) {
	f.Add(toolsResult("t"), `{"jsonrpc":"2.0","method":"notifications/elicitation/complete"}`, doneResult)
	f.Add(`{"tools":[null]}`, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":null}`, `{"content":[null]}`)
	f.Add(`{"tools":[{"name":"t","inputSchema":{"type":"object","properties":{"a":{"x-mcp-header":"b"}}}}],"nextCursor":"x"}`, `{"jsonrpc":"2.0","id":9,"method":"roots/list"}`, `null`)
	f.Add(toolsResult("t", "u"), `{"jsonrpc":"2.0","id":"x","method":"elicitation/create","params":{"mode":"url"}}`, `{"content":[{"type":"resource","resource":null},{"type":"tool_result","content":[{"type":"text"}]}],"inputRequests":{"a":null}}`)
	f.Add(toolsResult("t"), `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"1","progress":1e999}}`, `{"structuredContent":[[]]}`)
	f.Fuzz(func(t *testing.T, list, extra, result string) {
		if len(list)+len(extra)+len(result) > 64<<10 || strings.ContainsAny(list+result, "\n\r") {
			return
		}
		h := newHarness(t, map[string]serverFunc{"a": rawServerWith(func(c *rawConn, m message) (bool, error) {
			switch m.Method {
			case "tools/list":
				return true, c.reply(m, list)
			case "tools/call":
				if err := c.send(extra); err != nil {
					return true, err
				}
				return true, c.reply(m, result)
			}
			return false, nil
		})}, func(o *Options) {
			o.Servers[0].StartTimeout, o.Servers[0].CallTimeout = time.Second, time.Second
		})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		h.Start(ctx)
		for _, name := range h.names() {
			out, _ := h.call(ctx, name, `{}`)
			for _, b := range out.Content {
				if len(b.Image) > 0 && !bytes.HasPrefix([]byte(b.MediaType), []byte("image/")) {
					t.Errorf("media type %q", b.MediaType)
				}
			}
		}
		if err := h.Close(ctx); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
}
