package rule

import (
	"errors"
	"net/url"
	"strings"
	"testing"
)

// TestTargets is the table of acceptance case 59, without its addresses: invalid
// URLs are refused first, and each valid URL has a single canonical form.
func TestTargets(t *testing.T) {
	for raw, want := range map[string]string{
		"https://Docs.Example.COM":              "https://docs.example.com/",
		"https://docs.example.com.":             "https://docs.example.com/",
		"https://docs.example.com:443/a":        "https://docs.example.com/a",
		"http://docs.example.com:80/a":          "http://docs.example.com/a",
		"http://docs.example.com:443/a":         "http://docs.example.com:443/a",
		"https://docs.example.com/a/../b":       "https://docs.example.com/b",
		"https://docs.example.com/a/%2e%2E/b":   "https://docs.example.com/b",
		"https://docs.example.com/../../b":      "https://docs.example.com/b",
		"https://docs.example.com/a/./b/.":      "https://docs.example.com/a/b/",
		"https://docs.example.com/a//b":         "https://docs.example.com/a//b",
		"https://docs.example.com/a/b/..":       "https://docs.example.com/a/",
		"https://docs.example.com/a%20b?q=1&r":  "https://docs.example.com/a%20b?q=1&r",
		"https://docs.example.com/a#fragment":   "https://docs.example.com/a",
		"https://docs.example.com?q":            "https://docs.example.com/?q",
		"https://docs.example.com/?q=é\"<>":     "https://docs.example.com/?q=%C3%A9%22%3C%3E",
		"HTTPS://docs.example.com/":             "https://docs.example.com/",
		"https://bücher.example/":               "https://xn--bcher-kva.example/",
		"https://ｄｏｃｓ．example.com/":             "https://docs.example.com/",
		"http://[2606:4700:0::1111]:8080/":      "http://[2606:4700::1111]:8080/",
		"http://[2606:4700::1111]/":             "http://[2606:4700::1111]/",
		"http://１２７.０.０.１/":                     "http://127.0.0.1/",
		"https://a_b.example.com/":              "https://a_b.example.com/",
		"https://docs.example.com/@scope%2fpkg": "https://docs.example.com/@scope%2fpkg",

		"":                                                    "!scheme",
		"docs.example.com":                                    "!scheme",
		"//docs.example.com/":                                 "!scheme",
		"/etc/passwd":                                         "!scheme",
		"file:///etc/passwd":                                  "!scheme",
		"ftp://docs.example.com/":                             "!scheme",
		"gopher://docs.example.com:70/":                       "!scheme",
		"data:text/plain,hello":                               "!scheme",
		"jar:https://docs.example.com!/x":                     "!scheme",
		"unix:///var/run/docker.sock":                         "!scheme",
		"http+unix://%2Frun%2Fx.sock/":                        "!invalid_url",
		"javascript:alert(1)":                                 "!scheme",
		"ws://docs.example.com/":                              "!scheme",
		"http:/docs.example.com/":                             "!invalid_url",
		"http:docs.example.com":                               "!invalid_url",
		"http:///docs.example.com":                            "!invalid_url",
		"http://":                                             "!invalid_url",
		"http://user:pass@docs.example.com":                   "!userinfo",
		"http://docs.example.com@10.0.0.5/":                   "!userinfo",
		"http://@docs.example.com/":                           "!userinfo",
		"http://docs.example.com:0/":                          "!port",
		"http://docs.example.com:65536/":                      "!port",
		"http://docs.example.com:/":                           "!invalid_url",
		"http://docs.example.com:8a/":                         "!invalid_url",
		"http://docs.example.com\\@10.0.0.5/":                 "!invalid_url",
		"http://docs.example.com/\r\nX: y":                    "!invalid_url",
		"http://docs.example.com/a b":                         "!invalid_url",
		" http://docs.example.com/":                           "!invalid_url",
		"http://docs.example.com/\x00":                        "!invalid_url",
		"http://docs.example.com/%zz":                         "!invalid_url",
		"http://docs..example.com/":                           "!invalid_url",
		"http://docs%2eexample.com/":                          "!invalid_url",
		"http://docs.example.com%00/":                         "!invalid_url",
		"http://127.1/":                                       "!address",
		"http://2130706433/":                                  "!address",
		"http://0x7f000001/":                                  "!address",
		"http://0x7f.0.0.1/":                                  "!address",
		"http://0177.0.0.1/":                                  "!address",
		"http://127.0.0.1.:80/":                               "!address",
		"http://1.2.3.0x4/":                                   "!address",
		"http://[::ffff:127.0.0.1]/":                          "!address",
		"http://[::ffff:7f00:1]/":                             "!address",
		"http://[fe80::1%25eth0]/":                            "!address",
		"http://[::1/":                                        "!invalid_url",
		"http://" + strings.Repeat("a", 64) + ".example/":     "!invalid_url",
		"http://" + strings.Repeat("a.", 127) + "example/":    "!invalid_url",
		"http://docs.example.com/" + strings.Repeat("a", 9e3): "!invalid_url",
	} {
		got, err := ParseTarget(raw)
		text := got.String()
		if bad, ok := errors.AsType[*Error](err); ok {
			text = "!" + bad.Reason
		}
		if text != want {
			t.Errorf("%.100q: %s (%v), want %s", raw, text, err, want)
		}
	}
}

