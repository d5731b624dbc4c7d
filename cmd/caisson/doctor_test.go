//go:build linux

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-run/caisson/cmd/caisson/internal/config"
	"github.com/caisson-run/caisson/runner"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/sandbox/guest/wire"
	"github.com/caisson-run/caisson/sandbox/oci"
	"github.com/caisson-run/caisson/tools/approval"
	"github.com/caisson-run/caisson/tools/policy"
)

// files writes files below a new folder and gives it.
func files(t *testing.T, content map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range content {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// requireFinding looks for a finding whose detail holds some words. A result of
// "" means that there must be none.
func requireFinding(t *testing.T, name string, findings []finding, result, words string) {
	t.Helper()
	i := slices.IndexFunc(findings, func(f finding) bool { return strings.Contains(f.Detail, words) })
	switch {
	case result == "" && i >= 0:
		t.Errorf("%s: %+v", name, findings[i])
	case result != "" && i < 0:
		t.Errorf("%s: no finding says %q:\n%+v", name, words, findings)
	case i >= 0 && findings[i].Result != result:
		t.Errorf("%s: %q is %s, want %s", name, words, findings[i].Result, result)
	case i >= 0 && findings[i].Result != resultOK && findings[i].Result != resultAbsent && findings[i].Mend == "":
		t.Errorf("%s: %q has no mend", name, words)
	case i >= 0 && findings[i].Result == resultFailed && findings[i].status == 0:
		t.Errorf("%s: %q failed with status 0", name, words)
	}
}

func TestDoctorMachine(t *testing.T) {
	good := machine{
		proc: files(t, map[string]string{"sys/user/max_user_namespaces": "15000", "self/uid_map": "0 0 4294967295", "self/gid_map": "0 0 4294967295"}),
		etc:  files(t, nil), cgroups: func() (oci.CgroupInfo, error) { return oci.CgroupInfo{Version: "v2", Swap: true}, nil },
		features: []feature{{name: "openat2", needed: true, mend: "newer", try: func() error { return nil }}},
	}
	group := func(i oci.CgroupInfo, err error) func(*machine) {
		return func(m *machine) { m.cgroups = func() (oci.CgroupInfo, error) { return i, err } }
	}
	sysctl := func(name, value string) func(*machine) {
		return func(m *machine) { m.proc = files(t, map[string]string{"sys/" + name: value}) }
	}
	user := func(more func(*machine)) func(*machine) {
		return func(m *machine) { m.uid = 1000; more(m) }
	}
	feat := func(needed bool) func(*machine) {
		return func(m *machine) {
			m.features = []feature{{name: "thing", needed: needed, lost: "something is lost", mend: "newer", try: func() error { return unix.ENOSYS }}}
		}
	}
	for _, tt := range []struct {
		name          string
		change        func(*machine)
		result, words string
	}{
		{"a kernel without what is needed", feat(true), resultFailed, "no thing (function not implemented): no sandbox can be started"},
		{"a kernel without what is used", feat(false), resultWarning, "something is lost"},
		{"no cgroups", group(oci.CgroupInfo{Version: "none", Missing: []string{"cpu", "memory", "pids"}}, nil), resultWarning, "none are mounted; missing or not writable: cpu, memory, pids"},
		{"a controller is missing", group(oci.CgroupInfo{Version: "hybrid", Missing: []string{"pids"}}, nil), resultWarning, "hybrid: limits by version 1, version 2 beside it; missing or not writable: pids"},
		{"a container's processes in the way", group(oci.CgroupInfo{Version: "v2", Missing: []string{"cpu", "memory", "pids"}, Crowded: "/sys/fs/cgroup"}, nil), resultWarning, "the cgroup /sys/fs/cgroup holds processes itself"},
		{"no swap accounting", group(oci.CgroupInfo{Version: "v1"}, nil), resultOK, "version 1; swap is not accounted for"},
		{"cgroups can't be read", group(oci.CgroupInfo{}, errors.New("no /proc")), resultWarning, "no /proc"},
		{"an ordinary user makes no cgroups", user(group(oci.CgroupInfo{Version: "v2", Missing: []string{"cpu"}}, nil)), resultOK, "as an ordinary user gvisor and runc make none"},
		{"cgroups that were delegated to an ordinary user", user(group(oci.CgroupInfo{Version: "v2", Swap: true}, nil)), resultOK, "as an ordinary user gvisor and runc make none"},
		{"no user namespaces, root", sysctl("user/max_user_namespaces", "0"), resultWarning, "run as the owner's own uid"},
		{"no user namespaces, a user", user(sysctl("user/max_user_namespaces", "0")), resultWarning, "gvisor and runc can't be used by an ordinary user"},
		{"Debian's switch, a user", user(sysctl("kernel/unprivileged_userns_clone", "0")), resultWarning, "kernel.unprivileged_userns_clone is 0"},
		{"Ubuntu's switch, a user", user(sysctl("kernel/apparmor_restrict_unprivileged_userns", "1")), resultWarning, "kernel.apparmor_restrict_unprivileged_userns is 1"},
		{"Ubuntu's switch, root", sysctl("kernel/apparmor_restrict_unprivileged_userns", "1"), "", "apparmor_restrict"},
		{"root of a small user namespace", func(m *machine) { m.proc = files(t, map[string]string{"self/uid_map": "0 1000 1\n1 100000 5000\n"}) }, resultWarning, "id 10001, that of commands, is not (uid_map"},
		{"root of a large user namespace", func(m *machine) {
			m.proc = files(t, map[string]string{"self/uid_map": "0 1000 1\n1 100000 65536\n", "self/gid_map": "0 1000 1\n1 100000 65536\n"})
		}, resultOK, "root; commands run as uid 10001"},
		{"no subordinate ids", user(func(*machine) {}), resultOK, "none in /etc/subuid and /etc/subgid are needed"},
		{"subordinate ids of another", user(func(m *machine) {
			m.etc = files(t, map[string]string{"passwd": "me:x:1000:1000::/home/me:/bin/sh\n", "subuid": "me:100000:65536\n", "subgid": "you:100000:65536\n"})
		}), resultOK, "none in /etc/subgid are needed"},
		{"subordinate ids", user(func(m *machine) {
			m.etc = files(t, map[string]string{"subuid": "1000:100000:65536\n", "subgid": "1000:100000:65536\n"})
		}), resultOK, "the ranges in /etc/subuid and /etc/subgid are not used"},
	} {
		m := good
		tt.change(&m)
		requireFinding(t, tt.name, m.examine(), tt.result, tt.words)
	}
	for _, f := range good.examine() {
		if f.Result != resultOK {
			t.Errorf("control: a good machine has %+v", f)
		}
	}
	if found := thisMachine().examine(); len(found) < 5 {
		t.Errorf("of this machine: %+v", found)
	}
}

// A feature that the kernel has and this process may not use needs another
// process, not another kernel.
func TestForbiddenFeature(t *testing.T) {
	for errno, want := range map[unix.Errno]string{unix.EPERM: "elsewhere", unix.ENOSYS: "newer"} {
		m := machine{proc: t.TempDir(), features: []feature{{name: "thing", mend: "newer", denied: "elsewhere", try: func() error { return errno }}}}
		if f := m.kernel(); len(f) != 1 || f[0].Mend != want {
			t.Errorf("%v: %+v, want %q", errno, f, want)
		}
	}
	for _, f := range kernelFeatures() {
		if f.name == "id-mapped mounts" && f.denied == "" {
			t.Error("nothing is said for id-mapped mounts that are forbidden")
		}
	}
}

// What is tried of the kernel here is there, and a call that is not there is
// told from one that refuses nonsense.
func TestKernelFeatures(t *testing.T) {
	for _, f := range kernelFeatures() {
		if err := f.try(); err != nil {
			t.Logf("%s: %v", f.name, err) // as old kernels and containers have it
		}
	}
	if err := exists(unix.EFAULT, unix.EFAULT); err != nil {
		t.Error(err)
	}
	if err := exists(unix.ENOSYS, unix.EFAULT); !errors.Is(err, unix.ENOSYS) {
		t.Errorf("a call that is not there: %v", err)
	}
}

func TestRuntimeAdvisory(t *testing.T) {
	for text, warned := range map[string]bool{
		"1.1.5+ds1": true, "1.0.0-rc93": true, "1.2.7": true, "1.2.8": false, "1.2.10": false, "1.3.2": true, "1.3.3": false,
		"1.4.0-rc.2": true, "1.4.0-rc.3": false, "1.4.0": false, "1.5.1": false, "2.0.0": false, "unknown": true,
		"runc version 1.1.15": true,
	} {
		f, got := advisory("runc", sandbox.Info{Runtime: "runc", RuntimeVersion: text})
		if got != warned || got && (f.Result != resultWarning || f.Mend == "") {
			t.Errorf("runc %s: warned %v, want %v: %+v", text, got, warned, f)
		}
	}
	if f, got := advisory("gvisor", sandbox.Info{Runtime: "runsc", RuntimeVersion: "1.1.5"}); got {
		t.Errorf("runsc: %+v", f)
	}
}

// doctored is a setup with a configuration file, and a home that no folder for
// temporary files holds.
func doctored(t *testing.T, text string, env ...string) *setup {
	t.Helper()
	dir := files(t, map[string]string{"config.yaml": text})
	env = append(env, "HOME="+filepath.Join(dir, "home"), "CAISSON_CONFIG="+filepath.Join(dir, "config.yaml"), "XDG_STATE_HOME="+filepath.Join(dir, "state"))
	d := standard(nil, nil)
	d.requirements = ""
	s, err := newSetup(d.deps, env, config.File{}, "", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	return s
}

func TestDoctorPolicy(t *testing.T) {
	here := t.TempDir()
	open := filepath.Join(here, "open")
	if err := errors.Join(os.Mkdir(open, 0o755), os.Chmod(open, 0o777)); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, text, result, words string }{
		{"nothing said", "{}", resultOK, "ci without a terminal, default on one"},
		{"a preset", "policy: {preset: readonly}", resultOK, "readonly"},
		{"a misspelt rule", "policy: {tools: {shel: deny}}", resultWarning, `"shel" matches no tool`},
		{"a rule of another case", "policy: {tools: {Shell: deny}}", resultWarning, `"Shell" matches no tool`},
		{"a rule of a server that is not there", "policy: {tools: {github/*: deny}}", resultWarning, `"github/*" matches no tool`},
		{"a good rule", "policy: {tools: {shell: deny}}", "", "matches no tool"},
		{"a rule of a tool that is declared", "tools: {lint: {description: Lint., command: [true]}}\npolicy: {tools: {lint: deny}}", "", "matches no tool"},
		{"tools that are off", "{}", resultOK, "off: "},
		{"a fetch rule that is none", "fetch: {allow: ['https://*.example.com/']}", resultFailed, "wildcard"},
		{"two spellings", "policy: {tools: {github/push: deny, github__push: auto}}", resultWarning, "two spellings of one tool"},
		{"one spelling", "policy: {tools: {github/push: deny, github/pull: auto}}", "", "two spellings"},
		{"overrides without folders", "policy: {trusted_workspace_overrides: {execute: auto}}", resultWarning, "no workspace is trusted"},
		{"overrides with folders", "policy: {trusted_workspaces: [/usr], trusted_workspace_overrides: {execute: auto}}", "", "no workspace is trusted"},
		{"network unasked", "policy: {default: {network: auto}}", resultWarning, "every tool of class network runs without asking (class network)"},
		{"network unasked where trusted", "policy: {trusted_workspaces: [/usr], trusted_workspace_overrides: {network: auto}}", resultWarning, "every tool of class network runs without asking (trusted workspace"},
		{"network asked", "policy: {default: {network: prompt}}", "", "class network"},
		{"allowed where nobody is asked", "on_prompt: allow", resultWarning, "runs although nobody approved it"},
		{"denied where nobody is asked", "on_prompt: deny", resultOK, "is refused"},
		{"failed where nobody is asked", "on_prompt: fail", resultOK, "ends the run"},
		{"a trusted folder that is not there", "policy: {trusted_workspaces: [/nowhere/at/all]}", resultWarning, "/nowhere/at/all (policy.trusted_workspaces) is no folder"},
		{"a trusted folder for temporary files", fmt.Sprintf("policy: {trusted_workspaces: [%s]}", here), resultWarning, "where other programs and users make folders"},
		{"a trusted folder of everybody", fmt.Sprintf("policy: {trusted_workspaces: [%s]}", open), resultWarning, "can be written by everybody"},
		{"a trusted folder that holds all", "policy: {trusted_workspaces: [/]}", resultWarning, "holds your home folder"},
		{"a good trusted folder", "policy: {trusted_workspaces: [/usr]}", "", "/usr (policy.trusted_workspaces)"},
	} {
		s := doctored(t, tt.text, "TMPDIR="+here)
		requireFinding(t, tt.name, s.examinePolicy(), tt.result, tt.words)
	}
	s := doctored(t, "policy: {tools: {shel: deny}}")
	for _, f := range s.examinePolicy() {
		if strings.Contains(f.Detail, "shel") && !strings.Contains(f.Mend, "Write shell,") {
			t.Errorf("what is meant by shel: %s", f.Mend)
		}
	}
}

func TestDoctorApprovals(t *testing.T) {
	there := t.TempDir()
	for _, tt := range []struct {
		name, text    string
		grant         approval.Grant
		result, words string
	}{
		{"a good one", "{}", approval.Grant{Tool: "shell", Workspace: there, Decision: approval.DecisionAllow}, resultOK, "1 stored"},
		{"of no tool", "{}", approval.Grant{Tool: "shel", Workspace: there, Decision: approval.DecisionAllow}, resultWarning, "shel, which is no tool"},
		{"of a folder that is gone", "{}", approval.Grant{Tool: "shell", Workspace: "/nowhere", Decision: approval.DecisionDeny}, resultWarning, "1 hold for /nowhere"},
		{"of a tool that is denied", "{policy: {preset: readonly}}", approval.Grant{Tool: "shell", Workspace: there, Decision: approval.DecisionAllow}, resultWarning, "which the policy denies"},
		{"of what is dangerous", "{}", approval.Grant{Tool: "shell", Workspace: there, Phrase: "rm -rf /", Decision: approval.DecisionAllow}, resultWarning, "which the policy calls dangerous"},
		{"a refusal of what is dangerous", "{}", approval.Grant{Tool: "shell", Workspace: there, Phrase: "rm -rf /", Decision: approval.DecisionDeny}, "", "which the policy calls dangerous"},
		{"a denial of a tool that is denied", "{policy: {preset: readonly}}", approval.Grant{Tool: "shell", Workspace: there, Decision: approval.DecisionDeny}, "", "which the policy denies"},
	} {
		s := doctored(t, tt.text)
		if err := s.environ.grantStore().Add(tt.grant); err != nil {
			t.Fatal(err)
		}
		requireFinding(t, tt.name, s.examinePolicy(), tt.result, tt.words)
	}
	s := doctored(t, "{}")
	if err := os.WriteFile(filepath.Join(s.environ.stateDir(), "approvals.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	requireFinding(t, "damaged", s.examinePolicy(), resultWarning, "was damaged and counts as empty")
}

func TestDoctorTrust(t *testing.T) {
	work := files(t, map[string]string{".caisson/config.yaml": "image: host\n"})
	for _, tt := range []struct {
		name          string
		change        func()
		result, words string
	}{
		{"as it was trusted", func() {}, "", work},
		{"changed", func() {
			if err := os.WriteFile(filepath.Join(work, ".caisson/config.yaml"), []byte("image: other\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, resultWarning, "other settings than those that were trusted"},
		{"gone", func() {
			if err := os.RemoveAll(work); err != nil {
				t.Fatal(err)
			}
		}, resultWarning, work + " (caisson trust) is no folder"},
	} {
		s := doctored(t, "{}")
		ws, err := runner.OpenWorkspace(work, runner.Protected{})
		if err != nil {
			t.Fatal(err)
		}
		own, err := readOwn(ws)
		if err := errors.Join(err, ws.Close(), s.environ.trustStore().Add(work, own.files)); err != nil {
			t.Fatal(err)
		}
		tt.change()
		// The folder is below one for temporary files, which is said of its own.
		found := slices.DeleteFunc(s.folderFindings(policy.Policy{}), func(f finding) bool { return strings.Contains(f.Detail, "make folders") })
		if tt.result == resultWarning && tt.name == "changed" {
			if s.covered(approval.TrustedWorkspace{Workspace: work, Files: own.files}) {
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
	if err := os.Chmod(private, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, text string
		mode       os.FileMode
		result     string
		words      string
	}{
		{"a registry without TLS", "images: {plain_http: ['registry.example:5000']}", 0o644, resultWarning, "registry.example:5000 is spoken to without TLS"},
		{"fetch without TLS", "fetch: {allow: ['http://wiki.example/']}", 0o644, resultWarning, "http://wiki.example/ is fetched without TLS"},
		{"fetch with TLS", "fetch: {allow: ['https://wiki.example/']}", 0o644, resultOK, "on, for https://wiki.example/"},
		{"fetch of this machine", "fetch: {allow: ['http://localhost:8080/']}", 0o644, "", "without TLS"},
		{"fetch is off", "{}", 0o644, "", "fetched"},
		{"fetch of credentials", "fetch: {allow: ['https://wiki.example/'], private: {wiki.example: [169.254.0.0/16]}}", 0o644, resultWarning, "where clouds keep"},
		{"fetch of a private network", "fetch: {allow: ['https://wiki.example/'], private: {wiki.example: [10.0.0.0/8]}}", 0o644, "", "where clouds keep"},
		{"fetch by a proxy", "fetch: {allow: ['https://wiki.example/'], proxy: 'http://proxy.example:3128'}", 0o644, resultWarning, "a proxy makes the connections"},
		{"a token of the environment that is not set", "serve: {tokens: {ci: {env: NO_SUCH_TOKEN}}}", 0o644, resultWarning, "NO_SUCH_TOKEN is not set"},
		{"a token's file that is not there", "serve: {tokens: {ci: {file: /nowhere/token}}}", 0o644, resultWarning, "/nowhere/token"},
		{"a token's file of everybody", "serve: {tokens: {ci: {file: '" + readable + "'}}}", 0o644, resultWarning, "other users may read " + readable},
		{"a token's file of the user", "serve: {tokens: {ci: {file: '" + private + "'}}}", 0o644, "", private},
		{"a root that is not there", "serve: {roots: [/nowhere/at/all]}", 0o644, resultWarning, "root /nowhere/at/all is no folder"},
		{"a good root", "serve: {roots: [/usr]}", 0o644, "", "root /usr"},
		{"a server for other machines", "serve: {allow_remote: true}", 0o644, resultWarning, "other machines may reach"},
		{"a server for this one", "serve: {allow_remote: false}", 0o644, "", "other machines"},
		{"a registry of this machine", "images: {plain_http: ['localhost:5000']}", 0o644, "", "without TLS"},
	} {
		s := doctored(t, tt.text)
		if err := os.Chmod(s.environ.get("CAISSON_CONFIG"), tt.mode); err != nil {
			t.Fatal(err)
		}
		requireFinding(t, tt.name, s.examineConfig(), tt.result, tt.words)
	}
}

func TestDoctorModel(t *testing.T) {
	const key = "OPENAI_API_KEY=k"
	profile := "model: m\nmodels: {m: {model: x, base_url: '%s'%s}}"
	script := filepath.Join(files(t, map[string]string{"a.yaml": "version: 1\nname: a\nturns: [{text: an answer}]\n"}), "a.yaml")
	for _, tt := range []struct{ name, text, env, result, words string }{
		{"none", "{}", "A=b", resultWarning, "no model is configured"},
		{"no key", "model: openai/gpt-5", "A=b", resultWarning, "OPENAI_API_KEY is not set"},
		{"no price", "model: openai/some", key, resultWarning, "its price is unknown"},
		{"a price", fmt.Sprintf(profile, "https://models.example/v1", ", price: {input: 1, cached_input: 1, output: 2}"), key, resultOK, "models.example"},
		{"no TLS", fmt.Sprintf(profile, "http://models.example/v1", ", api_key_env: OPENAI_API_KEY"), key, resultWarning, "without TLS"},
		{"this machine", fmt.Sprintf(profile, "http://127.0.0.1:8080/v1", ""), key, resultOK, "127.0.0.1"},
		{"a script", "model: replay/" + script, "A=b", resultOK, script},
		{"a script that is not there", "model: replay/nowhere.yaml", "A=b", resultFailed, "can't be played"},
		{"credentials in the URL", fmt.Sprintf(profile, "https://user:pw@models.example/v1", ""), key, resultFailed, "the base URL holds credentials"},
		{"credentials in the URL of the environment", "model: openai/x", key + "\nOPENAI_BASE_URL=https://user:pw@models.example/v1", resultFailed, "the base URL holds credentials"},
	} {
		requireFinding(t, tt.name, []finding{doctored(t, tt.text, strings.Split(tt.env, "\n")...).model()}, tt.result, tt.words)
	}
}

func TestDoctorState(t *testing.T) {
	s := doctored(t, "{}")
	requireFinding(t, "below a folder for temporary files", []finding{s.state()}, resultWarning, "which is emptied")
	if err := os.Chmod(s.environ.stateDir(), 0o777); err != nil {
		t.Fatal(err)
	}
	requireFinding(t, "others can write it", []finding{s.state()}, resultFailed, "can be written by other users")
}

// The sockets that answer outside are the control of what is not reached
// inside.
func TestDoctorNetwork(t *testing.T) {
	all := baits(t.Context())
	if len(all) < 2 {
		t.Fatalf("%d sockets", len(all))
	}
	for _, b := range all {
		defer b.listener.Close()
		if !b.answers(t.Context()) {
			t.Errorf("%s does not answer", b.name)
		}
	}
	all[0].listener.Close()
	if all[0].answers(t.Context()) {
		t.Error("a closed socket answers")
	}
	for _, tt := range []struct {
		name          string
		answer        func(target string) string
		interfaces    []string
		result, words string
	}{
		{"nothing reached", func(string) string { return "ENETUNREACH" }, []string{"lo"}, resultOK, "blocked"},
		{"all reached", func(string) string { return "ok" }, []string{"lo"}, resultFailed, "reached 127.0.0.1"},
		{"one reached", func(target string) string {
			if strings.HasPrefix(target, "abstract:") {
				return "ok"
			}
			return "ECONNREFUSED"
		}, []string{"lo"}, resultFailed, "reached an abstract socket"},
		{"an interface", func(string) string { return "ETIMEDOUT" }, []string{"lo", "eth0"}, resultFailed, "besides lo: eth0"},
		{"no answer", func(string) string { return "" }, []string{"lo"}, resultFailed, "says nothing of"},
	} {
		r := wire.Reach{Interfaces: tt.interfaces, Results: map[string]string{}}
		for _, b := range all {
			if text := tt.answer(b.target.String()); text != "" {
				r.Results[b.target.String()] = text
			}
		}
		requireFinding(t, tt.name, []finding{judge(all, r)}, tt.result, tt.words)
	}
}

// Nothing of the machine's addresses is named twice, and none is of one link.
func TestDoctorAddresses(t *testing.T) {
	seen := map[string]bool{}
	for _, a := range addresses() {
		if seen[a.String()] || a.IsLinkLocalUnicast() {
			t.Errorf("%s", a)
		}
		seen[a.String()] = true
	}
	if ip := net.IPv4(127, 0, 0, 1); !seen[ip.String()] {
		t.Errorf("%v", seen)
	}
}

func TestDoctorLayout(t *testing.T) {
	d := standard(nil, nil)
	d.environ = environ{"NO_COLOR=1"}
	var out strings.Builder
	d.stdout, d.terminal, d.size = &out, func(any) bool { return true }, func() (int, int) { return 80, 24 }
	found := []finding{
		{Check: "one", Result: resultOK, Detail: strings.Repeat("word ", 40)},
		{Check: "two", Result: resultFailed, Detail: "bad \x1b[2J", Mend: strings.Repeat("mend ", 40)},
		{Check: "three", Result: resultOK, Detail: strings.Repeat("CVE-2025-31133, ", 20)},
	}
	if err := showFindings(&d, found, false); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if len([]rune(strings.TrimRight(line, "\n"))) > 80 || strings.ContainsRune(line, '\x1b') {
			t.Errorf("%q", line)
		}
	}
	if n := strings.Count(out.String(), "CVE-2025-31133,"); n != 20 {
		t.Errorf("%d of 20 names are whole", n)
	}
	if !strings.HasSuffix(out.String(), "\n2 ok, 0 warnings, 1 failed: mend what failed before you run anything.\n") {
		t.Errorf("%s", out.String())
	}
	out.Reset()
	d.environ = nil
	if err := showFindings(&d, found[:1], false); err != nil || !strings.HasPrefix(out.String(), "\x1b[32mok") {
		t.Errorf("%q, %v", out.String(), err)
	}
}

// A sandbox of a dead owner is told, one that runs is not.
func TestDoctorLeftovers(t *testing.T) {
	for _, tt := range []struct{ state, result, words string }{
		{"alive", resultOK, "1 run, nothing is left"}, {"dead", resultWarning, "left of dead ones: ses_1 on gvisor"},
	} {
		s := doctored(t, "{}")
		s.backends.made = map[string]sandbox.Backend{
			"gvisor": &fakeBackend{name: "gvisor", listed: []sandbox.Listing{{Session: "ses_1", Backend: "gvisor", Since: time.Now(), Owner: sandbox.ListedOwner{State: tt.state}}}},
			"docker": &fakeBackend{name: "docker"}, "runc": &fakeBackend{name: "runc"},
		}
		requireFinding(t, tt.state, []finding{s.leftovers(t.Context())}, tt.result, tt.words)
	}
}
