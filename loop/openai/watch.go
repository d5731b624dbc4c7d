package openai

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
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

// watcher observes one request. It records a refusal, and bounds the waits and the
// size of the answer.
type watcher struct {
	options Options
	// began reports whether an answer other than a refusal began.
	began bool
	// status, header and body are those of a refusal; status is 0 if there was
	// none.
	status int
	header http.Header
	body   []byte
}

// middleware runs the request. See [option.WithMiddleware].
func (w *watcher) middleware(req *http.Request, next option.MiddlewareNext) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(req.Context())
	wait := time.AfterFunc(w.options.HeaderTimeout, func() { cancel(errNoHeaders) })
	res, err := next(req.WithContext(ctx))
	wait.Stop()
	if err != nil {
		defer cancel(nil)
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
	} else {
		w.began = true
	}
	return res, nil
}

// isRetriable reports whether a request that was refused may succeed later.
func isRetriable(status int, header http.Header, message string) bool {
	switch header.Get("X-Should-Retry") {
	case "true":
		return true
	case "false":
		return false
	}
	switch status {
	case http.StatusRequestTimeout, http.StatusConflict:
		return true
	case http.StatusTooManyRequests:
		return !strings.Contains(message, "insufficient_quota")
	}
	return status >= http.StatusInternalServerError
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
