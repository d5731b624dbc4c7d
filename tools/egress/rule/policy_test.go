package rule

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func mustParse(t testing.TB, list ...string) []Rule {
	t.Helper()
	out := []Rule{}
	for _, s := range list {
		text, methods, _ := strings.Cut(s, " ")
		r, err := ParseEgress(text)
		if err == nil && methods != "" {
			r, err = r.WithMethods(strings.Fields(methods))
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
	return out
}

// TestEgressRules checks which rules are accepted, and their canonical form.
func TestEgressRules(t *testing.T) {
	for s, want := range map[string]string{
		"tls://API.Example.com":           "tls://api.example.com",
		"tls://api.example.com.:443":      "tls://api.example.com",
		"tls://api.example.com:8443":      "tls://api.example.com:8443",
		"tls://*.example.com":             "tls://*.example.com",
		"tls://*.bücher.example":          "tls://*.xn--bcher-kva.example",
		"tls://*.github.io":               "tls://*.github.io",
		"tls://db":                        "tls://db",
		"tcp://db.lan:5432":               "tcp://db.lan:5432",
		"tcp://db.lan:*":                  "tcp://db.lan:*",
		"tcp://10.1.2.3:22":               "tcp://10.1.2.3:22",
		"tcp://10.1.0.0/16:22":            "tcp://10.1.0.0/16:22",
		"tcp://[fd00::1]:22":              "tcp://[fd00::1]:22",
		"tcp://[fd00::/64]:*":             "tcp://[fd00::/64]:*",
		"tcp://*.db.example.com:5432":     "tcp://*.db.example.com:5432",
		"http://deb.debian.org":           "http://deb.debian.org/",
		"http://deb.debian.org/debian/":   "http://deb.debian.org/debian/",
		"http://*.debian.org:8080/a":      "http://*.debian.org:8080/a",
		"http://[2606:4700::1111]:8080/x": "http://[2606:4700::1111]:8080/x",
		"public":                          "public",
		"https://API.example.com":         "https://api.example.com/",
		"https://api.example.com:8443/v1": "https://api.example.com:8443/v1",
		"https://10.1.2.3/v1/":            "https://10.1.2.3/v1/",
		"git+https://Git.example.com/org": "git+https://git.example.com/org",
		"git+https://g.test:8443/o/r.git": "git+https://g.test:8443/o/r",
		"git+https://g.test/org/.git":     "git+https://g.test/org/.git",
		"host://API.Example.com.":         "host://api.example.com",
		"host://*.bücher.example":         "host://*.xn--bcher-kva.example",
	} {
		r, err := ParseEgress(s)
		if err != nil || r.String() != want {
			t.Errorf("%q: %s, %v, want %s", s, r, err, want)
			continue
		}
		if again, err := ParseEgress(r.String()); err != nil || again != r {
			t.Errorf("%q: %s is parsed as %v, %v", s, r, again, err)
		}
	}
	for s, hint := range map[string]string{
		"":                                   "is not a rule",
		"*":                                  "is not a rule",
		"api.example.com":                    "is not a rule",
		"PUBLIC":                             "is not a rule",
		"ftp://example.com":                  "is not a rule",
		"TLS://example.com":                  "is not a rule",
		"https://*.example.com/":             "allow all requests with tls://*.example.com",
		"https://*.[::1]/":                   "allow all requests with tls://*. and its name",
		"https://example.com/?q":             "query",
		"https://example.com/a%2fb":          "read differently",
		"https://u:p@example.com/":           "user name",
		"HTTPS://example.com/":               "is not a rule",
		"git+https://*.example.com/":         "is not the URL of git repositories",
		"git+https://example.com/?service=x": "query",
		"git+http://example.com/":            "is not a rule",
		"tls://*":                            "",
		"tls://*.com":                        "names of everybody",
		"tls://*.co.uk":                      "names of everybody",
		"tls://*.lan":                        "names of everybody",
		"tls://*.ck":                         "names of everybody",
		"tls://*.kawasaki.jp":                "names of everybody",
		"http://*.com/":                      "names of everybody",
		"tls://*.*.example.com":              "is not a name",
		"tls://a.*.example.com":              "is not a name",
		"tls://*example.com":                 "is not a name",
		"tcp://*.10.1.2.3:443":               "no names below",
		"tls://10.1.2.3":                     "write tcp://",
		"tls://[::1]:443":                    "write tcp://",
		"tls://2130706433":                   "neither a name nor an address",
		"tls://example.com/":                 "without a path",
		"tls://example.com/v1":               "without a path",
		"tls://user@example.com":             "is not a name",
		"tls://example.com:0":                "not one of 1 to 65535",
		"tls://example.com:65536":            "not one of 1 to 65535",
		"tls://example.com:":                 "has no port",
		"tls://example.com:*":                "not one of 1 to 65535",
		"tls://exa mple.com":                 "write it escaped",
		"tls://example.com\r\n":              "write it escaped",
		"tcp://db.lan":                       "has no port",
		"tcp://10.1.2.3/16:22":               "invalid network",
		"tcp://::1:22":                       "brackets",
		"tcp://[10.1.2.3]:22":                "brackets",
		"tcp://[::ffff:10.1.2.3]:22":         "in disguise",
		"host://example.com:443":             "for all ports",
		"host://example.com:*":               "for all ports",
		"host://example.com:":                "for all ports",
		"host://example.com/":                "without a path",
		"host://*":                           "not a name",
		"host://*.com":                       "names of everybody",
		"host://10.1.2.3":                    "write tcp://",
		"host://[::1]":                       "write tcp://",
		"host://10.1.0.0/16":                 "without a path",
		"host://":                            "empty",
		"http://example.com/?q":              "query",
		"http://example.com/a%2fb":           "read differently",
		"http://u:p@example.com/":            "user name",
		"tls://" + strings.Repeat("a", 9000): "at most 8192",
	} {
		if r, err := ParseEgress(s); err == nil || !strings.Contains(err.Error(), hint) {
			t.Errorf("%.60q: %s, %v, want an error with %q", s, r, err, hint)
		}
	}
	if w := mustParse(t, "tls://*.github.io")[0].Warning(); !strings.Contains(w, "anybody") {
		t.Errorf("a shared suffix has the warning %q", w)
	}
	if w := mustParse(t, "tls://*.example.com")[0].Warning(); w != "" {
		t.Errorf("a domain of one owner has the warning %q", w)
	}
	for _, methods := range [][]string{nil, {"TRACE"}, {"CONNECT"}, {"connect"}, {""}, {"GE T"}, {"GET,POST"}} {
		if r, err := mustParse(t, "http://example.com/")[0].WithMethods(methods); err == nil {
			t.Errorf("methods %q are accepted as %q", methods, r.methods)
		}
	}
	for _, s := range []string{"tls://example.com", "git+https://example.com/"} {
		if _, err := mustParse(t, s)[0].WithMethods([]string{"GET"}); err == nil {
			t.Errorf("%s has methods", s)
		}
	}
}

func TestDecideHost(t *testing.T) {
	all := WayAny | WayTLS | WayHTTP
	for _, tt := range []struct {
		name        string
		allow, deny []string
		within      [][]string
		host        string
		port        uint16
		want        Ways
	}{
		{"an empty list", nil, nil, nil, "example.com", 443, 0},
		{"a name", []string{"tls://example.com"}, nil, nil, "example.com", 443, WayTLS},
		{"another port", []string{"tls://example.com"}, nil, nil, "example.com", 80, 0},
		{"a name below", []string{"tls://example.com"}, nil, nil, "www.example.com", 443, 0},
		{"a name that ends alike", []string{"tls://*.example.com"}, nil, nil, "evilexample.com", 443, 0},
		{"a wildcard covers below", []string{"tls://*.example.com"}, nil, nil, "a.b.example.com", 443, WayTLS},
		{"and not itself", []string{"tls://*.example.com"}, nil, nil, "example.com", 443, 0},
		{"tcp", []string{"tcp://db.lan:5432"}, nil, nil, "db.lan", 5432, all},
		{"two rules", []string{"tls://a.test:8080", "http://a.test:8080/x"}, nil, nil, "a.test", 8080, WayTLS | WayHTTP},
		{"a network covers addresses", []string{"tcp://10.1.0.0/16:22"}, nil, nil, "10.1.2.3", 22, all},
		{"and no names", []string{"tcp://10.1.0.0/16:22"}, nil, nil, "db.lan", 22, 0},
		{"public", []string{"public"}, nil, nil, "example.com", 25, all},
		{"a host at 443", []string{"host://a.test"}, nil, nil, "a.test", 443, WayTLS},
		{"a host at 80", []string{"host://a.test"}, nil, nil, "a.test", 80, WayHTTP},
		{"a host at another port", []string{"host://a.test"}, nil, nil, "a.test", 22, all},
		{"a host and no other", []string{"host://a.test"}, nil, nil, "b.a.test", 22, 0},
		{"all hosts below", []string{"host://*.a.test"}, nil, nil, "c.b.a.test", 80, WayHTTP},
		{"all hosts below and not itself", []string{"host://*.a.test"}, nil, nil, "a.test", 80, 0},
		{"a host and no address", []string{"host://a.test"}, nil, nil, "93.184.216.34", 443, 0},
		{"a host within tcp", []string{"host://a.test"}, nil, [][]string{{"tcp://a.test:443"}}, "a.test", 443, WayTLS},
		{"tcp within a host", []string{"tcp://a.test:443"}, nil, [][]string{{"host://a.test"}}, "a.test", 443, WayTLS},
		{"deny a host", []string{"public"}, []string{"host://a.test"}, nil, "a.test", 8080, 0},
		{"deny a path of a host", []string{"host://a.test"}, []string{"https://a.test/admin/"}, nil, "a.test", 443, WayHTTPS},
		{"deny wins", []string{"public"}, []string{"tls://example.com"}, nil, "example.com", 443, 0},
		{"another port is left", []string{"public"}, []string{"tls://example.com"}, nil, "example.com", 80, all},
		{"any port", []string{"public"}, []string{"tcp://example.com:*"}, nil, "example.com", 80, 0},
		{"deny a network", []string{"public"}, []string{"tcp://93.184.0.0/16:*"}, nil, "93.184.216.34", 80, 0},
		{"deny below", []string{"tls://*.example.com"}, []string{"tls://*.evil.example.com"}, nil, "a.evil.example.com", 443, 0},
		{"deny a path leaves what is read", []string{"public"}, []string{"http://a.test/admin/"}, nil, "a.test", 80, WayHTTP},
		{"and nothing where only bytes are allowed", []string{"tls://a.test:80"}, []string{"http://a.test/admin/"}, nil, "a.test", 80, 0},
		{"deny a whole host of http", []string{"public"}, []string{"http://a.test/"}, nil, "a.test", 80, 0},
		{"within nothing", []string{"tls://a.test"}, nil, [][]string{{}}, "a.test", 443, 0},
		{"within itself", []string{"tls://a.test"}, nil, [][]string{{"tls://a.test", "tls://b.test"}}, "a.test", 443, WayTLS},
		{"within adds nothing", []string{"tls://a.test"}, nil, [][]string{{"tls://a.test", "tls://b.test"}}, "b.test", 443, 0},
		{"within lowers the ways", []string{"public"}, nil, [][]string{{"tls://a.test"}}, "a.test", 443, WayTLS},
		{"within two", []string{"public"}, nil, [][]string{{"tls://a.test"}, {"tls://b.test"}}, "a.test", 443, 0},
		{"https", []string{"https://a.test/v1/"}, nil, nil, "a.test", 443, WayHTTPS},
		{"https at another port", []string{"https://a.test/v1/"}, nil, nil, "a.test", 80, 0},
		{"git", []string{"git+https://a.test/v1/"}, nil, nil, "a.test", 443, WayHTTPS},
		{"https ends TLS that another rule would pass", []string{"tls://a.test", "https://a.test/v1/"}, nil, nil, "a.test", 443, WayHTTPS},
		{"and refuses other bytes", []string{"public", "https://a.test/v1/"}, nil, nil, "a.test", 443, WayHTTPS | WayHTTP},
		{"the names beside it stay end to end", []string{"tls://*.a.test", "https://b.a.test/v1/"}, nil, nil, "c.a.test", 443, WayTLS},
		{"within https", []string{"tls://a.test"}, nil, [][]string{{"https://a.test/v1/"}}, "a.test", 443, WayHTTPS},
		{"https within tls", []string{"https://a.test/v1/"}, nil, [][]string{{"tls://a.test"}}, "a.test", 443, WayHTTPS},
		{"within both", []string{"tls://a.test"}, nil, [][]string{{"tls://a.test", "https://a.test/v1/"}}, "a.test", 443, WayTLS},
		{"deny a path of https", []string{"tls://a.test"}, []string{"https://a.test/admin/"}, nil, "a.test", 443, WayHTTPS},
		{"deny methods of https", []string{"public"}, []string{"https://a.test/ DELETE"}, nil, "a.test", 443, WayHTTPS},
		{"deny all of https", []string{"public"}, []string{"https://a.test/"}, nil, "a.test", 443, 0},
		{"deny paths of both at one port", []string{"public"}, []string{"https://a.test:80/x", "http://a.test/x"}, nil, "a.test", 80, WayHTTPS | WayHTTP},
		{"deny a path of http where TLS ends", []string{"https://a.test:80/"}, []string{"http://a.test/x"}, nil, "a.test", 80, 0},
		{"ways that exclude each other", []string{"tls://a.test:80"}, nil, [][]string{{"http://a.test/"}}, "a.test", 80, 0},
	} {
		p := Policy{Allow: mustParse(t, tt.allow...), Deny: mustParse(t, tt.deny...)}
		for _, list := range tt.within {
			p.Within = append(p.Within, mustParse(t, list...))
		}
		if d := p.DecideHost(tt.host, tt.port); d.Ways != tt.want || d.Allowed() != (tt.want != 0) {
			t.Errorf("%s: %+v, want ways %b", tt.name, d, tt.want)
		}
	}
	p := Policy{Allow: mustParse(t, "public", "tcp://db.lan:5432")}
	if !p.DecideHost("db.lan", 22).PublicOnly || p.DecideHost("db.lan", 5432).PublicOnly {
		t.Error("exceptions for private addresses are not bound to a rule that names the host")
	}
}

func TestDecideRequest(t *testing.T) {
	p := Policy{
		Allow: mustParse(t, "http://a.test/v1/", "http://a.test/v1/jobs POST", "tls://b.test:80", "tcp://c.test:80"),
		Deny:  mustParse(t, "http://a.test/v1/admin/", "http://c.test/x DELETE"),
	}
	for _, tt := range []struct{ method, url, want string }{
		{"GET", "http://a.test/v1/", ""},
		{"HEAD", "http://a.test/v1/x?q", ""},
		{"POST", "http://a.test/v1/jobs", ""},
		{"POST", "http://a.test/v1/jobs/3", ""},
		{"POST", "http://a.test/v1/", "method"},
		{"PUT", "http://a.test/v1/jobs", "method"},
		{"TRACE", "http://a.test/v1/", "method"},
		{"get", "http://a.test/v1/", "method"},
		{"GET", "http://a.test/v2/", "path"},
		{"GET", "http://a.test/v1", "path"},
		{"GET", "http://a.test/v1/../v2/", "path"},
		{"GET", "http://a.test/v1/..%2fv2/", "not_allowed"},
		{"GET", "http://a.test/v1/admin/", "not_allowed"},
		{"GET", "http://a.test/v1/admin", "not_allowed"},
		{"GET", "http://a.test/v1/Admin/x", "not_allowed"},
		{"GET", "http://a.test/v1//admin/x", "not_allowed"},
		{"GET", "http://a.test/v1/%61dmin/x", "not_allowed"},
		{"GET", "http://a.test/v1/admin;a=b/x", "not_allowed"},
		{"GET", "http://a.test/v1/x/../admin/", "not_allowed"},
		{"GET", "http://a.test/v1/administrator", ""},
		{"GET", "http://a.test:8080/v1/", "not_allowed"},
		{"GET", "http://b.test/", "not_allowed"},
		{"PUT", "http://c.test/x", ""},
		{"DELETE", "http://c.test/y", ""},
		{"DELETE", "http://c.test/x", "not_allowed"},
		{"CONNECT", "http://c.test/", "method"},
	} {
		target, err := ParseTarget(tt.url)
		if err != nil {
			t.Fatal(err)
		}
		if d := p.DecideRequest(target, tt.method); d.Reason != tt.want {
			t.Errorf("%s %s: %q, want %q", tt.method, tt.url, d.Reason, tt.want)
		}
	}
	https := Policy{
		Allow: mustParse(t, "https://a.test/v1/", "https://a.test/v1/jobs POST", "tls://b.test", "tls://c.test", "https://c.test/x",
			"git+https://g.test/org/", "git+https://g.test/one", "http://a.test/plain/"),
		Deny: mustParse(t, "https://a.test/v1/admin/", "https://c.test/x DELETE"),
	}
	push, err := ParseGit("https://g.test/mine/repo.git", true)
	if err != nil {
		t.Fatal(err)
	}
	https.Allow = append(https.Allow, push)
	const fetchRefs, pushRefs = "/info/refs?service=git-upload-pack", "/info/refs?service=git-receive-pack"
	for _, tt := range []struct{ method, url, want string }{
		{"GET", "https://a.test/v1/x", ""},
		{"POST", "https://a.test/v1/jobs", ""},
		{"POST", "https://a.test/v1/x", "method"},
		{"GET", "https://a.test/v2", "path"},
		{"GET", "https://a.test/v1/..%2fv2/", "not_allowed"}, // a denied path may be meant
		{"GET", "https://a.test/v1/@a%2fb", "not_allowed"},
		{"GET", "https://a.test/v1/%2e%2e/v2/", "path"},
		{"GET", "https://a.test/v1//Admin/x", "not_allowed"},
		{"GET", "http://a.test/v1/x", "path"},
		{"GET", "https://a.test/plain/", "path"},
		{"GET", "https://b.test/", "not_allowed"}, // end to end: no request is seen
		{"DELETE", "https://c.test/y", ""},
		{"DELETE", "https://c.test/x", "not_allowed"},
		{"TRACE", "https://c.test/y", "method"},
		{"GET", "https://g.test/org/repo" + fetchRefs, ""},
		{"GET", "https://g.test/org/sub/repo.git" + fetchRefs, ""},
		{"POST", "https://g.test/org/repo.git/git-upload-pack", ""},
		{"GET", "https://g.test/one" + fetchRefs, ""},
		{"GET", "https://g.test/one.git" + fetchRefs, ""},
		{"POST", "https://g.test/one.git/git-upload-pack", ""},
		{"GET", "https://g.test/one.git.evil" + fetchRefs, "path"},
		{"GET", "https://g.test/oneself" + fetchRefs, "path"},
		{"GET", "https://g.test/other/repo" + fetchRefs, "path"},
		{"GET", "https://g.test/org/repo" + pushRefs, "path"},
		{"GET", "https://g.test/org/repo" + fetchRefs + "&x=1", "path"},
		{"GET", "https://g.test/org/repo/info/refs", "path"},
		{"GET", "https://g.test/org/repo/archive/main.zip", "path"},
		{"POST", "https://g.test/org/repo.git/git-receive-pack", "path"},
		{"POST", "https://g.test/org/repo.git/info/lfs/objects/batch", "path"},
		{"POST", "https://g.test/org/..%2fother/repo/git-upload-pack", "path"},
		{"POST", "https://g.test/mine/repo/git-receive-pack", ""},
		{"GET", "https://g.test/mine/repo.git" + pushRefs, ""},
		{"GET", "https://g.test/mine/repo.git" + fetchRefs, ""},
		{"PUT", "https://g.test/mine/repo/git-receive-pack", "path"},
	} {
		target, err := ParseTarget(tt.url)
		if err != nil {
			t.Fatal(err)
		}
		if d := https.DecideRequest(target, tt.method); d.Reason != tt.want {
			t.Errorf("%s %s: %q, want %q", tt.method, tt.url, d.Reason, tt.want)
		}
	}
	hosts := Policy{Allow: mustParse(t, "host://a.test", "http://a.test:443/x/")}
	for _, tt := range []struct{ method, url, want string }{
		{"DELETE", "http://a.test/v1/..%2f", ""},
		{"TRACE", "http://a.test/", "method"},
		{"POST", "http://a.test:8080/", ""},
		{"GET", "http://a.test:443/x/", ""}, // by the other rule
		{"GET", "http://a.test:443/y/", "path"},
		{"GET", "https://a.test:80/", "not_allowed"},
		{"GET", "http://b.test/", "not_allowed"},
	} {
		target, err := ParseTarget(tt.url)
		if err != nil {
			t.Fatal(err)
		}
		if d := hosts.DecideRequest(target, tt.method); d.Reason != tt.want {
			t.Errorf("%s %s: %q, want %q", tt.method, tt.url, d.Reason, tt.want)
		}
	}
	within := Policy{Allow: mustParse(t, "public"), Within: [][]Rule{mustParse(t, "http://a.test/v1/")}}
	for url, want := range map[string]string{"http://a.test/v1/x": "", "http://a.test/v2": "path", "http://b.test/v1/": "not_allowed"} {
		target, err := ParseTarget(url)
		if err != nil {
			t.Fatal(err)
		}
		if d := within.DecideRequest(target, "GET"); d.Reason != want {
			t.Errorf("within: %s: %q, want %q", url, d.Reason, want)
		}
	}
}

// permits reports whether a policy lets a request be sent, by whatever way.
func permits(p *Policy, t Target, method string) bool {
	d := p.DecideHost(t.Host, t.Port)
	ends, passes := WayHTTP, WayAny
	if t.Scheme == "https" {
		ends, passes = WayHTTPS, WayAny|WayTLS
	}
	return d.Ways&passes != 0 || d.Ways&ends != 0 && p.DecideRequest(t, method).Allowed()
}

// TestPolicyNarrows checks that lists of Within and Deny never allow more than
// without them, and that TLS ends only where an https rule names the host.
func TestPolicyNarrows(t *testing.T) {
	texts := []string{
		"public", "tcp://a.test:443", "tcp://a.test:80", "tls://a.test", "tls://*.a.test", "https://a.test/", "https://a.test/v1/", "https://a.test/v1/ POST",
		"https://a.test:80/v1/", "http://a.test/", "http://a.test/v1/", "http://*.a.test/", "git+https://a.test/v1/", "https://b.a.test/v1/",
		"host://a.test", "host://*.a.test",
	}
	urls := []string{
		"https://a.test/", "https://a.test/v1/", "https://a.test/v1/git-upload-pack", "https://b.a.test/v1/", "https://a.test:80/v1/", "http://a.test/v1/",
		"http://b.a.test/", "https://a.test/v1/%2f", "http://a.test:443/v1/", "http://a.test:8080/",
	}
	rapid.Check(t, func(t *rapid.T) {
		list := func(label string) []Rule {
			var out []Rule
			for _, s := range rapid.SliceOfN(rapid.SampledFrom(texts), 0, 4).Draw(t, label) {
				text, method, _ := strings.Cut(s, " ")
				r, err := ParseEgress(text)
				if err == nil && method != "" {
					r, err = r.WithMethods([]string{method})
				}
				if err != nil {
					t.Fatal(err)
				}
				out = append(out, r)
			}
			return out
		}
		wide := Policy{Allow: list("allow"), Deny: list("deny")}
		narrow := Policy{Allow: wide.Allow, Within: [][]Rule{list("within")}, Deny: append(list("more"), wide.Deny...)}
		target, err := ParseTarget(rapid.SampledFrom(urls).Draw(t, "url"))
		if err != nil {
			t.Fatal(err)
		}
		method := rapid.SampledFrom([]string{"GET", "POST", "DELETE"}).Draw(t, "method")
		if permits(&narrow, target, method) && !permits(&wide, target, method) {
			t.Fatalf("%+v permits %s %s, which %+v refuses", narrow, method, target, wide)
		}
		d := narrow.DecideHost(target.Host, target.Port)
		all := slices.Concat(narrow.Allow, narrow.Deny, narrow.Within[0])
		named := slices.ContainsFunc(all, func(r Rule) bool { return r.EndsTLS() && r.IsFor(target.Host) })
		if d.Ways&WayHTTPS != 0 && (!named || d.Ways&(WayTLS|WayAny) != 0) {
			t.Fatalf("%+v has the ways %b at %s", narrow, d.Ways, target)
		}
	})
}

// FuzzEgressRule checks that a rule's text is its own canonical form, and that a rule
// covers no host but its own.
func FuzzEgressRule(f *testing.F) {
	for _, s := range []string{"tls://a.b", "tls://*.example.com:1", "tcp://[::1]:*", "tcp://10.0.0.0/8:22", "http://*.a.example/b", "public", "https://a/b", "git+https://a.b:1/c.git", "host://*.a.b"} {
		f.Add(s, "a.example.com", uint16(443))
	}
	f.Fuzz(func(t *testing.T, s, host string, port uint16) {
		r, err := ParseEgress(s)
		if err != nil {
			return
		}
		if again, err := ParseEgress(r.String()); err != nil || again != r {
			t.Fatalf("%q: %s is parsed as %s, %v", s, r, again, err)
		}
		canonical, err := CanonicalHost(host)
		if err != nil || r.kind == kindPublic || !r.coversHost(canonical, port) {
			return
		}
		addr, parseErr := netip.ParseAddr(canonical)
		named := canonical == r.host || r.wildcard && strings.HasSuffix(canonical, "."+r.host) || parseErr == nil && r.prefix.IsValid() && r.prefix.Contains(addr)
		if !named || r.port != 0 && r.port != port {
			t.Fatalf("%s covers %s:%d", r, canonical, port)
		}
	})
}

// FuzzCanonicalHost checks that a canonical host is its own canonical form.
func FuzzCanonicalHost(f *testing.F) {
	for _, s := range []string{"a.B.", "::1", "127.1", "0x7f.1", "bücher.example", "１２７.0.0.1", "a\x00b", "[::1]", "fe80::1%eth0", "a。b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		host, err := CanonicalHost(s)
		if err != nil {
			return
		}
		if again, err := CanonicalHost(host); err != nil || again != host {
			t.Fatalf("%q: %q and then %q, %v", s, host, again, err)
		}
		if strings.ToLower(host) != host || strings.HasSuffix(host, ".") || strings.ContainsAny(host, "/@#?%\\ \r\n\x00") {
			t.Fatalf("%q is accepted as %q", s, host)
		}
	})
}
