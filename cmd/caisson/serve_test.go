package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner/server"
	"github.com/caisson-run/caisson/tools/approval"
)

// served is one caisson serve in this process, with a fake sandbox.
type served struct {
	t       *testing.T
	home    string
	root    string
	log     *syncBuffer
	base    string
	signals chan os.Signal
	ended   chan int
}

type syncBuffer struct {
	mu      sync.Mutex
	text    bytes.Buffer
	written chan struct{}
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case b.written <- struct{}{}:
	default:
	}
	return b.text.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func startServe(t *testing.T, config string, args ...string) *served {
	t.Helper()
	dir := t.TempDir()
	s := &served{t: t, home: filepath.Join(dir, "home"), root: filepath.Join(dir, "work"), log: &syncBuffer{written: make(chan struct{}, 1)}, signals: make(chan os.Signal, 4), ended: make(chan int, 1)}
	script := filepath.Join(dir, "script.yaml")
	config, requirements, _ := strings.Cut(config, "\n# requirements\n")
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "ROOT", s.root)
	}
	for path, text := range map[string]string{
		filepath.Join(s.home, ".config/caisson/config.yaml"): strings.ReplaceAll(config, "ROOT", s.root),
		filepath.Join(dir, "requirements.yaml"):              requirements,
		script:                                               "version: 1\nname: t\nturns:\n  - calls: [{tool: shell, input: {command: \"echo made > out.txt\"}}]\n  - text: Done.\n",
		filepath.Join(s.root, "one/readme"):                  "",
		filepath.Join(dir, "outside/secret"):                 "",
		filepath.Join(s.root, "two/three/file"):              "",
	} {
		writeFile(t, path, text, 0o600)
	}
	for link, to := range map[string]string{"out": "../outside", "in": "one", "two/up": "../.."} {
		must(t, os.Symlink(to, filepath.Join(s.root, link)))
	}
	d := newApp(s.signals, func(int) {})
	d.stderr, d.stdout, d.requirements, d.requirementsUID = s.log, io.Discard, filepath.Join(dir, "requirements.yaml"), os.Getuid()
	d.executable = func() (string, error) { return filepath.Join(dir, "bin/caisson"), nil }
	d.backend = fakeBackends
	must(t, writePrograms(filepath.Join(dir, "bin")))
	env := []string{"HOME=" + s.home, "PATH=/usr/bin:/bin", "SHORT=x", "ALICE=" + strings.Repeat("a", 40), "BOB=" + strings.Repeat("b", 40)}
	args = append([]string{"serve", "--root", s.root, "--listen", "127.0.0.1:0", "--backend", "gvisor", "--model", "replay/" + script}, args...)
	go func() { s.ended <- run(context.Background(), args, env, d) }()
	t.Cleanup(func() {
		if s.base != "" {
			s.stop()
		}
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	})
	return s
}

func (s *served) up() *served {
	s.t.Helper()
	for {
		if _, rest, ok := strings.Cut(s.log.String(), "listening on "); ok && strings.Contains(rest, "caisson: backend") {
			s.base, _, _ = strings.Cut(rest, "\n")
			return s
		}
		select {
		case <-s.log.written:
		case status := <-s.ended:
			s.t.Fatalf("it ended with %d: %s", status, s.log)
		}
	}
}

// stop ends it like a service manager.
func (s *served) stop() int {
	s.signals <- syscall.SIGTERM
	s.base = ""
	return <-s.ended
}

func (s *served) token() string {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.home, ".local/state/caisson/serve.token"))
	must(s.t, err)
	return strings.TrimSpace(string(text))
}

func (s *served) do(token, method, path, body string) (int, string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.base+path, strings.NewReader(body))
	must(s.t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := http.DefaultClient.Do(req)
	must(s.t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	must(s.t, err)
	return res.StatusCode, string(text)
}

// wants starts a session and checks the status. It ends a session that was started.
func (s *served) wants(token, body string, status int, contains string) server.Session {
	s.t.Helper()
	got, text := s.do(token, "POST", "/sessions", body)
	if got != status || !strings.Contains(text, contains) {
		s.t.Errorf("%s: %d %s, want %d with %q", body, got, text, status, contains)
	}
	var v server.Session
	if err := json.Unmarshal([]byte(text), &v); err == nil && got == http.StatusCreated {
		s.do(token, "DELETE", "/sessions/"+v.ID, "")
	}
	return v
}

// begin starts a session and returns its id.
func (s *served) begin(token, body string) string {
	s.t.Helper()
	status, text := s.do(token, "POST", "/sessions", body)
	var v server.Session
	if err := json.Unmarshal([]byte(text), &v); err != nil || status != http.StatusCreated {
		s.t.Fatalf("%d %s", status, text)
	}
	return v.ID
}

func (s *served) end(token, id string) {
	s.t.Helper()
	if status, text := s.do(token, "DELETE", "/sessions/"+id, ""); status != http.StatusOK {
		s.t.Fatalf("%d %s", status, text)
	}
}

// records returns the records of a session.
func (s *served) records(id string) string {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.home, ".local/state/caisson/sessions", id, "trace.jsonl"))
	must(s.t, err)
	return string(text)
}

