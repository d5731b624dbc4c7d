package oauth

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-run/caisson/tools/egress/rule"
)

func newHandler(t testing.TB, s Server) *Handler {
	t.Helper()
	h, err := NewHandler(s)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestLogin(t *testing.T) {
	f, store := newFakeServer(t), NewStore(filepath.Join(t.TempDir(), "tokens"))
	s := f.server(t, store)
	h := newHandler(t, s)
	if _, err := use(t, h, f.url()); !errors.Is(err, ErrSignIn) {
		t.Fatalf("without a token: %v", err)
	}
	if err := f.login(t, s); err != nil {
		t.Fatal(err)
	}
	if status, err := use(t, h, f.url()); status != 200 || err != nil {
		t.Errorf("with a token: %d, %v", status, err)
	}
	if !slices.Equal(f.scopes, []string{"tools"}) {
		t.Errorf("scopes %q", f.scopes)
	}
	info, err := os.Stat(store.tokenPath(s.Name, s.URL))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("file of the token: %v, %v", info, err)
	}
	for _, v := range store.Secrets(s.Name, s.URL) {
		if text := h.Redact("it is " + v + "."); text != "it is [hidden]." {
			t.Errorf("redacted: %q", text)
		}
	}
	// A token is for one name and one URL.
	for _, other := range []Server{{Name: "s", URL: f.URL + "/other"}, {Name: "s2", URL: s.URL}, {Name: s.Name, URL: s.URL, Config: Config{ClientID: "other"}}} {
		other.Store, other.Client = store, s.Client
		if source, err := newHandler(t, other).TokenSource(t.Context()); source != nil || err != nil {
			t.Errorf("token for %s at %s: %v, %v", other.Name, other.URL, source, err)
		}
	}
	if had, err := store.Remove(t.Context(), "s"); !had || err != nil {
		t.Errorf("remove: %v, %v", had, err)
	}
	if _, err := use(t, newHandler(t, s), f.url()); !errors.Is(err, ErrSignIn) {
		t.Errorf("after removal: %v", err)
	}
	if had, err := store.Remove(t.Context(), "s"); had || err != nil {
		t.Errorf("second removal: %v, %v", had, err)
	}
}

func TestRegisteredClientAndScopes(t *testing.T) {
	f := newFakeServer(t)
	f.secret = "the-secret"
	s := f.server(t, NewStore(t.TempDir()))
	s.Config = Config{ClientID: "registered", ClientSecret: "the-secret", Scopes: []string{"read"}}
	if err := f.login(t, s); err != nil {
		t.Fatal(err)
	}
	if f.count("/register") > 0 || !slices.Equal(f.scopes, []string{"read"}) {
		t.Errorf("%d registrations, scopes %q", f.count("/register"), f.scopes)
	}
	s.Config.ClientSecret = "wrong"
	err := f.login(t, s)
	if err == nil || strings.Contains(err.Error(), "wrong") || !strings.Contains(err.Error(), "invalid_client") {
		t.Errorf("wrong secret: %v", err)
	}
}

func TestClientCredentials(t *testing.T) {
	f := newFakeServer(t)
	f.secret = "the-secret"
	s := f.server(t, nil)
	s.Config = Config{Grant: GrantClient, ClientID: "registered", ClientSecret: "the-secret", Scopes: []string{"read"}}
	h := newHandler(t, s)
	for range 2 {
		if status, err := use(t, h, f.url()); status != 200 || err != nil {
			t.Fatalf("%d, %v", status, err)
		}
	}
	if f.count("/token") != 1 || !slices.Equal(f.scopes, []string{"read"}) {
		t.Errorf("%d tokens, scopes %q", f.count("/token"), f.scopes)
	}
	s.Config.ClientSecret = "wrong"
	if _, err := use(t, newHandler(t, s), f.url()); err == nil || strings.Contains(err.Error(), "wrong") {
		t.Errorf("wrong secret: %v", err)
	}
	s.Config.ClientSecret = ""
	if _, err := NewHandler(s); err == nil {
		t.Error("credentials without a secret")
	}
}

