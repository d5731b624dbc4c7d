// Package modelhttp has what models' HTTP adapters share: bounds on waits and sizes,
// and failure classes.
package modelhttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/caisson-run/caisson/loop"
)

var (
	errNoHeaders = errors.New("endpoint did not begin to answer in time")
	errSilent    = errors.New("endpoint fell silent in the middle of its answer")
	errSlow      = errors.New("endpoint did not end its answer in time")
	// ErrTooLarge is an answer without an end.
	ErrTooLarge = loop.AnswerError("answer is larger than allowed")
	// ErrCut is an answer whose end is missing.
	ErrCut = errors.New("answer broke off before it was complete")
)

const maxErrorBytes = 64 << 10

// Watcher observes one request. It records a refusal, and bounds waits and the answer's
// size.
type Watcher struct {
	loop.ModelOptions
	// Response is the answer, nil after a refusal or failure.
	Response *http.Response

	// status, header and body are the refusal's; status is 0 if there was none.
	status int
	header http.Header
	body   []byte
}

// Middleware runs the request, as a middleware of the provider's library.
func (w *Watcher) Middleware(req *http.Request, next func(*http.Request) (*http.Response, error)) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	wait := time.AfterFunc(w.HeaderTimeout, func() { cancel(errNoHeaders) })
	res, err := next(req.WithContext(ctx))
	wait.Stop()
	if err != nil {
		defer cancel(nil)
		if cause := context.Cause(ctx); errors.Is(cause, errNoHeaders) {
			return nil, fmt.Errorf("%w (%v): %w", errNoHeaders, w.HeaderTimeout, err)
		}
		return nil, err
	}
	refused := res.StatusCode >= http.StatusBadRequest
	body := &boundedBody{
		body: res.Body, left: w.MaxResponseBytes, idle: w.IdleTimeout, whole: w.AnswerTimeout, ctx: ctx, cancel: cancel,
	}
	if refused {
		body.whole = min(body.whole, w.IdleTimeout) // the body only explains the status
	}
	body.end = time.AfterFunc(body.whole, func() { cancel(errSlow) })
	res.Body = body
	if refused {
		w.recordRefusal(res)
	} else {
		w.Response = res
	}
	return res, nil
}

// isRetriable reports whether a refused request may succeed later.
func isRetriable(status int, header http.Header, message string) bool {
	if classifyRefusal(status, message) == loop.ModelContextOverflow {
		return false
	}
	switch header.Get("X-Should-Retry") {
	case "true":
		return true
	case "false":
		return false
	}
	switch status {
	case http.StatusRequestTimeout, http.StatusConflict:
		return true
	case http.StatusNotImplemented:
		return false
	case http.StatusPaymentRequired: // OpenRouter, while other requests hold the rest
		return header.Get("Retry-After") != ""
	case http.StatusTooManyRequests:
		return !isQuota(status, message)
	}
	return status >= http.StatusInternalServerError
}

func isQuota(status int, message string) bool {
	return status == http.StatusTooManyRequests && strings.Contains(message, "insufficient_quota")
}

// recordRefusal records a refusal and empties its body. The library can't decode some
// endpoints' bodies, and would then return an error without the status.
func (w *Watcher) recordRefusal(res *http.Response) {
	w.status, w.header = res.StatusCode, res.Header
	// After an error, use the part that arrived.
	w.body, _ = io.ReadAll(io.LimitReader(res.Body, maxErrorBytes))
	_ = res.Body.Close()
	res.Body = http.NoBody
}

// boundedBody is an answer's body with bounds on its size, its pauses and its duration.
type boundedBody struct {
	body   io.ReadCloser
	left   int64
	idle   time.Duration
	whole  time.Duration
	end    *time.Timer     // ends the whole answer
	ctx    context.Context //nolint:containedctx // the body of one response is one operation
	cancel context.CancelCauseFunc
}

// Read returns the error of the bound that was reached, if any.
func (b *boundedBody) Read(p []byte) (int, error) {
	timer := time.AfterFunc(b.idle, func() { b.cancel(errSilent) })
	defer timer.Stop()
	if b.left < 0 {
		return 0, ErrTooLarge
	}
	n, err := b.body.Read(p[:min(int64(len(p))-1, b.left)+1])
	b.left -= int64(n)
	if b.left < 0 {
		return n - 1, ErrTooLarge
	}
	if err != nil && !errors.Is(err, io.EOF) {
		switch cause := context.Cause(b.ctx); {
		case errors.Is(cause, errSilent):
			return n, fmt.Errorf("%w (%v)", errSilent, b.idle)
		case errors.Is(cause, errSlow):
			return n, fmt.Errorf("%w (%v)", errSlow, b.whole)
		}
		return n, fmt.Errorf("%w: %w", ErrCut, err)
	}
	return n, err
}

func (b *boundedBody) Close() error {
	b.end.Stop()
	defer b.cancel(nil)
	return b.body.Close()
}
