package bridge

import (
	"context"
	"math"
	"net/http/httptest"
	"testing"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
)

// FuzzAnswer checks that no answer breaks its parser, that every byte passes in
// whatever pieces it arrives, and that counts are not negative.
func FuzzAnswer(f *testing.F) {
	f.Add("event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"m\",\"usage\":{\"input_tokens\":5}}}\n\n", uint8(0), uint8(3))
	f.Add("data: {\"type\":\"response.completed\",\"response\":{\"status\":\"completed\",\"output\":[],\"usage\":{\"input_tokens\":-1,\"output_tokens\":1e300}}}\r\n\r\n", uint8(1), uint8(1))
	f.Add("data: {\"choices\":[{\"delta\":{\"content\":\"x\"},\"finish_reason\":\"stop\"}],\ndata: \"usage\":{\"cost\":1}}\n\ndata: [DONE]\n\n", uint8(2), uint8(200))
	f.Add("data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"x\"}]}}],\"usageMetadata\":{\"promptTokenCount\":\"7\"}}\r\r", uint8(3), uint8(2))
	f.Add("data: {\"message\":{\"message\":{\"message\":{}}},\"delta\":[[[{\"a\":1,\"a\":2}]]]}\n\n", uint8(0), uint8(7))
	f.Fuzz(func(t *testing.T, text string, n, size uint8) {
		ledger, err := loop.NewSharedBudget(limits.Budget{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, whole := range []bool{false, true} {
			w := httptest.NewRecorder()
			c := &call{w: w, r: httptest.NewRequest("POST", "/", nil)}
			c.tally.protocol = []Protocol{Anthropic, Responses, Chat, Gemini}[n%4]
			c.budget = budget{ledger: ledger, profile: &Profile{}, tokens: math.MaxInt64}
			var out answerWriter = &eventWriter{call: c}
			if whole {
				out = &wholeWriter{call: c}
			}
			for rest := text; ; {
				piece := rest[:min(len(rest), int(size)+1)]
				rest = rest[len(piece):]
				if err := out.write([]byte(piece), rest == ""); err != nil {
					t.Fatal(err)
				}
				if rest == "" {
					break
				}
			}
			if w.Body.String() != text {
				t.Errorf("%q became %q", text, w.Body)
			}
			u, _ := c.tally.count(10)
			if u.InputTokens < 0 || u.CachedInputTokens < 0 || u.CacheWriteTokens < 0 || u.OutputTokens < 0 || u.Tokens() < 10/8 || c.tally.output() < 0 {
				t.Errorf("%q: %+v", text, u)
			}
			_ = c.budget.covers(context.Background(), u)
		}
	})
}
