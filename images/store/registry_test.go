package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/internal/digest"
	"github.com/caisson-run/caisson/images/internal/imagetest"
	"github.com/caisson-run/caisson/images/layer"
	"github.com/caisson-run/caisson/images/store/internal/reader"
)

func TestRegistryFaults(t *testing.T) {
	reg := newRegistry(t)
	im := simple(t, imagetest.File("which", "one"))
	pushed := reg.push(t, "x:1", im)
	config, err := im.RawConfigFile()
	must(t, err)
	other := reg.push(t, "x:2", simple(t, imagetest.File("which", "two")))
	answer := func(code int) meddler {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path == "/v2/" {
				return false
			}
			http.Error(w, "no", code)
			return true
		}
	}
	tests := map[string]struct {
		where  string
		meddle meddler
		is     error
		says   string
	}{
		"no such tag":        {where: "x:3", is: images.ErrNotFound, says: "check the name"},
		"no such repository": {where: "y:1", is: images.ErrNotFound},
		"no such digest":     {where: "x@sha256:" + strings.Repeat("0", 64), is: images.ErrNotFound},
		"no credentials": {where: "x:1", is: images.ErrUnauthorized, says: "docker login", meddle: func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("WWW-Authenticate", `Basic realm="here"`)
			http.Error(w, "who are you", http.StatusUnauthorized)
			return true
		}},
		"not allowed":       {where: "x:1", is: images.ErrUnauthorized, meddle: answer(http.StatusForbidden)},
		"too many requests": {where: "x:1", is: images.ErrUnreachable, says: "too many requests", meddle: answer(http.StatusTooManyRequests)},
		"broken":            {where: "x:1", is: images.ErrUnreachable, says: "500", meddle: answer(http.StatusInternalServerError)},
		"another manifest than its digest": {where: "x@" + pushed, is: images.ErrDigest, meddle: func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/manifests/") || strings.Contains(r.URL.Path, other) {
				return false
			}
			http.Redirect(w, r, "/v2/x/manifests/"+other, http.StatusTemporaryRedirect)
			return true
		}},
		"a manifest without end": {where: "x:1", is: images.ErrRefused, meddle: func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/manifests/") {
				return false
			}
			w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
			for range 100 << 20 / 4096 {
				if _, err := w.Write(make([]byte, 4096)); err != nil {
					break
				}
			}
			return true
		}},
		"a manifest that is none":       {where: "x:1", is: images.ErrInvalid, meddle: manifestOf(`not json`)},
		"a manifest that is an index":   {where: "x:1", is: images.ErrInvalid, says: "also an index", meddle: manifestOf(`{"manifests":[],"config":{}}`)},
		"schema 1":                      {where: "x:1", is: images.ErrUnsupported, says: "schema version 1", meddle: manifestOf(`{"schemaVersion":1}`)},
		"an index of nothing":           {where: "x:1", is: images.ErrNotFound, meddle: manifestOf(`{"manifests":[{"mediaType":"application/vnd.oci.image.index.v1+json","digest":"sha256:` + strings.Repeat("1", 64) + `","size":1}]}`)},
		"no image but another artifact": {where: "x:1", is: images.ErrInvalid, says: "not a container image", meddle: manifestOf(`{"config":{"mediaType":"application/vnd.cncf.helm.config.v1+json","digest":"sha256:` + strings.Repeat("1", 64) + `","size":1},"layers":[]}`)},
		"a configuration of a gigabyte": {where: "x:1", is: images.ErrRefused, meddle: manifestOf(`{"config":{"digest":"sha256:` + strings.Repeat("1", 64) + `","size":1000000000},"layers":[]}`)},
		"a layer of a negative size":    {where: "x:1", is: images.ErrInvalid, says: "invalid layer", meddle: manifestOf(fmt.Sprintf(`{"config":{"digest":"%s","size":%d},"layers":[{"digest":"sha256:%064d","size":-1}]}`, digest.Of(config), len(config), 2))},
		"layers that are other content": {where: "x:1", is: images.ErrDigest, meddle: blobOf(func(w http.ResponseWriter, n int64) { io.CopyN(w, imagetest.Zeros{}, n) })},
		"layers that end early":         {where: "x:1", is: images.ErrUnreachable, meddle: blobOf(cutShort)},
		"layers longer than announced":  {where: "x:1", is: images.ErrDigest, meddle: blobOf(func(w http.ResponseWriter, n int64) { io.CopyN(w, imagetest.Zeros{}, n+10<<20) })},
		"layers that are gone":          {where: "x:1", is: images.ErrNotFound, meddle: blobOf(func(w http.ResponseWriter, _ int64) { http.Error(w, "gone", http.StatusNotFound) })},
	}
	for what, tt := range tests {
		t.Run(what, func(t *testing.T) {
			reg.meddle.Store(&tt.meddle)
			defer reg.meddle.Store(nil)
			s := openStore(t, storeDir(t), func(o *Options) { o.Limits.MetadataBytes = 1 << 20 })
			start := time.Now()
			_, _, err := s.RootFS(t.Context(), reg.ref(t, tt.where))
			if !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v, want %v that says %q", err, tt.is, tt.says)
			}
			if took := time.Since(start); took > time.Minute {
				t.Errorf("took %v", took)
			}
			noHalves(t, s)
			reg.meddle.Store(nil)
			if tt.where == "x:1" { // nothing of it sticks
				root, release := rootfs(t, s, reg.ref(t, "x:1"))
				release()
				if root.Digest != pushed {
					t.Errorf("afterwards: %s", root.Digest)
				}
			}
		})
	}
}

