// Package ollama implements [loop.Model] for Ollama's own API, /api/chat. Unlike its
// OpenAI-compatible API, it takes a context window size, and refuses conversations that
// are too long instead of forgetting their beginning.
package ollama

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/internal/modelhttp"
	"github.com/caisson-run/caisson/tools/safeurl"
)

// Model is a model of one server. It is safe for concurrent use.
type Model struct {
	options   Options
	closeIdle func()
	// noThinkWords means that the model can think but knows no levels.
	noThinkWords atomic.Bool
}

var _ loop.Model = (*Model)(nil)

// New returns a model. It connects to nothing. Its error wraps [ErrInvalid].
func New(o Options) (*Model, error) {
	if o.ContextWindow < 0 {
		return nil, fmt.Errorf("%w: negative number", ErrInvalid)
	}
	m := &Model{options: o}
	var err error
	m.closeIdle, err = modelhttp.Prepare(&m.options.ModelOptions, DefaultBaseURL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return m, nil
}

// Info identifies the model in records.
func (m *Model) Info() loop.ModelInfo {
	return loop.ModelInfo{Provider: "ollama", Model: m.options.Model, BaseURL: safeurl.String(m.options.BaseURL), ToolNameBytes: modelhttp.ToolNameBytes}
}

// Close closes idle connections of the model's own HTTP client. Running calls go on.
func (m *Model) Close() {
	m.closeIdle()
}

// Complete makes one model call; see [loop.Model].
func (m *Model) Complete(ctx context.Context, req loop.Request, onDelta func(loop.Delta)) (loop.Response, error) {
	if onDelta == nil {
		onDelta = func(loop.Delta) {}
	}
	for {
		resp, err := m.sendRequest(ctx, req, onDelta)
		if err == nil {
			return resp, nil
		}
		if ctx.Err() != nil {
			return loop.Response{}, fmt.Errorf("complete with model %s: %w", m.options.Model, context.Cause(ctx))
		}
		message, refused := modelhttp.RefusedParameter(err)
		if !refused || !strings.Contains(message, "think value") || m.noThinkWords.Swap(true) {
			return loop.Response{}, err
		}
		m.options.Logger.Info("the model knows no words for how much it thinks: thinking is only turned on",
			zap.String("model", m.options.Model))
	}
}

func (m *Model) sendRequest(ctx context.Context, req loop.Request, onDelta func(loop.Delta)) (loop.Response, error) {
	chat, err := m.buildRequest(req)
	if err != nil {
		return loop.Response{}, &loop.ModelError{Class: loop.ModelInvalidRequest, Err: err}
	}
	body, err := json.Marshal(chat)
	if err != nil {
		return loop.Response{}, &loop.ModelError{Class: loop.ModelInvalidRequest, Err: err}
	}
	w := &modelhttp.Watcher{ModelOptions: m.options.ModelOptions}
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(m.options.BaseURL, "/")+"/api/chat", bytes.NewReader(body))
	if err != nil {
		return loop.Response{}, &loop.ModelError{Class: loop.ModelInvalidRequest, Err: errors.New("the base URL can't be used")}
	}
	post.Header.Set("Content-Type", "application/json")
	if m.options.APIKey != "" {
		post.Header.Set("Authorization", "Bearer "+m.options.APIKey)
	}
	for name, value := range m.options.Headers {
		post.Header.Set(name, value)
	}
	res, err := w.Middleware(post, m.options.HTTPClient.Do)
	if err != nil {
		return loop.Response{}, w.ModelError(err)
	}
	defer func() { _ = res.Body.Close() }() // the answer is complete or discarded
	if w.Response == nil {
		return loop.Response{}, w.ModelError(errors.New("refused"))
	}
	resp, err := readResponse(res.Body, onDelta)
	if err != nil {
		return loop.Response{}, w.ModelError(err)
	}
	return resp, nil
}

// Options configures a model.
type Options struct {
	// BaseURL has no path; "" means [DefaultBaseURL]. ReasoningEffort is none, or a
	// level that the model knows, such as low, medium or high; models without levels
	// just think. MaxOutputTokens of zero means that only the context window is a
	// bound.
	loop.ModelOptions
	// ContextWindow is the number of tokens for which the server reserves memory
	// (num_ctx); zero means the server's default, which is often too small for an
	// agent.
	ContextWindow int64
	Stream        bool
}

// DefaultBaseURL is a server on this machine.
const DefaultBaseURL = "http://127.0.0.1:11434"

// ErrInvalid is [New]'s error for invalid [Options].
var ErrInvalid = errors.New("invalid model options")
