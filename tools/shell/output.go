package shell

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"

	"github.com/caisson-run/caisson/tools"
)

// OutputName is the canonical name of the tool that pages through output.
const OutputName tools.Name = "shell_output"

// Bounds of one page. RE2 can't be interrupted within a line, so matchLineBytes
// limits the time of a match.
const (
	defaultLines    = 400
	maxLines        = 10_000
	defaultMatches  = 100
	maxMatches      = 1_000
	matchLineBytes  = 32 << 10
	snippetBytes    = 300
	maxPatternBytes = 1024
)

// Kept is the stored output of one stream. The caller closes it.
type Kept struct {
	io.ReaderAt
	io.Closer
	// Size is the number of stored bytes, the beginning of the stream. Total is the
	// number written.
	Size, Total int64
	// Whole reports whether all bytes are stored. Redacted reports whether secrets
	// in them were replaced, which changes the size.
	Whole, Redacted bool
	// State is the state of a background command, or "". Last is the end of the
	// output if it is not stored.
	State string
	Last  []byte
}

// outputOpener opens stored output. It returns [ErrNoOutput] for an unknown handle.
type outputOpener interface {
	Output(handle string) (Kept, error)
}

// ErrNoOutput is the error for a handle that the session doesn't know.
var ErrNoOutput = errors.New("no such output")

// NewOutput returns a factory for the tool that pages through output.
func NewOutput(o outputOpener) tools.Factory {
	return tools.NewTool(outputDefinition(), outputTool{o}.execute)
}

type outputTool struct{ outputs outputOpener }

type outputInput struct {
	Handle     string `json:"handle"`
	Unit       string `json:"unit"`
	Offset     *int64 `json:"offset"`
	Limit      int64  `json:"limit"`
	Tail       int64  `json:"tail"`
	Pattern    string `json:"pattern"`
	IgnoreCase bool   `json:"ignore_case"`
}

func outputDefinition() tools.Definition {
	aliases := handleAliases()
	for _, other := range []string{"grep", "regex", "filter"} {
		aliases[other] = "pattern"
	}
	return tools.Definition{
		Name: OutputName,
		Description: "Reads long output of an earlier shell call, of which its result showed the beginning and the end, or what a background command " +
			"has written so far: by lines or by bytes, the end of it, or the lines that match a regular expression. The handle stands in the " +
			"result of the shell call. What is kept is bounded; the first line of each answer says how much there is, and whether a background " +
			"command still runs.",
		InputSchema: json.RawMessage(`{
  "type": "object",
  "properties": {
    "handle": {"type": "string", "minLength": 1, "maxLength": 200, "description": "The handle from the result of the shell call."},
    "unit": {"type": "string", "enum": ["lines", "bytes"], "description": "What offset, limit and tail count; lines when left out."},
    "offset": {"type": "integer", "minimum": 0, "maximum": 1000000000000, "description": "Where to begin: the number of a line, from 1, or of a byte, from 0. With pattern, the line to search from."},
    "limit": {"type": "integer", "minimum": 1, "maximum": 1000000000, "description": "How many lines, bytes or matches at most."},
    "tail": {"type": "integer", "minimum": 1, "maximum": 1000000000, "description": "The last so many lines or bytes, instead of offset and limit."},
    "pattern": {"type": "string", "minLength": 1, "description": "Only lines that match this regular expression (RE2 syntax), with their numbers."},
    "ignore_case": {"type": "boolean", "description": "Match upper and lower case alike."}
  },
  "required": ["handle"],
  "additionalProperties": false
}`),
		Class:            tools.ClassRead,
		Runs:             tools.PlaceHost,
		Aliases:          aliases,
		Summary:          outputSummary,
		EnabledByDefault: true,
	}
}

func outputSummary(raw json.RawMessage) string {
	var in outputInput
	if err := json.Unmarshal(raw, &in); err != nil {
		return ""
	}
	if in.Pattern != "" {
		return in.Handle + " /" + in.Pattern + "/"
	}
	return in.Handle
}

func (o outputTool) execute(ctx context.Context, call *tools.Call, in outputInput) (tools.Output, error) {
	re, err := in.compilePattern()
	if err != nil {
		return tools.Output{}, err
	}
	kept, err := o.outputs.Output(in.Handle)
	if errors.Is(err, ErrNoOutput) {
		return tools.Output{}, refusalError("unknown_handle", fmt.Sprintf(
			"This session keeps no output with the handle %q. The handles stand in the results of shell calls whose output was long; run the command again for output of another session.", in.Handle))
	}
	if err != nil {
		return tools.Output{}, fmt.Errorf("open output: %w", err)
	}
	defer func() { _ = kept.Close() }() // only read
	text := max(call.ResultBytes-headerBytes, headerBytes)
	p := page{ctx: ctx, kept: kept, room: text}
	switch {
	case re != nil:
		err = p.showMatches(re, valueOrDefault(in.Offset, 1), clampLimit(in.Limit, defaultMatches, maxMatches))
	case in.Tail > 0:
		err = p.showTail(in.Tail, in.Unit == "bytes")
	case in.Unit == "bytes":
		err = p.showBytes(valueOrDefault(in.Offset, 0), clampLimit(in.Limit, int64(text), int64(text)))
	default:
		err = p.showLines(valueOrDefault(in.Offset, 1), clampLimit(in.Limit, defaultLines, maxLines))
	}
	if err != nil {
		if ctx.Err() != nil {
			return tools.Output{}, fmt.Errorf("read output: %w", context.Cause(ctx))
		}
		return tools.Output{}, fmt.Errorf("read output: %w", err)
	}
	return p.formatOutput(in.Handle), nil
}

// compilePattern compiles the pattern, if any. It refuses conflicting arguments.
func (in outputInput) compilePattern() (*regexp.Regexp, error) {
	switch {
	case in.Tail > 0 && (in.Offset != nil || in.Limit > 0):
		return nil, refusalError("bad_range", "tail stands for itself: leave out offset and limit.")
	case in.Pattern != "" && in.Tail > 0, in.Pattern != "" && in.Unit == "bytes":
		return nil, refusalError("bad_range", "pattern searches lines from offset on: leave out tail, and unit or say lines.")
	case in.Pattern == "" && in.IgnoreCase:
		return nil, refusalError("bad_range", "ignore_case is for a pattern: give one.")
	case len(in.Pattern) > maxPatternBytes:
		return nil, refusalError("invalid_pattern", fmt.Sprintf("The pattern has %d bytes; at most %d are taken.", len(in.Pattern), maxPatternBytes))
	case in.Pattern == "":
		return nil, nil
	}
	expr := in.Pattern
	if in.IgnoreCase {
		expr = "(?i:" + expr + ")"
	}
	re, err := regexp.Compile(expr)
	if err != nil {
		return nil, refusalError("invalid_pattern", fmt.Sprintf("The pattern is not a valid RE2 regular expression: %v.", err))
	}
	return re, nil
}

func valueOrDefault(v *int64, def int64) int64 {
	if v == nil {
		return def
	}
	return *v
}

// clampLimit returns asked, at most most, or def if asked is not positive.
func clampLimit(asked, def, most int64) int64 {
	if asked <= 0 {
		return def
	}
	return min(asked, most)
}