func manifestOf(text string) meddler {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/manifests/") || strings.Contains(r.URL.Path, "sha256:") {
			return false
		}
		w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
		io.WriteString(w, text)
		return true
	}
}

// blobOf meddles with layers but not with configurations, which are JSON.
func blobOf(answer func(w http.ResponseWriter, size int64)) meddler {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") || r.UserAgent() == "inside" {
			return false
		}
		req, err := http.NewRequest(http.MethodGet, "http://"+r.Host+r.URL.Path, nil)
		if err != nil {
			return false
		}
		req.Header.Set("User-Agent", "inside")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		data, _ := io.ReadAll(resp.Body)
		if json.Valid(data) {
			w.Write(data)
			return true
		}
		answer(w, int64(len(data)))
		return true
	}
}

// cutShort sends less than it announces.
func cutShort(w http.ResponseWriter, size int64) {
	w.Header().Set("Content-Length", fmt.Sprint(size))
	io.CopyN(w, imagetest.Zeros{}, size/2)
}

// noHalves checks that a store contains nothing half made.
func noHalves(t testing.TB, s *Store) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(s.o.Dir, "tmp"))
	if err != nil || len(entries) != 0 {
		t.Errorf("temporary: %v, %v", entries, err)
	}
	trees, err := os.ReadDir(filepath.Join(s.o.Dir, "trees"))
	if err != nil {
		t.Error(err)
	}
	for _, e := range trees {
		if !pathExists(filepath.Join(s.trees.treePath(e.Name()), "facts.json")) {
			t.Errorf("half a tree: %s", e.Name())
		}
	}
	blobs, err := os.ReadDir(filepath.Join(s.o.Dir, "blobs", "sha256"))
	if err != nil {
		t.Error(err)
	}
	for _, e := range blobs {
		data, err := os.ReadFile(filepath.Join(s.o.Dir, "blobs", "sha256", e.Name()))
		if err != nil || digest.Hex(digest.Of(data)) != e.Name() {
			t.Errorf("blob %s is not what it says: %v", e.Name(), err)
		}
	}
}