func TestResolve(t *testing.T) {
	at, err := ParseTarget("https://docs.example.com/guide/a?q=1")
	if err != nil {
		t.Fatal(err)
	}
	for ref, want := range map[string]string{
		"b":                        "https://docs.example.com/guide/b",
		"../b":                     "https://docs.example.com/b",
		"/b?x":                     "https://docs.example.com/b?x",
		"?x":                       "https://docs.example.com/guide/a?x",
		"":                         "https://docs.example.com/guide/a?q=1",
		"#top":                     "https://docs.example.com/guide/a?q=1",
		"//other.example/x":        "https://other.example/x",
		"///other.example/x":       "https://docs.example.com///other.example/x",
		"/\\other.example/x":       "!invalid_url",
		"https:other.example":      "!invalid_url",
		"https:/other.example":     "!invalid_url",
		"file:///etc/passwd":       "!scheme",
		"http://a:b@docs.example/": "!userinfo",
		"/x\r\nSet-Cookie: a":      "!invalid_url",
		"\thttps://other.example":  "!invalid_url",
		"http://127.0.0.1:22":      "http://127.0.0.1:22/",
	} {
		got, err := at.ResolveRef(ref)
		text := got.String()
		if bad, ok := errors.AsType[*Error](err); ok {
			text = "!" + bad.Reason
		}
		if text != want {
			t.Errorf("%q: %s (%v), want %s", ref, text, err, want)
		}
	}
}

