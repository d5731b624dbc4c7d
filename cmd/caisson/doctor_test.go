package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caisson-run/caisson"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/runner/doctor"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/programs"
	"github.com/caisson-run/caisson/tools/approval"
)

func files(t *testing.T, content map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range content {
		path := filepath.Join(dir, name)
		writeFile(t, path, text, 0o644)
	}
	return dir
}

// requireFinding looks for a finding whose detail contains words. The result "" means
// that there must be none.
func requireFinding(t *testing.T, name string, found []doctor.Finding, result doctor.Result, words string) {
	t.Helper()
	findings := describeFindings(found)
	i := slices.IndexFunc(findings, func(f describedFinding) bool { return strings.Contains(f.Detail, words) })
	switch {
	case result == "" && i >= 0:
		t.Errorf("%s: %+v", name, findings[i])
	case result != "" && i < 0:
		t.Errorf("%s: no finding says %q:\n%+v", name, words, findings)
	case i >= 0 && findings[i].Result != result:
		t.Errorf("%s: %q is %s, want %s", name, words, findings[i].Result, result)
	case i >= 0 && findings[i].Result != doctor.OK && findings[i].Result != doctor.Absent && findings[i].Hint == "":
		t.Errorf("%s: %q has no hint", name, words)
	case i >= 0 && findings[i].Result == doctor.Failed && findings[i].status == 0:
		t.Errorf("%s: %q failed with status 0", name, words)
	}
}

// openTestBackends returns backends with a configuration file, and a home outside of
// directories for temporary files.
func openTestBackends(t *testing.T, text string, env ...string) *backends {
	t.Helper()
	dir := files(t, map[string]string{"config.yaml": text})
	env = append(env, "HOME="+filepath.Join(dir, "home"), "CAISSON_CONFIG="+filepath.Join(dir, "config.yaml"), "XDG_STATE_HOME="+filepath.Join(dir, "state"))
	a := newApp(nil, nil)
	a.requirements, a.environ = "", env
	bs, err := openDefaultBackends(&a)
	must(t, err)
	t.Cleanup(bs.close)
	return bs
}

