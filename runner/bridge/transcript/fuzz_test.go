package transcript

import (
	"testing"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/runner/bridge"
)

// FuzzAdd adds a call twice, and the second time with more. IDs of calls never repeat,
// and messages are what the loop's are.
func FuzzAdd(f *testing.F) {
	protocols := []bridge.Protocol{bridge.Anthropic, bridge.Responses, bridge.Chat, bridge.Gemini}
	for i, p := range protocols {
		c := conversations[p]
		f.Add(byte(i), []byte(c.first), []byte(streams[p]), []byte(c.second), []byte(c.answer))
	}
	f.Fuzz(func(t *testing.T, which byte, first, answer, second, other []byte) {
		p := protocols[int(which)%len(protocols)]
		var tr Transcript
		ids := map[string]bool{}
		for _, call := range [][2][]byte{{first, answer}, {first, answer}, {second, other}, {first, other}, {second, answer}} {
			n, added, err := tr.Add(p, call[0], call[1])
			if (err == nil) != (n > 0) || n > len(tr.threads) || err != nil && added != nil {
				t.Fatalf("thread %d of %d, %d messages, %v", n, len(tr.threads), len(added), err)
			}
			for _, m := range added {
				checkMessage(t, m, ids)
			}
		}
	})
}

func checkMessage(t *testing.T, m loop.Message, ids map[string]bool) {
	t.Helper()
	if len(m.Blocks) == 0 || m.Role == loop.RoleTool && len(m.Blocks) != 1 {
		t.Fatalf("%s with %d blocks", m.Role, len(m.Blocks))
	}
	for _, b := range m.Blocks {
		switch {
		case b.ToolUse != nil:
			if ids[b.ToolUse.ID] || m.Role != loop.RoleAssistant || len(b.ToolUse.Input) == 0 {
				t.Fatalf("call %+v of %s", b.ToolUse, m.Role)
			}
			ids[b.ToolUse.ID] = true
		case b.ToolResult != nil:
			if m.Role != loop.RoleTool || len(b.ToolResult.ToolUseID) != len("tu_")+26 {
				t.Fatalf("result %+v of %s", b.ToolResult, m.Role)
			}
		}
	}
}
