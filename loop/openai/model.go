package openai

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/internal/modelhttp"
	"github.com/caisson-run/caisson/tools/safeurl"
)

// Model is a model of one endpoint. It is safe for concurrent use.
type Model struct {
	options            Options
	closeIdle          func()
	chat               openai.ChatCompletionService
	responses          responses.ResponseService
	quirks             atomic.Pointer[quirks]
	usageMissingLogged atomic.Bool
	// stale is reasoning that the endpoint refused. namesPhases reports whether the
	// model names its messages' phases. Both are for the Responses API.
	stale       modelhttp.StaleReasoning
	namesPhases atomic.Bool
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
	m.quirks.Store(&quirks{})
	opts := []option.RequestOption{
		option.WithHTTPClient(m.options.HTTPClient),
		option.WithBaseURL(m.options.BaseURL),
		option.WithMaxRetries(0), // the loop retries
	}
	if o.APIKey != "" {
		opts = append(opts, option.WithAPIKey(o.APIKey))
	}
	for name, value := range o.Headers {
		opts = append(opts, option.WithHeader(name, value))
	}
	// openai.NewClient would read the environment.
	m.chat = openai.NewChatCompletionService(opts...)
	m.responses = responses.NewResponseService(opts...)
	return m, nil
}

// Info identifies the model in records.
func (m *Model) Info() loop.ModelInfo {
	return loop.ModelInfo{Provider: m.options.Provider, Model: m.options.Model, BaseURL: safeurl.String(m.options.BaseURL), ToolNameBytes: modelhttp.ToolNameBytes}
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
	known := *m.quirks.Load()
	for q := known; ; {
		resp, err := m.sendRequest(ctx, req, q, onDelta)
		if err == nil {
			m.storeQuirks(known, q)
			m.warnMissingUsage(resp.Usage)
			return resp, nil
		}
		if ctx.Err() != nil {
			return loop.Response{}, fmt.Errorf("complete with model %s: %w", m.options.Model, context.Cause(ctx))
		}
		// Each quirk changes at most once, so this loop ends.
		next, again := m.adaptQuirks(known, q, req, err)
		if !again {
			return loop.Response{}, err
		}
		q = next
	}
}

func (m *Model) sendRequest(ctx context.Context, req loop.Request, q quirks, onDelta func(loop.Delta)) (loop.Response, error) {
	w := &modelhttp.Watcher{ModelOptions: m.options.ModelOptions}
	var res *http.Response
	opts := []option.RequestOption{option.WithMiddleware(w.Middleware), option.WithResponseBodyInto(&res)}
	if m.options.Stream {
		opts = append(opts, option.WithJSONSet("stream", true), option.WithHeader("Accept", "text/event-stream"))
	}
	if err := m.postRequest(ctx, req, q, opts); err != nil {
		if errors.Is(err, errUnsendable) {
			return loop.Response{}, &loop.ModelError{Class: loop.ModelInvalidRequest, Err: err}
		}
		return loop.Response{}, w.ModelError(err)
	}
	defer func() { _ = res.Body.Close() }() // the answer is complete or discarded
	resp, err := m.readResponse(res, onDelta)
	if err != nil {
		return loop.Response{}, w.ModelError(err)
	}
	return resp, nil
}

// errUnsendable means that the request can't be converted.
var errUnsendable = errors.New("request has no wire form")

func (m *Model) postRequest(ctx context.Context, req loop.Request, q quirks, opts []option.RequestOption) error {
	if m.options.API == Responses {
		params, err := m.buildResponseParams(req, q)
		if err != nil {
			return fmt.Errorf("%w: %w", errUnsendable, err)
		}
		_, err = m.responses.New(ctx, params, opts...)
		return err
	}
	params, err := m.buildParams(req, q)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnsendable, err)
	}
	_, err = m.chat.New(ctx, params, opts...)
	return err
}

// readResponse reads an answer, streamed or whole. A specific media type decides,
// because endpoints may ignore the requested form.
func (m *Model) readResponse(res *http.Response, onDelta func(loop.Delta)) (loop.Response, error) {
	mediaType, _, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if err != nil {
		mediaType = ""
	}
	unspecific := slices.Contains([]string{"", "text/plain", "application/octet-stream"}, mediaType)
	inEvents := mediaType == "text/event-stream" || m.options.Stream && unspecific
	switch {
	case inEvents && m.options.API == Responses:
		return m.readResponseStream(res, onDelta)
	case inEvents:
		return readStream(res, onDelta)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return loop.Response{}, err
	}
	if m.options.API == Responses {
		return m.readWholeResponse(body, onDelta)
	}
	return readWhole(body, onDelta)
}

