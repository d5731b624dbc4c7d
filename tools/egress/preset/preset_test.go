package preset

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/tools/egress/cache"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

func target(t testing.TB, rawURL string) rule.Target {
	t.Helper()
	out, err := rule.ParseTarget(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func newPreset(t testing.TB, name string, o Options) *Preset {
	t.Helper()
	p, err := New(name, o)
	if name == "git" {
		p, err = NewGit(o)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestPresetsOnlyRead is attack 19 and what lies beside it: each preset allows to
// read, and the same program's way to publish is refused.
func TestPresetsOnlyRead(t *testing.T) {
	git := Options{Fetch: []string{"https://github.com/org/"}}
	for _, tt := range []struct {
		preset, method, url string
		allowed             bool
	}{
		{"go", "GET", "https://proxy.golang.org/golang.org/x/mod/@v/v0.41.0.zip", true},
		{"go", "GET", "https://proxy.golang.org/sumdb/sum.golang.org/supported", true},
		{"go", "POST", "https://proxy.golang.org/", false},
		{"npm", "GET", "https://registry.npmjs.org/@types%2fnode", true},
		{"npm", "GET", "https://registry.npmjs.org/left-pad/-/left-pad-1.3.0.tgz", true},
		{"npm", "POST", "https://registry.npmjs.org/-/npm/v1/security/advisories/bulk", true},
		{"npm", "PUT", "https://registry.npmjs.org/left-pad", false},
		{"npm", "PUT", "https://registry.npmjs.org/-/user/org.couchdb.user:me", false},
		{"npm", "POST", "https://registry.npmjs.org/-/v1/login", false},
		{"npm", "DELETE", "https://registry.npmjs.org/left-pad/-rev/1", false},
		{"pip", "GET", "https://pypi.org/simple/requests/", true},
		{"pip", "GET", "https://files.pythonhosted.org/packages/aa/bb/x-1-py3-none-any.whl", true},
		{"pip", "POST", "https://upload.pypi.org/legacy/", false},
		{"pip", "POST", "https://pypi.org/simple/", false},
		{"pip", "GET", "https://pypi.org/search/", false},
		{"cargo", "GET", "https://index.crates.io/se/rd/serde", true},
		{"cargo", "GET", "https://static.crates.io/crates/serde/1.0.0/download", true},
		{"cargo", "PUT", "https://crates.io/api/v1/crates/new", false},
		{"maven", "GET", "https://repo.maven.apache.org/maven2/a/b/1/b-1.jar", true},
		{"maven", "PUT", "https://repo.maven.apache.org/maven2/a/b/1/b-1.jar", false},
		{"apt", "GET", "http://deb.debian.org/debian/dists/bookworm/InRelease", true},
		{"apt", "POST", "http://deb.debian.org/debian/", false},
		{"git", "GET", "https://github.com/org/repo.git/info/refs?service=git-upload-pack", true},
		{"git", "POST", "https://github.com/org/repo/git-receive-pack", false},
		{"git", "POST", "https://github.com/org/repo/info/lfs/objects/batch", false},
		{"git", "GET", "https://github.com/org/repo/archive/main.zip", false},
		{"git", "GET", "https://github.com/other/repo/info/refs?service=git-upload-pack", false},
	} {
		p := rule.Policy{Allow: newPreset(t, tt.preset, git).Rules}
		if d := p.DecideRequest(target(t, tt.url), tt.method); d.Allowed() != tt.allowed {
			t.Errorf("%s: %s %s: %+v", tt.preset, tt.method, tt.url, d)
		}
	}
	if _, err := New("gem", Options{}); err == nil {
		t.Error("an unknown preset is made")
	}
}

func TestKinds(t *testing.T) {
	for _, tt := range []struct{ preset, url, want string }{
		{"go", "https://proxy.golang.org/golang.org/x/mod/@v/v0.41.0.zip", "file"},
		{"go", "https://proxy.golang.org/a/@v/v1.0.0+incompatible.mod", "file"},
		{"go", "https://proxy.golang.org/a/@v/v0.0.0-20261008173134-6b8d4baf91b4.info", "file"},
		{"go", "https://proxy.golang.org/a/@v/master.info", "index"},
		{"go", "https://proxy.golang.org/a/@v/v1.info", "index"},
		{"go", "https://proxy.golang.org/a/@v/list", "index"},
		{"go", "https://proxy.golang.org/a/@latest", "index"},
		{"go", "https://proxy.golang.org/sumdb/sum.golang.org/tile/8/0/001", "file"},
		{"go", "https://proxy.golang.org/sumdb/sum.golang.org/latest", "index"},
		{"go", "https://proxy.golang.org/a/@v/list?x=1", ""},
		{"go", "https://proxy.golang.org:8443/a/@v/list", ""},
		{"npm", "https://registry.npmjs.org/left-pad/-/left-pad-1.3.0.tgz", "file"},
		{"npm", "https://registry.npmjs.org/left-pad", "index"},
		{"npm", "https://registry.npmjs.org/-/whoami", ""},
		{"pip", "https://pypi.org/simple/requests/", "index"},
		{"pip", "https://files.pythonhosted.org/packages/aa/x.whl", "file"},
		{"cargo", "https://index.crates.io/se/rd/serde", "index"},
		{"cargo", "https://static.crates.io/crates/serde/1.0.0/download", "file"},
		{"cargo", "https://crates.io/api/v1/crates/serde", ""},
		{"maven", "https://repo.maven.apache.org/maven2/a/b/maven-metadata.xml", "index"},
		{"maven", "https://repo.maven.apache.org/maven2/a/b/1-SNAPSHOT/b.jar", "index"},
		{"maven", "https://repo.maven.apache.org/maven2/a/b/1/b-1.jar", "file"},
		{"apt", "http://deb.debian.org/debian/dists/bookworm/InRelease", "index"},
		{"apt", "http://deb.debian.org/debian/dists/x/by-hash/SHA256/ab", "file"},
		{"apt", "http://deb.debian.org/debian/pool/main/h/hello_1.deb", "file"},
	} {
		kind, ok := newPreset(t, tt.preset, Options{}).Kind(target(t, tt.url))
		if string(kind) != tt.want || ok != (tt.want != "") {
			t.Errorf("%s is %q, want %q", tt.url, kind, tt.want)
		}
	}
}

func TestEnvironment(t *testing.T) {
	all := []*Preset{newPreset(t, "git", Options{
		Fetch: []string{"https://github.com/org/"}, Push: []string{"https://g.test:8443/o/r.git"},
		GitHeader: func(url string) (string, bool) { return "Authorization: Basic xyz", strings.Contains(url, "github") },
	})}
	for _, name := range Names() {
		all = append(all, newPreset(t, name, Options{}))
	}
	sum := Merge(all...)
	want := []string{
		"GIT_TERMINAL_PROMPT=0", "GIT_CONFIG_COUNT=4",
		"GIT_CONFIG_KEY_0=url.https://github.com/org/.insteadOf", "GIT_CONFIG_VALUE_0=git@github.com:org/",
		"GIT_CONFIG_KEY_1=url.https://github.com/org/.insteadOf", "GIT_CONFIG_VALUE_1=ssh://git@github.com/org/",
		"GIT_CONFIG_KEY_2=url.https://github.com/org/.insteadOf", "GIT_CONFIG_VALUE_2=git://github.com/org/",
		"GIT_CONFIG_KEY_3=http.https://github.com/org/.extraHeader", "GIT_CONFIG_VALUE_3=Authorization: Basic xyz",
		"APT_CONFIG=/f/apt.conf", "CARGO_REGISTRIES_CRATES_IO_PROTOCOL=sparse", "CARGO_NET_GIT_FETCH_WITH_CLI=true", "GOPROXY={proxy}/go",
		"MAVEN_ARGS=-s /f/settings.xml", "npm_config_update_notifier=false", "npm_config_fund=false", "PIP_DISABLE_PIP_VERSION_CHECK=1",
	}
	if diff := cmp.Diff(want, sum.Environment("/f")); diff != "" {
		t.Error(diff)
	}
	if len(sum.Files) != 2 || !sum.NeedsRoots || !sum.NeedsJavaRoots || len(sum.Mirrors) != 2 {
		t.Errorf("the sum is %+v", sum)
	}
	if newPreset(t, "go", Options{}).NeedsRoots || newPreset(t, "apt", Options{}).NeedsRoots {
		t.Error("go and apt need the authority")
	}
}

func TestRegistries(t *testing.T) {
	home := t.TempDir()
	for name, text := range map[string]string{
		".npmrc":               "; mine\nregistry=https://me:secret@npm.corp.test/api/npm\n@org:registry = https://npm.pkg.test/\n//npm.corp.test/:_authToken=secret\n",
		".config/pip/pip.conf": "[global]\nindex-url = https://pip.corp.test/simple\nextra-index-url =\n    https://a.test/simple/\n    https://b.test/simple/\n[list]\nindex-url = https://no.test/\n",
		".cargo/config.toml":   "[source.crates-io]\nreplace-with = \"corp\"\n[source.corp]\nregistry = \"sparse+https://cargo.corp.test/index/\"\n[registries.x]\nindex = \"https://git.test/index\"\n",
		".config/go/env":       "GOPROXY=https://go.corp.test|https://proxy.golang.org,direct\nGONOSUMDB=x\n",
	} {
		path := filepath.Join(home, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config := filepath.Join(home, ".config")
	got, ignored, err := ReadRegistries(Places{home, config, filepath.Join(home, "src")})
	want := map[string][]Registry{
		"npm":   {{"https://npm.corp.test/api/npm/", ""}, {"https://npm.pkg.test/", "@org"}},
		"pip":   {{"https://pip.corp.test/simple/", ""}, {"https://a.test/simple/", Extra}, {"https://b.test/simple/", Extra}},
		"cargo": {{"https://cargo.corp.test/index/", ""}}, "go": {{"https://go.corp.test/", ""}, {"https://proxy.golang.org/", ""}},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil || len(ignored) > 0 {
		t.Errorf("%v, ignored %v\n%s", err, ignored, diff)
	}
	// Files that commands can change must not widen the next session's access.
	for _, workspace := range []string{home, config} {
		some, ignored, err := ReadRegistries(Places{home, config, workspace})
		if err != nil || len(some["go"]) > 0 || !slices.Contains(ignored, filepath.Join(home, ".config/go/env")) {
			t.Errorf("in the workspace %s: %v, ignored %v, %v", workspace, some, ignored, err)
		}
	}
	linked := t.TempDir()
	if err := os.Symlink(filepath.Join(home, ".npmrc"), filepath.Join(linked, ".npmrc")); err != nil {
		t.Fatal(err)
	}
	if some, ignored, err := ReadRegistries(Places{linked, linked, home}); err != nil || len(some) > 0 || len(ignored) != 1 {
		t.Errorf("through a symlink: %v, ignored %v, %v", some, ignored, err)
	}
	if some, _, err := ReadRegistries(Places{linked, linked, t.TempDir()}); err != nil || len(some) != 1 {
		t.Errorf("the control has %v, %v", some, err)
	}
	p := newPreset(t, "npm", Options{Registries: got})
	var rules []string
	for _, r := range p.Rules {
		rules = append(rules, r.String())
	}
	if !slices.Contains(rules, "https://npm.corp.test/api/npm/") || slices.Contains(rules, "https://registry.npmjs.org/") {
		t.Errorf("the rules are %v", rules)
	}
	if kind, _ := p.Kind(target(t, "https://npm.corp.test/api/npm/left-pad/-/left-pad-1.3.0.tgz")); kind != cache.File {
		t.Errorf("a package of another registry is %q", kind)
	}
	if m := newPreset(t, "go", Options{Registries: got}).Mirrors; len(m) != 1 || m[0].URL != "https://go.corp.test/" {
		t.Errorf("the mirrors are %v", m)
	}
	if empty, _, err := ReadRegistries(Places{Home: t.TempDir(), Config: t.TempDir()}); err != nil || len(empty) > 0 {
		t.Errorf("an empty home: %v, %v", empty, err)
	}
	if _, err := New("npm", Options{Registries: map[string][]Registry{"npm": {{URL: "ftp://x.test/"}}}}); err == nil {
		t.Error("a registry of ftp is accepted")
	}
}

// TestOwnRegistries checks that programs use the user's own registries, without the
// credentials in their URLs, and that a registry beside the public one doesn't replace it.
func TestOwnRegistries(t *testing.T) {
	for _, tt := range []struct {
		preset string
		own    []Registry
		env    []string // besides every user's
		npmrc  string
		rules  []string
	}{
		{preset: "npm", rules: []string{"https://registry.npmjs.org/", "https://registry.npmjs.org/-/npm/v1/security/", "https://registry.yarnpkg.com/"}},
		{
			preset: "npm", own: []Registry{{URL: "https://me:secret@npm.corp.test/api/npm?x=secret"}},
			env:   []string{"npm_config_registry=https://npm.corp.test/api/npm/"},
			rules: []string{"https://npm.corp.test/api/npm/", "https://npm.corp.test/api/npm/-/npm/v1/security/"},
		},
		{
			preset: "npm", own: []Registry{{"https://u:secret@npm.org.test", "@org"}},
			env: []string{"npm_config_globalconfig=" + FilesPlaceholder + "/npmrc"}, npmrc: "@org:registry=https://npm.org.test/\n",
			rules: []string{
				"https://registry.npmjs.org/", "https://registry.npmjs.org/-/npm/v1/security/", "https://registry.yarnpkg.com/",
				"https://npm.org.test/", "https://npm.org.test/-/npm/v1/security/",
			},
		},
		{
			preset: "pip", own: []Registry{{"https://me:secret@pip.corp.test/simple", ""}, {"http://a.test:81/root/+simple/", Extra}, {"https://b.test/x", Extra}},
			env: []string{"PIP_INDEX_URL=https://pip.corp.test/simple/", "PIP_EXTRA_INDEX_URL=http://a.test:81/root/+simple/ https://b.test/x/", "PIP_TRUSTED_HOST=a.test:81"},
			rules: []string{
				"https://pypi.org/pypi/", "https://files.pythonhosted.org/packages/", "https://pip.corp.test/simple/", "http://a.test:81/root/+simple/", "https://b.test/x/",
				"https://pip.corp.test/packages/", "https://pip.corp.test/files/", "http://a.test:81/root/+f/",
			},
		},
		{
			preset: "pip", own: []Registry{{"https://b.test/x", Extra}}, env: []string{"PIP_EXTRA_INDEX_URL=https://b.test/x/"},
			rules: []string{"https://pypi.org/simple/", "https://pypi.org/pypi/", "https://files.pythonhosted.org/packages/", "https://b.test/x/"},
		},
	} {
		p := newPreset(t, tt.preset, Options{Registries: map[string][]Registry{tt.preset: tt.own}})
		if diff := cmp.Diff(append(newPreset(t, tt.preset, Options{}).Env, tt.env...), p.Env); diff != "" {
			t.Errorf("%s %v:\n%s", tt.preset, tt.own, diff)
		}
		if p.Files["npmrc"] != tt.npmrc {
			t.Errorf("%v: the file is %q", tt.own, p.Files["npmrc"])
		}
		var rules []string
		for _, r := range p.Rules {
			rules = append(rules, r.String())
		}
		if diff := cmp.Diff(tt.rules, rules); diff != "" {
			t.Errorf("%s %v:\n%s", tt.preset, tt.own, diff)
		}
		if text := fmt.Sprint(p.Env, p.Files, rules); strings.Contains(text, "secret") {
			t.Errorf("credentials are in %s", text)
		}
	}
}

// TestPipConfigurations checks that pip's file in XDG_CONFIG_HOME is stronger than the old one.
func TestPipConfigurations(t *testing.T) {
	home, config := t.TempDir(), t.TempDir()
	for path, host := range map[string]string{filepath.Join(home, ".pip"): "old", filepath.Join(home, ".config/pip"): "unused", filepath.Join(config, "pip"): "new"} {
		err := os.MkdirAll(path, 0o700)
		if err == nil {
			err = os.WriteFile(filepath.Join(path, "pip.conf"), []byte("[global]\nindex-url = https://"+host+".test/simple\n"), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	own, _, err := ReadRegistries(Places{Home: home, Config: config})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Registry{{URL: "https://old.test/simple/"}, {URL: "https://new.test/simple/"}}, own["pip"]); diff != "" {
		t.Error(diff)
	}
	env := newPreset(t, "pip", Options{Registries: own}).Env
	if last := env[len(env)-1]; last != "PIP_INDEX_URL=https://new.test/simple/" {
		t.Errorf("the last variable, which counts, is %s", last)
	}
}

// TestDigests checks that the digests of indexes are found for their files.
func TestDigests(t *testing.T) {
	sum := strings.Repeat("ab", 32)
	sum512, err := hex.DecodeString(strings.Repeat("cd", 64))
	if err != nil {
		t.Fatal(err)
	}
	integrity := "sha512-" + base64.StdEncoding.EncodeToString(sum512)
	c, err := cache.Open(t.TempDir(), false)
	if err != nil {
		t.Fatal(err)
	}
	for url, content := range map[string]string{
		"https://registry.npmjs.org/left-pad":       fmt.Sprintf(`{"versions":{"1.2.0":{"dist":{"tarball":"https://registry.npmjs.org/left-pad/-/left-pad-1.2.0.tgz","shasum":"%s"}},"1.3.0":{"dist":{"tarball":"https://registry.npmjs.org/left-pad/-/left-pad-1.3.0.tgz","integrity":"%s"}}}}`, strings.Repeat("ef", 20), integrity),
		"https://registry.npmjs.org/@types%2fnode":  fmt.Sprintf(`{"versions":{"1.0.0":{"dist":{"tarball":"https://registry.npmjs.org/@types/node/-/node-1.0.0.tgz","integrity":"%s"}}}}`, integrity),
		"https://pypi.org/simple/ruamel-yaml/":      fmt.Sprintf(`<a href="https://files.pythonhosted.org/packages/aa/ruamel_yaml-1.0-py3-none-any.whl#sha256=%s">x</a>`, sum),
		"https://pypi.org/simple/a/":                fmt.Sprintf(`{"files":[{"url":"https://files.pythonhosted.org/packages/aa/A-2.tar.gz","hashes":{"sha256":"%s"}}]}`, sum),
		"https://index.crates.io/se/rd/serde":       fmt.Sprintf("{\"name\":\"serde\",\"vers\":\"1.0.0\",\"cksum\":\"%s\"}\n", sum),
		"https://index.crates.io/3/s/syn":           "not JSON\n" + fmt.Sprintf("{\"name\":\"syn\",\"vers\":\"2.0.0\",\"cksum\":\"%s\"}", sum),
		"https://index.crates.io/br/ok/brokencrate": "{\"name\":\"brokencrate\",\"vers\":\"1.0.0\",\"cksum\":\"zz\"}",
	} {
		q := cache.Request{URL: url, Kind: cache.Index, Fetch: func(context.Context, http.Header) (*http.Response, error) {
			return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, ContentLength: int64(len(content)), Body: io.NopCloser(strings.NewReader(content))}, nil
		}}
		if _, err := c.Serve(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil), q); err != nil {
			t.Fatal(err)
		}
	}
	all := Merge(newPreset(t, "npm", Options{}), newPreset(t, "pip", Options{}), newPreset(t, "cargo", Options{}))
	for url, want := range map[string]string{
		"https://registry.npmjs.org/left-pad/-/left-pad-1.3.0.tgz":                       "sha512:" + strings.Repeat("cd", 64),
		"https://registry.npmjs.org/left-pad/-/left-pad-1.2.0.tgz":                       "sha1:" + strings.Repeat("ef", 20),
		"https://registry.npmjs.org/@types/node/-/node-1.0.0.tgz":                        "sha512:" + strings.Repeat("cd", 64),
		"https://registry.npmjs.org/left-pad/-/left-pad-9.9.9.tgz":                       ":",
		"https://files.pythonhosted.org/packages/aa/ruamel_yaml-1.0-py3-none-any.whl":    "sha256:" + sum,
		"https://files.pythonhosted.org/packages/aa/A-2.tar.gz":                          "sha256:" + sum,
		"https://files.pythonhosted.org/packages/bb/A-2.tar.gz":                          ":",
		"https://files.pythonhosted.org/packages/aa/A-2.tar.gz.metadata":                 ":",
		"https://static.crates.io/crates/serde/1.0.0/download":                           "sha256:" + sum,
		"https://static.crates.io/crates/serde/serde-1.0.0.crate":                        "sha256:" + sum,
		"https://static.crates.io/crates/syn/syn-2.0.0.crate":                            "sha256:" + sum,
		"https://static.crates.io/crates/serde/serde-2.0.0.crate":                        ":",
		"https://static.crates.io/crates/brokencrate/brokencrate-1.0.0.crate":            ":",
		"https://evil.test/crates/serde/1.0.0/download":                                  ":",
		"https://files.pythonhosted.org/packages/aa/unknown-1.0.tar.gz":                  ":",
		"https://files.pythonhosted.org/packages/aa/ruamel_yaml-1.0-py3-none-any%2e.whl": ":",
	} {
		if d := all.Digest(c, target(t, url)); d.String() != want {
			t.Errorf("%s: %s, want %s", url, d, want)
		}
	}
}

// FuzzConfig checks that any configuration file has registries that are rules, or
// none.
func FuzzConfig(f *testing.F) {
	f.Add("registry=https://a.test/\n[global]\nindex-url = https://b.test\n    https://c.test\n[source.x]\nregistry = \"sparse+https://d.test\"\nGOPROXY=https://e.test|direct")
	f.Fuzz(func(t *testing.T, text string) {
		for _, parse := range []func(section, key, value string) []Registry{parseNPM, parsePip, parseCargo, parseGo} {
			for _, s := range parseConfig(text, parse) {
				base, err := registryURL(s.URL)
				if err != nil {
					continue
				}
				if strings.Contains(base, "@") && !strings.Contains(s.URL[strings.Index(s.URL, "://")+3:], "/") {
					t.Errorf("%q keeps credentials: %q", s, base)
				}
			}
		}
	})
}

// FuzzIndex checks that any index has digests of the length of their algorithm, or
// none.
func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"versions":{"1":{"dist":{"tarball":"https://registry.npmjs.org/a/-/a-1.tgz","integrity":"sha512-AAAA"}}},"files":[{"url":"https://files.pythonhosted.org/packages/a-1.tar.gz","hashes":{"sha256":"00"}}]}`))
	f.Add([]byte(`<a href="https://files.pythonhosted.org/packages/a-1.tar.gz#sha256=` + strings.Repeat("0", 64) + `">`))
	f.Add([]byte(`{"vers":"1","cksum":"` + strings.Repeat("0", 64) + `"}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		for _, d := range []cache.Digest{
			readNPM(bytes.NewReader(content), target(t, "https://registry.npmjs.org/a/-/a-1.tgz")),
			readPip(bytes.NewReader(content), target(t, "https://files.pythonhosted.org/packages/a-1.tar.gz")), readCargo(bytes.NewReader(content), "1"),
		} {
			if want := map[string]int{"": 0, "sha1": 40, "sha256": 64, "sha512": 128}[d.Algorithm]; len(d.Sum) != want {
				t.Errorf("%q has the digest %s", content, d)
			}
		}
	})
}

// TestNeededBy has what programs print in a sandbox without a network.
func TestNeededBy(t *testing.T) {
	for output, want := range map[string]string{
		"npm error code ENOTCACHED\nnpm error request to https://registry.npmjs.org/left-pad failed: cache mode is 'only-if-cached' but no cached response is available.": "npm",
		"error Error: getaddrinfo EAI_AGAIN registry.yarnpkg.com":                                                                                           "npm",
		"go: golang.org/x/example/hello@latest: module lookup disabled by GOPROXY=off":                                                                      "go",
		"golang.org/x/example@v0.1.0: reading file:///home/agent/.goproxy/golang.org/x/example/@v/v0.1.0.zip: no such file or directory":                    "go",
		"ERROR: Could not find a version that satisfies the requirement requests (from versions: none)\nERROR: No matching distribution found for requests": "pip",
		"Because x was not found in the cache and you require x, your requirements are unsatisfiable":                                                       "pip",
		"As a reminder, you're using offline mode (--offline) which can sometimes cause surprising resolution failures":                                     "cargo",
		"  attempting to make an HTTP request, but --frozen was specified":                                                                                  "cargo",
		"Cannot access central (https://repo.maven.apache.org/maven2) in offline mode and the artifact a:b:jar:2.6 has not been downloaded from it before.": "maven",
		"W: Failed to fetch http://deb.debian.org/debian/dists/bookworm/InRelease  Temporary failure resolving 'deb.debian.org'":                            "apt",
		"fatal: unable to access 'https://github.com/a/b/': Could not resolve host: github.com":                                                             "",
		"not found in the cache\nreading file:///a: no such file\nENOTCACHED\nlookup proxy.golang.org":                                                      "",
		"table.go:77: offline: ENOTCACHED, not found in the cache, No matching distribution found for":                                                      "",
		"a_test.go:9: \"npm error code ENOTCACHED\"":                                                                                                        "",
		"\"resolved\": \"https://registry.npmjs.org/left-pad/-/left-pad-1.3.0.tgz\"":                                                                        "",
		"": "",
	} {
		if got := NeededBy(nil, []byte(output)); got != want {
			t.Errorf("%q needs %q, want %q", output, got, want)
		}
	}
}

// TestTableNeedsNothing checks that a command that prints the table itself lacks no preset.
func TestTableNeedsNothing(t *testing.T) {
	text, err := os.ReadFile("table.go")
	if err != nil || !bytes.Contains(text, []byte("ENOTCACHED")) {
		t.Fatalf("control: %v", err)
	}
	if got := NeededBy(text); got != "" {
		t.Errorf("the table needs %q", got)
	}
}

func TestFor(t *testing.T) {
	for host, want := range map[string]string{"registry.yarnpkg.com": "npm", "sum.golang.org": "go", "proxy.golang.org": "go", "files.pythonhosted.org": "pip", "example.com": "", "": ""} {
		if got := For(host); got != want {
			t.Errorf("%q has the preset %q, want %q", host, got, want)
		}
	}
}
