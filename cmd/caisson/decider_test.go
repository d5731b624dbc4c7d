package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/runner/record"
)

// runWithDecider runs two commands, one of them a push, under a decider. Text after
// "# requirements" in its settings becomes the requirements. It returns the rulings, the
// exit status, and what people read.
func runWithDecider(t *testing.T, decider string, args ...string) (rulings []record.ConfirmationResolved, status int, shown string) {
	t.Helper()
	w := newWorld(t, "  - calls: [{tool: shell, input: {command: git push origin}}, {tool: shell, input: {command: echo fine}}]\n  - text: done\n")
	home := strings.TrimPrefix(w.env[0], "HOME=")
	decider, requirements, _ := strings.Cut(strings.NewReplacer("WORKSPACE", w.dir, "HOME", home).Replace(decider), "\n# requirements\n")
	w.app.requirements, w.app.requirementsUID = filepath.Join(home, "requirements.yaml"), os.Getuid()
	for path, text := range map[string]string{
		filepath.Join(home, ".config/caisson/config.yaml"): "policy:\n  decider: " + decider + "\n",
		w.app.requirements:                       requirements + "\n",
		filepath.Join(home, "rules.sh"):          deciderProgram,
		filepath.Join(w.dir, "rules.sh"):         deciderProgram,
		filepath.Join(home, "broken.sh"):         "#!/bin/sh\nkill -9 $$\n",
		filepath.Join(home, "slow.sh"):           "#!/bin/sh\nsleep 60 &\nsleep 60\n",
		filepath.Join(home, "garbage.sh"):        "#!/bin/sh\necho allow\n",
		filepath.Join(home, "other.sh"):          "#!/bin/sh\necho '{\"id\":\"00\",\"decision\":\"allow\"}'\n",
		filepath.Join(home, "allow-and-fail.sh"): strings.Replace(deciderProgram, "deny", "allow", 1) + "exit 1\n",
	} {
		writeFile(t, path, text, 0o700)
	}
	var out, problems bytes.Buffer
	w.app.stdout, w.app.stderr = &out, &problems
	status = w.run(append([]string{"--json"}, args...)...)
	for line := range strings.Lines(out.String()) {
		var r record.Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if p, ok := record.DecodePayload(r).(record.ConfirmationResolved); ok {
			rulings = append(rulings, p)
		}
	}
	return rulings, status, problems.String()
}

const deciderProgram = `#!/bin/sh
question=$(cat)
id=${question#*'"id":"'}
case $question in
*'git push'*) decision=deny ;;
*) decision=allow ;;
esac
echo "{\"id\":\"${id%%\"*}\",\"decision\":\"$decision\",\"reason\":\"not on fridays\"}"
`