// TestParallelRefresh: handlers of several processes refresh one token that may be used once. The server withdraws all
// tokens if one is used twice.
func TestParallelRefresh(t *testing.T) {
	f, store := newFakeServer(t), NewStore(t.TempDir())
	s := f.server(t, store)
	f.life = time.Second // within the margin: always expired
	if err := f.login(t, s); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	f.life = time.Hour
	f.mu.Unlock()
	var group sync.WaitGroup
	for range 8 {
		h := newHandler(t, s)
		group.Go(func() {
			if status, err := use(t, h, f.url()); status != 200 || err != nil {
				t.Errorf("%d, %v", status, err)
			}
		})
	}
	group.Wait()
	if f.reused > 0 || f.count("/token") != 2 {
		t.Errorf("%d refresh tokens used twice, %d requests for tokens; want 0 and 2", f.reused, f.count("/token"))
	}
}

// TestRefusedToken: a token that the server does not take any more is refreshed once.
func TestRefusedToken(t *testing.T) {
	f, store := newFakeServer(t), NewStore(t.TempDir())
	s := f.server(t, store)
	if err := f.login(t, s); err != nil {
		t.Fatal(err)
	}
	h := newHandler(t, s)
	f.mu.Lock()
	clear(f.access)
	f.mu.Unlock()
	if status, err := use(t, h, f.url()); status != 200 || err != nil {
		t.Fatalf("%d, %v", status, err)
	}
	f.mu.Lock()
	clear(f.access)
	f.audience = "https://other.example/mcp"
	f.mu.Unlock()
	before := f.count("/token")
	for range 5 {
		if status, err := use(t, h, f.url()); status != http.StatusUnauthorized {
			t.Errorf("%d, %v", status, err)
		}
	}
	if n := f.count("/token") - before; n > 1 {
		t.Errorf("%d refreshes for a server that refuses every token", n)
	}
}

// TestInvalidGrant: a token that was withdrawn is removed; one that can't be refreshed now stays.
func TestInvalidGrant(t *testing.T) {
	for code, gone := range map[string]bool{"invalid_grant": true, "temporarily_unavailable": false} {
		f, store := newFakeServer(t), NewStore(t.TempDir())
		s := f.server(t, store)
		f.life = time.Second
		if err := f.login(t, s); err != nil {
			t.Fatal(err)
		}
		f.refuse = code
		secrets := store.Secrets(s.Name, s.URL)
		_, err := use(t, newHandler(t, s), f.url())
		if errors.Is(err, ErrSignIn) != gone || err == nil || !strings.Contains(err.Error(), code) {
			t.Errorf("%s: %v", code, err)
		}
		for _, v := range secrets {
			if strings.Contains(err.Error(), v) {
				t.Errorf("%s: the error has a token", code)
			}
		}
		if left := store.Secrets(s.Name, s.URL); (len(left) == 0) != gone {
			t.Errorf("%s: %d secrets left", code, len(left))
		}
	}
}

func TestNotNeeded(t *testing.T) {
	f := newFakeServer(t)
	for status, want := range map[int]error{200: ErrNotNeeded, 404: nil} {
		f.override["/mcp"] = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }
		if err := f.login(t, f.server(t, NewStore(t.TempDir()))); err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%d: %v", status, err)
		}
	}
}

