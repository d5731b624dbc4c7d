package replay

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/boundary"
	"github.com/caisson-run/caisson/tools"
)

type recording struct {
	name, task string
	turns      []turn
}

type turn struct {
	text  string
	calls []call
	// truncated reports whether the answer was cut in its last call.
	truncated bool
}

type call struct {
	tool   tools.Name
	raw    string
	expect *expectation
}

// expectation is a call's expected result. Nil fields, and a nil *expectation, expect
// nothing.
type expectation struct {
	Text        *string    `yaml:"-"` // the whole result
	Contains    stringList `yaml:"contains"`
	NotContains stringList `yaml:"not_contains"`
	ExitCode    *int       `yaml:"exit_code"`
	Error       *bool      `yaml:"error"`
}

// result is a call's actual result, as the model gets it.
type result struct {
	text    string
	isError bool
}

// Difference says how a tool's result differs from the recorded or expected one.
type Difference struct {
	// Turn and Call count from 1.
	Turn, Call int
	Tool       tools.Name
	// What is "result", "exit_code", "contains", "not_contains" or "error".
	What string
	// Want and Got are the expected and actual values. Whole results are normalized.
	Want, Got string
}

// Fields returns the possible values of Difference.What.
func Fields() []string { return []string{"result", "error", "exit_code", "contains", "not_contains"} }

func (d Difference) String() string {
	return fmt.Sprintf("turn %d, call %d (%s): %s: want %s, got %s",
		d.Turn, d.Call, d.Tool, d.What, quoteBrief(d.Want), quoteBrief(d.Got))
}

func quoteBrief(s string) string {
	const maxRunes = 120
	if runes := []rune(s); len(runes) > maxRunes {
		s = string(runes[:maxRunes/2]) + "…" + string(runes[len(runes)-maxRunes/2:])
	}
	return strconv.Quote(s)
}

// exitLine matches the start of a command's result.
var exitLine = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\A\s*exit code (-?\d+)`)
})

// compareResult returns how a result differs from the expectation.
func (e *expectation) compareResult(got result) []Difference {
	var out []Difference
	add := func(what, want, got string) { out = append(out, Difference{What: what, Want: want, Got: got}) }
	if e.ExitCode != nil {
		code := "none"
		if m := exitLine().FindStringSubmatch(got.text); m != nil {
			code = m[1]
		}
		if want := strconv.Itoa(*e.ExitCode); code != want {
			add("exit_code", want, code+" in: "+got.text)
		}
	}
	if e.Error != nil && *e.Error != got.isError {
		add("error", strconv.FormatBool(*e.Error), strconv.FormatBool(got.isError))
	}
	if e.Text != nil {
		want, normalized := normalizeText(boundary.Escape(*e.Text)), normalizeText(got.text)
		if want != normalized {
			add("result", want, normalized)
		}
	}
	for _, text := range e.Contains {
		if !strings.Contains(got.text, text) {
			add("contains", text, got.text)
		}
	}
	for _, text := range e.NotContains {
		if strings.Contains(got.text, text) {
			add("not_contains", text, got.text)
		}
	}
	return out
}

func normalizeText(text string) string { return strings.TrimSpace(loop.NormalizeResult(text)) }

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

func isJSONObject(raw string) bool {
	return strings.HasPrefix(strings.TrimSpace(raw), "{") && json.Valid([]byte(raw))
}
