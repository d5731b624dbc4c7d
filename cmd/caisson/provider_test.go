package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
)

// TestProviderIsQuoted is acceptance case 134: what the provider says about the model,
// the key or the quota is shown without the key, and the profile decides about retries.
// The control is a failure of the provider itself, whose text only the log has.
func TestProviderIsQuoted(t *testing.T) {
	const key = "sk-0123456789abcdefghijklmnopqrst"
	for name, tc := range map[string]struct {
		code     int
		said     string
		retries  int
		status   int
		shown    bool
		requests int64
	}{
		"model": {http.StatusNotFound, "The model gpt-9 does not exist", 3, exitFailed, true, 1},
		"key":   {http.StatusUnauthorized, "Incorrect key: " + key, 3, exitAuth, true, 1},
		"quota": {http.StatusTooManyRequests, "You exceeded your current quota", 1, exitFailed, true, 2},
		"none":  {http.StatusTooManyRequests, "You exceeded your current quota", 0, exitFailed, true, 1},
		"own":   {http.StatusInternalServerError, "stack trace of a server", 2, exitFailed, false, 3},
	} {
		t.Run(name, func(t *testing.T) {
			var requests atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				requests.Add(1)
				w.WriteHeader(tc.code)
				fmt.Fprintf(w, `{"error":{"message":%q}}`, tc.said)
			}))
			defer server.Close()
			w := newWorld(t, "  - text: done\n")
			w.configure(t, fmt.Sprintf("model: m\nmodels: {m: {model: gpt-9, base_url: %q, api_key_env: MY_KEY, max_retries: %d, max_retry_delay: 1ms}}\n", server.URL+"/v1", tc.retries))
			w.env = append(w.env, "MY_KEY="+key)
			status, out, errs := w.call("run", "--workspace", w.dir, "task")
			want, _, _ := strings.Cut(tc.said, key)
			if status != tc.status || strings.Contains(errs, want) != tc.shown || strings.Contains(errs, key) {
				t.Errorf("status %d, want %d\n%s", status, tc.status, errs)
			}
			// Each wait is shown on standard error, without the provider's text.
			retries := regexp.MustCompile(`(?m)^! model: HTTP \d+ [A-Za-z ]+, retry (\d) of (\d) in 1ms$`).FindAllStringSubmatch(errs, -1)
			if len(retries) != int(tc.requests)-1 || strings.Count(errs, ", retry ") != len(retries) || strings.Contains(out, "retry") {
				t.Errorf("retries %q of %d requests\n%s", retries, tc.requests, errs)
			}
			for i, m := range retries {
				if m[1] != fmt.Sprint(i+1) || m[2] != fmt.Sprint(tc.retries) {
					t.Errorf("retry %d is shown as %q", i+1, m[0])
				}
			}
			if requests.Load() != tc.requests {
				t.Errorf("%d requests, want %d", requests.Load(), tc.requests)
			}
		})
	}
}

// TestWritableMounts: no program in a directory that commands can write to runs on the
// host, such as a writable mount or Caisson's state.
func TestWritableMounts(t *testing.T) {
	w := newWorld(t, "  - text: done\n")
	file, dir := filepath.Join(t.TempDir(), "config.yaml"), t.TempDir()
	state := filepath.Join(environ(w.env).stateDir(), "caches")
	for _, dir := range []string{dir, state} {
		must(t, errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "key"), []byte("#!/bin/sh\necho secret-key\n"), 0o700)))
	}
	for _, tt := range []struct {
		path     string
		readOnly bool
		found    bool
	}{{dir, false, false}, {dir, true, true}, {state, true, false}} {
		t.Setenv("PATH", tt.path+":/usr/bin:/bin")
		text := fmt.Sprintf("model: m\nmodels: {m: {model: m, base_url: 'https://m.example/v1', api_key_command: [key]}}\nmounts: [{from: %q, to: /opt/x, read_only: %t}]\n", dir, tt.readOnly)
		must(t, os.WriteFile(file, []byte(text), 0o600))
		s := &settings{deps: w.app.deps, environ: append(slices.Clone(w.env), "CAISSON_CONFIG="+file, "PATH="+os.Getenv("PATH"))}
		err := s.load(config.File{})
		must(t, err)
		key, err := readKey(t.Context(), s.environ, []string{"key"}, s.writableDirs(w.dir))
		if (err == nil && key == "secret-key") != tt.found {
			t.Errorf("%+v: the command printed %q, %v", tt, key, err)
		}
		if _, err := openBackends(s, nil); err != nil {
			t.Fatal(err)
		}
		for name, path := range map[string]string{"the process": os.Getenv("PATH"), "the settings": s.environ.get("PATH")} {
			if strings.Contains(path, tt.path+":") != tt.found {
				t.Errorf("%+v: PATH of %s is %s", tt, name, path)
			}
		}
	}
}

