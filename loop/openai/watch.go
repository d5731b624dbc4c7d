package openai

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/openai/openai-go/v3/option"
)

// Causes for which an answer is discarded.
var (
	errNoHeaders = errors.New("endpoint did not begin to answer in time")
	errSilent    = errors.New("endpoint fell silent in the middle of its answer")
	errTooLarge  = errors.New("answer is larger than allowed")
	errCut       = errors.New("answer broke off before it was complete")
)

// maxErrorBytes is the number of bytes that are read of an error's body.
const maxErrorBytes = 64 << 10

// watcher observes all attempts of one request. It records the refusal of the last
// attempt, and bounds the waits and the size of the answer. Attempts are sequential,
// so it needs no lock.
type watcher struct {
	options Options
	// status, header and body are those of the last refusal; status is 0 if
	// there was none.
	status int
	header http.Header
	body   []byte
	// attempts counts the attempts that have failed.
	attempts int
}

// middleware runs one attempt. See [option.WithMiddleware].
func (w *watcher) middleware(req *http.Request, next option.MiddlewareNext) (*http.Response, error) {
	w.status = 0
	w.header = nil
	w.body = nil
	ctx, cancel := context.WithCancelCause(req.Context())
	wait := time.AfterFunc(w.options.HeaderTimeout, func() { cancel(errNoHeaders) })
	res, err := next(req.WithContext(ctx))
	wait.Stop()
	if err != nil {
		defer cancel(nil)
		w.reportRetry(req.Context(), nil)
		if cause := context.Cause(ctx); errors.Is(cause, errNoHeaders) {
			return nil, fmt.Errorf("%w (%v): %w", errNoHeaders, w.options.HeaderTimeout, err)
		}
		return nil, err
	}
	res.Body = &boundedBody{
		body: res.Body, left: w.options.MaxResponseBytes, idle: w.options.IdleTimeout, ctx: ctx, cancel: cancel,
	}
	if res.StatusCode >= http.StatusBadRequest {
		w.recordRefusal(res)
		w.reportRetry(req.Context(), res)
	}
	return res, nil
}

// reportRetry counts an attempt that failed, with an answer or with none, and
// reports the retry that follows it, if any.
func (w *watcher) reportRetry(ctx context.Context, res *http.Response) {
	w.attempts++
	if ctx.Err() != nil || w.attempts > *w.options.MaxRetries || res != nil && !isRetriable(res) {
		return
	}
	// The library's jitter shortens this delay by up to a quarter.
	delay := min(500*time.Millisecond<<min(w.attempts-1, 30), w.options.MaxRetryDelay)
	if asked := parseRetryAfter(w.header); asked > w.options.MaxRetryDelay {
		return
	} else if asked > 0 {
		delay = asked
	}
	w.options.OnRetry(Retry{Status: w.status, Delay: delay, Number: w.attempts, Most: *w.options.MaxRetries})
}

// isRetriable reports whether the library repeats a request after a refusal.
func isRetriable(res *http.Response) bool {
	switch res.Header.Get("X-Should-Retry") {
	case "true":
		return true
	case "false":
		return false
	}
	switch res.StatusCode {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusTooManyRequests:
		return true
	}
	return res.StatusCode >= http.StatusInternalServerError
}

// recordRefusal records a refusal and empties its body. The library could not decode
// the body of some endpoints, and would then return an error without the status.
func (w *watcher) recordRefusal(res *http.Response) {
	w.status, w.header = res.StatusCode, res.Header
	// After an error, the part that arrived is used.
	w.body, _ = io.ReadAll(io.LimitReader(res.Body, maxErrorBytes))
	_ = res.Body.Close()
	res.Body = http.NoBody
}

// boundedBody is the body of an answer with a limit of its size and of its pauses.
type boundedBody struct {
	body   io.ReadCloser
	left   int64
	idle   time.Duration
	ctx    context.Context //nolint:containedctx // the body of one response is one operation
	cancel context.CancelCauseFunc
}

// Read implements [io.Reader]. Its error is that of the limit reached, if any.
func (b *boundedBody) Read(p []byte) (int, error) {
	timer := time.AfterFunc(b.idle, func() { b.cancel(errSilent) })
	defer timer.Stop()
	if b.left <= 0 {
		return 0, errTooLarge
	}
	n, err := b.body.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		if errors.Is(context.Cause(b.ctx), errSilent) {
			return n, fmt.Errorf("%w (%v)", errSilent, b.idle)
		}
		return n, fmt.Errorf("%w: %w", errCut, err)
	}
	return n, err
}

// Close implements [io.Closer].
func (b *boundedBody) Close() error {
	defer b.cancel(nil)
	return b.body.Close()
}
