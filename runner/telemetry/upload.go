package telemetry

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/safeurl"
)

// endpoint is where a signal is sent. OpenTelemetry's exporters are not used
// because they link gRPC, which slows down every start of the program.
type endpoint struct {
	url     *url.URL
	headers http.Header
	gzip    bool
	timeout time.Duration
	client  *http.Client
}

const maxAnswer = 64 << 10

// firstPause and maxPause bound the time before a request is repeated.
const (
	firstPause = time.Second
	maxPause   = 8 * time.Second
)

// makeClient makes the client. It follows no redirects: the headers are only
// for the collector that the operator named.
func (e *endpoint) makeClient(config *tls.Config) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = config
	transport.MaxIdleConns = 2
	transport.MaxIdleConnsPerHost = 2
	e.client = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// postMessage sends a message, repeatedly if the collector asks for it.
func (e *endpoint) postMessage(ctx context.Context, m proto.Message) error {
	body, err := proto.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	if e.gzip {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, err := w.Write(body)
		if err := errors.Join(err, w.Close()); err != nil {
			return fmt.Errorf("compress: %w", err)
		}
		body = b.Bytes()
	}
	ctx, cancel := context.WithTimeoutCause(ctx, e.timeout, fmt.Errorf("no answer within %s", e.timeout))
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		wait, err := e.postOnce(ctx, body)
		if wait < 0 {
			return err
		}
		select {
		case <-time.After(max(wait, pause)):
		case <-ctx.Done():
			return err
		}
	}
}

// postOnce sends a body once. If it must be sent again, wait is the time to wait
// first; otherwise wait is negative.
func (e *endpoint) postOnce(ctx context.Context, body []byte) (wait time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url.String(), bytes.NewReader(body))
	if err != nil {
		return -1, fmt.Errorf("export to %s: %w", e.address(), err)
	}
	req.Header = e.headers.Clone()
	req.Header.Set("Content-Type", "application/x-protobuf")
	if e.gzip {
		req.Header.Set("Content-Encoding", "gzip")
	}
	res, err := e.client.Do(req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err // without the address, whose query may be a secret
		}
		return -1, fmt.Errorf("export to %s: %w", e.address(), err)
	}
	defer func() { _ = res.Body.Close() }() // its end was read, or doesn't matter
	answer, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	switch {
	case res.StatusCode/100 == 2 && err == nil:
		if text := describeRejected(answer); text != "" {
			return -1, fmt.Errorf("export to %s: the collector rejected %s", e.address(), text)
		}
		return -1, nil
	case err != nil:
		return -1, fmt.Errorf("export to %s: read answer: %w", e.address(), err)
	}
	err = fmt.Errorf("export to %s: the collector answered %d %s", e.address(), res.StatusCode, http.StatusText(res.StatusCode))
	switch res.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		seconds, _ := strconv.ParseUint(res.Header.Get("Retry-After"), 10, 16)
		return time.Duration(seconds) * time.Second, err
	}
	return -1, err
}

// address returns the address, safe to show.
func (e *endpoint) address() string { return safeurl.String(e.url.String()) }

// describeRejected returns what a collector rejected, or "". Its answer is a
// message whose first field, partial_success, has a count and a text.
func describeRejected(answer []byte) string {
	number, kind, n := protowire.ConsumeTag(answer)
	if n < 0 || number != 1 || kind != protowire.BytesType {
		return ""
	}
	partial, n := protowire.ConsumeBytes(answer[n:])
	if n < 0 {
		return ""
	}
	var count uint64
	var text []byte
	for len(partial) > 0 {
		number, kind, n := protowire.ConsumeTag(partial)
		if n < 0 {
			break
		}
		partial = partial[n:]
		switch {
		case number == 1 && kind == protowire.VarintType:
			count, n = protowire.ConsumeVarint(partial)
		case number == 2 && kind == protowire.BytesType:
			text, n = protowire.ConsumeBytes(partial)
		default:
			n = protowire.ConsumeFieldValue(number, kind, partial)
		}
		if n < 0 {
			break
		}
		partial = partial[n:]
	}
	if count == 0 {
		return "" // a text alone is a notice
	}
	rejected := limits.FormatCount(int(min(count, math.MaxInt)), "item")
	if safe, _ := tools.Display(tools.Elide(string(text), 200)); safe != "" {
		rejected += ": " + safe
	}
	return rejected
}

type traceClient struct{ *endpoint }

func (*traceClient) Start(context.Context) error { return nil }

func (*traceClient) Stop(context.Context) error { return nil }

// UploadTraces implements otlptrace.Client. TracesData has the same encoding as
// the service's request, whose package would link gRPC.
func (c *traceClient) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	return c.postMessage(ctx, &tracepb.TracesData{ResourceSpans: spans})
}