// TestServeWorkspaces: only directories below a root are workspaces, whatever their
// spelling.
func TestServeWorkspaces(t *testing.T) {
	s := startServe(t, "").up()
	token := s.token()
	outside := filepath.Join(filepath.Dir(s.root), "outside")
	if _, err := os.Stat(filepath.Join(s.root, "out", "secret")); err != nil {
		t.Fatalf("the control: the link does not lead out: %v", err)
	}
	for _, bad := range []string{
		outside, s.root + "/../outside", s.root + "/out", "out", "../outside", "..", "/", "/etc", s.home, s.root + "x", "out/.", "two/up/outside", "two/up",
		s.root + "/in", "~/work", "", "\x00", "one/readme", "none",
	} {
		body, err := json.Marshal(map[string]string{"workspace": bad})
		must(t, err)
		s.wants(token, string(body), 422, `"detail":"`)
		// The answer contains neither a symlink's target nor a flag.
		_, text := s.do(token, "POST", "/sessions", string(body))
		if strings.Contains(text, " --") || bad != outside && !strings.Contains(bad, "outside") && strings.Contains(text, "outside") || strings.Contains(text, "../one") {
			t.Errorf("%q is refused with %s", bad, text)
		}
	}
	// It doesn't reveal whether the target exists.
	answers := map[string]bool{}
	for _, to := range []string{outside, outside + "/nothing", "/etc/passwd", "/proc/1/root"} {
		link := filepath.Join(s.root, "link")
		_ = os.Remove(link)
		must(t, os.Symlink(to, link))
		for _, below := range []string{"link", "link/x"} {
			status, text := s.do(token, "POST", "/sessions", fmt.Sprintf(`{"workspace":%q}`, below))
			answers[fmt.Sprint(below, status, text)] = true
		}
	}
	if len(answers) != 2 {
		t.Errorf("symlinks are refused in %d ways: %v", len(answers), slices.Collect(maps.Keys(answers)))
	}
	for _, good := range []string{s.root, s.root + "/one", "one", "two/three", "./two/../one", s.root + "//one/"} {
		v := s.wants(token, fmt.Sprintf(`{"workspace":%q}`, good), 201, `"state":"idle"`)
		if !strings.HasPrefix(v.Workspace, s.root) {
			t.Errorf("%s is %s", good, v.Workspace)
		}
	}
	if status := s.stop(); status != exitDone {
		t.Errorf("it ended with %d: %s", status, s.log)
	}
	for _, name := range []string{"serve.token"} {
		if _, err := os.Stat(filepath.Join(s.home, ".local/state/caisson", name)); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", name, err)
		}
	}
	if strings.Contains(s.log.String(), token) {
		t.Error("the token is in the log")
	}
}

