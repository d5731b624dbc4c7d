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
	// cut says that the answer was cut in the middle of its last call.
	cut bool
}

// call is one tool call, and what is known of its result.
type call struct {
	tool   tools.Name
	raw    string
	expect expectation
}

// expectation is what a result is compared with.
type expectation interface {
	// differences compares a result.
	differences(got result) []Difference
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
		d.Turn, d.Call, d.Tool, d.What, brief(d.Want), brief(d.Got))
}

// brief is a text in one line.
func brief(s string) string {
	const most = 120
	if runes := []rune(s); len(runes) > most {
		s = string(runes[:most/2]) + "…" + string(runes[len(runes)-most/2:])
	}
	return strconv.Quote(s)
}

// recorded is a result from a trace.
type recorded result

// differences compares the whole, without what differs from run to run.
func (r recorded) differences(got result) []Difference {
	var out []Difference
	if r.isError != got.isError {
		out = append(out, Difference{What: "error", Want: strconv.FormatBool(r.isError), Got: strconv.FormatBool(got.isError)})
	}
	want, have := normal(loop.EscapeResult(r.text)), normal(got.text)
	if want != have {
		out = append(out, Difference{What: "result", Want: want, Got: have})
	}
	return out
}

// normal is a result's text without what differs from run to run.
func normal(text string) string { return strings.TrimSpace(loop.NormalizeResult(text)) }

// scripted is what a script expects of a result.
type scripted struct {
	contains, notContains []string
	exitCode              *int
	isError               *bool
}

// exitLine is how a command's result begins.
var exitLine = regexp.MustCompile(`\A\s*exit code (-?\d+)`)

// differences tests each expectation.
func (s scripted) differences(got result) []Difference {
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

// blocks are the turn as an adapter gives it to the loop.
func (t turn) blocks(withCalls bool) []loop.Block {
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

// isObject says that arguments are whole.
func isObject(raw string) bool {
	return strings.HasPrefix(strings.TrimSpace(raw), "{") && json.Valid([]byte(raw))
}
