// Package browser tests the page of caisson serve in Chromium.
package browser

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// rebound is a name that a foreign server has given this machine's address.
const rebound = "rebound.test"

// patience bounds every wait, on machines that others use.
const patience = 2 * time.Minute

// chromium is the browser of all tests, each of which has tabs and cookies of its own.
var chromium = sync.OnceValues(func() (browser struct {
	ctx   context.Context
	close func()
}, err error,
) {
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.NoSandbox, // root has no other way
		chromedp.Flag("host-resolver-rules", "MAP "+rebound+" 127.0.0.1"),
		chromedp.Flag("disable-component-update", true),
		chromedp.WSURLReadTimeout(patience))
	allocator, release := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, end := chromedp.NewContext(allocator)
	browser.ctx, browser.close = ctx, func() { end(); release() }
	return browser, chromedp.Do(ctx)
})

func TestMain(m *testing.M) {
	status := m.Run()
	if browser, err := chromium(); err == nil {
		browser.close()
	}
	os.Exit(status)
}

// site is a running caisson serve with a home and a workspace.
type site struct {
	t                    testing.TB
	bin, home, workspace string
	cmd                  *exec.Cmd
	env                  []string
	log                  *buffer
	// address is of the server, base of its page, opened what --open printed.
	address, base, opened string
}

// buffer is one that a process writes to while a test reads it.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

var openLine = regexp.MustCompile(`open\s+(http://([a-z0-9]+\.)?caisson\.localhost:\d+/login\S*#[A-Z0-9-]+)`)

// newHome makes a home whose configuration has the models that play turns, by name. The first
// one in the alphabet is the server's own.
func newHome(t testing.TB, models map[string]string) *site {
	t.Helper()
	if _, err := exec.LookPath("chromium"); err != nil {
		t.Skip("needs chromium")
	}
	bin, err := filepath.Abs(filepath.Join("..", "..", "bin"))
	if dir := os.Getenv("E2E_BIN"); dir != "" {
		bin, err = filepath.Abs(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, bin: filepath.Join(bin, "caisson"), home: t.TempDir(), log: &buffer{}}
	s.workspace = filepath.Join(s.home, "project")
	s.write("project/cart.go", "package cart\n\nfunc Total(sum, discount int) int {\n\treturn sum\n}\n")
	batches := filepath.Join(s.home, "batches")
	if err := os.Mkdir(batches, 0o755); err != nil {
		t.Fatal(err)
	}
	config := "serve:\n  max_streams: 128\n  batches: [" + batches + "]\n  tokens:\n"
	s.env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + s.home}
	for _, name := range []string{"alice", "bob", "carol"} {
		config += fmt.Sprintf("    %s: {env: %s, roles: [admin]}\n", name, strings.ToUpper(name))
		s.env = append(s.env, strings.ToUpper(name)+"="+s.token(name))
		s.write(name+".token", s.token(name))
	}
	config += "models:\n"
	for _, name := range slices.Sorted(maps.Keys(models)) {
		script := s.write(name+".yaml", "version: 1\nname: "+name+"\nturns:\n"+models[name])
		config += fmt.Sprintf("  %s: {provider: replay, model: %s}\n", name, script)
	}
	s.write(".config/caisson/config.yaml", config)
	return s
}

// token is the secret of a user: it must only be long.
func (s *site) token(name string) string { return strings.Repeat(name, 16) }

// write writes a file of the home and returns its path.
func (s *site) write(name, text string) string {
	s.t.Helper()
	path := filepath.Join(s.home, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// newSite starts a server on a home.
func newSite(t testing.TB, models map[string]string) *site {
	t.Helper()
	s := newHome(t, models)
	s.serve(slices.Min(slices.Collect(maps.Keys(models))))
	return s
}

func (s *site) serve(model string) {
	s.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		s.t.Fatal(err)
	}
	s.cmd = s.command("serve", "--open", "--root", s.workspace, "--policy", "default", "--backend", "gvisor", "--model", model, "--listen", address)
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := errors.Join(s.cmd.Process.Signal(os.Interrupt), s.cmd.Wait()); err != nil {
			s.t.Errorf("the server ended with %v\n%s", err, s.log)
		}
	})
	s.address = "http://" + address
	eventually(s.t, "the server printed its address", func() bool {
		found := openLine.FindStringSubmatch(s.log.String())
		if found != nil {
			s.opened = found[1]
			s.base, _, _ = strings.Cut(s.opened, "/login")
		}
		return found != nil
	})
}

// command returns a command that ends with the test at the latest. It finds no browser.
func (s *site) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(context.WithoutCancel(s.t.Context()), s.bin, args...)
	cmd.Dir, cmd.Env = s.workspace, s.env
	return cmd
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after %s not: %s", patience, what)
		}
	}
}