// TestRedirectListener: only the answer with the state of this login counts.
func TestRedirectListener(t *testing.T) {
	f, store := newFakeServer(t), NewStore(t.TempDir())
	show := func(address string) {
		for name, change := range map[string]func(url.Values){
			"wrong state":   func(q url.Values) { q.Set("state", "wrong") },
			"no state":      func(q url.Values) { q.Del("state") },
			"foreign error": func(q url.Values) { q.Del("code"); q.Set("state", "wrong"); q.Set("error", "access_denied") },
		} {
			if status := f.signIn(t, address, change); status != http.StatusBadRequest {
				t.Errorf("%s: status %d", name, status)
			}
		}
		u, _ := url.Parse(address)
		req, _ := http.NewRequest(http.MethodGet, u.Query().Get("redirect_uri")+"?code=a&state="+u.Query().Get("state"), nil)
		req.Host = "attacker.example"
		if res, err := http.DefaultClient.Do(req); err != nil || res.StatusCode != http.StatusNotFound {
			t.Errorf("foreign host: %v, %v", res, err)
		} else {
			_ = res.Body.Close()
		}
		if status := f.signIn(t, address, nil); status != http.StatusOK {
			t.Errorf("right answer: status %d", status)
		}
	}
	if err := Login(t.Context(), LoginOptions{Server: f.server(t, store), Show: func(address, _ string) { go show(address) }}); err != nil {
		t.Fatal(err)
	}
	denied := func(address, _ string) {
		go f.signIn(t, address, func(q url.Values) { q.Del("code"); q.Set("error", "access_denied") })
	}
	if err := Login(t.Context(), LoginOptions{Server: f.server(t, store), Show: denied}); err == nil || !strings.Contains(err.Error(), "access_denied") {
		t.Errorf("denied: %v", err)
	}
	late, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("nobody signed in"))
	defer cancel()
	if err := Login(late, LoginOptions{Server: f.server(t, store), Show: func(string, string) {}}); err == nil || err.Error() != "nobody signed in" {
		t.Errorf("no answer: %v", err)
	}
}

// endless writes a text that looks like the beginning of a large object.
func endless(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte(`{"issuer":"`))
	for r.Context().Err() == nil {
		if _, err := w.Write([]byte(strings.Repeat("a", 64<<10))); err != nil {
			return
		}
	}
}

