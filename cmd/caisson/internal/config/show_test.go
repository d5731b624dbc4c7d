package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEffectiveSaysWhereFrom(t *testing.T) {
	user := write(t, "config.yaml", "backend: gvisor\nlimits: {max_rounds: 40}\nresources: {memory: 8GiB}\npolicy: {tools: {shell: prompt}}\nprofiles: {p: {grace: 7s}}")
	req := write(t, "requirements.yaml", "resources: {memory: 4GiB}\nlimits: {max_tokens: 9}\npolicy: {tools: {shell: deny}}")
	if err := os.Chmod(filepath.Dir(req), 0o755); err != nil {
		t.Fatal(err)
	}
	c, err := Load(Options{
		Path: user, Profile: "p", Environ: []string{"CAISSON_PIDS=77"}, Flags: File{Image: new("host")},
		Project: project("limits: {max_rounds: 9}\npolicy: {default: {execute: prompt}}"), Requirements: req, RequirementsUID: os.Getuid(),
	})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, v := range c.Effective(nil) {
		got[v.Key+" = "+v.Text] = v.Origin
	}
	for line, origin := range map[string]string{
		"backend = gvisor":                "user " + user,
		"grace = 7s":                      "profile p",
		"limits.max_rounds = 9":           "project " + ProjectPath,
		"resources.pids = 77":             "environment CAISSON_PIDS",
		"image = host":                    "flag --image",
		"resources.memory = 4GiB":         "requirements",
		"limits.max_tokens = 9":           "requirements",
		"mode = bind":                     "built-in",
		"resources.cpus = 2":              "built-in",
		"policy.tools.shell = prompt":     "user " + user,
		"policy.tools.shell = deny":       "requirements, can only tighten",
		"policy.default.execute = prompt": "project " + ProjectPath + ", can only tighten",
	} {
		if got[line] != origin {
			t.Errorf("%s: from %q, want %q", line, got[line], origin)
		}
	}
}

func TestSecretsAreNotShown(t *testing.T) {
	path := write(t, "config.yaml", `
image: "rootfs:/x/${MY_TOKEN}"
docker: {host: "tcp://me:hunter2@engine:2375?k=v"}
models: {m: {model: x, base_url: "https://user:pass@llm/v1", api_key_env: MY_TOKEN}}
`)
	environ := []string{"MY_TOKEN=s3cr3t-value", "GIT_AUTHOR_NAME=rootfs", "SSH_AUTH_SOCK=engine", "X_KEY=ab"}
	c, err := Load(Options{Path: path, Environ: environ})
	if err != nil {
		t.Fatal(err)
	}
	text := func(hidden map[string]string) string {
		var b strings.Builder
		for _, v := range c.Effective(hidden) {
			b.WriteString(v.Key + " = " + v.Text + "\n")
		}
		return b.String()
	}
	shown := text(HiddenValues(environ))
	for _, secret := range []string{"s3cr3t-value", "hunter2", "pass@", "k=v"} {
		if strings.Contains(shown, secret) {
			t.Errorf("%s is shown in\n%s", secret, shown)
		}
	}
	for _, plain := range []string{"image = rootfs:/x/[hidden: MY_TOKEN]", "models.m.api_key_env = MY_TOKEN", "docker.host = tcp://engine:2375 [credentials hidden]"} {
		if !strings.Contains(shown, plain) {
			t.Errorf("%q is not in\n%s", plain, shown)
		}
	}
	if !strings.Contains(text(nil), "s3cr3t-value") {
		t.Error("control: nothing was there to hide")
	}
}

func TestValuesAreWrittenAsTheyAreRead(t *testing.T) {
	for in, want := range map[string]string{"10m": "10m", "90s": "1m30s", "1h": "1h", "1h30m": "1h30m", "336h": "336h", "100ms": "100ms"} {
		d, err := ParseDuration(in)
		again, err2 := ParseDuration(d.String())
		if d.String() != want || again != d || err != nil || err2 != nil {
			t.Errorf("%s: %s, %v, %v", in, d, err, err2)
		}
	}
	for in, want := range map[string]string{"2GiB": "2GiB", "1.5g": "1536MiB", "64k": "64KiB", "1000": "1000"} {
		s, err := parseSize(in)
		again, err2 := parseSize(s.String())
		if diff := cmp.Diff(want, s.String()); diff != "" || again != s || err != nil || err2 != nil {
			t.Errorf("%s: %s, %v, %v", in, s, err, err2)
		}
	}
}