// TestDeciderPrograms asks programs and services of the operator. Whatever goes wrong
// with one, its calls are refused.
func TestDeciderPrograms(t *testing.T) {
	answers := func(w http.ResponseWriter, r *http.Request, key string) {
		var q struct{ ID, Summary string }
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil || r.Header.Get("Authorization") != "Bearer "+key {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		decision := "allow"
		if strings.Contains(q.Summary, "git push") {
			decision = "deny"
		}
		_, _ = fmt.Fprintf(w, `{"id":%q,"decision":%q,"reason":"not on fridays"}`, q.ID, decision)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/good", func(w http.ResponseWriter, r *http.Request) { answers(w, r, "k") })
	mux.HandleFunc("/other-key", func(w http.ResponseWriter, r *http.Request) { answers(w, r, "x") })
	mux.Handle("/moved", http.RedirectHandler("/good", http.StatusTemporaryRedirect))
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	url := func(path string) string {
		return `{url: "` + server.URL + path + `", headers: {Authorization: Bearer k}, timeout: 1s}`
	}
	for name, tc := range map[string]struct {
		decider string
		want    []string
		reason  string
	}{
		"a program":            {"{command: [HOME/rules.sh]}", []string{"deny", "allow"}, "not on fridays"},
		"only of writes":       {"{command: [HOME/rules.sh], classes: [write]}", nil, ""},
		"killed":               {"{command: [HOME/broken.sh]}", []string{"deny", "deny"}, "signal: killed"},
		"slow":                 {"{command: [HOME/slow.sh], timeout: 300ms}", []string{"deny", "deny"}, "no answer within 300ms"},
		"garbage":              {"{command: [HOME/garbage.sh]}", []string{"deny", "deny"}, "not a JSON object"},
		"to another call":      {"{command: [HOME/other.sh]}", []string{"deny", "deny"}, "question's id"},
		"an answer and status": {"{command: [HOME/allow-and-fail.sh]}", []string{"deny", "deny"}, "exit status 1"},
		"a service":            {url("/good"), []string{"deny", "allow"}, "not on fridays"},
		"a service, other key": {url("/other-key"), []string{"deny", "deny"}, "403 Forbidden"},
		"a service that moved": {url("/moved"), []string{"deny", "deny"}, "307 Temporary Redirect"},
		"no service there":     {url("/none"), []string{"deny", "deny"}, "404 Not Found"},
		"requirements'":        {"{command: [HOME/garbage.sh]}\n# requirements\npolicy: {decider: {command: [HOME/rules.sh]}}", []string{"deny", "allow"}, "not on fridays"},
		"a slow service":       {url("/slow"), []string{"deny", "deny"}, "no answer within 1s"},
	} {
		t.Run(name, func(t *testing.T) {
			start := time.Now()
			rulings, status, shown := runWithDecider(t, tc.decider, "--policy", "ci")
			var got []string
			for _, r := range rulings {
				got = append(got, string(r.Decision))
				if r.By != "decider" || r.Client == "" || r.Decision == "deny" && !strings.Contains(r.Reason, tc.reason) {
					t.Errorf("%+v", r)
				}
			}
			if !slices.Equal(got, tc.want) || status != exitDone {
				t.Errorf("ruled %q with status %d, want %q\n%s", got, status, tc.want, shown)
			}
			if took := time.Since(start); took > 30*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
	if rulings, status, _ := runWithDecider(t, "{command: [HOME/garbage.sh], on_failure: ask}", "--policy", "sandboxed", "--on-prompt", "deny"); status == exitDone || len(rulings) != 2 || rulings[0].By != "on_prompt" {
		t.Errorf("asked where nobody is: status %d, %+v", status, rulings)
	}
}

// TestDeciderInBatches: the calls of trials are ruled on too.
func TestDeciderInBatches(t *testing.T) {
	b, args := newManyBatch(t, 2)
	for _, model := range []string{"a", "b"} {
		writeFile(t, filepath.Join(b.top, model+".yaml"), "version: 1\nname: "+model+"\nturns:\n  - calls: [{tool: shell, input: {command: echo fine}}]\n  - text: Done.\n", 0o644)
	}
	writeFile(t, filepath.Join(b.top, "home", ".config", "caisson", "config.yaml"), "policy: {decider: {command: [/bin/false]}}\n", 0o644)
	b.run(60, args...)
	ruled, err := exec.Command("grep", "-r", "--include=trace.jsonl", `"decision":"deny".*"by":"decider"`, b.out).Output()
	if rulings := strings.Count(string(ruled), "\n"); err != nil || rulings != 4 {
		t.Errorf("%d rulings in four trials, %v:\n%s", rulings, err, ruled)
	}
}

// TestDeciderKeepsSecrets: what a decider's headers hold is in no record.
func TestDeciderKeepsSecrets(t *testing.T) {
	const key = "k-3141592653589793"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q struct{ ID string }
		_ = json.NewDecoder(r.Body).Decode(&q) // it denies all the same
		_, _ = fmt.Fprintf(w, `{"id":%q,"decision":"deny","reason":"it came with %s"}`, q.ID, r.Header.Get("Authorization"))
	}))
	defer server.Close()
	rulings, _, shown := runWithDecider(t, `{url: "`+server.URL+`", headers: {Authorization: Bearer `+key+`}}`, "--policy", "ci")
	if len(rulings) != 2 || !strings.Contains(rulings[0].Reason, "it came with") || strings.Contains(fmt.Sprint(rulings, shown), key) {
		t.Errorf("%+v\n%s", rulings, shown)
	}
}

// TestDeciderExample runs the example of the documentation.
func TestDeciderExample(t *testing.T) {
	path, err := filepath.Abs(filepath.Join("..", "..", "examples", "decider", "working-hours.py"))
	if err != nil {
		t.Fatal(err)
	}
	expected := func() string {
		if now := time.Now(); now.Weekday() == time.Saturday || now.Weekday() == time.Sunday || now.Hour() < 9 || now.Hour() >= 17 {
			return "deny"
		}
		return "allow"
	}
	before := expected()
	rulings, _, shown := runWithDecider(t, "{command: ["+path+"], classes: [execute]}", "--policy", "ci")
	if len(rulings) != 2 || rulings[1].Decision != "allow" || string(rulings[0].Decision) != before && string(rulings[0].Decision) != expected() {
		t.Errorf("%+v\n%s", rulings, shown)
	}
	before = expected()
	cmd := exec.Command(path)
	cmd.Stdin = strings.NewReader(`{"id":"1","input":{"keys":["up","enter"]},"commands":["\"$@\""]}`)
	out, err := cmd.Output()
	var typed struct{ Decision string }
	if err := errors.Join(err, json.Unmarshal(out, &typed)); err != nil || typed.Decision != before && typed.Decision != expected() {
		t.Errorf("keys that may recall a push: %s, %v", out, err)
	}
}

// TestDeciderSettings: mistakes are found before anything starts.
func TestDeciderSettings(t *testing.T) {
	for decider, want := range map[string]string{
		"{}": "either a command or a url",
		"{command: [/bin/true], url: \"https://x\"}":                                                    "either a command or a url",
		"{command: [HOME/none.sh]}":                                                                     "policy.decider.command",
		"{command: [WORKSPACE/rules.sh]}":                                                               "commands in the sandbox can write to",
		"{command: [/bin/sh, WORKSPACE/rules.sh]}":                                                      "commands in the sandbox can write to",
		"{command: [/bin/env, A=WORKSPACE/rules.sh]}":                                                   "commands in the sandbox can write to",
		"{url: \"http://opa.localhost:8181/\"}":                                                         "not an https address",
		"{url: \"http://example.org/\"}":                                                                "not an https address",
		"{url: \"https://u:p@example.org/\"}":                                                           "without user and password",
		"{command: [/bin/true], headers: {A: b}}":                                                       "a command gets no headers",
		"{url: \"https://x\", headers: {A: $NONE}}":                                                     "the variable NONE is not set",
		"{command: [/bin/true], classes: [all]}":                                                        "classes",
		"{command: [/bin/true], on_failure: allow}":                                                     "on_failure",
		"{command: [/bin/true], may_allow: true}\n# requirements\npolicy: {default: {execute: prompt}}": "the administrator's requirements have a policy",
	} {
		rulings, status, shown := runWithDecider(t, decider)
		if status != exitConfig || !strings.Contains(shown, want) || len(rulings) > 0 {
			t.Errorf("%s: status %d, want %d and %q\n%s", decider, status, exitConfig, want, shown)
		}
	}
}
