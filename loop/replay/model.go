package replay

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
)

// Options says how a file is played. The zero value is useful.
type Options struct {
	// Report gets each difference when the conversation goes on after the
	// results in question; nil logs them as warnings.
	Report func(Difference)
	// Pace is the pause between two pieces of an answer, so that people can
	// read along; zero is none.
	Pace time.Duration
	// Logger gets differences where Report is nil; nil discards.
	Logger *zap.Logger
}

// ErrExhausted says that the conversation went on after the last turn.
var ErrExhausted = errors.New("nothing left to play")

// Model plays one recording, once. It is safe for concurrent use, but the turns
// come in one order whoever asks.
type Model struct {
	path      string
	options   Options
	recording recording

	mu   sync.Mutex
	next int
}

var _ loop.Model = (*Model)(nil)

// newModel plays a recording.
func newModel(path string, r recording, o Options) *Model {
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.Report == nil {
		log := o.Logger
		o.Report = func(d Difference) { log.Warn("replayed result differs", zap.Stringer("difference", d)) }
	}
	return &Model{path: path, options: o, recording: r}
}

// Task is what the recording's user asked for, or "".
func (m *Model) Task() string { return m.recording.task }

// Left is how many turns have not been played.
func (m *Model) Left() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.recording.turns) - m.next
}

// Info names the recording as the model.
func (m *Model) Info() loop.ModelInfo {
	return loop.ModelInfo{Provider: "replay", Model: m.recording.name}
}

// Complete compares the results of the turn before and plays the next one. It
// costs nothing and counts no tokens. Where no tools are offered a turn's
// calls are left out.
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

// takeTurn compares what came of the last turn and gives the index of the next.
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

// compareResults reports differences of the turn that was played last, counted from 1.
// Its calls are those of the last assistant message, in order.
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

// lastRound finds the calls of the last assistant message and their results by id.
func lastRound(messages []loop.Message) ([]loop.ToolUse, map[string]result) {
	results := map[string]result{}
	for _, m := range slices.Backward(messages) {
		var uses []loop.ToolUse
		for _, b := range m.Blocks {
			if b.ToolResult != nil {
				results[b.ToolResult.ToolUseID] = result{
					text: loop.ResultText(b.ToolResult.Content), isError: b.ToolResult.IsError,
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

// deliverText gives a text in small pieces, as a model would.
func (m *Model) deliverText(ctx context.Context, text string, onDelta func(loop.Delta)) error {
	if onDelta == nil {
		return nil
	}
	for i, piece := range strings.SplitAfter(text, " ") {
		if i > 0 && m.options.Pace > 0 {
			pause := time.NewTimer(m.options.Pace)
			select {
			case <-pause.C:
			case <-ctx.Done():
				pause.Stop()
			}
		}
		if ctx.Err() != nil {
			return fmt.Errorf("replay %s: %w", m.path, context.Cause(ctx))
		}
		if piece != "" {
			onDelta(loop.Delta{Text: piece})
		}
	}
	return nil
}
