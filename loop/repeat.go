package loop

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"

	"github.com/caisson-run/caisson/tools"
)

const (
	// repeats is how often the same must happen to count as stuck.
	repeats = 3
	// maxPeriod is the longest cycle of rounds that is looked for: A A A,
	// A B A B A B, and the same with three.
	maxPeriod = 3
)

// repeating says that the last rounds are one block of rounds, repeated: the
// same calls with the same results. Rounds before the last user message, which
// a nudge is too, don't count. The string names the block, wherever in the
// cycle it was noticed.
func repeating(messages []Message) (string, bool) {
	rounds := roundHashes(messages)
	for period := 1; period <= maxPeriod; period++ {
		need := period * repeats
		if len(rounds) < need {
			return "", false
		}
		tail := rounds[len(rounds)-need:]
		same := true
		for i := period; i < need; i++ {
			same = same && tail[i] == tail[i-period]
		}
		if same {
			block := slices.Sorted(slices.Values(tail[:period]))
			return strings.Join(block, ","), true
		}
	}
	return "", false
}

// roundHashes gives one hash for each finished round since the last user message.
func roundHashes(messages []Message) []string {
	var (
		rounds  []string
		uses    []ToolUse
		results map[string]*ToolResult
	)
	flush := func() {
		if len(uses) > 0 {
			rounds = append(rounds, roundHash(uses, results))
		}
		uses, results = nil, map[string]*ToolResult{}
	}
	for _, m := range messages {
		switch m.Role {
		case RoleUser:
			rounds, uses = nil, nil
		case RoleAssistant:
			flush()
			uses = m.toolUses()
		case RoleTool:
			for _, b := range m.Blocks {
				if b.ToolResult != nil && results != nil {
					results[b.ToolResult.ToolUseID] = b.ToolResult
				}
			}
		}
	}
	flush()
	return rounds
}

// roundHash hashes what was called and what came of it, without what differs each time.
func roundHash(uses []ToolUse, results map[string]*ToolResult) string {
	h := sha256.New()
	enc := json.NewEncoder(h)
	for _, u := range uses {
		// Decoded and encoded again: the order of keys is no difference.
		var input any
		if json.Unmarshal(u.Input, &input) != nil {
			input = string(u.Input)
		}
		var content []tools.Block
		isError := false
		if r := results[u.ID]; r != nil {
			content, isError = slices.Clone(r.Content), r.IsError
		}
		for i := range content {
			content[i].Text = NormalizeResult(content[i].Text)
		}
		_ = enc.Encode([]any{u.Name, input, u.Raw, content, isError}) // a hash takes everything
	}
	return hex.EncodeToString(h.Sum(nil)[:12])
}
