package replay

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/boundary"
)

// Options configures a replay. All fields are optional.
type Options struct {
	// Report is called for each difference, within the call of Complete that has the
	// result. It must not call the model. If it is nil, differences are logged as
	// warnings.
	Report func(Difference)
	// Logger may be nil.
	Logger *zap.Logger
}

// ErrExhausted is Complete's error after the last turn.
var ErrExhausted = errors.New("nothing left to play")

// Model plays one recording, once. It is safe for concurrent use: concurrent calls get
// different turns, in order.
type Model struct {
	path      string
	options   Options
	recording recording

	mu   sync.Mutex
	next int
}

var _ loop.Model = (*Model)(nil)

func newModel(path string, r recording, o Options) *Model {
	o.Logger = cmp.Or(o.Logger, zap.NewNop())
	if o.Report == nil {
		log := o.Logger
		o.Report = func(d Difference) { log.Warn("replayed result differs", zap.Stringer("difference", d)) }
	}
	return &Model{path: path, options: o, recording: r}
}

// Task returns the recording's task, or "".
func (m *Model) Task() string { return m.recording.task }

// Left returns the number of turns not played yet.
func (m *Model) Left() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.recording.turns) - m.next
}

// Skip skips turns that an earlier process of the session played. Call it before
// Complete.
func (m *Model) Skip(answers int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.next = min(max(answers, 0), len(m.recording.turns))
}

// Info returns the recording's name as the model's.
func (m *Model) Info() loop.ModelInfo {
	return loop.ModelInfo{Provider: "replay", Model: m.recording.name, Recorded: true}
}

// Complete compares the previous turn's results and plays the next turn. It uses no
// tokens and costs nothing. If the request offers no tools, it leaves out calls.
func (m *Model) Complete(ctx context.Context, req loop.Request, onDelta func(loop.Delta)) (loop.Response, error) {
	if ctx.Err() != nil {
		return loop.Response{}, fmt.Errorf("replay %s: %w", m.path, context.Cause(ctx))
	}
	index, err := m.takeTurn(req)
	if err != nil {
		return loop.Response{}, err
	}
	t := m.recording.turns[index]
	if err := m.deliverText(ctx, t.text, onDelta); err != nil {
		return loop.Response{}, err
	}
	withCalls := len(req.Tools) > 0
	finish := "stop"
	if withCalls && len(t.calls) > 0 {
		finish = "tool_calls"
	}
	return loop.Response{
		Message:   loop.Message{Role: loop.RoleAssistant, Blocks: t.buildBlocks(withCalls)},
		Usage:     limits.Usage{CostMicroUSD: new(int64(0))},
		Finish:    finish,
		Model:     m.recording.name,
		Truncated: t.truncated && withCalls,
	}, nil
}

// takeTurn compares the previous turn's results and returns the next turn's index.
func (m *Model) takeTurn(req loop.Request) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.next > 0 {
		m.compareResults(m.next, req.Messages)
	}
	if m.next == len(m.recording.turns) {
		return 0, &loop.ModelError{Class: loop.ModelOther, Visible: true, Err: fmt.Errorf(
			"replay %s: %w: all %d turns are played and the conversation goes on", m.path, ErrExhausted, m.next)}
	}
	m.next++
	return m.next - 1, nil
}

// compareResults reports how the results of turn number (from 1) differ. Its calls are
// the last assistant message's.
func (m *Model) compareResults(number int, messages []loop.Message) {
	calls := m.recording.turns[number-1].calls
	uses, results := lastRound(messages)
	if len(calls) == 0 || len(uses) == 0 {
		return
	}
	for i, c := range calls {
		if c.expect == nil || i >= len(uses) {
			continue
		}
		got, ok := results[uses[i].ID]
		if !ok {
			continue
		}
		for _, d := range c.expect.compareResult(got) {
			d.Turn = number
			d.Call = i + 1
			d.Tool = c.tool
			m.options.Report(d)
		}
	}
}

// lastRound returns the last assistant message's calls, and their results by ID.
func lastRound(messages []loop.Message) ([]loop.ToolUse, map[string]result) {
	results := map[string]result{}
	for _, m := range slices.Backward(messages) {
		var uses []loop.ToolUse
		for _, b := range m.Blocks {
			if b.ToolResult != nil {
				results[b.ToolResult.ToolUseID] = result{
					text: boundary.ResultText(b.ToolResult.Content), isError: b.ToolResult.IsError,
				}
			}
			if b.ToolUse != nil {
				uses = append(uses, *b.ToolUse)
			}
		}
		if m.Role == loop.RoleAssistant {
			return uses, results
		}
	}
	return nil, results
}

func (m *Model) deliverText(ctx context.Context, text string, onDelta func(loop.Delta)) error {
	if onDelta == nil {
		return nil
	}
	for piece := range strings.SplitAfterSeq(text, " ") {
		if ctx.Err() != nil {
			return fmt.Errorf("replay %s: %w", m.path, context.Cause(ctx))
		}
		if piece != "" {
			onDelta(loop.Delta{Text: piece})
		}
	}
	return nil
}

const maxFileBytes = 256 << 20

// ErrNotRecording is [Open]'s error for a file that is not a valid recording.
var ErrNotRecording = errors.New("not a recording")

type parseError struct{ text string }

func (e *parseError) Error() string { return e.text }

func (e *parseError) Unwrap() error { return ErrNotRecording }

// Open reads a recording: a script, a trace, a session directory, or an ATIF
// trajectory, which it tells apart by their content. Errors name the file, with line
// and column if possible, and wrap [ErrNotRecording] or a file system error.
func Open(path string, o Options) (*Model, error) {
	data, path, err := readRecording(path)
	if err != nil {
		return nil, fmt.Errorf("open recording: %w", err)
	}
	r, err := parseRecording(data)
	if err != nil {
		return nil, &parseError{text: fmt.Sprintf("open recording: %s:%v", path, err)}
	}
	if r.name == "" {
		base := filepath.Base(path)
		r.name = strings.TrimSuffix(base, filepath.Ext(base))
	}
	return newModel(path, r, o), nil
}

// readRecording returns the content and path of a file, or of a session directory's
// trace.
func readRecording(path string) ([]byte, string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, path, err
	}
	if info.IsDir() {
		path = filepath.Join(path, "trace.jsonl")
		info, err = os.Stat(path)
		if err != nil {
			return nil, path, err
		}
	}
	if !info.Mode().IsRegular() {
		return nil, path, fmt.Errorf("%s: %w: not a regular file", path, ErrNotRecording)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, path, err
	}
	defer func() { _ = f.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, path, err
	}
	if len(data) > maxFileBytes {
		return nil, path, fmt.Errorf("%s: %w: larger than %d bytes", path, ErrNotRecording, maxFileBytes)
	}
	return data, path, nil
}

// parseRecording parses any kind of recording. Errors start with line and column.
func parseRecording(data []byte) (recording, error) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	if !bytes.HasPrefix(bytes.TrimSpace(data), []byte("{")) {
		return parseScript(data)
	}
	if isATIF(data) {
		return parseATIF(data)
	}
	return parseTrace(data)
}