// TestServeOnlyTightens: a client can't get anything milder than the configuration.
func TestServeOnlyTightens(t *testing.T) {
	s := startServe(t, `
limits: {max_rounds: 10, timeout: 1m, session: {max_tokens: 5000, max_tool_calls: 20, max_cost_usd: 0.5, timeout: 1h}}
mode: overlay
models:
  fast: {provider: replay, model: /nowhere}
  own: {provider: replay, model: /nowhere/else}
serve:
  models: [own]
  images: ["rootfs:/srv/base"]
  tokens:
    alice: {env: ALICE, roles: [admin]}
    bob: {env: BOB}
  max_sessions: 2
`).up()
	alice := strings.Repeat("a", 40)
	for body, says := range map[string]string{
		`{"workspace":"one","limits":{"max_rounds":11}}`:              "above the server's limit of 10",
		`{"workspace":"one","limits":{"timeout_seconds":61}}`:         "above the server's limit of 1m0s",
		`{"workspace":"one","limits":{"memory_bytes":1099511627776}}`: "above the server's limit",
		`{"workspace":"one","mode":"bind"}`:                           "less strict",

		`{"workspace":"one","limits":{"session":{"max_tokens":5001}}}`:                "limits.session.max_tokens: 5001 is above the server's limit of 5000",
		`{"workspace":"one","limits":{"session":{"max_tokens":9223372036854775807}}}`: "above the server's limit of 5000",
		`{"workspace":"one","limits":{"session":{"max_tokens":9223372036854775808}}}`: "limits.session.max_tokens",
		`{"workspace":"one","limits":{"session":{"max_tokens":-1}}}`:                  "body.limits.session.max_tokens",
		`{"workspace":"one","limits":{"session":{"max_tokens":0}}}`:                   "body.limits.session.max_tokens",
		`{"workspace":"one","limits":{"session":{"max_tool_calls":21}}}`:              "limits.session.max_tool_calls: 21 is above the server's limit of 20",
		`{"workspace":"one","limits":{"session":{"max_tool_calls":1.5}}}`:             "body.limits.session.max_tool_calls",
		`{"workspace":"one","limits":{"session":{"max_cost_usd":0.500001}}}`:          "limits.session.max_cost_usd: 0.500001 US dollars are above the server's limit of 0.5",
		`{"workspace":"one","limits":{"session":{"max_cost_usd":1e300}}}`:             "body.limits.session.max_cost_usd",
		`{"workspace":"one","limits":{"session":{"max_cost_usd":-0.1}}}`:              "body.limits.session.max_cost_usd",
		`{"workspace":"one","limits":{"session":{"timeout_seconds":3601}}}`:           "limits.session.timeout_seconds: 1h0m1s is above the server's limit of 1h0m0s",
		`{"workspace":"one","limits":{"session":{"timeout_seconds":99999999999}}}`:    "body.limits.session.timeout_seconds",
		`{"workspace":"one","limits":{"session":{"max_rounds":1}}}`:                   "body.limits.session.max_rounds",
		`{"workspace":"one","limits":{"session":[]}}`:                                 "body.limits.session",
		`{"workspace":"one","image":"debian"}`:                                        "not one that clients may name",
		`{"workspace":"one","model":"fast"}`:                                          "not one that clients may name",
		`{"workspace":"one","model":"replay//etc/passwd"}`:                            "not one that clients may name",
		`{"workspace":"one","policy":"allow-all"}`:                                    `"location":"body.policy"`,
		`{"workspace":"one","backend":"runc"}`:                                        `"location":"body`,
	} {
		s.wants(alice, body, 422, says)
	}
	// It is allowed but missing: only the log names the file.
	s.wants(alice, `{"workspace":"one","model":"own"}`, 422, "a file that the session needs can't be used")
	if log := s.log.String(); !strings.Contains(log, "can't be played") || !strings.Contains(log, "/nowhere/else") {
		t.Errorf("the log does not name the recording: %s", log)
	}
	s.wants(alice, `{"workspace":"one","limits":{"tokens":5}}`, 422, `body.limits.tokens`)
	v := s.wants(alice, `{"workspace":"one","limits":{"max_rounds":3,"timeout_seconds":60,"pids":70,"milli_cpus":500},"policy":"readonly","mode":"overlay"}`, 201, "")
	if *v.Budget.Rounds != 3 || *v.Budget.WallTimeMS != 60_000 || v.Resources.PIDs != 70 || v.Resources.MilliCPUs != 500 || v.Policy != "default+readonly" || v.Mode != "overlay" || v.Client != "http:alice" {
		t.Errorf("started as %+v", v)
	}
	if total := v.Total; total == nil || *total.Tokens != 5000 || *total.WallTimeMS != 3_600_000 {
		t.Errorf("started with the session's limits %+v, want those of the server", total)
	}
	s.do(alice, "DELETE", "/sessions/"+v.ID, "")
	v = s.wants(alice, `{"workspace":"one","limits":{"session":{"max_tokens":10,"max_tool_calls":20,"max_cost_usd":0.25,"timeout_seconds":60}}}`, 201, "")
	if total := v.Total; total == nil || *total.Tokens != 10 || *total.ToolCalls != 20 || *total.CostMicroUSD != 250_000 || *total.WallTimeMS != 60_000 || *v.Budget.Rounds != 10 || v.Budget.Tokens != nil {
		t.Errorf("started with the limits %+v of a turn and %+v of the session", v.Budget, total)
	}
	if status, _ := s.do("x", "GET", "/sessions", ""); status != 401 {
		t.Errorf("without a token: %d", status)
	}
	// A token without roles reads and runs. It neither approves nor applies.
	bob := strings.Repeat("b", 40)
	for path, want := range map[string]int{
		"/sessions/x/turns/y/confirmations/z": 403, "/sessions/x/apply": 403, "/sessions/x/turns": 404,
	} {
		body := map[bool]string{true: `{"message":"go"}`, false: "{}"}[strings.HasSuffix(path, "turns")]
		if status, text := s.do(bob, "POST", path, body); status != want {
			t.Errorf("POST %s as bob: %d %s", path, status, text)
		}
	}
	if status, _ := s.do(bob, "GET", "/sessions", ""); status != 200 {
		t.Errorf("as bob: %d", status)
	}
}

