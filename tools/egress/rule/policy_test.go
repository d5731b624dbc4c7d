package rule

import (
	"net/netip"
	"strings"
	"testing"
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
		"https://api.example.com/v1/":        "allow the whole host with tls://api.example.com",
		"https://api.example.com:8443":       "allow the whole host with tls://api.example.com:8443",
		"https://[::1]/":                     "allow the whole host with tls:// and its name",
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
	if _, err := mustParse(t, "tls://example.com")[0].WithMethods([]string{"GET"}); err == nil {
		t.Error("a tls rule has methods")
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
	p.Deny = mustParse(t, "tcp://93.184.0.0/16:*", "http://93.185.0.1/x/")
	if _, denied := p.DeniedAddr(netip.MustParseAddr("93.184.216.34"), 443); !denied {
		t.Error("the address of a name is not denied by a network")
	}
	if _, denied := p.DeniedAddr(netip.MustParseAddr("93.185.0.1"), 80); denied {
		t.Error("the address of a name is denied by a path")
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

// FuzzEgressRule checks that a rule's text is its own canonical form, and that a rule
// covers no host but its own.
func FuzzEgressRule(f *testing.F) {
	for _, s := range []string{"tls://a.b", "tls://*.example.com:1", "tcp://[::1]:*", "tcp://10.0.0.0/8:22", "http://*.a.example/b", "public", "https://a/b"} {
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