func TestRules(t *testing.T) {
	for _, tt := range []struct {
		rule  string
		yes   []string
		nofit []string
	}{
		{
			"https://docs.test",
			[]string{"https://docs.test/", "https://docs.test:443/x?y", "https://DOCS.test./x", "https://docs.test/a%2f..%2fb"},
			[]string{
				"http://docs.test/", "https://docs.test.evil/", "https://docs.testevil/", "https://docs.test:8443/", "https://sub.docs.test/",
				"https://docs.test@evil/", "https://evil/https://docs.test/", "ftp://docs.test/", "https://evil/?https://docs.test/", "https://docs.test\\.evil/",
			},
		},
		{
			"https://docs.test/guide",
			[]string{"https://docs.test/guide", "https://docs.test/guide/", "https://docs.test/guide/a", "https://docs.test/x/../guide/a", "https://docs.test/guide?q"},
			[]string{
				"https://docs.test/", "https://docs.test/guidebook", "https://docs.test/guide/../secret", "https://docs.test/guide/%2e%2e/secret",
				"https://docs.test/@a%2fguide/x", "https://docs.test/guide/../@a%2fb", "https://docs.test/guide/@a%2fb/../../x",
				"https://docs.test/guide/..%2fsecret", "https://docs.test/guide/%2e%2e%2fsecret", "https://docs.test/guide/..%5csecret",
				"https://docs.test/guide/%252e%252e/secret", "https://docs.test/guide/..;/secret", "https://docs.test/Guide/", "https://docs.test//guide/",
			},
		},
		{
			"https://docs.test/guide/",
			[]string{"https://docs.test/guide/", "https://docs.test/guide/a"},
			[]string{"https://docs.test/guide"},
		},
		{"http://127.0.0.1:8080/", []string{"http://127.0.0.1:8080/x"}, []string{"http://127.0.0.1/", "http://127.0.0.2:8080/", "http://localhost:8080/"}},
	} {
		rule, err := ParseFetch(tt.rule)
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range tt.yes {
			if !allows([]Rule{rule}, u) {
				t.Errorf("%s doesn't allow %s", tt.rule, u)
			}
		}
		naive := 0
		for _, u := range tt.nofit {
			if allows([]Rule{rule}, u) {
				t.Errorf("%s allows %s", tt.rule, u)
			}
			if strings.HasPrefix(u, tt.rule) {
				naive++
			}
		}
		if tt.rule == "https://docs.test" && naive == 0 {
			t.Error("no URL of the table passes a comparison of prefixes: the test can't fail")
		}
	}
	if allows(nil, "https://docs.test/") || allows([]Rule{{}}, "https://docs.test/") {
		t.Error("no rules, or an empty one, allow something")
	}
	for _, bad := range []string{"", "docs.test", "https://*.docs.test/", "https://docs.test/?q", "https://docs.test/#x", "https://u@docs.test/", "https://docs.test/a%2fb", "file:///etc"} {
		if r, err := ParseFetch(bad); err == nil {
			t.Errorf("rule %q is accepted as %s", bad, r)
		}
	}
}

// TestPathsThatServersReadDifferently checks that a rule for a directory doesn't
// allow paths that some server may resolve outside it, and allows ordinary names.
func TestPathsThatServersReadDifferently(t *testing.T) {
	rule, err := ParseFetch("https://docs.test/guide/")
	if err != nil {
		t.Fatal(err)
	}
	whole, err := ParseFetch("https://docs.test/")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		"..%20/", "%20../", "..%09/", "..%0d%0a/", "..%0A", "%00../", "a%00b", "a%0d%0aX:%20y", "a%7f", "a%1b", "%c2%85", "..%c2%85/", // spaces, controls
		"%c0%ae%c0%ae/", "%c0%ae/", "..%c0%af", "%e0%80%ae./", "%ff", "caf%e9", "%ed%a0%80", // no UTF-8
		"．．/", "%ef%bc%8e%ef%bc%8e/", "%ef%bc%8e/", ".．/", "\u2024\u2024/", "\u2025/", "\ufe52./", "\u3002\u3002/", "\uff61\uff61/", "..／secret", "..\u2215secret", "..＼secret", // look-alikes
		"..%c2%a0/", "..%e3%80%80/", "..%e2%80%8b/", ".%e2%80%8b./", "..%ef%bb%bf/", ".%20./", ".%20/", ".../", // what is trimmed
		"..;/", "..;a=b/", ".;/", "..%20;x/", "．．;x/", "..%3b/",
		"..%2f", "..%5c", "%252e%252e/", "a%2fb",
		"@a%2fb/..%2f", "@a%2fb%2f", "@a%2f..%2f", "@a%5cb", "@a%252fb", "x@a%2fb", "@%2f", "@..%2f", "@a%2f%2e.%2f", "@a;x%2fb", "@a%2fb/@a%2f..%2f", // no scopes of npm
	} {
		u := "https://docs.test/guide/" + path + "secret"
		if allows([]Rule{rule}, u) {
			t.Errorf("%s allows %s", rule, u)
		}
		if !allows([]Rule{whole}, u) {
			t.Errorf("%s, a rule for all paths, doesn't allow %s", whole, u)
		}
		if r, err := ParseFetch(u); err == nil {
			t.Errorf("rule %q is accepted as %s", u, r)
		}
	}
	for _, path := range []string{
		"a", "a/", "", "a//b", "a%20b", "a%20", "%20a", "%20", "a.b", ".a", "a.", "..a", "a..", "a...b", "main...feature", ".well-known/x", "v1.2", "%2ehidden", "a%2eb", "x;v=1", ";x", "a;..",
		"über", "%C3%BCber", "日本語", "日本。語", "%E6%97%A5%E6%9C%AC", "Ａ／Ｂ", "１００％", "½", "a％2e", "e%CC%81", "naïve%20café", "👩%E2%80%8D💻", "ﬁle", "@scope", "~user", "a+b", "(x)", "a:b", "a,b", "C%23", "wiki/What%3F",
		"@org%2fpkg", "@org%2Fpkg.js/-/pkg.js-1.0.0.tgz", // of npm
	} {
		u := "https://docs.test/guide/" + path
		if !allows([]Rule{rule}, u) {
			t.Errorf("%s doesn't allow %s", rule, u)
		}
	}
}