// TestServeKeepsToTheWorkspacesOwnSettings: a client's requests are also checked
// against a trusted workspace's settings.
func TestServeKeepsToTheWorkspacesOwnSettings(t *testing.T) {
	s := startServe(t, "").up()
	own := "mode: overlay\nlimits: {max_rounds: 2}\nresources: {memory: 512MiB, pids: 80}\n"
	files := s.settings(own)
	asks := map[string]string{
		`"mode":"bind"`:                       "less strict",
		`"limits":{"max_rounds":3}`:           "limit of 2",
		`"limits":{"memory_bytes":536870913}`: "limit of 536870912",
		`"limits":{"pids":81}`:                "limit of 80",
	}
	for ask := range asks { // the control: without trust they don't count
		s.wants(s.token(), `{"workspace":"one",`+ask+`}`, 201, "")
	}
	s.trust(files)
	for ask, says := range asks {
		s.wants(s.token(), `{"workspace":"one",`+ask+`}`, 422, says)
	}
	v := s.wants(s.token(), `{"workspace":"one","limits":{"pids":70}}`, 201, "")
	if v.Mode != "overlay" || *v.Budget.Rounds != 2 || v.Resources.MemoryBytes != 512<<20 || v.Resources.PIDs != 70 {
		t.Errorf("started as %+v", v)
	}
}

// settings writes the own settings of the workspace one. trust trusts them.
func (s *served) settings(text string) []approval.TrustedFile {
	s.t.Helper()
	path := filepath.Join(s.root, "one", config.ProjectPath)
	writeFile(s.t, path, text, 0o600)
	sum := sha256.Sum256([]byte(text))
	return []approval.TrustedFile{{Path: config.ProjectPath, SHA256: hex.EncodeToString(sum[:])}}
}

func (s *served) trust(files []approval.TrustedFile) {
	s.t.Helper()
	must(s.t, approval.NewTrust(filepath.Join(s.home, ".local/state/caisson/trust.json")).Add(filepath.Join(s.root, "one"), files))
}

// TestServeSaysWhoseSettingsAreWrong: 503 is only for the server's own settings: it
// makes clients and balancers retry.
func TestServeSaysWhoseSettingsAreWrong(t *testing.T) {
	s := startServe(t, "fetch: {allow: [\"https://lan.example/\"], private: {lan.example: [10.1.2.3]}}\n").up()
	for own, says := range map[string]string{
		"resources: {pids: 32}\n":   "resources.pids: 32 is less than",
		"model: openai/other\n":     "can only tighten",
		"limits: {max_rounds: 0}\n": "want a whole number of at least 1",
	} {
		s.trust(s.settings(own))
		s.wants(s.token(), `{"workspace":"one"}`, 422, says)
		s.wants(s.token(), `{"workspace":"one"}`, 422, `"code":"workspace_configuration"`)
	}
	s.trust(s.settings("resources: {pids: 70}\n"))
	s.wants(s.token(), `{"workspace":"one"}`, 201, "")
	s.wants(s.token(), `{"workspace":"one","limits":{"pids":32}}`, 422, `"code":"refused"`)
	bad := filepath.Join(s.home, ".config/caisson/config.yaml")
	must(t, os.WriteFile(bad, []byte("resources: {pids: 32}\n"), 0o600))
	s.wants(s.token(), `{"workspace":"one"}`, 503, `"code":"configuration"`)
}