// TestHostileServers: what a server or its authorization server may try. The control is [TestLogin].
func TestHostileServers(t *testing.T) {
	stolen := new(atomic.Int32)
	thief := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { stolen.Add(1) }))
	t.Cleanup(thief.Close)
	const asMetadata, resourceMetadata = "/.well-known/oauth-authorization-server", "/.well-known/oauth-protected-resource/mcp"
	for name, tc := range map[string]struct {
		change func(f *fakeServer)
		want   string
		// signedIn is set if the person is asked.
		signedIn bool
	}{
		"issuer mismatch": {func(f *fakeServer) {
			f.override[asMetadata] = func(w http.ResponseWriter, _ *http.Request) {
				m := f.metadata()
				m["issuer"] = "https://other.example"
				writeJSON(w, 200, m)
			}
		}, "does not match issuer", false},
		"no PKCE": {func(f *fakeServer) {
			f.override[asMetadata] = func(w http.ResponseWriter, _ *http.Request) {
				m := f.metadata()
				delete(m, "code_challenge_methods_supported")
				writeJSON(w, 200, m)
			}
		}, "PKCE", false},
		"token endpoint at a metadata service": {func(f *fakeServer) {
			f.override[asMetadata] = func(w http.ResponseWriter, _ *http.Request) {
				m := f.metadata()
				m["token_endpoint"] = "http://169.254.169.254/token"
				writeJSON(w, 200, m)
			}
		}, "token_endpoint", false},
		"authorization server at a metadata service": {func(f *fakeServer) {
			f.override[resourceMetadata] = func(w http.ResponseWriter, _ *http.Request) {
				writeJSON(w, 200, map[string]any{"resource": f.url(), "authorization_servers": []string{"http://169.254.169.254"}})
			}
			f.override[asMetadata] = http.NotFound
			f.override["/register"] = http.NotFound
		}, "register", false},
		"authorization endpoint of another origin": {func(f *fakeServer) {
			f.override[asMetadata] = func(w http.ResponseWriter, _ *http.Request) {
				m := f.metadata()
				m["authorization_endpoint"] = "https://bank.example/authorize"
				writeJSON(w, 200, m)
			}
		}, "https://bank.example isn't the server's own origin", false},
		"token endpoint of another origin": {func(f *fakeServer) {
			f.override[asMetadata] = func(w http.ResponseWriter, _ *http.Request) {
				m := f.metadata()
				m["token_endpoint"] = thief.URL
				writeJSON(w, 200, m)
			}
		}, "own origin", false},
		"script as the authorization endpoint": {func(f *fakeServer) {
			f.override[asMetadata] = func(w http.ResponseWriter, _ *http.Request) {
				m := f.metadata()
				m["authorization_endpoint"] = "javascript:alert(1)"
				writeJSON(w, 200, m)
			}
		}, "scheme", false},
		"endless metadata":     {func(f *fakeServer) { f.override[asMetadata] = endless }, "", false},
		"endless registration": {func(f *fakeServer) { f.override["/register"] = endless }, "register", false},
		"endless token":        {func(f *fakeServer) { f.override["/token"] = endless }, "", true},
		"redirect of metadata": {func(f *fakeServer) {
			f.override[asMetadata] = func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, thief.URL, http.StatusFound) }
		}, errRedirect.Error(), false},
		"redirect of the registration": {func(f *fakeServer) {
			f.override["/register"] = func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, thief.URL, http.StatusTemporaryRedirect)
			}
		}, errRedirect.Error(), false},
		"redirect of the token request": {func(f *fakeServer) {
			f.override["/token"] = func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, thief.URL, http.StatusTemporaryRedirect)
			}
		}, errRedirect.Error(), true},
		"token for another audience": {func(f *fakeServer) { f.audience = "https://other.example/mcp" }, "refuses the token", true},
		"unusable kind of token": {func(f *fakeServer) {
			f.override["/token"] = func(w http.ResponseWriter, _ *http.Request) {
				writeJSON(w, 200, map[string]any{"access_token": "a", "token_type": "mac"})
			}
		}, "bearer", true},
	} {
		t.Run(name, func(t *testing.T) {
			f, dir := newFakeServer(t), t.TempDir()
			tc.change(f)
			var shown atomic.Bool
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			err := Login(ctx, LoginOptions{Server: f.server(t, NewStore(dir)), Show: func(address, _ string) {
				shown.Store(true)
				go f.signIn(t, address, nil)
			}})
			if err == nil || !strings.Contains(err.Error(), tc.want) || len(err.Error()) > 2*maxTextBytes || ctx.Err() != nil {
				t.Errorf("error %v, want %q", err, tc.want)
			}
			if shown.Load() != tc.signedIn {
				t.Errorf("the person was asked: %v", shown.Load())
			}
			if files, _ := filepath.Glob(filepath.Join(dir, "*.json")); len(files) > 0 || stolen.Load() > 0 {
				t.Errorf("stored %q, %d requests elsewhere", files, stolen.Load())
			}
		})
	}
}