func TestDoctorPolicy(t *testing.T) {
	here := t.TempDir()
	open := filepath.Join(here, "open")
	must(t, errors.Join(os.Mkdir(open, 0o755), os.Chmod(open, 0o777)))
	for _, tt := range []struct {
		name, text string
		result     doctor.Result
		words      string
	}{
		{"nothing said", "{}", doctor.OK, "ci without a terminal, default on one"},
		{"a preset", "policy: {preset: readonly}", doctor.OK, "readonly"},
		{"a misspelt rule", "policy: {tools: {shel: deny}}", doctor.Warning, `"shel" matches no tool`},
		{"a rule of another case", "policy: {tools: {Shell: deny}}", doctor.Warning, `"Shell" matches no tool`},
		{"a rule of a server that is not there", "policy: {tools: {github/*: deny}}", doctor.Warning, `"github/*" matches no tool`},
		{"a good rule", "policy: {tools: {shell: deny}}", "", "matches no tool"},
		{"a rule of a tool that is declared", "tools: {lint: {description: Lint., command: [true]}}\npolicy: {tools: {lint: deny}}", "", "matches no tool"},
		{"tools that are off", "{}", doctor.OK, "off: "},
		{"a fetch rule that is none", "fetch: {allow: ['https://*.example.com/']}", doctor.Failed, "wildcard"},
		{"two spellings", "policy: {tools: {github/push: deny, github__push: auto}}", doctor.Warning, "two spellings of one tool"},
		{"one spelling", "policy: {tools: {github/push: deny, github/pull: auto}}", "", "two spellings"},
		{"overrides without folders", "policy: {relaxed_modes: {execute: auto}}", doctor.Warning, "there is no relaxed workspace"},
		{"overrides with folders", "policy: {relaxed_workspaces: [/usr], relaxed_modes: {execute: auto}}", "", "there is no relaxed workspace"},
		{"network unasked", "policy: {default: {network: auto}}", doctor.Warning, "every tool of class network runs without asking (class network)"},
		{"network unasked where relaxed", "policy: {relaxed_workspaces: [/usr], relaxed_modes: {network: auto}}", doctor.Warning, "every tool of class network runs without asking (relaxed workspace"},
		{"network asked", "policy: {default: {network: prompt}}", "", "class network"},
		{"allowed where nobody is asked", "on_prompt: allow", doctor.Warning, "runs without approval"},
		{"denied where nobody is asked", "on_prompt: deny", doctor.OK, "is refused"},
		{"failed where nobody is asked", "on_prompt: fail", doctor.OK, "ends the run"},
		{"a relaxed directory that is not there", "policy: {relaxed_workspaces: [/nowhere/at/all]}", doctor.Warning, "/nowhere/at/all (policy.relaxed_workspaces) is not a directory"},
		{"a relaxed directory for temporary files", fmt.Sprintf("policy: {relaxed_workspaces: [%s]}", here), doctor.Warning, "where other programs and users create directories"},
		{"a relaxed directory of every user", fmt.Sprintf("policy: {relaxed_workspaces: [%s]}", open), doctor.Warning, "can be written by every user"},
		{"a relaxed directory that holds all", "policy: {relaxed_workspaces: [/]}", doctor.Warning, "contains your home directory"},
		{"a good relaxed directory", "policy: {relaxed_workspaces: [/usr]}", "", "/usr (policy.relaxed_workspaces)"},
	} {
		s := openTestBackends(t, tt.text, "TMPDIR="+here)
		requireFinding(t, tt.name, s.checkPolicy(nil), tt.result, tt.words)
	}
	s := openTestBackends(t, "policy: {tools: {shel: deny}}")
	for _, f := range s.checkPolicy(nil) {
		if strings.Contains(f.Detail, "shel") && !strings.Contains(f.Hint, "Write shell,") {
			t.Errorf("what is meant by shel: %s", f.Hint)
		}
	}
}

func TestDoctorApprovals(t *testing.T) {
	there := t.TempDir()
	for _, tt := range []struct {
		name, text string
		grant      approval.Grant
		result     doctor.Result
		words      string
	}{
		{"a good one", "{}", approval.Grant{Tool: "shell", Workspace: there, Decision: approval.DecisionAllow}, doctor.OK, "1 stored"},
		{"of no tool", "{}", approval.Grant{Tool: "shel", Workspace: there, Decision: approval.DecisionAllow}, doctor.Warning, "shel, which is not a tool"},
		{"of a folder that is gone", "{}", approval.Grant{Tool: "shell", Workspace: "/nowhere", Decision: approval.DecisionDeny}, doctor.Warning, "1 hold for /nowhere"},
		{"of a tool that is denied", "{policy: {preset: readonly}}", approval.Grant{Tool: "shell", Workspace: there, Decision: approval.DecisionAllow}, doctor.Warning, "which the policy denies"},
		{"of what is dangerous", "{}", approval.Grant{Tool: "shell", Workspace: there, Phrase: "rm -rf /", Decision: approval.DecisionAllow}, doctor.Warning, "which the policy calls dangerous"},
		{"a refusal of what is dangerous", "{}", approval.Grant{Tool: "shell", Workspace: there, Phrase: "rm -rf /", Decision: approval.DecisionDeny}, "", "which the policy calls dangerous"},
		{"a denial of a tool that is denied", "{policy: {preset: readonly}}", approval.Grant{Tool: "shell", Workspace: there, Decision: approval.DecisionDeny}, "", "which the policy denies"},
	} {
		s := openTestBackends(t, tt.text)
		must(t, s.environ.grantStore().Add(tt.grant))
		requireFinding(t, tt.name, s.checkPolicy(nil), tt.result, tt.words)
	}
	s := openTestBackends(t, "{}")
	must(t, os.WriteFile(filepath.Join(s.environ.stateDir(), "approvals.json"), []byte("{"), 0o600))
	requireFinding(t, "damaged", s.checkPolicy(nil), doctor.Warning, "was damaged and counts as empty")
}