// TestServePolicyIsLaidOver: a stricter preset applies, a milder one does not.
func TestServePolicyIsLaidOver(t *testing.T) {
	s := startServe(t, "").up() // default: execute prompts
	for _, policy := range []string{"sandboxed", "ci"} {
		s.wants(s.token(), fmt.Sprintf(`{"workspace":"one","policy":%q}`, policy), 422, "calls of class write would have the mode")
	}
	for policy, want := range map[string]string{"": "waits", "readonly": "permission_denied", "default": "waits"} {
		ask := fmt.Sprintf(`{"workspace":"one","policy":%q}`, policy)
		if policy == "" {
			ask = `{"workspace":"one"}`
		}
		id := s.begin(s.token(), ask)
		s.do(s.token(), "POST", "/sessions/"+id+"/turns", `{"message":"go"}`)
		got := ""
		for got == "" {
			if _, text := s.do(s.token(), "GET", "/sessions/"+id+"/confirmations", ""); strings.Contains(text, `"id"`) {
				got = "waits"
			}
			if strings.Contains(s.records(id), `"error_class":"permission_denied"`) {
				got = "permission_denied"
			}
		}
		if got != want {
			t.Errorf("%s: %s, want %s", policy, got, want)
		}
		s.do(s.token(), "DELETE", "/sessions/"+id, "")
	}
}

// TestServeGrantsThePolicyThatItNames is the control: under a milder policy of the
// server, each preset keeps its meaning.
func TestServeGrantsThePolicyThatItNames(t *testing.T) {
	s := startServe(t, "policy: {preset: sandboxed}\nconcurrency: 2\nlimits: {max_cost_usd: 2.5}\nmodels: {fast: {provider: replay, model: /nowhere}}").up()
	for policy, status := range map[string]int{"sandboxed": 201, "ci": 201, "default": 201, "readonly": 201, "strict": 201} {
		s.wants(s.token(), fmt.Sprintf(`{"workspace":"one","policy":%q}`, policy), status, "")
	}
	v := s.wants(s.token(), `{"workspace":"one","limits":{"max_cost_usd":0.25}}`, 201, "")
	if v.Budget.CostMicroUSD == nil || *v.Budget.CostMicroUSD != 250_000 {
		t.Errorf("started with the budget %+v", v.Budget)
	}
	s.wants(s.token(), `{"workspace":"one","limits":{"max_cost_usd":2.6}}`, 422, "2.6 US dollars are above the server's limit of 2.5")
	s.wants(s.token(), `{"workspace":"one","limits":{"max_cost_usd":0}}`, 422, "body.limits.max_cost_usd")
}

// TestServeNeedsAPriceForACost: a client's limit that can't be enforced is the client's
// mistake.
func TestServeNeedsAPriceForACost(t *testing.T) {
	s := startServe(t, "models: {unknown: {provider: openai, model: x, base_url: \"http://127.0.0.1:9/v1\"}}").up()
	s.wants(s.token(), `{"workspace":"one","model":"unknown","limits":{"max_cost_usd":1}}`, 422, "the price of the model unknown is unknown")
	s.wants(s.token(), `{"workspace":"one","model":"unknown","limits":{"session":{"max_cost_usd":1}}}`, 422, `"code":"refused"`)
	s.wants(s.token(), `{"workspace":"one","model":"unknown"}`, 201, "")
	// The limit is the server's, the model the client's choice.
	s = startServe(t, "limits: {session: {max_cost_usd: 1}}\nmodels: {unknown: {provider: openai, model: x, base_url: \"http://127.0.0.1:9/v1\"}}").up()
	s.wants(s.token(), `{"workspace":"one","model":"unknown"}`, 422, "model: the price of the model unknown is unknown")
}

