package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// writeLayers returns options with the user's and the administrator's file.
func writeLayers(t *testing.T, user, requirements string) Options {
	t.Helper()
	dir := t.TempDir()
	o := Options{Path: filepath.Join(dir, "config.yaml"), Requirements: filepath.Join(dir, "requirements.yaml"), RequirementsUID: os.Getuid()}
	for path, text := range map[string]string{o.Path: user, o.Requirements: requirements} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return o
}

// loadFetch loads the user's, the workspace's and the administrator's file. The error
// may be from the fetch tool's or commands' options.
func loadFetch(t *testing.T, user, project, requirements string) (Config, error) {
	t.Helper()
	o := writeLayers(t, user, requirements)
	if project != "" {
		o.Project = &ProjectFile{Path: ProjectPath, Text: []byte(project)}
	}
	c, err := Load(o)
	if err != nil {
		return c, err
	}
	if _, err = c.FetchOptions(); err == nil {
		_, _, err = c.EgressOptions()
	}
	return c, err
}

const fetchUser = `fetch:
  allow: ["https://Docs.example.com", "https://api.example.com/v1/", "http://wiki.lan:8080/public"]
  private: {wiki.lan: [10.1.2.0/24, 10.9.9.9]}
  session_hosts: 7
`

func TestFetchOptions(t *testing.T) {
	c, err := loadFetch(t, fetchUser, "", "")
	if err != nil {
		t.Fatal(err)
	}
	o, err := c.FetchOptions()
	if err != nil {
		t.Fatal(err)
	}
	var allow []string
	for _, r := range o.Allow {
		allow = append(allow, r.String())
	}
	if diff := cmp.Diff([]string{"https://docs.example.com/", "https://api.example.com/v1/", "http://wiki.lan:8080/public"}, allow); diff != "" {
		t.Error(diff)
	}
	if got := o.Private["wiki.lan"]; len(got) != 2 || got[1].String() != "10.9.9.9/32" {
		t.Errorf("private %v", got)
	}
	if o.Egress.Hosts != 7 || o.Egress.Bytes != 256<<20 || o.MaxBytes != 10<<20 || o.Timeout == 0 || o.Proxy != nil {
		t.Errorf("%+v", o)
	}
	none, err := loadFetch(t, "", "", "")
	if err != nil || len(none.Fetch.Allow) != 0 {
		t.Errorf("without anything: %v, %v", none.Fetch.Allow, err)
	}
}

// TestFetchNarrows: requirements and a workspace can only narrow.
func TestFetchNarrows(t *testing.T) {
	for name, tt := range map[string]struct {
		project, requirements string
		allow                 []string
		hosts                 Count
		fails                 string
	}{
		"nothing": {allow: []string{"https://Docs.example.com", "https://api.example.com/v1/", "http://wiki.lan:8080/public"}, hosts: 7},
		"nothing is allowed": {
			requirements: "fetch: {allow: []}", allow: []string{}, hosts: 7,
		},
		"a path of one, an origin of none, more of another": {
			requirements: `fetch: {allow: ["https://docs.example.com/guide", "https://other.example.com/", "https://api.example.com/", "http://wiki.lan:8080/"], session_hosts: 3}`,
			allow:        []string{"http://wiki.lan:8080/public", "https://api.example.com/v1/", "https://docs.example.com/guide"}, hosts: 3,
		},
		"a larger number": {requirements: "fetch: {session_hosts: 100}", allow: []string{"https://Docs.example.com", "https://api.example.com/v1/", "http://wiki.lan:8080/public"}, hosts: 7},
		"a workspace": {
			project: `fetch: {allow: ["http://wiki.lan:8080/public/"], session_hosts: 1}`, allow: []string{"http://wiki.lan:8080/public/"}, hosts: 1,
		},
		"private networks":          {requirements: "fetch: {refuse_private: true}", fails: "fetch.private and fetch.proxy are not allowed"},
		"a workspace that loosens":  {project: "fetch: {refuse_private: false}", fails: "would loosen"},
		"a workspace with a proxy":  {project: "fetch: {proxy: \"http://p:1\"}", fails: `a workspace can't set "proxy"`},
		"a workspace's bad rule":    {project: "fetch: {allow: [nonsense]}", fails: "the URL has no scheme"},
		"an administrator's typing": {requirements: "fetch: {alow: []}", fails: "alow"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := loadFetch(t, fetchUser, tt.project, tt.requirements)
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) {
					t.Fatalf("%v, want %s", err, tt.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(FetchRules(tt.allow), c.Fetch.Allow); diff != "" || *c.Fetch.SessionHosts != tt.hosts {
				t.Errorf("hosts %d, allow (-want +got):\n%s", *c.Fetch.SessionHosts, diff)
			}
		})
	}
}

func TestFetchMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"fetch: {allow: [docs.example.com]}":                                              "the URL has no scheme",
		"fetch: {allow: [\"https://*.example.com/\"]}":                                    "wildcard",
		"fetch: {allow: [\"https://a.test/?q\"]}":                                         "query",
		"fetch: {allow: [\"https://u:p@a.test/\"]}":                                       "user name",
		"fetch: {private: {a.test: [nonsense]}}":                                          "invalid network",
		"fetch: {allow: [\"https://a.test/\"], private: {a.test: [nonsense]}}":            "invalid network",
		"fetch: {allow: [\"https://a.test/\"], private: {a.test: [10.1.2.3/8]}}":          "invalid network",
		"fetch: {allow: [\"https://a.test/\"], private: {a.test: [\"::ffff:10.0.0.1\"]}}": "invalid network",
		"fetch: {proxy: \"socks5://p:1\"}":                                                "not the address of an http or https proxy",
		"fetch: {session_bytes: 0}":                                                       "invalid size",
		"fetch: {session_hosts: 0}":                                                       "at least 1",
		"fetch: {timeout: 0s}":                                                            "invalid duration",
		"fetch: {nonsense: 1}":                                                            "nonsense",
	} {
		if _, err := loadFetch(t, text, "", ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	var f File
	if err := f.Fetch.Allow.setText("https://a.test, http://b.test:81/x"); err != nil || strings.Join(f.Fetch.Allow, " ") != "https://a.test/ http://b.test:81/x" {
		t.Errorf("the flag: %v, %v", f.Fetch.Allow, err)
	}
	if err := f.Fetch.Allow.setText("https://a.test,"); err == nil {
		t.Error("an empty entry was taken")
	}
}