// TestIssuer: the issuer that comes with a code is the one of the metadata. It has to come if the metadata says so, or if
// the MCP server would get a code of another origin.
func TestIssuer(t *testing.T) {
	for name, tc := range map[string]struct {
		promised, elsewhere bool
		issuer              string // "own" is the metadata's
		ok                  bool
	}{
		"none, not promised":          {false, false, "", true},
		"right, not promised":         {false, false, "own", true},
		"right, promised":             {true, false, "own", true},
		"none, promised":              {true, false, "", false},
		"wrong, promised":             {true, false, "https://bank.example", false},
		"wrong, not promised":         {false, false, "https://bank.example", false},
		"none, of another origin":     {false, true, "", false},
		"wrong, of another origin":    {false, true, "https://bank.example", false},
		"right, of an allowed origin": {false, true, "own", true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFakeServer(t)
			f.override["/.well-known/oauth-authorization-server"] = func(w http.ResponseWriter, _ *http.Request) {
				m := f.metadata()
				if tc.promised {
					m["authorization_response_iss_parameter_supported"] = true
				}
				if tc.elsewhere {
					m["authorization_endpoint"] = "https://bank.example/authorize"
				}
				writeJSON(w, 200, m)
			}
			err := Login(t.Context(), LoginOptions{
				Server: f.server(t, NewStore(t.TempDir())), Allow: func(rule.Target, string) error { return nil },
				Show: func(address, issuer string) {
					if issuer != f.URL {
						t.Errorf("issuer of the token: %s, want %s", issuer, f.URL)
					}
					go f.signIn(t, address, func(q url.Values) {
						if tc.issuer != "" {
							q.Set("iss", strings.Replace(tc.issuer, "own", f.URL, 1))
						}
					})
				},
			})
			if ok := err == nil; ok != tc.ok || f.count("/token") > 0 != tc.ok {
				t.Errorf("%v, %d requests for a token", err, f.count("/token"))
			}
		})
	}
}

// TestMetadataOfAnotherResource: metadata of another resource is not used, so that no token is asked for that.
func TestMetadataOfAnotherResource(t *testing.T) {
	f := newFakeServer(t)
	f.override["/.well-known/oauth-protected-resource/mcp"] = func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, 200, map[string]any{"resource": "https://bank.example/mcp", "authorization_servers": []string{f.URL}})
	}
	if err := f.login(t, f.server(t, NewStore(t.TempDir()))); err != nil { // signIn checks the resource
		t.Fatal(err)
	}
}

func TestPlainHTTP(t *testing.T) {
	calls := 0
	client := NewClient(roundTripper(func(r *http.Request) (*http.Response, error) {
		calls++
		return &http.Response{StatusCode: 200, Body: http.NoBody, Request: r}, nil
	}))
	for address, ok := range map[string]bool{
		"https://auth.example/token": true, "http://127.0.0.1:1/token": true, "http://[::1]/token": true, "http://localhost/token": true,
		"http://auth.example/token": false, "http://10.0.0.1/token": false, "http://localhost.example/": false,
	} {
		calls = 0
		res, err := client.Get(address)
		if err == nil {
			_ = res.Body.Close()
		}
		if (err == nil) != ok || (calls > 0) != ok {
			t.Errorf("%s: %v, %d calls", address, err, calls)
		}
	}
}

// TestBodyBound: a body that does not end is read up to the bound, whoever reads it. The control is one below it.
func TestBodyBound(t *testing.T) {
	for size, want := range map[int]error{maxBodyBytes: nil, maxBodyBytes + 1: errTooLarge, 1 << 40: errTooLarge} {
		client := NewClient(roundTripper(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: io.NopCloser(io.LimitReader(zeros{}, int64(size))), Request: r}, nil
		}))
		res, err := client.Get("https://auth.example/")
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		if !errors.Is(err, want) || n > maxBodyBytes {
			t.Errorf("%d bytes: read %d, %v", size, n, err)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestStoreFiles: a file that others can read, or that holds the token of another server, is not used.
func TestStoreFiles(t *testing.T) {
	f, store := newFakeServer(t), NewStore(t.TempDir())
	s := f.server(t, store)
	if err := f.login(t, s); err != nil {
		t.Fatal(err)
	}
	path := store.tokenPath(s.Name, s.URL)
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := newHandler(t, s).TokenSource(t.Context()); err == nil {
		t.Error("a file that others can read is used")
	}
	_ = os.Chmod(path, 0o600)
	other := s
	other.URL += "2"
	if err := os.Rename(path, store.tokenPath(other.Name, other.URL)); err != nil {
		t.Fatal(err)
	}
	if _, err := newHandler(t, other).TokenSource(t.Context()); err == nil {
		t.Error("the token of another URL is used")
	}
}