func TestServeRefusesToStart(t *testing.T) {
	for name, c := range map[string]struct {
		config string
		args   []string
		status int
		says   string
	}{
		"remote":           {"", []string{"--listen", "0.0.0.0:0"}, 42, "--allow-remote"},
		"remote, no token": {"", []string{"--listen", "0.0.0.0:0", "--allow-remote"}, 52, "has no token of its own"},
		"no such root":     {"", []string{"--root", "/no/such"}, 42, "/no/such"},
		"no such batches":  {"", []string{"--batches", "ROOT/one", "--batches", "/no/such"}, 42, "the batches of /no/such can't be shown"},
		"batches, a file":  {"serve: {batches: [ROOT/one/readme]}", nil, 42, "with serve.batches in the configuration"},
		"token not set":    {"serve: {tokens: {a: {env: NO_SUCH}}}", nil, 52, "NO_SUCH is not set"},
		"token twice":      {"serve: {tokens: {a: {env: ALICE, file: /x}}}", nil, 52, "either env or file"},
		"token file":       {"serve: {tokens: {a: {file: /no/such}}}", nil, 52, "/no/such"},
		"unknown role":     {"serve: {tokens: {a: {env: ALICE, roles: [read, root]}}}", nil, 52, "root"},
		"empty roles":      {"serve: {tokens: {a: {env: ALICE, roles: []}}}", nil, 52, "invalid roles"},
		"token short":      {"serve: {tokens: {a: {env: SHORT}}}", nil, 52, "characters"},
		"concurrency":      {"concurrency: 65", nil, 52, "more than 64"},
		"unknown key":      {"serve: {port: 80}", nil, 52, "port"},
		"arguments":        {"", []string{"x"}, 2, "takes no arguments"},
		"token's place":    {"", []string{"--token-file", "/no/such/token"}, 42, "--token-file"},
		"token in a root":  {"", []string{"--token-file", "ROOT/two/up/work/token"}, 52, "lies at or below a root"},
		"its file there":   {"serve: {tokens: {a: {file: ROOT/one/readme}}}", nil, 52, "lies at or below a root"},
		"socket in a root": {"", []string{"--listen", "127.0.0.1:0", "--listen", "unix:ROOT/new/s.sock"}, 52, "lies at or below a root"},
	} {
		s := startServe(t, c.config, c.args...)
		if status := <-s.ended; status != c.status || !strings.Contains(s.log.String(), c.says) {
			t.Errorf("%s: status %d, want %d: %s", name, status, c.status, s.log)
		}
	}
}

// TestResolveBatches: the operator's own names may have links.
func TestResolveBatches(t *testing.T) {
	top := withoutLinks(t.TempDir())
	dir, link := filepath.Join(top, "results"), filepath.Join(top, "link")
	must(t, errors.Join(os.Mkdir(dir, 0o700), os.Symlink(dir, link)))
	t.Chdir(top)
	got, err := resolveBatches([]string{link, "results", top})
	if want := []string{dir, dir, top}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
}

// TestServeWithoutABackend: a server without a usable backend starts and warns once.
// Its sessions can read, and their first command fails with the cause. Once a backend
// can be used, commands run. The control is a named backend: the server doesn't start
// without it.
func TestServeWithoutABackend(t *testing.T) {
	t.Setenv("FAKE_DOCKER", "no engine answers")
	t.Setenv("FAKE_GVISOR", "no systrap")
	named := startServe(t, "")
	if status := <-named.ended; status != exitSandboxStart || !strings.Contains(named.log.String(), "no systrap") {
		t.Errorf("with a backend that was named: status %d: %s", status, named.log)
	}
	s := startServe(t, "policy: {preset: sandboxed}", "--backend", "auto").up()
	log := s.log.String()
	if strings.Count(log, "no systrap") != 1 || strings.Count(log, "caisson doctor shows") != 1 || !strings.Contains(log, "caisson: backend none: ") {
		t.Errorf("warned as %s", log)
	}
	if status, text := s.do("", "GET", "/healthz", ""); status != http.StatusOK {
		t.Errorf("health: %d %s", status, text)
	}
	// turn starts a session, and returns it after its turn.
	turn := func() (v server.Session, records string) {
		t.Helper()
		id := s.begin(s.token(), `{"workspace":"one"}`)
		s.do(s.token(), "POST", "/sessions/"+id+"/turns", `{"message":"go"}`)
		for !strings.Contains(records, `"kind":"turn.completed"`) {
			records = s.records(id)
		}
		s.do(s.token(), "DELETE", "/sessions/"+id, "")
		_, text := s.do(s.token(), "GET", "/sessions/"+id, "")
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(text)
		}
		return v, records
	}
	for _, preset := range []string{`"readonly"`, `"sandboxed"`} {
		s.wants(s.token(), `{"workspace":"one","policy":`+preset+`}`, 201, `"backend":""`)
	}
	v, _ := turn()
	if *v.Exit != exitSandboxStart || v.Problem == nil || !strings.Contains(v.Problem.Cause, "no systrap") || v.Problem.Hint == "" || v.Backend != "" {
		t.Errorf("a command without a backend: %+v", v)
	}
	t.Setenv("FAKE_GVISOR", "")
	v, records := turn()
	if *v.Exit != exitDone || !strings.Contains(records, `"kind":"sandbox.started"`) {
		t.Errorf("a command once gvisor can be used: %+v\n%s", v, records)
	}
	s.wants(s.token(), `{"workspace":"one"}`, 201, `"backend":"gvisor"`)
	if status := s.stop(); status != exitDone {
		t.Errorf("it ended with %d: %s", status, s.log)
	}
}

