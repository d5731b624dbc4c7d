package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

// TestRoundTripper checks that Caisson's own requests are decided, reported and
// metered, also after redirects.
func TestRoundTripper(t *testing.T) {
	other := newCanary(t, "127.0.0.1:0")
	server := startSecure(t, func(w http.ResponseWriter, r *http.Request) {
		if to := r.URL.Query().Get("to"); to != "" {
			http.Redirect(w, r, to, http.StatusTemporaryRedirect)
			return
		}
		text, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %s", r.Header.Get("Authorization"), text)
	})
	f := newSession(t, server, nil, "https://localhost:"+server.port+"/mcp GET,POST", "-https://localhost:"+server.port+"/mcp/secret")
	c := &http.Client{Transport: f.RoundTripper()}
	post := func(url string) (string, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader("hello"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "token")
		res, err := c.Do(req)
		if err != nil {
			return "", err
		}
		defer func() { _ = res.Body.Close() }()
		text, err := io.ReadAll(res.Body)
		return string(text), err
	}
	if text, err := post(server.url("/mcp?key=hidden")); text != "token hello" || err != nil {
		t.Fatalf("%q, %v", text, err)
	}
	for url, want := range map[string]string{
		server.url("/other"):                                rule.ReasonPath,
		server.url("/mcp/secret"):                           rule.ReasonNotAllowed,
		"http://" + other.addr + "/":                        rule.ReasonNotAllowed,
		server.url("/mcp?to=http://" + other.addr + "/mcp"): rule.ReasonNotAllowed,
		"https://user@localhost:" + server.port + "/mcp":    rule.ReasonUserinfo,
	} {
		_, err := post(url)
		refused, ok := errors.AsType[*RefusedError](err)
		if !ok || refused.Reason != want || !refused.Denied {
			t.Errorf("%s: %v, want a refusal with reason %s", url, err, want)
		}
		if denied := f.takeDenied(); len(denied) != 1 || denied[0].Way != WayClient {
			t.Errorf("%s: refusals %+v", url, denied)
		}
	}
	if other.hits.Load() != 0 {
		t.Error("a host that is not allowed was reached")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.opened) != 1 || f.opened[0].Way != WayClient || len(f.requested) != 2 || f.requested[0].URL != server.url("/mcp") {
		t.Errorf("opened %+v, requested %+v", f.opened, f.requested)
	}
}

// TestRoundTripperEnds checks that open responses end with the server and with the budget, also those that are not read.
func TestRoundTripperEnds(t *testing.T) {
	for name, end := range map[string]func(f *session){
		"closed": func(f *session) { f.Close() },
		"budget": func(*session) {},
	} {
		t.Run(name, func(t *testing.T) {
			stop := make(chan struct{})
			server := startSecure(t, func(w http.ResponseWriter, r *http.Request) {
				_ = http.NewResponseController(w).Flush()
				if name == "budget" {
					_, _ = w.Write(make([]byte, 1<<20))
				}
				select {
				case <-r.Context().Done():
				case <-stop:
				}
			})
			t.Cleanup(func() { close(stop) })
			f := newSession(t, server, func(o *Options) {
				o.Budget = newBudget(t, limits.EgressBudget{Bytes: 64 << 10, Hosts: 2})
			}, "https://localhost:"+server.port+"/")
			get := func() (*http.Response, error) {
				req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, server.url("/"), nil)
				if err != nil {
					t.Fatal(err)
				}
				return f.RoundTripper().RoundTrip(req)
			}
			res, err := get()
			if err != nil {
				t.Fatal(err)
			}
			read := make(chan error, 1)
			if name != "closed" { // or no one reads
				go func() {
					_, err := io.Copy(io.Discard, res.Body)
					read <- err
				}()
			} else {
				read <- io.ErrUnexpectedEOF
			}
			end(f)
			select {
			case err := <-read:
				if err == nil {
					t.Error("the body was complete")
				}
			case <-time.After(10 * time.Second):
				t.Error("the body has no end")
			}
			_ = res.Body.Close()
			_, err = get()
			for i := 0; err == nil && name == "budget" && i < 20; i++ { // a chunk that was too large leaves a rest
				_, err = get()
			}
			if err == nil {
				t.Error("another request succeeded")
			}
		})
	}
}

// TestRoundTripperAsksInVain checks that Close ends a request that waits for an answer.
func TestRoundTripperAsksInVain(t *testing.T) {
	asked := make(chan struct{})
	f := newFixture(t, func(o *Options) {
		o.Ask = func(ctx context.Context, _ Question) (Answer, error) {
			close(asked)
			<-ctx.Done()
			return Answer{}, ctx.Err()
		}
	})
	failed := make(chan error, 1)
	go func() {
		req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "http://unknown.test/", nil)
		if err == nil {
			_, err = f.RoundTripper().RoundTrip(req)
		}
		failed <- err
	}()
	<-asked
	f.Close()
	if err := <-failed; !errors.Is(err, errClosed) {
		t.Errorf("the request ended with %v", err)
	}
}
