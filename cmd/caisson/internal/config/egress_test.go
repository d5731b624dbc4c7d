package config

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

const egressUser = `egress:
  allow:
    - tls://API.example.com
    - {url: "http://wiki.lan:8080/public/", methods: [get, POST]}
    - tcp://db.lan:5432
    - tls://*.github.io
  deny: ["tls://bad.github.io"]
  private: {db.lan: [10.1.2.0/24, 10.9.9.9]}
  unknown: prompt
  budget: {upload: 1MiB}
`

func TestEgressOptions(t *testing.T) {
	c, err := loadFetch(t, egressUser, "", "")
	if err != nil {
		t.Fatal(err)
	}
	o, warnings, err := c.EgressOptions()
	if err != nil {
		t.Fatal(err)
	}
	var allow []string
	for _, r := range o.Policy.Allow {
		allow = append(allow, r.String())
	}
	if diff := cmp.Diff([]string{"tls://api.example.com", "http://wiki.lan:8080/public/", "tcp://db.lan:5432", "tls://*.github.io"}, allow); diff != "" {
		t.Error(diff)
	}
	if !decidesRequest(t, o.Policy, "http://wiki.lan:8080/public/x", "POST") || decidesRequest(t, o.Policy, "http://wiki.lan:8080/public/x", "HEAD") {
		t.Error("the methods of a rule don't count")
	}
	if o.Policy.DecideHost("bad.github.io", 443).Allowed() || !o.Policy.DecideHost("good.github.io", 443).Allowed() {
		t.Error("deny does not win")
	}
	if got := o.Private["db.lan"]; len(got) != 2 || got[1].String() != "10.9.9.9/32" {
		t.Errorf("private %v", got)
	}
	if !o.Ask || !o.Capture || o.Budget.Upload != 1<<20 || o.Budget.Bytes != 4<<30 || o.Budget.Connections != 10_000 || o.Budget.Hosts != 50 {
		t.Errorf("%+v", o)
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0], "anybody can have a name below github.io") {
		t.Errorf("warnings %q", warnings)
	}
	for _, text := range []string{"", "egress: {deny: [\"tls://a.test\"]}", "egress: {allow: []}"} {
		none, err := loadFetch(t, text, "", "")
		if err != nil {
			t.Fatal(err)
		}
		if o, _, err := none.EgressOptions(); err != nil || o.Policy != nil {
			t.Errorf("%q: commands have a network: %+v, %v", text, o, err)
		}
	}
	asks, err := loadFetch(t, "egress: {unknown: prompt}", "", "")
	if err != nil {
		t.Fatal(err)
	}
	if o, _, err := asks.EgressOptions(); err != nil || o.Policy == nil || !o.Ask || o.Policy.DecideHost("a.test", 443).Allowed() {
		t.Errorf("unknown: prompt alone: %+v, %v", o, err)
	}
}

func decidesRequest(t *testing.T, p *rule.Policy, url, method string) bool {
	t.Helper()
	target, err := rule.ParseTarget(url)
	if err != nil {
		t.Fatal(err)
	}
	return p.DecideRequest(target, method).Allowed()
}