func TestDoctorTrust(t *testing.T) {
	work := files(t, map[string]string{".caisson/config.yaml": "image: host\n"})
	for _, tt := range []struct {
		name   string
		change func()
		result doctor.Result
		words  string
	}{
		{"as it was trusted", func() {}, "", work},
		{"changed", func() {
			must(t, os.WriteFile(filepath.Join(work, ".caisson/config.yaml"), []byte("image: other\n"), 0o600))
		}, doctor.Warning, "settings that differ from the trusted ones"},
		{"gone", func() {
			must(t, os.RemoveAll(work))
		}, doctor.Warning, work + ", a trusted workspace, is not a directory"},
	} {
		s := openTestBackends(t, "{}")
		ws, err := runner.OpenWorkspace(work, runner.Protected{})
		must(t, err)
		own, err := readOwn(ws)
		must(t, errors.Join(err, ws.Close(), s.environ.trustStore().Add(work, own.files)))
		tt.change()
		// The folder is below one for temporary files, which is said of its own.
		found := slices.DeleteFunc(s.checkPolicy(nil), func(f doctor.Finding) bool { return strings.Contains(f.Detail, "create directories") })
		if tt.result == doctor.Warning && tt.name == "changed" {
			if s.coversSettings(approval.TrustedWorkspace{Workspace: work, Files: own.files}) {
				t.Error("changed settings are covered")
			}
			continue
		}
		requireFinding(t, tt.name, found, tt.result, tt.words)
	}
}

func TestDoctorConfiguration(t *testing.T) {
	tokens := files(t, map[string]string{"readable": "t", "private": "t"})
	readable, private := filepath.Join(tokens, "readable"), filepath.Join(tokens, "private")
	must(t, os.Chmod(private, 0o600))
	for _, tt := range []struct {
		name, text string
		mode       os.FileMode
		result     doctor.Result
		words      string
	}{
		{"a registry without TLS", "images: {plain_http: ['registry.example:5000']}", 0o644, doctor.Warning, "registry.example:5000 has no TLS"},
		{"fetch without TLS", "fetch: {allow: ['http://wiki.example/']}", 0o644, doctor.Warning, "http://wiki.example/ is fetched without TLS"},
		{"fetch with TLS", "fetch: {allow: ['https://wiki.example/']}", 0o644, doctor.OK, "on, for https://wiki.example/"},
		{"fetch of this machine", "fetch: {allow: ['http://localhost:8080/']}", 0o644, "", "without TLS"},
		{"fetch is off", "{}", 0o644, "", "fetched"},
		{"fetch of credentials", "fetch: {allow: ['https://wiki.example/'], private: {wiki.example: [169.254.0.0/16]}}", 0o644, doctor.Warning, "where clouds keep"},
		{"fetch of a private network", "fetch: {allow: ['https://wiki.example/'], private: {wiki.example: [10.0.0.0/8]}}", 0o644, "", "where clouds keep"},
		{"fetch by a proxy", "fetch: {allow: ['https://wiki.example/'], proxy: 'http://proxy.example:3128'}", 0o644, doctor.Warning, "a proxy makes the connections"},
		{"a token of the environment that is not set", "serve: {tokens: {ci: {env: NO_SUCH_TOKEN}}}", 0o644, doctor.Warning, "NO_SUCH_TOKEN is not set"},
		{"a token's file that is not there", "serve: {tokens: {ci: {file: /nowhere/token}}}", 0o644, doctor.Warning, "/nowhere/token"},
		{"a token's file of everybody", "serve: {tokens: {ci: {file: '" + readable + "'}}}", 0o644, doctor.Warning, "other users may read " + readable},
		{"a token's file of the user", "serve: {tokens: {ci: {file: '" + private + "'}}}", 0o644, "", private},
		{"a root that is not there", "serve: {roots: [/nowhere/at/all]}", 0o644, doctor.Warning, "root /nowhere/at/all is not a directory"},
		{"a good root", "serve: {roots: [/usr]}", 0o644, "", "root /usr"},
		{"a server for other machines", "serve: {allow_remote: true}", 0o644, doctor.Warning, "other machines may reach"},
		{"a server for this one", "serve: {allow_remote: false}", 0o644, "", "other machines"},
		{"a registry of this machine", "images: {plain_http: ['localhost:5000']}", 0o644, "", "without TLS"},
	} {
		s := openTestBackends(t, tt.text)
		must(t, os.Chmod(s.environ.get("CAISSON_CONFIG"), tt.mode))
		requireFinding(t, tt.name, s.checkConfig(), tt.result, tt.words)
	}
}

