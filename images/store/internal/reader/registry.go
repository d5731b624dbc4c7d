package reader

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/caisson-run/caisson/images"
)

// maxAttempts bounds the requests for a blob. The client retries requests
// itself, but not broken downloads.
const maxAttempts = 3

// Registry is a repository in a registry.
type Registry struct {
	ref    name.Reference
	puller *remote.Puller
	o      *Options
}

// OpenRegistry returns a client for ref's repository. It sends no request.
func OpenRegistry(ref images.Reference, o *Options) (*Registry, error) {
	parsed, err := name.ParseReference(ref.Value, name.WeakValidation)
	if err != nil {
		return nil, fmt.Errorf("%w %q: %w", images.ErrInvalid, ref.Value, err)
	}
	host := parsed.Context().RegistryStr()
	if plainHTTP(host, o.PlainHTTP) {
		if parsed, err = name.ParseReference(ref.Value, name.WeakValidation, name.Insecure); err != nil {
			return nil, fmt.Errorf("%w %q: %w", images.ErrInvalid, ref.Value, err)
		}
	}
	keychain := o.Keychain
	if keychain == nil {
		keychain = authn.DefaultKeychain
	}
	puller, err := remote.NewPuller(
		remote.WithTransport(&guardedTransport{base: o.Transport, host: host, plain: plainHTTP(host, o.PlainHTTP), limit: o.Limits.MetadataBytes}),
		remote.WithAuthFromKeychain(keychain),
		remote.WithUserAgent("caisson"),
		remote.WithRetryBackoff(remote.Backoff{Duration: 200 * time.Millisecond, Factor: 3, Jitter: 0.2, Steps: maxAttempts}),
	)
	if err != nil {
		return nil, fmt.Errorf("prepare registry client: %w", err)
	}
	return &Registry{parsed, puller, o}, nil
}

// Name returns the reference with its registry and tag: debian and
// docker.io/library/debian:latest have the same.
func (r *Registry) Name() string { return r.ref.Name() }

// FetchManifest returns the manifest or index that the reference names.
func (r *Registry) FetchManifest(ctx context.Context) ([]byte, error) {
	return r.fetchReference(ctx, r.ref)
}

// FetchDigest returns the manifest or index with this digest.
func (r *Registry) FetchDigest(ctx context.Context, digest string) ([]byte, error) {
	return r.fetchReference(ctx, r.ref.Context().Digest(digest))
}

func (r *Registry) fetchReference(ctx context.Context, ref name.Reference) ([]byte, error) {
	d, err := r.puller.Get(ctx, ref)
	if err != nil {
		return nil, r.classifyError(ctx, err)
	}
	return d.Manifest, nil
}

// FetchDocument is a [DocumentReader] for manifests, indexes and
// configurations.
func (r *Registry) FetchDocument(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	if strings.Contains(string(d.MediaType), "manifest") || strings.Contains(string(d.MediaType), "image.index") {
		return r.FetchDigest(ctx, d.Digest.String())
	}
	if d.Size > r.o.Limits.MetadataBytes {
		return nil, fmt.Errorf("%w: a manifest or configuration of %d bytes: want at most %d", images.ErrRefused, d.Size, r.o.Limits.MetadataBytes)
	}
	body, err := r.openBlob(ctx, d)
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }() // only read
	data, err := ReadDocument(body, d, r.o.Limits.MetadataBytes)
	if err != nil {
		return nil, r.classifyError(ctx, err)
	}
	return data, nil
}

// openBlob requests a blob. The reader fails after Options.IdleTimeout without
// data.
func (r *Registry) openBlob(ctx context.Context, d v1.Descriptor) (io.ReadCloser, error) {
	idle := newIdleReader(ctx, r.o.IdleTimeout)
	l, err := r.puller.Layer(idle.ctx, r.ref.Context().Digest(d.Digest.String()))
	if err == nil {
		idle.body, err = l.Compressed()
	}
	if err != nil {
		err = r.classifyError(idle.ctx, err)
		idle.cancel(nil)
		return nil, err
	}
	return idle, nil
}

// DownloadBlob downloads a blob with write, which fails if the digest doesn't
// match. It reports the number of bytes so far to progress.
func (r *Registry) DownloadBlob(ctx context.Context, d v1.Descriptor, write func(r io.Reader) error, progress func(done int64)) error {
	var err error
	for try := range maxAttempts {
		if try > 0 {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(200 * time.Millisecond << try):
			}
		}
		err = r.downloadBlobOnce(ctx, d, write, progress)
		if err == nil || ctx.Err() != nil || slices.ContainsFunc([]error{images.ErrDigest, images.ErrRefused, images.ErrNotFound, images.ErrUnauthorized},
			func(class error) bool { return errors.Is(err, class) }) {
			return err
		}
	}
	return err
}

func (r *Registry) downloadBlobOnce(ctx context.Context, d v1.Descriptor, write func(r io.Reader) error, progress func(done int64)) error {
	body, err := r.openBlob(ctx, d)
	if err != nil {
		return err
	}
	counted := &countingReader{r: body, limit: d.Size, report: progress}
	if err = write(counted); err != nil && counted.err != nil {
		err = r.classifyError(ctx, counted.err)
	}
	return errors.Join(err, body.Close())
}

