package main

import (
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caisson-run/caisson"
	"github.com/caisson-run/caisson/sandbox"
)

// TestCredentialsInURLs is acceptance case 109: user information and queries in
// addresses of models, engines and proxies reach no output, record or log. The control
// is a name in the same addresses, which does.
func TestCredentialsInURLs(t *testing.T) {
	failing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, `{"error":{"message":"no such key: `+r.URL.String()+` %68unter2-in-query of `+r.Header.Get("Authorization")+`"}}`, http.StatusNotFound)
	}))
	defer failing.Close()
	host := strings.TrimPrefix(failing.URL, "http://")
	task := "say correct-horse-9 and s3cret-user-8:pass%77ord-11"
	// hidden are words of the task that an address makes secret. Records and logs don't
	// have them.
	hidden := map[string]string{"proxy": "correct-horse-9", "engine, ssh": "pass%77ord-11"}
	for name, tc := range map[string]struct {
		env    []string
		config string
		args   []string
		shown  string
	}{
		"base_url, query":       {[]string{"OPENAI_BASE_URL=" + failing.URL + "/v1?api-key=hunter2-in-query"}, "", []string{"run", task}, host},
		"base_url, no server":   {[]string{"OPENAI_BASE_URL=http://127.0.0.1:1/v1?api-key=hunter2-in-query", "OPENAI_API_KEY=k"}, "", []string{"run", "--timeout", "1s", task}, "127.0.0.1:1"},
		"base_url, user":        {[]string{"OPENAI_BASE_URL=http://me:password-11@" + host}, "", []string{"run", task}, "credentials"},
		"base_url, no scheme":   {[]string{"OPENAI_BASE_URL=me:password-11@nowhere.test"}, "", []string{"run", task}, "base URL"},
		"base_url of a profile": {nil, "model: m\nmodels: {m: {model: x, base_url: \"" + failing.URL + "/v1?sig=hunter2-in-query\"}}\n", []string{"run", task}, host},
		"engine":                {[]string{"DOCKER_HOST=tcp://me:password-11@127.0.0.1:1?x=hunter2-in-query"}, "", []string{"run", "--backend", "docker", "--model", "replay/SCRIPT", task}, "127.0.0.1:1"},
		"engine, ssh":           {[]string{"DOCKER_HOST=ssh://s3cret-user-8:password-11@engine.test"}, "", []string{"run", "--backend", "docker", "--model", "replay/SCRIPT", task}, "engine.test"},
		"engine, no address":    {[]string{"DOCKER_HOST=me:password-11@engine.test"}, "", []string{"run", "--backend", "docker", "--model", "replay/SCRIPT", task}, "engine.test"},
		"engine, broken":        {[]string{"DOCKER_HOST=tcp://me:password-11@127.0.0.1:port"}, "", []string{"run", "--backend", "docker", "--model", "replay/SCRIPT", task}, `"tcp://127.0.0.1:port" (from DOCKER_HOST)`},
		"proxy":                 {[]string{"HTTP_PROXY=http://me:password-11@127.0.0.1:1", "https_proxy=http://correct-horse-9@127.0.0.1:1"}, "", []string{"run", "--backend", "gvisor", "--model", "replay/SCRIPT", task}, "done"},
		"doctor":                {[]string{"OPENAI_BASE_URL=" + failing.URL + "/v1?api-key=hunter2-in-query", "DOCKER_HOST=tcp://me:password-11@127.0.0.1:1"}, "", []string{"doctor"}, "127.0.0.1:1"},
		"doctor, JSON":          {[]string{"OPENAI_BASE_URL=" + failing.URL + "/v1?api-key=hunter2-in-query", "DOCKER_HOST=tcp://me:password-11@127.0.0.1:1"}, "", []string{"doctor", "--json"}, "127.0.0.1:1"},
		"config show":           {[]string{"CAISSON_DOCKER_HOST=tcp://me:password-11@127.0.0.1:1"}, "", []string{"config", "show"}, "127.0.0.1:1"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "  - text: done\n")
			home := filepath.Join(filepath.Dir(w.dir), "home")
			w.env = append(w.env, tc.env...)
			if tc.config != "" {
				w.configure(t, tc.config)
			}
			w.app.backend = func(s caisson.BackendSettings) (sandbox.Backend, error) {
				if s.Name == "docker" {
					return nil, nil // the real one
				}
				return &fakeBackend{name: s.Name}, nil
			}
			var args []string
			for _, a := range tc.args {
				args = append(args, strings.ReplaceAll(a, "SCRIPT", filepath.Join(filepath.Dir(w.dir), "script.yaml")))
			}
			if args[0] == "run" {
				args = append(args[:1], append([]string{"--workspace", w.dir}, args[1:]...)...)
			}
			status, out, errs := w.call(args...)
			all := map[string]string{"standard output": out, "standard error": errs}
			err := filepath.WalkDir(filepath.Join(home, ".local"), func(path string, e fs.DirEntry, err error) error {
				if err == nil && e.Type().IsRegular() {
					text, readErr := os.ReadFile(path)
					all[path], err = string(text), readErr
				}
				return err
			})
			if err != nil && !errors.Is(err, fs.ErrNotExist) { // not every command writes something
				t.Fatal(err)
			}
			shown := false
			for where, text := range all {
				shown = shown || strings.Contains(text, tc.shown)
				secrets := []string{"hunter2-in", "%68unter2-in", "password-11"}
				if word, ok := hidden[name]; ok && filepath.IsAbs(where) {
					secrets = append(secrets, word)
				}
				for _, secret := range secrets {
					if strings.Contains(text, secret) {
						t.Errorf("%s (status %d) holds %s:\n%s", where, status, secret, text)
					}
				}
			}
			if !shown {
				t.Errorf("control (status %d): %q is nowhere in\n%s\n%s", status, tc.shown, out, errs)
			}
		})
	}
}
