package loop

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
)

const (
	// minRepeats is how often the same must happen to count as stuck.
	minRepeats = 3
	// maxPeriod is the longest cycle of rounds that is looked for: A A A,
	// A B A B A B, and the same with three.
	maxPeriod = 3
)

// findRepetition says that the last rounds are one block of rounds, repeated: the
// same calls with the same results. Rounds before the last user message, which
// a nudge is too, don't count. The string names the block, wherever in the
// cycle it was noticed.
func findRepetition(messages []Message) (string, bool) {
	rounds := lastRounds(messages, maxPeriod*minRepeats)
	for period := 1; period <= maxPeriod; period++ {
		length := period * minRepeats
		if len(rounds) < length {
			return "", false
		}
		tail := rounds[len(rounds)-length:]
		// Results are long, and seldom need to be looked at.
		if !hasPeriod(tail, period, round.hashCalls) || !hasPeriod(tail, period, round.hashResults) {
			continue
		}
		var block []string
		for _, r := range tail[:period] {
			block = append(block, r.hashCalls()+r.hashResults())
		}
		slices.Sort(block)
		return strings.Join(block, ","), true
	}
	return "", false
}

// hasPeriod says that rounds repeat with a period, by one of their hashes.
func hasPeriod(rounds []round, period int, hash func(round) string) bool {
	for i, r := range rounds[period:] {
		if hash(r) != hash(rounds[i]) {
			return false
		}
	}
	return true
}

// round is the calls of one answer and what came of them.
type round struct {
	uses    []ToolUse
	results map[string]*ToolResult
}

// lastRounds are the last rounds since the last user message, oldest first.
func lastRounds(messages []Message, limit int) []round {
	var rounds []round
	results := map[string]*ToolResult{}
	for _, m := range slices.Backward(messages) {
		if m.Role == RoleUser || len(rounds) == limit {
			break
		}
		for _, b := range m.Blocks {
			if b.ToolResult != nil {
				results[b.ToolResult.ToolUseID] = b.ToolResult
			}
		}
		if uses := m.toolUses(); len(uses) > 0 {
			rounds = append(rounds, round{uses: uses, results: results})
		}
	}
	slices.Reverse(rounds)
	return rounds
}

// hashCalls hashes what was called.
func (r round) hashCalls() string {
	var all []any
	for _, u := range r.uses {
		// Decoded and encoded again: the order of keys is no difference. Inputs
		// are always JSON, see parseInput.
		var input any
		_ = json.Unmarshal(u.Input, &input)
		all = append(all, u.Name, input, u.Raw)
	}
	return hashJSON(all)
}

// hashResults hashes what came of it, without what differs each time.
func (r round) hashResults() string {
	var all []any
	for _, u := range r.uses {
		result := r.results[u.ID]
		if result == nil {
			continue
		}
		content := slices.Clone(result.Content)
		for i := range content {
			content[i].Text = NormalizeResult(content[i].Text)
		}
		all = append(all, content, result.IsError)
	}
	return hashJSON(all)
}

// hashJSON hashes texts and decoded JSON, which always encode.
func hashJSON(all []any) string {
	h := sha256.New()
	_ = json.NewEncoder(h).Encode(all)
	return hex.EncodeToString(h.Sum(nil))
}