// TestServeSandboxes: a sandbox has what the configuration offers by name. Other
// requests are refused with only the names.
func TestServeSandboxes(t *testing.T) {
	s := startServe(t, `
mode: overlay
serve:
  roots: [ROOT/two]
  sandboxes:
    enabled: true
    images: {base: "rootfs:/srv/secret"}
    mounts: {three: {from: ROOT/two/three, to: /three, read_only: true}}
    resources: {tiny: {memory: 256MiB, pids: 70}}
    max_ttl: 10m
`).up()
	for body, says := range map[string]string{
		`{"image":"rootfs:/srv/secret"}`:              "name one of these: base",
		`{"mounts":["two"]}`:                          "Name one of these: three",
		`{"resources":"big"}`:                         "tiny",
		`{"ttl_seconds":601}`:                         "limit of 600",
		`{"workspace":"/etc"}`:                        "not at or below a root",
		`{"workspace":"one/../../outside"}`:           "not at or below a root",
		`{"mode":"bind"}`:                             "less strict",
		`{"workspace":"` + s.home + `/.local/state"}`: "not at or below a root",
		`{"backend":"runc"}`:                          "body",
		`{"egress":["https://example.com"]}`:          "body",
	} {
		status, text := s.do(s.token(), "POST", "/sandboxes", body)
		if status != 422 || !strings.Contains(strings.ToLower(text), strings.ToLower(says)) || strings.Contains(text, "secret") && !strings.Contains(body, "secret") || strings.Contains(text, "three\",\"") {
			t.Errorf("%s: %d %s, want %q", body, status, text, says)
		}
	}
}

// TestServeSandboxPolicy: a sandbox without a model starts only if the policy lets
// commands and writing run. serve.sandboxes.enabled answers the questions of the
// server's own policy.
func TestServeSandboxPolicy(t *testing.T) {
	const enabled, decider = "serve: {sandboxes: {enabled: true}}\n", "policy: {preset: sandboxed, decider: {command: [/bin/false]}}\n"
	for name, tt := range map[string]struct {
		config string
		says   string // "" if it starts
	}{
		"default":                 {"", "set serve.sandboxes.enabled"},
		"default, enabled":        {enabled, ""},
		"sandboxed":               {"policy: {preset: sandboxed}", ""},
		"sandboxed, disabled":     {"policy: {preset: sandboxed}\nserve: {sandboxes: {enabled: false}}", "no sandboxes"},
		"readonly":                {"policy: {preset: readonly}", "denies"},
		"readonly, enabled":       {enabled + "policy: {preset: readonly}", "denies"},
		"requirements, sandboxed": {"policy: {preset: sandboxed}\n# requirements\npolicy: {default: {execute: deny}}", "requirements: class execute"},
		"decider":                 {decider, "a decider rules on the calls of sessions"},
		"decider, enabled":        {enabled + decider, ""},
		"required decider":        {enabled + "policy: {preset: sandboxed}\n# requirements\npolicy: {decider: {command: [/bin/false]}}", "a decider rules on the calls of sessions"},
		"requirements, enabled":   {enabled + "\n# requirements\npolicy: {default: {write: prompt}}", "requirements: class write"},
	} {
		t.Run(name, func(t *testing.T) {
			s := startServe(t, tt.config).up()
			for _, body := range []string{`{}`, `{"workspace":"one"}`} {
				want := 201
				if tt.says != "" {
					want = 403
				}
				if status, text := s.do(s.token(), "POST", "/sandboxes", body); status != want || !strings.Contains(text, tt.says) {
					t.Errorf("%s: %d %s, want %d with %q", body, status, text, want, tt.says)
				}
			}
		})
	}
}

func TestServeLogHasNoControls(t *testing.T) {
	var out bytes.Buffer
	a := newApp(nil, func(int) {})
	a.stderr = &out
	hostile := "\x1b[2J\x7f\u009b31m\u202eevil\u200b"
	serveLog(&a, false).Warn(hostile, zap.String("path", hostile))
	if found := controls(out.String()); len(found) > 0 || strings.Count(out.String(), "evil") != 2 || !json.Valid(out.Bytes()) {
		t.Errorf("the log has %q", out.String())
	}
}