// TestEgressNarrows: requirements and a workspace's file only narrow.
func TestEgressNarrows(t *testing.T) {
	for name, tt := range map[string]struct {
		project, requirements string
		allowed, refused      string
		fails                 string
	}{
		"nothing":                       {allowed: "api.example.com"},
		"nothing is allowed":            {requirements: "egress: {allow: []}", refused: "api.example.com"},
		"the host":                      {requirements: "egress: {allow: [\"tls://api.example.com\"]}", allowed: "api.example.com", refused: "x.github.io"},
		"a wildcard":                    {requirements: "egress: {allow: [\"tls://*.example.com\", \"tls://other.test\"]}", allowed: "api.example.com", refused: "other.test"},
		"a workspace":                   {project: "egress: {allow: [\"tls://x.github.io\", \"tls://more.test\"]}", allowed: "x.github.io", refused: "api.example.com"},
		"a workspace does not widen":    {project: "egress: {allow: [public]}", allowed: "api.example.com", refused: "more.test"},
		"both":                          {project: "egress: {allow: [\"tls://x.github.io\"]}", requirements: "egress: {allow: [\"tls://api.example.com\"]}", refused: "x.github.io"},
		"a workspace denies":            {project: "egress: {deny: [\"tls://api.example.com\"]}", allowed: "x.github.io", refused: "api.example.com"},
		"an administrator denies":       {requirements: "egress: {deny: [\"tls://*.github.io\"]}", allowed: "api.example.com", refused: "x.github.io"},
		"private networks":              {requirements: "egress: {refuse_private: true}", fails: "egress.private and egress.proxy are not allowed"},
		"a workspace that asks":         {project: "egress: {unknown: prompt}", fails: "would loosen"},
		"a workspace that loosens":      {project: "egress: {refuse_private: false}", fails: "would loosen"},
		"a workspace's private network": {project: "egress: {private: {api.example.com: [10.0.0.0/8]}}", fails: `a workspace can't set "private"`},
		"a workspace's proxy":           {project: "egress: {proxy: \"http://p:1\"}", fails: `a workspace can't set "proxy"`},
		"a workspace's bad rule":        {project: "egress: {allow: [nonsense]}", fails: ".caisson/config.yaml:1:18: \"nonsense\" is not a rule"},
		"an administrator's typing":     {requirements: "egress: {alow: []}", fails: "alow"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := loadFetch(t, egressUser, tt.project, tt.requirements)
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) {
					t.Fatalf("%v, want %s", err, tt.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			o, _, err := c.EgressOptions()
			if err != nil {
				t.Fatal(err)
			}
			if tt.allowed != "" && !o.Policy.DecideHost(tt.allowed, 443).Allowed() {
				t.Errorf("%s is refused", tt.allowed)
			}
			if tt.refused != "" && o.Policy.DecideHost(tt.refused, 443).Allowed() {
				t.Errorf("%s is allowed", tt.refused)
			}
			tasks, err := c.TaskEgress() // whatever a task allows
			if err != nil || len(tasks.Policy.Allow) > 0 || tasks.Ask || len(tasks.Private) > 0 || tasks.Budget.Upload != 1<<20 {
				t.Fatalf("%+v, %v", tasks, err)
			}
			public, err := rule.ParseEgress("public")
			if err != nil {
				t.Fatal(err)
			}
			o.Policy.Allow, tasks.Policy.Allow = []rule.Rule{public}, []rule.Rule{public}
			for _, host := range []string{tt.allowed, tt.refused} {
				if got, want := tasks.Policy.DecideHost(host, 443), o.Policy.DecideHost(host, 443); got != want {
					t.Errorf("a task that allows all gets %+v to %s, want %+v", got, host, want)
				}
			}
		})
	}
	c, err := loadFetch(t, egressUser, "egress: {unknown: deny, budget: {hosts: 3, upload: 8MiB}}", "egress: {budget: {bytes: 1GiB}}")
	if err != nil {
		t.Fatal(err)
	}
	o, _, err := c.EgressOptions()
	if err != nil || o.Ask || o.Budget.Hosts != 3 || o.Budget.Upload != 1<<20 || o.Budget.Bytes != 1<<30 {
		t.Errorf("%+v, %v", o, err)
	}
	// A flag replaces the user's list, but not requirements and workspaces.
	c.Egress.Allow = nil
	if err := c.Egress.Allow.setText("tls://more.test, http://b.test:81/x"); err != nil {
		t.Fatal(err)
	}
	if err := c.Egress.Allow.setText("tls://more.test,"); err == nil {
		t.Error("an empty entry is accepted")
	}
}

// TestEgressDenyBindsFetch: denials for commands, from any file, also apply to the
// fetch tool.
func TestEgressDenyBindsFetch(t *testing.T) {
	c, err := loadFetch(t, "fetch: {allow: [\"https://a.test/\"]}", "egress: {deny: [\"https://a.test/x/\"]}", "egress: {deny: [\"tls://b.test\"]}")
	if err != nil {
		t.Fatal(err)
	}
	o, err := c.FetchOptions()
	if err != nil {
		t.Fatal(err)
	}
	for url, want := range map[string]bool{"https://a.test/x/y": true, "https://a.test/X/y": true, "https://b.test/": true, "https://a.test/y": false} {
		target, err := rule.ParseTarget(url)
		if err != nil {
			t.Fatal(err)
		}
		if got := rule.DeniesTarget(o.Deny, target, "GET"); got != want {
			t.Errorf("%s denied: %v", url, got)
		}
	}
}

