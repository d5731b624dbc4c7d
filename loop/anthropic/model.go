package anthropic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/internal/modelhttp"
	"github.com/caisson-run/caisson/tools/safeurl"
)

// Model is a model. It is safe for concurrent use.
type Model struct {
	options   Options
	closeIdle func()
	service   anthropic.MessageService
	stale     modelhttp.StaleReasoning
}

var _ loop.Model = (*Model)(nil)

// New returns a model. It connects to nothing. Its error wraps [ErrInvalid].
func New(o Options) (*Model, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	m := &Model{options: o}
	m.closeIdle, err = modelhttp.Prepare(&m.options.ModelOptions, DefaultBaseURL)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	opts := []option.RequestOption{
		option.WithHTTPClient(m.options.HTTPClient),
		option.WithBaseURL(strings.TrimSuffix(strings.TrimSuffix(m.options.BaseURL, "/"), "/v1") + "/"),
		option.WithMaxRetries(0), // the loop retries
	}
	if o.APIKey != "" {
		opts = append(opts, option.WithAPIKey(o.APIKey))
	}
	for name, value := range o.Headers {
		opts = append(opts, option.WithHeader(name, value))
	}
	// anthropic.NewClient would read the environment.
	m.service = anthropic.NewMessageService(opts...)
	return m, nil
}

// Info identifies the model in records.
func (m *Model) Info() loop.ModelInfo {
	return loop.ModelInfo{Provider: "anthropic", Model: m.options.Model, BaseURL: safeurl.String(m.options.BaseURL), ToolNameBytes: modelhttp.ToolNameBytes}
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
	for dropped := false; ; dropped = true {
		resp, err := m.sendRequest(ctx, req, onDelta)
		if err == nil {
			return resp, nil
		}
		if ctx.Err() != nil {
			return loop.Response{}, fmt.Errorf("complete with model %s: %w", m.options.Model, context.Cause(ctx))
		}
		message, refused := modelhttp.RefusedParameter(err)
		if dropped || !refused || !strings.Contains(message, "signature") || !m.stale.Add(req.Messages) {
			return loop.Response{}, err
		}
		m.options.Logger.Info("the provider refused earlier reasoning of the model, which is left out from now on",
			zap.String("model", m.options.Model), zap.Error(err))
	}
}

// sendRequest sends the request once. It always streams: a long answer would exceed the
// time for which idle connections are kept open.
func (m *Model) sendRequest(ctx context.Context, req loop.Request, onDelta func(loop.Delta)) (loop.Response, error) {
	params, err := m.buildParams(req)
	if err != nil {
		return loop.Response{}, &loop.ModelError{Class: loop.ModelInvalidRequest, Err: err}
	}
	w := &modelhttp.Watcher{ModelOptions: m.options.ModelOptions}
	opts := []option.RequestOption{option.WithMiddleware(w.Middleware)}
	if reasoning := m.reasoningConfig(params); reasoning != nil {
		// The library prints a warning to standard error if the field is set.
		opts = append(opts, option.WithJSONSet("thinking", reasoning))
	}
	stream := m.service.NewStreaming(ctx, params, opts...)
	if err := stream.Err(); err != nil {
		return loop.Response{}, w.ModelError(err)
	}
	defer func() { _ = w.Response.Body.Close() }() // the answer is complete or discarded
	resp, err := readResponse(w.Response, onDelta)
	if err != nil {
		return loop.Response{}, w.ModelError(err)
	}
	return resp, nil
}

// readResponse reads an answer. Compatible servers may send it whole.
func readResponse(res *http.Response, onDelta func(loop.Delta)) (loop.Response, error) {
	if mediaType, _, err := mime.ParseMediaType(res.Header.Get("Content-Type")); err != nil || mediaType != "application/json" {
		return readStream(res, onDelta)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return loop.Response{}, err
	}
	return readWhole(body, onDelta)
}

// Options configures a model. Answers are always streamed.
type Options struct {
	// BaseURL has no version; "" means [DefaultBaseURL]. MaxOutputTokens of zero means
	// 32,000.
	loop.ModelOptions
	// ThinkingTokens is the reasoning budget, for models before 4.6; zero means the
	// model's default.
	ThinkingTokens int64
}

// DefaultBaseURL is Anthropic's own endpoint.
const DefaultBaseURL = "https://api.anthropic.com"

const defaultMaxTokens = 32_000

// ErrInvalid is [New]'s error for invalid [Options].
var ErrInvalid = errors.New("invalid model options")

func (o Options) withDefaults() (Options, error) {
	if o.ThinkingTokens < 0 || o.MaxOutputTokens < 0 {
		return o, fmt.Errorf("%w: negative number", ErrInvalid)
	}
	o.MaxOutputTokens = cmp.Or(o.MaxOutputTokens, defaultMaxTokens)
	if o.ThinkingTokens >= o.MaxOutputTokens {
		return o, fmt.Errorf("%w: a thinking budget of %d tokens leaves no answer within %d", ErrInvalid, o.ThinkingTokens, o.MaxOutputTokens)
	}
	return o, nil
}
