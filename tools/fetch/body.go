package fetch

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/caisson-run/caisson/limits"
)

// wireOverhead is how much longer a body may be on the wire than decoded, for
// gzip's frames.
const wireOverhead = 64 << 10

// readBody reads and decodes a response's body. It refuses a body that exceeds the
// client's limit instead of truncating it: half a page can mislead.
func (c *Client) readBody(res *http.Response) ([]byte, error) {
	coding := strings.ToLower(strings.TrimSpace(strings.Join(res.Header.Values("Content-Encoding"), ",")))
	limit := c.opts.MaxBytes
	wire := &boundedReader{r: res.Body, left: limit + wireOverhead}
	var body io.Reader = wire
	switch coding {
	case "", "identity":
	case "gzip", "x-gzip":
		unzip, err := gzip.NewReader(wire)
		if err != nil {
			return nil, bodyError(err, "the response is not the gzip that it says it is")
		}
		body = unzip
	default:
		return nil, newFailure("encoding", "the response is encoded as %.60q, which was not asked for", coding)
	}
	var buf bytes.Buffer
	n, err := io.Copy(&buf, io.LimitReader(body, limit+1))
	switch {
	case n > limit || errors.Is(err, errTooLarge):
		return nil, newFailure("too_large", "the response is longer than %d bytes", limit)
	case err != nil:
		return nil, bodyError(err, "the response broke off after %d bytes", n)
	}
	return buf.Bytes(), nil
}

// bodyError returns the failure for an unreadable body. It returns timeouts and
// exceeded budgets as they are.
func bodyError(err error, format string, args ...any) error {
	if _, ok := errors.AsType[*limits.ExceededError](err); ok || isTimeout(err) {
		return err
	}
	return newOutage(err, "protocol", "%s", fmt.Sprintf(format, args...))
}

var errTooLarge = errors.New("too large")

type boundedReader struct {
	r    io.Reader
	left int64
}

func (b *boundedReader) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errTooLarge
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}
