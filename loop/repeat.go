package loop

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"sync"
)

const (
	// minRepeats is how often a block of rounds repeats before the model counts as
	// stuck.
	minRepeats = 3
	// maxPeriod is the length of the longest such block in rounds. With 2, for example,
	// A A A and A B A B A B are found.
	maxPeriod = 3
)

// findRepetition reports whether the last rounds repeat one block of rounds: the same
// calls with the same results. It ignores rounds before the last user message, which
// may be a nudge. The string identifies the block, whichever round it starts with.
// hashes caches hashes.
func findRepetition(messages []Message, hashes roundHashes) (string, bool) {
	rounds := lastRounds(messages, maxPeriod*minRepeats)
	for period := 1; period <= maxPeriod; period++ {
		length := period * minRepeats
		if len(rounds) < length {
			return "", false
		}
		tail := rounds[len(rounds)-length:]
		// Compare calls first, because hashing results is expensive.
		if !hasPeriod(tail, period, hashes.hashCalls) || !hasPeriod(tail, period, round.hashResults) {
			continue
		}
		var block []string
		for _, r := range tail[:period] {
			block = append(block, hashes.hashCalls(r)+r.hashResults())
		}
		slices.Sort(block)
		return strings.Join(block, ","), true
	}
	return "", false
}

func hasPeriod(rounds []round, period int, hash func(round) string) bool {
	for i, r := range rounds[period:] {
		if hash(r) != hash(rounds[i]) {
			return false
		}
	}
	return true
}

type round struct {
	uses    []ToolUse
	results map[string]*ToolResult
}

// lastRounds returns the last rounds since the last user message, at most limit, oldest
// first.
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

// roundHashes caches the hashes of rounds' calls by the first call's ID. It may be nil.
type roundHashes map[string]string

func (h roundHashes) hashCalls(r round) string {
	id := r.uses[0].ID
	if hash, ok := h[id]; ok {
		return hash
	}
	hash := r.hashCalls()
	if h != nil {
		if len(h) > 2*maxPeriod*minRepeats {
			clear(h) // older rounds are not compared again
		}
		h[id] = hash
	}
	return hash
}

func (r round) hashCalls() string {
	var all []any
	for _, u := range r.uses {
		// Decode the input, so that the order of keys doesn't matter. It is always
		// valid JSON; see ParseInput.
		var input any
		_ = json.Unmarshal(u.Input, &input)
		all = append(all, u.Name, input, u.Raw)
	}
	return hashJSON(all)
}

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

func hashJSON(all []any) string {
	h := sha256.New()
	_ = json.NewEncoder(h).Encode(all)
	return hex.EncodeToString(h.Sum(nil))
}

// volatilePart matches a part of a tool result that differs between equal runs.
type volatilePart struct {
	pattern     *regexp.Regexp
	placeholder string
}

var volatileParts = sync.OnceValue(func() []volatilePart {
	return []volatilePart{
		{regexp.MustCompile(`\b[a-z]{2,8}_[0-9A-HJKMNP-TV-Z]{26}\b`), "<id>"},
		{regexp.MustCompile(`\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\s?[+-]\d\d:?\d\d)?`), "<time>"},
		{regexp.MustCompile(`\b(Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) {1,2}\d{1,2} {1,2}(\d\d:\d\d(:\d\d)?|\d{4})\b`), "<time>"},
		{regexp.MustCompile(`\b\d{1,2}:\d\d:\d\d(\.\d+)?\b`), "<time>"},
		{regexp.MustCompile(`\b(\d+h)?(\d+m)?\d+(\.\d+)?\s?(ns|µs|us|ms|s|secs?|seconds?)\b`), "<duration>"},
	}
})

// NormalizeResult replaces IDs, times and durations in a tool result by placeholders,
// so that the results of two runs can be compared.
func NormalizeResult(text string) string {
	for _, v := range volatileParts() {
		text = v.pattern.ReplaceAllString(text, v.placeholder)
	}
	return text
}