// api sends a request of alice and decodes the answer.
func (s *site) api(method, path string, in, out any) (status int) {
	s.t.Helper()
	status, text := s.send("alice", method, path, in)
	if out != nil {
		if err := json.Unmarshal(text, out); err != nil {
			s.t.Fatalf("%s %s: %d, %v\n%s", method, path, status, err, text)
		}
	}
	return status
}

func (s *site) send(user, method, path string, in any) (int, []byte) {
	s.t.Helper()
	var body io.Reader = http.NoBody
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			s.t.Fatal(err)
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.address+path, body)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.token(user))
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return res.StatusCode, text
}

// session starts a session of a model with a task, and returns its ID and that of its turn.
func (s *site) session(model, task string) (id, turn string) {
	s.t.Helper()
	var made, begun struct{ ID, Turn string }
	if status := s.api("POST", "/sessions", map[string]string{"workspace": s.workspace, "model": model, "mode": "overlay"}, &made); status != http.StatusCreated {
		s.t.Fatalf("no session: status %d", status)
	}
	if status := s.api("POST", "/sessions/"+made.ID+"/turns", map[string]string{"message": task}, &begun); status != http.StatusAccepted {
		s.t.Fatalf("no turn: status %d", status)
	}
	return made.ID, begun.Turn
}

// question waits for a question of a session, and returns its ID.
func (s *site) question(id string) string {
	s.t.Helper()
	var list struct {
		Confirmations []struct {
			ID string `json:"id"`
		}
	}
	eventually(s.t, "a question waits", func() bool {
		s.api("GET", "/sessions/"+id+"/confirmations", nil, &list)
		return len(list.Confirmations) > 0
	})
	return list.Confirmations[0].ID
}

// answer answers the next question of a session.
func (s *site) answer(id, turn, decision, reason string) {
	s.t.Helper()
	q := s.question(id)
	if status, text := s.send("alice", "POST", "/sessions/"+id+"/turns/"+turn+"/confirmations/"+q, answerOf(decision, reason)); status >= 300 {
		s.t.Fatalf("an answer: status %d\n%s", status, text)
	}
	eventually(s.t, "the question is gone", func() bool {
		_, text := s.send("alice", "GET", "/sessions/"+id+"/confirmations", nil)
		return !strings.Contains(string(text), q)
	})
}

func answerOf(decision, reason string) map[string]string {
	in := map[string]string{"decision": decision, "scope": "once"}
	if reason != "" {
		in["reason"] = reason
	}
	return in
}

// await waits until a session has a state.
func (s *site) await(id, state string) {
	s.t.Helper()
	eventually(s.t, id+" is "+state, func() bool {
		var v struct{ State string }
		s.api("GET", "/sessions/"+id, nil, &v)
		return v.State == state
	})
}

// tab is a tab of somebody, with cookies of its own.
type tab struct {
	// own is the base of the page for the user who is signed in, or "".
	own string
	t   testing.TB
	ctx context.Context
	*site
	script bool

	// keys and clicks are counted without typed text.
	keys, clicks int

	mu       sync.Mutex
	requests []string
	loads    map[network.RequestID]string
	refused  []string
	faults   []string // dialogs and errors of scripts
}

// tab opens a tab. Without script, pages run none.
func (s *site) tab(t testing.TB, script bool) *tab {
	t.Helper()
	browser, err := chromium()
	if err != nil {
		t.Fatalf("Chromium doesn't start: %v", err)
	}
	ctx, end := chromedp.NewContext(browser.ctx, chromedp.WithNewBrowserContext())
	t.Cleanup(end)
	b := &tab{t: t, ctx: ctx, site: s, script: script, loads: map[network.RequestID]string{}}
	if err := chromedp.Do(ctx); err != nil { // without a time limit, which would be the tab's
		t.Fatal(err)
	}
	err = chromedp.Listen(ctx, func(event any) {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch e := event.(type) {
		case *network.EventRequestWillBeSent:
			b.requests = append(b.requests, e.Request.URL)
			b.loads[e.RequestID] = e.Request.URL
		case *network.EventLoadingFailed:
			b.refused = append(b.refused, b.loads[e.RequestID]+" "+e.ErrorText)
		case *runtime.EventExceptionThrown:
			b.faults = append(b.faults, "script: "+e.ExceptionDetails.Text)
		case *page.EventJavascriptDialogOpening:
			b.faults = append(b.faults, "dialog: "+e.Message)
			go func() { _ = chromedp.Do(ctx, call(page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{})) }()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	b.run(call(network.Enable, network.EnableParams{}), call(page.Enable, page.EnableParams{}), call(runtime.Enable, cdp.Empty{}),
		call(emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !script}),
		call(emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true}),
		call(emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: 1200, Height: 900, DeviceScaleFactor: 1}),
		call(page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{
			Source: `addEventListener("securitypolicyviolation", e => (window.violations ??= []).push(e.effectiveDirective + " " + e.blockedURI + " " + e.sample))`,
		}))
	return b
}

