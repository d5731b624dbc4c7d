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

// Causes of an answer that was given up.
var (
	errNoHeaders = errors.New("endpoint did not begin to answer in time")
	errSilent    = errors.New("endpoint fell silent in the middle of its answer")
	errTooLarge  = errors.New("answer is larger than allowed")
	errCut       = errors.New("answer broke off before it was complete")
)

// maxErrorBytes bounds what is read of an error's body.
const maxErrorBytes = 64 << 10

// watcher observes one request through all of its attempts: it keeps what the
// last one failed with, and bounds the waits and the size of the answer. It
// belongs to one goroutine, as the attempts follow one another.
type watcher struct {
	options Options
	// status, header and body are the last refusal's; status is 0 where
	// there was none.
	status int
	header http.Header
	body   []byte
}

// middleware runs once for each attempt.
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
	}
	return res, nil
}

// recordRefusal reads a refusal, and gives it a body that the library can read too:
// an empty object, because the library fails without a status on others.
func (w *watcher) recordRefusal(res *http.Response) {
	w.status, w.header = res.StatusCode, res.Header
	// An error on the way leaves what arrived, which is all that can be told.
	w.body, _ = io.ReadAll(io.LimitReader(res.Body, maxErrorBytes))
	_ = res.Body.Close()
	res.Body = http.NoBody
}

// boundedBody is an answer's body under a size and a silence limit.
type boundedBody struct {
	body   io.ReadCloser
	left   int64
	idle   time.Duration
	ctx    context.Context //nolint:containedctx // the body of one response is one operation
	cancel context.CancelCauseFunc
}

// Read reads and says why where it gives up.
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

// Close ends the response.
func (b *boundedBody) Close() error {
	defer b.cancel(nil)
	return b.body.Close()
}
