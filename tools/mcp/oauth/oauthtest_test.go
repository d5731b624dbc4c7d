package oauth

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeServer is an MCP server and its authorization server at one origin. It checks what RFC 6749, 7591, 7636 and 8707
// want of a client, and rotates refresh tokens: one that is used twice withdraws all.
type fakeServer struct {
	*httptest.Server
	mu sync.Mutex
	// codes have the challenge and the redirect URI of a code, access the audience of a token.
	codes   map[string][2]string
	access  map[string]string
	refresh map[string]bool
	clients map[string]bool
	paths   []string
	scopes  []string
	secret  string // of the client "registered"
	life    time.Duration
	// override answers a path instead.
	override map[string]http.HandlerFunc
	// audience is the audience of issued tokens, "" for the requested resource.
	audience string
	reused   int
	refuse   string // error of each refresh
}

func newFakeServer(t testing.TB) *fakeServer {
	f := &fakeServer{
		codes: map[string][2]string{}, access: map[string]string{}, refresh: map[string]bool{}, clients: map[string]bool{"registered": true},
		override: map[string]http.HandlerFunc{}, life: time.Hour,
	}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

func (f *fakeServer) url() string { return f.URL + "/mcp" }

func (f *fakeServer) count(path string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, p := range f.paths {
		if p == path {
			n++
		}
	}
	return n
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func (f *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paths = append(f.paths, r.URL.Path)
	if h := f.override[r.URL.Path]; h != nil {
		h(w, r)
		return
	}
	switch r.URL.Path {
	case "/mcp":
		token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if f.access[token] != f.url() {
			w.Header().Set("WWW-Authenticate", `Bearer resource_metadata="`+f.URL+`/.well-known/oauth-protected-resource/mcp", scope="tools"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		writeJSON(w, http.StatusOK, map[string]any{"jsonrpc": "2.0", "id": 1, "result": map[string]any{}})
	case "/.well-known/oauth-protected-resource/mcp":
		writeJSON(w, http.StatusOK, map[string]any{"resource": f.url(), "authorization_servers": []string{f.URL}})
	case "/.well-known/oauth-authorization-server":
		writeJSON(w, http.StatusOK, f.metadata())
	case "/register":
		id := rand.Text()
		f.clients[id] = true
		var meta map[string]any
		_ = json.NewDecoder(r.Body).Decode(&meta)
		meta["client_id"] = id
		writeJSON(w, http.StatusCreated, meta)
	case "/token":
		f.serveToken(w, r)
	default:
		http.NotFound(w, r)
	}
}

func (f *fakeServer) metadata() map[string]any {
	return map[string]any{
		"issuer": f.URL, "authorization_endpoint": f.URL + "/authorize", "token_endpoint": f.URL + "/token", "registration_endpoint": f.URL + "/register",
		"response_types_supported": []string{"code"}, "code_challenge_methods_supported": []string{"S256"}, "token_endpoint_auth_methods_supported": []string{"client_secret_post"},
	}
}

func (f *fakeServer) serveToken(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	form := r.PostForm
	refuse := func(code string) {
		writeJSON(w, http.StatusBadRequest, map[string]any{"error": code, "error_description": "sent: " + form.Encode()})
	}
	resource := form.Get("resource")
	if !f.clients[form.Get("client_id")] || form.Get("client_secret") != f.secret {
		refuse("invalid_client")
		return
	}
	switch form.Get("grant_type") {
	case "authorization_code":
		code := f.codes[form.Get("code")]
		delete(f.codes, form.Get("code"))
		sum := sha256.Sum256([]byte(form.Get("code_verifier")))
		if code[0] == "" || base64.RawURLEncoding.EncodeToString(sum[:]) != code[0] || form.Get("redirect_uri") != code[1] {
			refuse("invalid_grant")
			return
		}
	case "refresh_token":
		old := form.Get("refresh_token")
		if f.refuse != "" {
			refuse(f.refuse)
			return
		}
		if !f.refresh[old] {
			f.reused++
			clear(f.refresh)
			refuse("invalid_grant")
			return
		}
		delete(f.refresh, old)
		resource = f.url()
	case "client_credentials":
		f.scopes = strings.Fields(form.Get("scope"))
		resource = f.url()
	default:
		refuse("unsupported_grant_type")
		return
	}
	if f.audience != "" {
		resource = f.audience
	}
	access, refresh := "access-"+rand.Text(), "refresh-"+rand.Text()
	f.access[access], f.refresh[refresh] = resource, true
	writeJSON(w, http.StatusOK, map[string]any{"access_token": access, "token_type": "Bearer", "refresh_token": refresh, "expires_in": int(f.life.Seconds())})
}

// signIn is the person and the browser: it issues a code and goes to the redirect URI, with changes to the answer.
func (f *fakeServer) signIn(t testing.TB, address string, change func(q url.Values)) (status int) {
	u, err := url.Parse(address)
	if err != nil || u.Path != "/authorize" {
		t.Errorf("authorization URL %q, %v", address, err)
		return 0
	}
	q := u.Query()
	if q.Get("code_challenge_method") != "S256" || q.Get("response_type") != "code" || q.Get("resource") != f.url() {
		t.Errorf("authorization request %q", address)
	}
	code := rand.Text()
	f.mu.Lock()
	f.codes[code] = [2]string{q.Get("code_challenge"), q.Get("redirect_uri")}
	f.scopes = strings.Fields(q.Get("scope"))
	f.mu.Unlock()
	answer := url.Values{"code": {code}, "state": {q.Get("state")}}
	if change != nil {
		change(answer)
	}
	res, err := http.Get(q.Get("redirect_uri") + "?" + answer.Encode())
	if err != nil {
		t.Error(err)
		return 0
	}
	_ = res.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	return res.StatusCode
}

// newClient returns a client whose connections end with the test.
func newClient(t testing.TB) *http.Client {
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return NewClient(transport)
}

func (f *fakeServer) server(t testing.TB, store *Store) Server {
	return Server{Name: "s", URL: f.url(), Store: store, Client: newClient(t)}
}

// login signs in to the server.
func (f *fakeServer) login(t testing.TB, s Server) error {
	return Login(t.Context(), LoginOptions{Server: s, Show: func(address, _ string) { go f.signIn(t, address, nil) }})
}

// use sends a request as the SDK's transport does, and returns the last status.
func use(t testing.TB, h *Handler, address string) (int, error) {
	for attempt := 0; ; attempt++ {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, address, strings.NewReader("{}"))
		if err != nil {
			return 0, err
		}
		source, err := h.TokenSource(t.Context())
		if err != nil {
			return 0, err
		}
		if source != nil {
			token, err := source.Token()
			if err != nil {
				return 0, err
			}
			req.Header.Set("Authorization", "Bearer "+token.AccessToken)
		}
		res, err := h.server.Client.Do(req)
		if err != nil {
			return 0, err
		}
		if res.StatusCode < 300 || attempt > 0 {
			_ = res.Body.Close()
			return res.StatusCode, nil
		}
		if err := h.Authorize(t.Context(), req, res); err != nil {
			return res.StatusCode, fmt.Errorf("authorize: %w", err)
		}
	}
}
