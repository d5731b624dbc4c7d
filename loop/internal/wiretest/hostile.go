package wiretest

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caisson-run/caisson/loop"
)

// TestRedirects checks that neither the conversation nor a key goes to a server that is
// not configured, and that redirects within the configured one are followed.
func TestRedirects(t *testing.T, a Adapter) {
	var elsewhere atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		elsewhere.Add(1)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, a.Done)
	}))
	defer other.Close()
	for _, status := range []int{301, 302, 303, 307, 308} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, other.URL+"/v1?key=hunter2", status)
			}))
			defer server.Close()
			_, _, err := CallModel(t, a.New(t, server.URL, Timeouts{}), NewRequest())
			failure, ok := errors.AsType[*loop.ModelError](err)
			if !ok || failure.Class != loop.ModelOther || failure.Retryable || !strings.Contains(err.Error(), "redirects to "+other.URL) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("error %v", err)
			}
		})
	}
	if n := elsewhere.Load(); n > 0 {
		t.Errorf("%d requests reached another server", n)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		switch {
		case err != nil || !bytes.Contains(body, []byte("Do it.")):
			t.Errorf("%s: body %q, %v", r.URL, body, err)
		case r.URL.Path != "/moved":
			http.Redirect(w, r, "/moved", http.StatusTemporaryRedirect)
		default:
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, a.Done)
		}
	}))
	defer server.Close()
	if resp, _, err := CallModel(t, a.New(t, server.URL, Timeouts{}), NewRequest()); err != nil || Summarize(resp) != "text:Done." {
		t.Errorf("within the server: %s, %v", Summarize(resp), err)
	}
}

// TestFloods checks that an answer fails if it has more calls than any model makes,
// data that is far larger decompressed, or endless headers. call returns the piece with
// call i; whole is an unstreamed answer with many calls.
func TestFloods(t *testing.T, a Adapter, mediaType string, call func(i int) string, whole string) {
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	for range 128 {
		if _, err := z.Write(bytes.Repeat([]byte(" "), 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		answer http.HandlerFunc
		class  loop.ErrorClass
		words  string
	}{
		"calls": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", mediaType)
			for i := range 100_000 {
				if _, err := io.WriteString(w, call(i)); err != nil {
					return
				}
			}
		}, loop.ModelOther, "larger than allowed"},
		"calls at once": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, whole)
		}, loop.ModelOther, "larger than allowed"},
		"gzip": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(bomb.Bytes())
		}, loop.ModelOther, "larger than allowed"},
		"headers": {func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			line := "X-Filler: " + strings.Repeat("x", 1<<16) + "\r\n"
			_, err = io.WriteString(conn, "HTTP/1.1 200 OK\r\n")
			for err == nil {
				_, err = io.WriteString(conn, line)
			}
		}, loop.ModelNetwork, "headers exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(tt.answer)
			defer server.Close()
			resp, _, err := CallModel(t, a.New(t, server.URL, Timeouts{}), NewRequest())
			failure, ok := errors.AsType[*loop.ModelError](err)
			if !ok || failure.Class != tt.class || !strings.Contains(err.Error(), tt.words) || len(resp.Message.Blocks) > 0 {
				t.Errorf("error %.300v, want class %s and %q", err, tt.class, tt.words)
			}
		})
	}
}