type countingReader struct {
	r      io.Reader
	n      int64
	limit  int64
	report func(done int64)
	err    error // the last failed read's
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	if c.n > c.limit {
		err = fmt.Errorf("%w: longer than the %d bytes of its manifest", images.ErrDigest, c.limit)
	}
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	if n > 0 {
		c.report(c.n)
	}
	return n, err
}

// classifyError wraps a client's error with its class and a hint. The request's
// ctx explains a cancellation.
func (r *Registry) classifyError(ctx context.Context, err error) error {
	host := r.ref.Context().RegistryStr()
	if ctx.Err() != nil {
		if cause := context.Cause(ctx); !errors.Is(cause, images.ErrUnreachable) {
			return cause
		}
		return fmt.Errorf("ask %s: %w: check the network and the proxy, or use a cached image", host, context.Cause(ctx))
	}
	for _, class := range []error{images.ErrDigest, images.ErrRefused, images.ErrUnreachable, images.ErrUnsupported} {
		if errors.Is(err, class) {
			return err
		}
	}
	// Check this before the answer, which may be plain HTTP's, tried next where
	// allowed.
	if certificate, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return fmt.Errorf("%w: %s shows a certificate that this machine does not trust: %w: "+
			"if it is a registry of yours, add its CA to the system's, or name the CA's file in SSL_CERT_FILE", images.ErrUnreachable, host, certificate)
	}
	answer, ok := errors.AsType[*transport.Error](err)
	if !ok {
		// The client has no type for these (go-containerregistry v0.22.1,
		// remote/fetcher.go and internal/verify).
		if text := err.Error(); strings.Contains(text, "does not match requested digest") || strings.Contains(text, "error verifying") {
			return fmt.Errorf("ask %s: %w: %w", host, images.ErrDigest, err)
		}
		return fmt.Errorf("%w: %w: check the network and the proxy, or use a cached image", images.ErrUnreachable, err)
	}
	switch code := answer.StatusCode; {
	case code == http.StatusNotFound:
		return fmt.Errorf("%w: %s has no %s: check the name and the tag", images.ErrNotFound, host, r.ref.Name())
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return fmt.Errorf("%w: %s answers %d for %s: check the name, or use docker login %s", images.ErrUnauthorized, host, code, r.ref.Name(), host)
	case code == http.StatusTooManyRequests:
		return fmt.Errorf("%w: %s received too many requests: wait, or use docker login %s", images.ErrUnreachable, host, host)
	default:
		return fmt.Errorf("%w: %s answers %d: %w", images.ErrUnreachable, host, code, err)
	}
}

// idleReader is a response body that fails after timeout without data.
type idleReader struct {
	ctx     context.Context // for one download
	cancel  context.CancelCauseFunc
	timer   *time.Timer
	timeout time.Duration
	body    io.ReadCloser
}

func newIdleReader(ctx context.Context, wait time.Duration) *idleReader {
	inner, cancel := context.WithCancelCause(ctx)
	return &idleReader{ctx: inner, cancel: cancel, timeout: wait, timer: time.AfterFunc(wait, func() {
		cancel(fmt.Errorf("%w: no data for %s", images.ErrUnreachable, wait))
	})}
}

func (i *idleReader) Read(p []byte) (int, error) {
	n, err := i.body.Read(p)
	if n > 0 {
		i.timer.Reset(i.timeout)
	}
	if err != nil && !errors.Is(err, io.EOF) && i.ctx.Err() != nil {
		err = context.Cause(i.ctx)
	}
	return n, err
}

func (i *idleReader) Close() error {
	i.timer.Stop()
	err := i.body.Close()
	i.cancel(nil)
	return err
}

// guardedTransport is the transport to one registry. It bounds manifests' size
// and requires TLS unless the user allows plain HTTP: the client by itself
// would fall back to that for private addresses.
type guardedTransport struct {
	base  http.RoundTripper
	host  string // the registry's
	plain bool   // plain HTTP is allowed
	limit int64
}

func (g *guardedTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "https" && (!g.plain || req.URL.Host != g.host) {
		return nil, fmt.Errorf("%w: %s would be contacted without TLS: allow plain HTTP for it in the configuration if you trust the network",
			images.ErrUnsupported, req.URL.Host)
	}
	resp, err := g.base.RoundTrip(req)
	if err == nil && strings.Contains(req.URL.Path, "/manifests/") {
		resp.Body = &boundedReader{resp.Body, g.limit}
	}
	return resp, err
}

type boundedReader struct {
	io.ReadCloser
	left int64
}

func (b *boundedReader) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("%w: manifest too long", images.ErrRefused)
	}
	return n, err
}

func plainHTTP(host string, allowed []string) bool {
	bare := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		bare = h
	}
	bare = strings.Trim(bare, "[]")
	ip := net.ParseIP(bare)
	return bare == "localhost" || ip != nil && ip.IsLoopback() || slices.Contains(allowed, host) || slices.Contains(allowed, bare)
}

// DefaultTransport returns a transport with timeouts for a waiting user.
func DefaultTransport() http.RoundTripper {
	return &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 5 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		ForceAttemptHTTP2:     true,
		MaxIdleConnsPerHost:   8,
		IdleConnTimeout:       10 * time.Second,
		TLSHandshakeTimeout:   5 * time.Second,
		ExpectContinueTimeout: time.Second,
	}
}
