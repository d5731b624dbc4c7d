package egress

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/caisson-run/caisson/tools/egress/cache"
	"github.com/caisson-run/caisson/tools/egress/preset"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

// Registries are the package registries whose files a server caches.
type Registries struct {
	Preset *preset.Preset
	Cache  *cache.Cache
	// Lock pins or records contents. It may be nil.
	Lock *cache.Lock
}

// mirrorTarget returns the URL that a path of the proxy stands for, and false for
// none.
func (o *Options) mirrorTarget(raw string) (string, bool) {
	for _, m := range o.Mirrors {
		if rest, ok := strings.CutPrefix(raw, m.Path); ok {
			return m.URL + rest, true
		}
	}
	return "", false
}

// serveRegistry answers an allowed request from the cache. It returns false if the
// request can't be answered from there.
func (x *httpConn) serveRegistry(f *flow, w http.ResponseWriter, req *http.Request, t rule.Target, r request) bool {
	g := x.s.opts.Registries
	if g == nil || x.s.opts.Secrets.Covers(t.Origin) {
		return false
	}
	kind, ok := g.Preset.Kind(t)
	switch {
	case !ok:
		return false
	case !cache.Cacheable(req) && g.Lock.IsStrict():
		x.answerRefused(w, r, newRefusal(rule.ReasonNotLocked, "only whole files of the lock are served"))
		return true
	case !cache.Cacheable(req):
		return false
	}
	q := cache.Request{URL: t.String(), Accept: strings.Join(req.Header.Values("Accept"), ", "), Kind: kind, Lock: g.Lock, Fetch: x.s.fetchFile(r, t)}
	if kind == cache.File {
		q.Digest = g.Preset.Digest(g.Cache, t)
	}
	res, err := g.Cache.Serve(w, req.WithContext(f.ctx), q)
	if failed, ok := errors.AsType[*cache.PanicError](err); ok {
		x.s.opts.Failed(&PanicError{Value: failed.Value, Stack: failed.Stack})
	}
	x.s.opts.Requested(Requested{
		Command: r.command, Method: r.method, URL: r.url, Status: res.Status, Received: res.Bytes, SHA256: res.SHA256, Complete: err == nil, Cached: res.Hit,
	})
	switch failed := asRefusal(f.ctx, err); {
	case err == nil:
	case res.Status == 0:
		x.answerRefused(w, r, failed)
	default:
		if failed != nil {
			x.s.reportDenied(r, failed)
		}
		panic(http.ErrAbortHandler)
	}
	return true
}

// fetchFile returns a function that gets a URL for the cache, on behalf of a
// request. It sends its own request, because others may wait for the file after the
// program has gone.
func (s *Server) fetchFile(r request, t rule.Target) func(context.Context, http.Header) (*http.Response, error) {
	return func(ctx context.Context, header http.Header) (res *http.Response, err error) {
		var a *attempt
		var end func()
		defer func() {
			if err != nil && end != nil { // otherwise the end of the body calls it
				end()
			}
		}()
		defer s.recoverPanic(func(failed error) { res, err = nil, failed })
		a, end, err = s.beginAttempt(ctx, r, t, http.MethodGet)
		if err != nil {
			return nil, err
		}
		req := (&http.Request{Method: http.MethodGet, URL: t.URL(), Header: header, ProtoMajor: 1, ProtoMinor: 1}).WithContext(a.context())
		res, err = s.files.RoundTrip(req)
		if err != nil {
			if failed := asRefusal(a.flow.ctx, err); failed != nil { // else the flow has ended
				err = failed
			}
			return nil, err
		}
		if res.StatusCode < 200 {
			_ = res.Body.Close()
			return nil, newFailure(nil, rule.ReasonProtocol, "the host answered with status %d, which was not asked for", res.StatusCode)
		}
		res.Body = &fileBody{ReadCloser: res.Body, end: end}
		return res, nil
	}
}

type fileBody struct {
	io.ReadCloser
	end func()
}

func (b *fileBody) Close() error {
	err := b.ReadCloser.Close()
	b.end()
	return err
}

// refuseFile returns an error of the cache as a *refusal, or nil for any other
// error.
func refuseFile(err error) *refusal {
	if missing, ok := errors.AsType[*cache.NotLockedError](err); ok {
		return newRefusal(rule.ReasonNotLocked, "%v", missing)
	}
	if wrong, ok := errors.AsType[*cache.DigestError](err); ok {
		return newRefusal(rule.ReasonDigest, "%v", wrong)
	}
	return nil
}