// Options configures a model.
type Options struct {
	// BaseURL includes the version, such as http://localhost:11434/v1; "" means
	// [DefaultBaseURL].
	loop.ModelOptions
	// API is the API to use; "" means [Chat].
	API API
	// Provider is the provider's name in records; "" means "openai".
	Provider string
	Stream   bool
	// SendReasoning sends the model's earlier reasoning with each request. Some
	// endpoints require it, others refuse it.
	SendReasoning bool
}

// API is one of the two APIs.
type API string

// The APIs. OpenAI's models since GPT-6 call tools only in Responses. Most other
// endpoints know only Chat.
const (
	Chat      API = "chat"
	Responses API = "responses"
)

// DefaultBaseURL is OpenAI's own endpoint.
const DefaultBaseURL = "https://api.openai.com/v1"

// ErrInvalid is [New]'s error for invalid [Options].
var ErrInvalid = errors.New("invalid model options")

func (o Options) withDefaults() (Options, error) {
	o.API = cmp.Or(o.API, Chat)
	if o.API != Chat && o.API != Responses {
		return o, fmt.Errorf("%w: unknown API %q", ErrInvalid, o.API)
	}
	o.Provider = cmp.Or(o.Provider, "openai")
	return o, nil
}

// quirks are features of ordinary requests that an endpoint refuses.
type quirks struct {
	// noStreamOptions means that usage can't be requested in a stream.
	noStreamOptions bool
	// otherMaxTokensName means that the output limit doesn't have its usual name; see
	// [Model.usesMaxCompletionTokens].
	otherMaxTokensName bool
	// noEncryptedReasoning means that encrypted reasoning can't be requested. Models
	// that don't reason refuse it.
	noEncryptedReasoning bool
}

// adaptQuirks changes q by what the endpoint refused with err, and reports whether to
// send the request again. known are the quirks before the first request; each changes
// at most once.
func (m *Model) adaptQuirks(known, q quirks, req loop.Request, err error) (quirks, bool) {
	message, ok := modelhttp.RefusedParameter(err)
	switch {
	case !ok:
		return q, false
	case m.options.API == Responses:
		if !strings.Contains(strings.ToLower(strings.ReplaceAll(message, "_", " ")), "encrypted content") {
			return q, false
		}
		if m.stale.Add(req.Messages) {
			m.options.Logger.Info("the endpoint refused earlier reasoning of the model, which is left out from now on",
				zap.String("model", m.options.Model), zap.Error(err))
			return q, true
		}
		again := !q.noEncryptedReasoning
		q.noEncryptedReasoning = true
		return q, again
	case strings.Contains(message, "stream_options") && m.options.Stream && !q.noStreamOptions:
		q.noStreamOptions = true
		return q, true
	case (strings.Contains(message, "max_tokens") || strings.Contains(message, "max_completion_tokens")) &&
		m.maxTokens(req) > 0 && q.otherMaxTokensName == known.otherMaxTokensName:
		q.otherMaxTokensName = !q.otherMaxTokensName
		return q, true
	}
	return q, false
}

func (m *Model) storeQuirks(known, q quirks) {
	if q == known {
		return
	}
	m.quirks.Store(&q)
	m.options.Logger.Info("adapted requests to an endpoint that differs from the standard",
		zap.String("base_url", safeurl.String(m.options.BaseURL)), zap.String("model", m.options.Model),
		zap.Bool("no_stream_options", q.noStreamOptions), zap.Bool("other_max_tokens", q.otherMaxTokensName),
		zap.Bool("no_encrypted_reasoning", q.noEncryptedReasoning))
}

// warnMissingUsage warns once if the endpoint counts no tokens.
func (m *Model) warnMissingUsage(u limits.Usage) {
	if u.Tokens() == 0 && m.usageMissingLogged.CompareAndSwap(false, true) {
		m.options.Logger.Warn("endpoint reports no usage: token and cost limits have no effect",
			zap.String("base_url", safeurl.String(m.options.BaseURL)), zap.String("model", m.options.Model))
	}
}

// usesMaxCompletionTokens reports whether the output limit is max_completion_tokens,
// which OpenAI requires, or max_tokens, which most other endpoints require.
func (m *Model) usesMaxCompletionTokens(q quirks) bool {
	u, err := url.Parse(m.options.BaseURL)
	own := err == nil && (u.Hostname() == "openai.com" || strings.HasSuffix(u.Hostname(), ".openai.com"))
	return own != q.otherMaxTokensName
}