// TestEgressFlagStaysNarrow: a rule of the command line is not wider than a trusted
// workspace's file.
func TestEgressFlagStaysNarrow(t *testing.T) {
	var flags File
	if err := flags.Egress.Allow.setText("tls://a.test,tls://b.test"); err != nil {
		t.Fatal(err)
	}
	o := Options{Flags: flags, Project: &ProjectFile{Path: ProjectPath, Text: []byte("egress: {allow: [\"tls://a.test\"]}")}}
	c, err := Load(o)
	if err != nil {
		t.Fatal(err)
	}
	e, _, err := c.EgressOptions()
	if err != nil {
		t.Fatal(err)
	}
	if !e.Policy.DecideHost("a.test", 443).Allowed() || e.Policy.DecideHost("b.test", 443).Allowed() {
		t.Error("a flag is wider than the workspace's file, or does nothing")
	}
}

func TestEgressMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"egress: {allow: [docs.example.com]}":                                  "is not a rule",
		"egress: {allow: [\"*\"]}":                                             "is not a rule",
		"egress: {allow: [\"tls://*.com\"]}":                                   "names of everybody",
		"egress: {allow: [\"tls://10.1.2.3\"]}":                                "write tcp://",
		"egress: {allow: [{url: \"tls://a.test\", methods: [GET]}]}":           "has no methods",
		"egress: {allow: [{url: \"http://a.test/\", methods: [TRACE]}]}":       "not a method",
		"egress: {allow: [{url: \"http://a.test/\", methods: []}]}":            "empty list of methods",
		"egress: {allow: [{methods: [GET]}]}":                                  "is not a rule",
		"egress: {allow: [{url: \"tls://a.test\", method: GET}]}":              "method",
		"egress: {allow: [[a]]}":                                               "a rule is needed here",
		"egress: {deny: [nonsense]}":                                           "is not a rule",
		"egress: {private: {a.test: [nonsense]}}":                              "invalid network",
		"egress: {allow: [\"tls://a.test\"], private: {a.test: [nonsense]}}":   "invalid network",
		"egress: {allow: [\"tls://a.test\"], private: {a.test: [10.1.2.3/8]}}": "invalid network",
		"egress: {allow: [\"tls://a.test\"], proxy: \"socks5://p:1\"}":         "not the address of an http or https proxy",
		"egress: {unknown: ask}":                                               "is none of deny, prompt",
		"egress: {capture: 3}":                                                 "true or false",
		"egress: {budget: {upload: 0}}":                                        "invalid size",
		"egress: {budget: {hosts: 0}}":                                         "at least 1",
		"egress: {nonsense: 1}":                                                "nonsense",
	} {
		_, err := loadFetch(t, text, "", "")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

func TestBuildNetwork(t *testing.T) {
	const user = `egress:
  allow: ["tcp://db.lan:*", "https://api.example.com/v1/", "tls://b.example.com"]
  deny: ["tls://bad.example.com"]
  private: {db.lan: [10.1.2.0/24]}
  presets: [npm]
`
	for _, test := range []struct {
		images, requirements string
		allow                []string
	}{
		{"", "", nil},
		{"images: {build_network: none}", "", nil},
		{"images: {build_network: public}", "", []string{"public", "tcp://db.lan:*", "tls://b.example.com"}},
		{"images: {build_network: public}", "egress: {allow: [\"tls://b.example.com\"]}", []string{"public", "tcp://db.lan:*", "tls://b.example.com"}},
	} {
		c, err := loadFetch(t, user+test.images+"\n", "", test.requirements)
		if err != nil {
			t.Fatal(err)
		}
		o, err := c.BuildNetwork()
		if err != nil || (o == nil) != (test.allow == nil) {
			t.Fatalf("%+v: %+v, %v", test, o, err)
		}
		if o == nil {
			continue
		}
		var allow []string
		for _, r := range o.Policy.Allow {
			allow = append(allow, r.String())
		}
		if diff := cmp.Diff(test.allow, allow); diff != "" {
			t.Error(diff)
		}
		if got := o.Policy.DecideHost("a.example.com", 443).Allowed(); got != (test.requirements == "") {
			t.Errorf("%q: a public host is allowed: %v", test.requirements, got)
		}
		if !o.Policy.DecideHost("b.example.com", 443).Allowed() || o.Policy.DecideHost("bad.example.com", 443).Allowed() || len(o.Private["db.lan"]) != 1 || o.Budget.Bytes == 0 {
			t.Errorf("%+v", o)
		}
	}
}

// TestUnusedPrivate: an entry of private without a rule is reported, unless commands
// have no network or the user may be asked.
func TestUnusedPrivate(t *testing.T) {
	const private = "private: {a.test: [10.1.2.3]}"
	for text, want := range map[string][]string{
		"{" + private + "}":                                           nil,
		"{presets: [npm], " + private + "}":                           {"egress.private.a.test"},
		"{presets: [npm], unknown: prompt, " + private + "}":          nil,
		"{allow: [\"tls://a.test\"], " + private + "}":                nil,
		"{presets: [npm], private: {registry.npmjs.org: [10.1.2.3]}}": nil,
	} {
		c, err := loadFetch(t, "egress: "+text, "", "")
		if err != nil {
			t.Fatal(err)
		}
		o, warnings, err := c.EgressOptions()
		if diff := cmp.Diff(want, c.UnusedPrivate()); err != nil || diff != "" || len(warnings) > 0 {
			t.Errorf("%s: %v\n%s", text, err, diff)
		}
		if o.Ask && len(o.Private) != 1 {
			t.Errorf("%s: an answer could not reach %v", text, o.Private)
		}
	}
}

// ownAddress returns an IPv4 address of this machine other than loopback.
func ownAddress(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && p.Addr().IsGlobalUnicast() {
			return p.Addr().String()
		}
	}
	t.Skip("this machine has no address but that of loopback")
	return ""
}