// call is an action of a command, whose result isn't needed.
func call[P, R any](command cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, command, params)
		return err
	})
}

func (b *tab) run(actions ...chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	ctx, end := context.WithTimeoutCause(b.ctx, patience, errNoAnswer)
	defer end()
	if err := chromedp.Do(ctx, actions...); err != nil {
		b.t.Fatalf("%v (%v)\n%s", err, context.Cause(ctx), b.log)
	}
}

var errNoAnswer = errors.New("the browser doesn't answer")

// try evaluates an expression, which may be a promise.
func try[T any](b *tab, expression string) (T, error) {
	ctx, end := context.WithTimeoutCause(b.ctx, patience, errNoAnswer)
	defer end()
	return chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// get returns what an expression yields.
func get[T any](b *tab, expression string) T {
	b.t.Helper()
	out, err := try[T](b, expression)
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return out
}

// wait waits until an expression is true. The page may change meanwhile.
func (b *tab) wait(expression string) {
	b.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		ok, err := try[bool](b, "Boolean("+expression+")")
		if ok && err == nil {
			return
		}
		if time.Now().After(end) {
			if dir := os.Getenv("SCREENSHOTS"); dir != "" {
				b.shoot(filepath.Join(dir, "failed-"+filepath.Base(b.t.Name())+".png"))
			}
			last, _ := try[string](b, `location.href + "\n" + document.body.innerText`)
			b.t.Fatalf("after %s not: %s (%v)\n%s\n%s", patience, expression, err, last, b.log)
		}
	}
}

// shows waits until an element is there.
func (b *tab) shows(selector string) {
	b.t.Helper()
	b.wait("document.querySelector(" + quote(selector) + ")")
}

// says waits for a text in an element.
func (b *tab) says(selector, text string) {
	b.t.Helper()
	b.wait(fmt.Sprintf("document.querySelector(%s)?.textContent.includes(%s)", quote(selector), quote(text)))
}

// quote returns a string or strings as an expression.
func quote[T string | []string](value T) string {
	out, err := json.Marshal(value)
	if err != nil {
		panic(err) // strings
	}
	return string(out)
}

// open shows a path or an address.
func (b *tab) open(address string) {
	b.t.Helper()
	if strings.HasPrefix(address, "/") {
		address = cmp.Or(b.own, b.base) + address
	}
	b.run(chromedp.Navigate(address))
}

// signIn signs somebody in with a code, as caisson open does.
func (b *tab) signIn(name string) *tab {
	b.t.Helper()
	out, err := b.command("open", "--print", "--url", b.address, "--token-file", filepath.Join(b.home, name+".token")).Output()
	found := openLine.FindSubmatch(out)
	if err != nil || found == nil {
		b.t.Fatalf("caisson open: %v\n%s", err, out)
	}
	b.signInAt(string(found[1]))
	return b
}

// signInAt opens an address with a code, which a person types where no script does it.
func (b *tab) signInAt(address string) {
	b.t.Helper()
	b.own, _, _ = strings.Cut(address, "/login")
	b.open("about:blank") // another fragment alone is no other page
	b.open(address)
	if _, code, _ := strings.Cut(address, "#"); !b.script {
		b.run(chromedp.SendKeys(chromedp.CSS("input[name=code]"), code+kb.Enter))
	}
	b.shows(`form[action="/logout"]`)
}

// press presses keys, which count.
func (b *tab) press(keys ...string) {
	b.t.Helper()
	for _, key := range keys {
		b.keys++
		b.run(chromedp.KeyEvent(key))
	}
}

// enters types a text, which doesn't count.
func (b *tab) enters(text string) {
	b.t.Helper()
	b.run(chromedp.KeyEvent(text))
}

// click clicks an element, which counts.
func (b *tab) click(selector string) {
	b.t.Helper()
	b.clicks++
	b.shows(selector)
	b.run(chromedp.Click(chromedp.CSS(selector)))
}

// reach moves the focus to an element with the Tab key.
func (b *tab) reach(selector string) {
	b.t.Helper()
	b.shows(selector)
	for range 200 {
		if get[bool](b, "document.activeElement?.matches("+quote(selector)+")") {
			return
		}
		b.press(kb.Tab)
	}
	b.t.Fatalf("the Tab key doesn't reach %s", selector)
}

// check fails the test for what must never happen on a page of ours.
func (b *tab) check() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, fault := range b.faults {
		b.t.Error(fault)
	}
	for _, address := range b.requests {
		if !strings.HasPrefix(address, b.base+"/") && !strings.HasPrefix(address, "data:") {
			b.t.Errorf("a request elsewhere: %s", address)
		}
	}
	b.faults, b.requests = nil, nil
}