func TestDoctorModel(t *testing.T) {
	const key = "OPENAI_API_KEY=k"
	profile := "model: m\nmodels: {m: {model: x, base_url: '%s'%s}}"
	script := filepath.Join(files(t, map[string]string{"a.yaml": "version: 1\nname: a\nturns: [{text: an answer}]\n"}), "a.yaml")
	for _, tt := range []struct {
		name, text, env string
		result          doctor.Result
		words           string
	}{
		{"none", "{}", "A=b", doctor.Warning, "no model is configured"},
		{"no key", "model: openai/gpt-5", "A=b", doctor.Warning, "OPENAI_API_KEY is not set"},
		{"no price", "model: openai/some", key, doctor.Warning, "its price is unknown"},
		{"a price", fmt.Sprintf(profile, "https://models.example/v1", ", price: {input: 1, cached_input: 1, output: 2}"), key, doctor.OK, "models.example"},
		{"no TLS", fmt.Sprintf(profile, "http://models.example/v1", ", api_key_env: OPENAI_API_KEY"), key, doctor.Warning, "without TLS"},
		{"this machine", fmt.Sprintf(profile, "http://127.0.0.1:8080/v1", ""), key, doctor.OK, "127.0.0.1"},
		{"ollama", "model: m\nmodels: {m: {provider: ollama, model: qwen3, context_window: 32768}}", "A=b", doctor.OK, "ollama/qwen3 at http://127.0.0.1:11434"},
		{"ollama, short", "model: ollama/qwen3", "A=b", doctor.Warning, "its context window is the server's default"},
		{"ollama elsewhere", "model: ollama/qwen3", "OLLAMA_HOST=models.example", doctor.Warning, "its price is unknown"},
		{"a script", "model: replay/" + script, "A=b", doctor.OK, script},
		{"a script that is not there", "model: replay/nowhere.yaml", "A=b", doctor.Failed, "can't be played"},
		{"credentials in the URL", fmt.Sprintf(profile, "https://user:pw@models.example/v1", ""), key, doctor.Failed, "the base URL holds credentials"},
		{"credentials in the URL of the environment", "model: openai/x", key + "\nOPENAI_BASE_URL=https://user:pw@models.example/v1", doctor.Failed, "the base URL holds credentials"},
	} {
		requireFinding(t, tt.name, []doctor.Finding{openTestBackends(t, tt.text, strings.Split(tt.env, "\n")...).checkModel()}, tt.result, tt.words)
	}
}

func TestDoctorState(t *testing.T) {
	s := openTestBackends(t, "{}")
	requireFinding(t, "below a folder for temporary files", []doctor.Finding{doctor.CheckState(s.environ.stateDir(), s.environ.temporaryDirs())}, doctor.Warning, "which is emptied")
	must(t, os.Chmod(s.environ.stateDir(), 0o777))
	requireFinding(t, "others can write it", []doctor.Finding{doctor.CheckState(s.environ.stateDir(), s.environ.temporaryDirs())}, doctor.Failed, "can be written by other users")
}

