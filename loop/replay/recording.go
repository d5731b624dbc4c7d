package replay

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/tools"
)

// recording is what is played, whatever file it came from.
type recording struct {
	name, task string
	turns      []turn
}

// turn is one answer of the model.
type turn struct {
	text  string
	calls []call
	// truncated says that the answer was cut in the middle of its last call.
	truncated bool
}

// call is one tool call, and what is known of its result.
type call struct {
	tool   tools.Name
	raw    string
	expect expectation
}

// expectation is what a result is compared with.
type expectation interface {
	// compareResult compares a result.
	compareResult(got result) []Difference
}

// result is what a tool really gave back, as the model gets it.
type result struct {
	text    string
	isError bool
}

// Difference is one way in which a tool's result is not what was recorded or
// expected.
type Difference struct {
	// Turn and Call count from 1.
	Turn, Call int
	Tool       tools.Name
	// What is compared: "result", "exit_code", "contains", "not_contains",
	// "error" or "calls".
	What string
	// Want and Got are texts; of a result both are normalised, whole.
	Want, Got string
}

// String is one line for people.
func (d Difference) String() string {
	return fmt.Sprintf("turn %d, call %d (%s): %s: want %s, got %s",
		d.Turn, d.Call, d.Tool, d.What, quoteBrief(d.Want), quoteBrief(d.Got))
}

// quoteBrief is a text in one line.
func quoteBrief(s string) string {
	const maxRunes = 120
	if runes := []rune(s); len(runes) > maxRunes {
		s = string(runes[:maxRunes/2]) + "…" + string(runes[len(runes)-maxRunes/2:])
	}
	return strconv.Quote(s)
}

// recordedResult is a result from a trace.
type recordedResult result

// compareResult compares the whole, without what differs from run to run.
func (r recordedResult) compareResult(got result) []Difference {
	var out []Difference
	if r.isError != got.isError {
		out = append(out, Difference{What: "error", Want: strconv.FormatBool(r.isError), Got: strconv.FormatBool(got.isError)})
	}
	want, normalized := normalizeText(loop.EscapeResult(r.text)), normalizeText(got.text)
	if want != normalized {
		out = append(out, Difference{What: "result", Want: want, Got: normalized})
	}
	return out
}

// normalizeText is a result's text without what differs from run to run.
func normalizeText(text string) string { return strings.TrimSpace(loop.NormalizeResult(text)) }

// scriptedExpectation is what a script expects of a result.
type scriptedExpectation struct {
	contains, notContains []string
	exitCode              *int
	isError               *bool
}

// exitLine is how a command's result begins.
var exitLine = regexp.MustCompile(`\A\s*exit code (-?\d+)`)

// compareResult tests each expectation.
func (s scriptedExpectation) compareResult(got result) []Difference {
	var out []Difference
	if s.exitCode != nil {
		code := "none"
		if m := exitLine.FindStringSubmatch(got.text); m != nil {
			code = m[1]
		}
		if want := strconv.Itoa(*s.exitCode); code != want {
			out = append(out, Difference{What: "exit_code", Want: want, Got: code + " in: " + got.text})
		}
	}
	if s.isError != nil && *s.isError != got.isError {
		out = append(out, Difference{What: "error", Want: strconv.FormatBool(*s.isError), Got: strconv.FormatBool(got.isError)})
	}
	for _, text := range s.contains {
		if !strings.Contains(got.text, text) {
			out = append(out, Difference{What: "contains", Want: text, Got: got.text})
		}
	}
	for _, text := range s.notContains {
		if strings.Contains(got.text, text) {
			out = append(out, Difference{What: "not_contains", Want: text, Got: got.text})
		}
	}
	return out
}

// buildBlocks are the turn as an adapter gives it to the loop.
func (t turn) buildBlocks(withCalls bool) []loop.Block {
	var out []loop.Block
	text := t.text
	if text == "" && !withCalls {
		text = "(The recorded answer had nothing but tool calls.)"
	}
	if text != "" {
		out = append(out, loop.Block{Text: &loop.Text{Text: text}})
	}
	if !withCalls {
		return out
	}
	for _, c := range t.calls {
		out = append(out, loop.Block{ToolUse: &loop.ToolUse{Name: c.tool, Raw: c.raw}})
	}
	return out
}

// isJSONObject says that arguments are whole.
func isJSONObject(raw string) bool {
	return strings.HasPrefix(strings.TrimSpace(raw), "{") && json.Valid([]byte(raw))
}