func TestIntersect(t *testing.T) {
	rules := func(list ...string) (out []Rule) {
		for _, s := range list {
			r, err := ParseFetch(s)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, r)
		}
		return out
	}
	text := func(list []Rule) string {
		var out []string
		for _, r := range list {
			out = append(out, r.String())
		}
		return strings.Join(out, " ")
	}
	for _, tt := range []struct {
		a, b []Rule
		want string
	}{
		{nil, rules("https://a.test/"), ""},
		{rules("https://a.test/"), rules("https://a.test/guide"), "https://a.test/guide"},
		{rules("https://a.test/guide/x", "https://b.test/"), rules("https://a.test/guide"), "https://a.test/guide/x"},
		{rules("https://a.test/x", "http://a.test/"), rules("https://a.test/y"), ""},
		{rules("https://a.test/x", "https://a.test/x/y"), rules("https://a.test/"), "https://a.test/x https://a.test/x/y"},
	} {
		if got := text(IntersectFetch(tt.a, tt.b)); got != tt.want {
			t.Errorf("%s ∩ %s = %s, want %s", text(tt.a), text(tt.b), got, tt.want)
		}
		if got := text(IntersectFetch(tt.b, tt.a)); got != tt.want {
			t.Errorf("%s ∩ %s = %s, want %s", text(tt.b), text(tt.a), got, tt.want)
		}
	}
}

// FuzzTarget checks that a canonical form is its own canonical form, and that
// net/http sends it to the same host and path.
func FuzzTarget(f *testing.F) {
	for _, s := range []string{"https://docs.example.com/a/../b?q#f", "http://[::1]:80/%2e%2e/", "http://127.1/", "https://bücher.example/ä", "http://a//..//b", "http://a?", "http://a/%00/.."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		got, err := ParseTarget(raw)
		if err != nil {
			return
		}
		again, err := ParseTarget(got.String())
		if err != nil || again != got {
			t.Fatalf("%q: %v and then %v, %v", raw, got, again, err)
		}
		u, err := url.Parse(got.String())
		if err != nil || u.Host != got.URL().Host || u.EscapedPath() != got.URL().EscapedPath() || u.User != nil || got.URL().String() != got.String() {
			t.Fatalf("%q: %s is read as %v, sent as %v", raw, got, u, got.URL())
		}
		for segment := range strings.SplitSeq(got.Path, "/") {
			if plain, _ := url.PathUnescape(segment); plain == ".." || plain == "." {
				t.Fatalf("%q: dot segments in %s", raw, got)
			}
		}
	})
}

func allows(rules []Rule, rawURL string) bool {
	t, err := ParseTarget(rawURL)
	return err == nil && AllowsTarget(rules, t)
}