// TestReplacedRegistry: nobody is told to allow the public registry if the user's own
// replaces it in a preset.
func TestReplacedRegistry(t *testing.T) {
	own := &record.Egress{Presets: []string{"npm", "pip"}, Allow: []string{"https://npm.corp.test/", "https://pypi.org/pypi/"}}
	public := &record.Egress{Presets: []string{"npm"}, Allow: []string{"https://registry.npmjs.org/"}}
	npm := record.NetworkDenied{Host: "registry.npmjs.org:443", Way: "connect", Reason: "not_allowed"}
	pip := record.NetworkDenied{Host: "pypi.org:443", URL: "https://pypi.org/simple/x/", Way: "connect", Reason: "path"}
	server := npm
	server.Server = "docs"
	for _, tt := range []struct {
		denied    record.NetworkDenied
		reach     *record.Egress
		key, item string
	}{
		{npm, own, ReplacedRegistry, "npm"},
		{pip, own, ReplacedRegistry, "pip"},
		{npm, public, "", ""}, // a bound refuses it
		{pip, public, "presets", "pip"},
		{npm, nil, "presets", "npm"},
		{server, own, "presets", "npm"},
	} {
		if key, item := Lacking(tt.denied, tt.reach); key != tt.key || item != tt.item {
			t.Errorf("%+v: %s %s, want %s %s", tt.denied, key, item, tt.key, tt.item)
		}
	}
	if line := LineToAllow(npm, own); line != "" {
		t.Errorf("the line is %q", line)
	}
}

