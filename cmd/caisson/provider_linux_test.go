package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
)

// TestProviderIsQuoted is acceptance case 134: what the provider says about the
// model, the key or the quota is shown, without the key, and how often a
// request is sent again is the profile's. The control is a failure of the
// provider's own, whose words are for the log alone.
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
			config := filepath.Join(filepath.Dir(w.dir), "config.yaml")
			text := fmt.Sprintf("model: m\nmodels: {m: {model: gpt-9, base_url: %q, api_key_env: MY_KEY, max_retries: %d, max_retry_delay: 1ms}}\n", server.URL+"/v1", tc.retries)
			if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			var out, errs bytes.Buffer
			w.app.stdout, w.app.stderr = &out, &errs
			w.env = append(w.env, "CAISSON_CONFIG="+config, "MY_KEY="+key)
			status := run(t.Context(), []string{"run", "--workspace", w.dir, "task"}, w.env, w.app)
			want, _, _ := strings.Cut(tc.said, key)
			if status != tc.status || strings.Contains(errs.String(), want) != tc.shown || strings.Contains(errs.String(), key) {
				t.Errorf("status %d, want %d\n%s", status, tc.status, errs.String())
			}
			// Each wait is shown on standard error, without the provider's words.
			retries := regexp.MustCompile(`(?m)^! model: HTTP \d+ [A-Za-z ]+, retry (\d) of (\d) in 1ms$`).FindAllStringSubmatch(errs.String(), -1)
			if len(retries) != int(tc.requests)-1 || strings.Count(errs.String(), ", retry ") != len(retries) || strings.Contains(out.String(), "retry") {
				t.Errorf("retries %q of %d requests\n%s", retries, tc.requests, errs.String())
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