func TestUnreachable(t *testing.T) {
	// One port has no listener, and no other process can get it. The other one
	// never answers.
	const host = "127.0.0.1:1"
	release := make(chan struct{})
	mute := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer mute.Close()
	defer close(release)
	s := openStore(t, storeDir(t), func(o *Options) { o.ResolveTimeout = 300 * time.Millisecond })
	for _, h := range []string{host, strings.TrimPrefix(mute.URL, "http://")} {
		_, _, err := s.RootFS(t.Context(), mustParse(t, h+"/x:1"))
		if !errors.Is(err, images.ErrUnreachable) || !strings.Contains(err.Error(), "check the network") {
			t.Errorf("%s: %v", h, err)
		}
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errBrokenLine)
	if _, _, err := s.RootFS(ctx, mustParse(t, host+"/x:1")); !errors.Is(err, errBrokenLine) {
		t.Errorf("cancelled: %v", err)
	}
	noHalves(t, s)
}

func TestIdleDownload(t *testing.T) {
	reg := newRegistry(t)
	reg.push(t, "x:1", simple(t))
	stop := make(chan struct{})
	defer close(stop)
	reg.meddle.Store(new(blobOf(func(w http.ResponseWriter, n int64) {
		w.Header().Set("Content-Length", fmt.Sprint(n))
		w.Write([]byte{0x1f})
		w.(http.Flusher).Flush()
		<-stop
	})))
	s := openStore(t, storeDir(t), func(o *Options) { o.IdleTimeout = 100 * time.Millisecond })
	if _, _, err := s.RootFS(t.Context(), reg.ref(t, "x:1")); !errors.Is(err, images.ErrUnreachable) || !strings.Contains(err.Error(), "no data for") {
		t.Errorf("a download that stands still: %v", err)
	}
	noHalves(t, s)
}

func TestPlainHTTP(t *testing.T) {
	reg := newRegistry(t)
	reg.push(t, "x:1", simple(t))
	// Every request goes to the registry, whatever its target, because the
	// client would ask a private address without TLS.
	var asked atomic.Int64
	there := roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.URL.Scheme == "https" {
			return nil, errors.New("no TLS here")
		}
		asked.Add(1)
		r = r.Clone(r.Context())
		r.URL.Host = reg.host
		return http.DefaultTransport.RoundTrip(r)
	})
	s := openStore(t, storeDir(t), func(o *Options) { o.Transport = there })
	ref := mustParse(t, "10.1.2.3:5000/x:1")
	if _, _, err := s.RootFS(t.Context(), ref); err == nil || asked.Load() != 0 {
		t.Errorf("a private address was asked %d times without TLS: %v", asked.Load(), err)
	}
	s = openStore(t, storeDir(t), func(o *Options) { o.Transport, o.PlainHTTP = there, []string{"10.1.2.3:5000"} })
	_, release := rootfs(t, s, ref)
	release()
	if asked.Load() == 0 {
		t.Error("the registry was never asked: the test shows nothing")
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return r(req) }

// TestRetry cuts the first download of each layer.
func TestRetry(t *testing.T) {
	reg := newRegistry(t)
	reg.push(t, "x:1", simple(t))
	var asked sync.Map // paths
	cut := blobOf(cutShort)
	reg.meddle.Store(new(meddler(func(w http.ResponseWriter, r *http.Request) bool {
		if r.UserAgent() == "inside" {
			return false
		}
		_, again := asked.LoadOrStore(r.URL.Path, true)
		return !again && cut(w, r)
	})))
	s := openStore(t, storeDir(t))
	_, release := rootfs(t, s, reg.ref(t, "x:1"))
	release()
	noHalves(t, s)
}

// Layers whose sizes overflow are refused before anything is downloaded.
func TestSizesThatOverflow(t *testing.T) {
	s := openStore(t, storeDir(t))
	im := &reader.Image{Layers: []layer.Layer{{Digest: "sha256:a", Size: math.MaxInt64}, {Digest: "sha256:b", Size: math.MaxInt64}}}
	if err := s.downloadLayers(t.Context(), im, nil); !errors.Is(err, images.ErrRefused) {
		t.Errorf("%v, want ErrRefused", err)
	}
}