func TestPipConfigOfXDG(t *testing.T) {
	home, config := t.TempDir(), t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(config, "pip"), 0o700), os.WriteFile(filepath.Join(config, "pip/pip.conf"), []byte("[global]\nindex-url = https://pip.test/simple\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	var flags File
	flags.Egress.Presets = Names{"pip"}
	for variable, want := range map[string]bool{"XDG_CONFIG_HOME=" + config: true, "XDG_CONFIG_HOME=pip": false, "X=": false} {
		c, err := Load(Options{Flags: flags, Environ: []string{"HOME=" + home, variable}})
		if err != nil {
			t.Fatal(err)
		}
		o, _, err := c.EgressOptions()
		if err != nil {
			t.Fatal(err)
		}
		if got := slices.Contains(o.Presets[0].Env, "PIP_INDEX_URL=https://pip.test/simple/"); got != want {
			t.Errorf("%s: the preset has %v", variable, o.Presets[0].Env)
		}
	}
}

func TestLineToAllow(t *testing.T) {
	own := ownAddress(t)
	for _, tt := range []struct {
		denied record.NetworkDenied
		want   string
	}{
		{record.NetworkDenied{Host: "registry.npmjs.org:443", Way: "connect", Reason: "not_allowed"}, "egress: {presets: [npm]}"},
		{record.NetworkDenied{Host: "sum.golang.org", Way: "name", Reason: "not_allowed"}, "egress: {presets: [go]}"},
		{record.NetworkDenied{Host: "pypi.org:443", Way: "connect", Reason: "not_allowed", Server: "docs"}, "mcpServers: {docs: {egress: {presets: [pip]}}}"},
		{record.NetworkDenied{Host: "npm.corp:443", Way: "http", Reason: "address", Addr: "10.1.2.3"}, `egress: {private: {npm.corp: ["10.1.2.3"]}}`},
		{record.NetworkDenied{Host: "wiki.corp:443", Reason: "address", Addr: "fd00::1"}, `fetch: {private: {wiki.corp: ["fd00::1"]}}`},
		{record.NetworkDenied{Host: "npm.corp:443", Way: "http", Reason: "address", Addr: "10.1.2.3", Rule: "tcp://10.0.0.0/8:*"}, ""},
		{record.NetworkDenied{Host: "evil.test:80", Way: "http", Reason: "address", Addr: "169.254.169.254"}, ""},
		{record.NetworkDenied{Host: "evil.test:80", Way: "http", Reason: "address", Addr: "fd00:ec2::254"}, ""},
		{record.NetworkDenied{Host: "evil.test:80", Way: "http", Reason: "address", Addr: "127.8.0.1"}, ""},
		{record.NetworkDenied{Host: "evil.test:80", Way: "http", Reason: "address", Addr: "::ffff:127.0.0.1"}, ""},
		{record.NetworkDenied{Host: "evil.test:80", Way: "http", Reason: "address", Addr: "0.0.0.0"}, ""},
		{record.NetworkDenied{Host: rule.HostName + ":80", Way: "http", Reason: "address", Addr: "127.0.0.1"}, `egress: {private: {host.caisson.internal: ["127.0.0.1"]}}`},
		{record.NetworkDenied{Host: "registry.npmjs.org:443", Reason: "not_allowed"}, ""}, // a fetch
		{record.NetworkDenied{Host: "registry.npmjs.org:443", Way: "http", Reason: "method"}, ""},
		{record.NetworkDenied{Host: "example.com:443", Way: "connect", Reason: "not_allowed"}, ""},
		{record.NetworkDenied{Host: "pypi.org:443", URL: "https://pypi.org/simple/x/", Way: "connect", Reason: "path"}, "egress: {presets: [pip]}"},
		{record.NetworkDenied{Host: "pypi.org:443", URL: "https://pypi.org/search/", Way: "connect", Reason: "path"}, ""},
		{record.NetworkDenied{Host: own + ":80", Way: "http", Reason: "address", Addr: own}, `egress: {private: {` + FlowScalar(own) + `: [` + FlowScalar(own) + `]}}`},
		{record.NetworkDenied{Host: "evil.test:80", Way: "http", Reason: "address", Addr: own}, ""},
		{record.NetworkDenied{Host: "10.1.2.3:80", Way: "http", Reason: "address", Addr: "10.1.2.3"}, `egress: {private: {"10.1.2.3": ["10.1.2.3"]}}`},
		{record.NetworkDenied{Host: "127.0.0.1:80", Way: "http", Reason: "address", Addr: "127.0.0.1"}, ""},
		{record.NetworkDenied{Host: "169.254.169.254:80", Way: "http", Reason: "address", Addr: "169.254.169.254"}, ""},
		{record.NetworkDenied{Host: "[fd00:ec2::254]:80", Way: "http", Reason: "address", Addr: "fd00:ec2::254"}, ""},
	} {
		if got := LineToAllow(tt.denied, nil); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.denied, got, tt.want)
		}
	}
}

// TestRefusePrivateAsksNobody: nobody is asked about private addresses if requirements
// or a workspace refuse them.
func TestRefusePrivateAsksNobody(t *testing.T) {
	for _, tt := range []struct {
		project, requirements string
		asks                  bool
	}{
		{"", "", true}, {"egress: {refuse_private: true}", "", false}, {"", "egress: {refuse_private: true}", false}, {"egress: {}", "egress: {}", true},
	} {
		c, err := loadFetch(t, "egress: {unknown: prompt}", tt.project, tt.requirements)
		if err != nil {
			t.Fatal(err)
		}
		if o, _, err := c.EgressOptions(); err != nil || !o.Ask || o.AskAddress != tt.asks {
			t.Errorf("%+v: %+v, %v", tt, o, err)
		}
	}
}
