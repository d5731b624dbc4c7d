package openai

import (
	"context"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"sync/atomic"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/tools/safeurl"
)

// Model is one model of one endpoint. It is safe for concurrent use. Whoever
// made it may [Model.Close] it.
type Model struct {
	options Options
	client  *http.Client
	// ownsClient says that client is ours to close.
	ownsClient bool
	service    openai.ChatCompletionService
	// quirks is what the endpoint was found to refuse.
	quirks             atomic.Pointer[quirks]
	usageMissingLogged atomic.Bool
}

var _ loop.Model = (*Model)(nil)

// New returns a model, or an error that wraps [ErrInvalid]. It connects to nothing.
func New(o Options) (*Model, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	m := &Model{options: o, client: o.HTTPClient}
	m.quirks.Store(&quirks{})
	if m.client == nil {
		// The transport is a copy: closing its idle connections must not
		// disturb others that share the default one.
		transport, ok := http.DefaultTransport.(*http.Transport)
		if !ok {
			transport = &http.Transport{Proxy: http.ProxyFromEnvironment}
		}
		m.client = &http.Client{Transport: transport.Clone()}
		m.ownsClient = true
	}
	opts := []option.RequestOption{
		option.WithHTTPClient(m.client),
		option.WithBaseURL(o.BaseURL),
		// The one retry layer. It ends when headers arrive.
		option.WithMaxRetries(*o.MaxRetries),
		option.WithMaxRetryDelay(o.MaxRetryDelay),
	}
	if o.APIKey != "" {
		opts = append(opts, option.WithAPIKey(o.APIKey))
	}
	// The service alone, not openai.NewClient, which reads the environment.
	m.service = openai.NewChatCompletionService(opts...)
	return m, nil
}

// Info names the model for records.
func (m *Model) Info() loop.ModelInfo {
	return loop.ModelInfo{Provider: m.options.Provider, Model: m.options.Model, BaseURL: safeurl.String(m.options.BaseURL), ToolNameBytes: toolNameBytes}
}

// Close drops idle connections of the model's own HTTP client. Calls that are
// under way are not disturbed.
func (m *Model) Close() {
	if m.ownsClient {
		m.client.CloseIdleConnections()
	}
}

// Complete makes one call; see [loop.Model].
func (m *Model) Complete(ctx context.Context, req loop.Request, onDelta func(loop.Delta)) (loop.Response, error) {
	if onDelta == nil {
		onDelta = func(loop.Delta) {}
	}
	known := *m.quirks.Load()
	for q := known; ; {
		resp, err := m.sendRequest(ctx, req, q, onDelta)
		if err == nil {
			m.storeQuirks(known, q)
			m.setCost(&resp)
			return resp, nil
		}
		if ctx.Err() != nil {
			return loop.Response{}, fmt.Errorf("complete with model %s: %w", m.options.Model, context.Cause(ctx))
		}
		// Each thing is changed at most once, so this comes to an end.
		next, again := m.adaptQuirks(known, q, req, err)
		if !again {
			return loop.Response{}, err
		}
		q = next
	}
}

// sendRequest sends the request, with retries, and reads the answer.
func (m *Model) sendRequest(ctx context.Context, req loop.Request, q quirks, onDelta func(loop.Delta)) (loop.Response, error) {
	params, err := m.buildParams(req, q)
	if err != nil {
		return loop.Response{}, &loop.ModelError{Class: loop.ModelInvalidRequest, Err: err}
	}
	w := &watcher{options: m.options}
	var res *http.Response
	opts := []option.RequestOption{
		option.WithMiddleware(w.middleware),
		option.WithResponseBodyInto(&res),
	}
	if m.options.Stream {
		opts = append(opts, option.WithJSONSet("stream", true), option.WithHeader("Accept", "text/event-stream"))
	}
	_, err = m.service.New(ctx, params, opts...)
	if err != nil {
		return loop.Response{}, w.toModelError(err)
	}
	defer func() { _ = res.Body.Close() }() // read to its end or given up
	resp, err := m.readResponse(res, onDelta)
	if err != nil {
		return loop.Response{}, w.toModelError(err)
	}
	return resp, nil
}

// readResponse reads an answer in the form that it has, whichever was asked for.
// Endpoints that stream don't always say so.
func (m *Model) readResponse(res *http.Response, onDelta func(loop.Delta)) (loop.Response, error) {
	mediaType, _, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	if err != nil {
		mediaType = ""
	}
	unspecific := slices.Contains([]string{"", "text/plain", "application/octet-stream"}, mediaType)
	if mediaType == "text/event-stream" || m.options.Stream && unspecific {
		return readStream(res, onDelta)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return loop.Response{}, err
	}
	return readWhole(body, onDelta)
}