// TestFallbackModel runs a task whose first model is down. The second one answers with
// a key that a command prints. Both requests are recorded, without keys.
func TestFallbackModel(t *testing.T) {
	const key = "key-printed-by-a-command"
	down := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }))
	defer down.Close()
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+key || r.Header.Get("X-Team") != "blue" {
			t.Errorf("headers %v", r.Header)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"model":"answering-1","choices":[{"message":{"content":"Done with %s."},"finish_reason":"stop"}],"usage":{"prompt_tokens":1000000,"completion_tokens":1}}`, key)
	}))
	defer up.Close()
	w := newWorld(t, "  - text: done\n")
	w.configure(t, fmt.Sprintf("model: first\nlimits: {max_cost_usd: 10}\nmodels:\n  first: {model: a, base_url: %q, max_retries: 0, price: {input: 1, output: 1}, fallback: [second]}\n"+
		"  second: {model: b, base_url: %q, api_key_command: [echo, %s], headers: {X-Team: blue}, price: {input: 2, output: 2}}\n", down.URL+"/v1", up.URL+"/v1", key))
	w.env = append(w.env, "PATH="+os.Getenv("PATH"))
	status, out, errs := w.call("run", "--json", "--workspace", w.dir, "task")
	if status != 0 || strings.Contains(out+errs, key) {
		t.Errorf("status %d\n%s%s", status, out, errs)
	}
	for _, want := range []string{
		`"profile":"first","attempt":1,`, `"error_class":"server_error","http_status":503`, "the model first failed (server_error); second is asked instead",
		`"profile":"second","attempt":2,"model":{"provider":"openai","model":"answering-1"`, `"cost_micro_usd":2000002`,
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no record has %s", want)
		}
	}
	if t.Failed() {
		t.Log(out)
	}
}

// TestKeyCommand tests which commands and outputs are valid. No error has the output.
func TestKeyCommand(t *testing.T) {
	w := newWorld(t, "  - text: done\n")
	outside := t.TempDir()
	for path, text := range map[string]string{filepath.Join(outside, "key"): "#!/bin/sh\necho secret-key\n", filepath.Join(w.dir, "key"): "#!/bin/sh\necho secret-key\n"} {
		must(t, os.WriteFile(path, []byte(text), 0o700))
	}
	must(t, os.Symlink(filepath.Join(w.dir, "key"), filepath.Join(outside, "link")))
	t.Chdir(w.dir)
	for name, tc := range map[string]struct {
		command []string
		want    string
		err     string
	}{
		"printed":           {command: []string{filepath.Join(outside, "key")}, want: "secret-key"},
		"no shell":          {command: []string{"echo", "$HOME;id"}, want: "$HOME;id"},
		"in the workspace":  {command: []string{filepath.Join(w.dir, "key")}, err: "commands in the sandbox can write to"},
		"relative":          {command: []string{"./key"}, err: "not an absolute path"},
		"on PATH":           {command: []string{"key"}, want: "secret-key"},
		"by a symlink":      {command: []string{filepath.Join(outside, "link")}, err: "commands in the sandbox can write to"},
		"as an argument":    {command: []string{"sh", filepath.Join(w.dir, "key")}, err: "commands in the sandbox can write to"},
		"relative argument": {command: []string{"sh", "key"}, err: "exit status"},
		"fails":             {command: []string{"sh", "-c", "echo secret-key; exit 3"}, err: "exit status 3"},
		"nothing":           {command: []string{"true"}, err: "printed nothing"},
		"two lines":         {command: []string{"printf", `secret-key\nsecond\n`}, err: "printed more than a key"},
		"too much":          {command: []string{"head", "-c", "20000", "/dev/zero"}, err: "printed more than 16384 bytes"},
		"endless":           {command: []string{"yes"}, err: "it took longer than"},
		"not there":         {command: []string{"no-such-program"}, err: "it is not there"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &settings{environ: environ{"PATH=" + w.dir + ":" + outside + ":" + os.Getenv("PATH")}}
			ctx := t.Context()
			if name == "endless" {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeoutCause(ctx, 100*time.Millisecond, errors.New("it took longer than this test waits"))
				defer cancel()
			}
			got, err := readKey(ctx, s.environ, tc.command, s.writableDirs(w.dir))
			if got != tc.want || (err == nil) != (tc.err == "") || err != nil && (!strings.Contains(err.Error(), tc.err) || strings.Contains(err.Error(), "secret")) {
				t.Errorf("%q, %v; want %q, %s", got, err, tc.want, tc.err)
			}
		})
	}
}