// TestServerRunsNoProgramsOfWorkspaces: once a session has a directory, no program in
// it runs on the host, for any session. Before that, a directory in a root is ordinary.
// So a session may not have a directory of PATH, or one that contains it.
func TestServerRunsNoProgramsOfWorkspaces(t *testing.T) {
	home := t.TempDir()
	for _, name := range []string{"keys/key", "outer/bin/other", "tools/caisson", "tools/caisson-guest", "tools/runsc", "one/file", "two/file"} {
		path := filepath.Join(home, name)
		writeFile(t, path, "#!/bin/sh\necho secret-key\n", 0o755)
	}
	path := filepath.Join(home, "outer/bin") + ":/usr/bin:/bin"
	t.Setenv("PATH", path)
	t.Chdir(filepath.Join(home, "outer")) // the server's own lookups skip it, sessions' don't
	a := newApp(make(chan os.Signal), func(int) {})
	a.stderr, a.environ = io.Discard, []string{"HOME=" + home, "PATH=" + path}
	a.executable = func() (string, error) { return filepath.Join(home, "tools/caisson"), nil }
	a.backend = fakeBackends
	settings := config.File{Model: new("m"), Models: map[string]config.Model{"m": {Model: new("m"), BaseURL: new("https://m.example/v1")}}}
	h := &serverHost{}
	if _, err := h.open(t.Context(), &a, serveFlags{Settings: settings}); err != nil {
		t.Fatal(err)
	}
	defer h.close()
	var err error
	if h.roots, err = openRoots([]string{home}); err != nil {
		t.Fatal(err)
	}
	defer h.roots.close()
	open := func(workspace string) *sessionBuilder {
		t.Helper()
		b, err := h.openSession(server.NewSession{Workspace: workspace})
		must(t, err)
		t.Cleanup(func() {
			b.close()
			b.workspace.Close()
		})
		return b
	}
	check := func(b *sessionBuilder, found bool) {
		t.Helper()
		key, err := readKey(t.Context(), b.environ, []string{filepath.Join(home, "keys/key")}, b.writableDirs(b.workspace.Path))
		if (err == nil && key == "secret-key") != found {
			t.Errorf("%s: the command printed %q, %v", b.workspace.Path, key, err)
		}
		if _, err := b.finder.Find(new(filepath.Join(home, "keys/key")), "none"); (err == nil) != found {
			t.Errorf("%s: the program was looked for: %v", b.workspace.Path, err)
		}
	}
	one := open("one")
	check(one, true)
	open("keys")
	check(one, false)
	check(open("two"), false)
	for _, workspace := range []string{"outer", "outer/bin"} {
		var refused *server.PrepareError
		if _, err := h.openSession(server.NewSession{Workspace: workspace}); !errors.As(err, &refused) || !strings.Contains(refused.Problem.Cause, "PATH") {
			t.Errorf("workspace %s: %v", workspace, err)
		} else if cause := refused.Err; cause == nil || !strings.Contains(cause.Error(), filepath.Join(home, "outer/bin")) || strings.Contains(refused.Problem.Cause, home) {
			t.Errorf("workspace %s: %q, %v", workspace, refused.Problem.Cause, cause)
		}
	}
	if key, err := readKey(t.Context(), one.environ, []string{"other"}, one.writableDirs(one.workspace.Path)); err != nil || key != "secret-key" {
		t.Errorf("a program of PATH printed %q, %v", key, err)
	}
	_, err = h.openSession(server.NewSession{Workspace: "tools"})
	if cause := errors.Unwrap(err); cause == nil || !strings.Contains(cause.Error(), filepath.Join(home, "tools/caisson-guest")) {
		t.Errorf("a workspace with programs of the server: %v", err)
	}
	inHome := h.roots
	if h.roots, err = openRoots([]string{filepath.Join(home, "outer")}); err != nil { // the operator's choice
		t.Fatal(err)
	}
	defer h.roots.close()
	open(".")
	if key, err := readKey(t.Context(), one.environ, []string{"other"}, one.writableDirs(one.workspace.Path)); err == nil {
		t.Errorf("a program of a root that has a session printed %q", key)
	}
	h.roots, h.named = inHome, filepath.Join(home, "outer/bin")
	open("outer/bin")
}