func TestDoctorLayout(t *testing.T) {
	d := newApp(nil, nil)
	d.environ = environ{"NO_COLOR=1"}
	var out strings.Builder
	d.stdout, d.terminal, d.size = &out, func(any) bool { return true }, func() (int, int) { return 80, 24 }
	found := describeFindings([]doctor.Finding{
		{Check: "one", Result: doctor.OK, Detail: strings.Repeat("word ", 40)},
		{Check: "two", Result: doctor.Failed, Detail: "bad \x1b[2J", Hint: strings.Repeat("hint ", 40)},
		{Check: "three", Result: doctor.OK, Detail: strings.Repeat("CVE-2025-31133, ", 20)},
	})
	must(t, showFindings(&d, found, false))
	for line := range strings.Lines(out.String()) {
		if len([]rune(strings.TrimRight(line, "\n"))) > 80 || strings.ContainsRune(line, '\x1b') {
			t.Errorf("%q", line)
		}
	}
	if n := strings.Count(out.String(), "CVE-2025-31133,"); n != 20 {
		t.Errorf("%d of 20 names are whole", n)
	}
	if !strings.HasSuffix(out.String(), "\n2 ok, 0 warnings, 1 failed: fix what failed before you run anything.\n") {
		t.Errorf("%s", out.String())
	}
	out.Reset()
	d.environ = nil
	if err := showFindings(&d, found[:1], false); err != nil || !strings.HasPrefix(out.String(), "\x1b[32mok") {
		t.Errorf("%q, %v", out.String(), err)
	}
}

func TestDoctorLeftovers(t *testing.T) {
	for _, tt := range []struct {
		state  string
		result doctor.Result
		words  string
	}{
		{"alive", doctor.OK, "1 running, nothing left"}, {"dead", doctor.Warning, "left by dead owners: ses_1 on gvisor"},
	} {
		bin := t.TempDir()
		for _, name := range []string{"caisson-guest", "runsc", "runc"} {
			must(t, os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"), 0o700))
		}
		s := openTestBackends(t, "{}", "PATH="+bin).settings
		s.deps.backend = func(b caisson.BackendSettings) (sandbox.Backend, error) {
			fake := &fakeBackend{name: b.Name}
			if b.Name == "gvisor" {
				fake.listed = []sandbox.Listing{{Session: "ses_1", Backend: "gvisor", Since: time.Now(), Owner: sandbox.ListedOwner{State: tt.state}}}
			}
			return fake, nil
		}
		bs, err := openBackends(s, nil)
		must(t, err)
		requireFinding(t, tt.state, []doctor.Finding{bs.checkSandboxes(t.Context())}, tt.result, tt.words)
	}
}

func TestUnusableBackend(t *testing.T) {
	for _, tt := range []struct {
		backend string
		err     error
		words   string
	}{
		{"docker", &programs.NotFoundError{Name: "caisson-guest"}, "Build it with make build"},
		{"runc", &programs.NotFoundError{Name: "caisson-guest"}, "Build it with make build"},
		{"gvisor", fmt.Errorf("check gvisor: %w: %w: %w", sandbox.ErrUnavailable, sandbox.ErrNoNamespaces, os.ErrPermission), "--isolation process"},
		{"runc", &programs.NotFoundError{Name: "runc"}, "Install runc or crun"},
		{"docker", fmt.Errorf("ask the engine: %w", sandbox.ErrUnavailable), "Start a Docker engine"},
		{"gvisor", fmt.Errorf("runsc --version: %w: %w", sandbox.ErrUnavailable, &programs.NoExecError{Path: "/cache/runsc"}), "without noexec"},
		{"gvisor", &programs.UnpackError{Name: "runsc", Err: syscall.ENOSPC}, "Set XDG_CACHE_HOME"},
	} {
		found := doctor.CheckBackends(t.Context(), doctor.Backends{
			Names: []string{tt.backend}, Asked: tt.backend, Allowed: func(string) bool { return true },
			Open: func(string) (sandbox.Backend, error) { return nil, tt.err },
		})
		if f := describeFindings(found)[0]; f.Result != doctor.Failed || !strings.Contains(f.Hint, tt.words) {
			t.Errorf("%s, %v: %+v, want %q", tt.backend, tt.err, f, tt.words)
		}
	}
}
