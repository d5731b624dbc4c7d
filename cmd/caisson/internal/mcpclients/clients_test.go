package mcpclients

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
)

var server = Server{Name: "caisson", Command: "/usr/bin/caisson", Args: []string{"mcp", "--workspace", "/src/it's \"x\""}}

// TestAdd: a server is added once, and everything else stays byte by byte.
func TestAdd(t *testing.T) {
	for _, c := range All() {
		empty := "{}"
		others := []string{"", "{}", "{\n}\n", `{"a":[1,{"` + c.keys[0] + `":1}]}`, "{\r\n\t\"x\" : 1.50\r\n}"}
		if !c.toml {
			inner := `{"other": {"command": "x", "args": []}}`
			for i := len(c.keys) - 1; i > 0; i-- {
				inner = `{"` + c.keys[i] + `":` + inner + `}`
			}
			others = append(others, `{"first":0, "`+c.keys[0]+`" : `+inner+` , "last" : null}`, `{"`+c.keys[0]+`":{}}`)
		} else {
			empty = ""
			others = []string{"", "# comment\nmodel = \"x\" # why\n\n[mcp_servers.other]\ncommand = \"y\"\n[mcp_servers.other.env]\nA = \"1\"", "[profiles.a]\nx = 1\n"}
		}
		for _, before := range others {
			after, err := c.Add([]byte(before), server)
			if err != nil {
				t.Errorf("%s: %q: %v", c.Name, before, err)
				continue
			}
			if _, err := c.Add(after, server); !errors.Is(err, ErrPresent) {
				t.Errorf("%s: added twice: %v\n%s", c.Name, err, after)
			}
			changed := server
			changed.Args = []string{"mcp"}
			if _, err := c.Add(after, changed); !errors.Is(err, ErrOther) {
				t.Errorf("%s: another server of the name: %v", c.Name, err)
			}
			if strings.TrimSpace(before) == "" {
				before = empty
			}
			decode := func(text string) (v map[string]any) {
				var err error
				if c.toml {
					err = toml.Unmarshal([]byte(text), &v)
				} else {
					err = json.Unmarshal([]byte(text), &v)
				}
				if err != nil {
					t.Fatalf("%s: %v\n%s", c.Name, err, text)
				}
				return v
			}
			got, want := decode(string(after)), decode(before)
			prune(got, append(append([]string{}, c.keys...), server.Name))
			prune(want, append(append([]string{}, c.keys...), server.Name))
			if len(got)+len(want) > 0 && !reflect.DeepEqual(got, want) {
				t.Errorf("%s: other settings changed: %q to %q", c.Name, before, after)
			}
			if !isSubsequence(strings.TrimRight(before, "\n \r\t}"), string(after)) {
				t.Errorf("%s: bytes of %q are lost in %q", c.Name, before, after)
			}
		}
	}
}

// prune removes the value at keys, and objects above it that become empty.
func prune(v map[string]any, keys []string) {
	if inner, ok := v[keys[0]].(map[string]any); ok && len(keys) > 1 {
		if prune(inner, keys[1:]); len(inner) == 0 {
			delete(v, keys[0])
		}
		return
	}
	delete(v, keys[len(keys)-1])
}

func isSubsequence(a, b string) bool {
	for i := range len(b) {
		if len(a) > 0 && a[0] == b[i] {
			a = a[1:]
		}
	}
	return a == ""
}

// TestAddRefuses: a file that can't be extended without a loss is refused.
func TestAddRefuses(t *testing.T) {
	for name, texts := range map[string][]string{
		"zed":   {"// comment\n{}", "{\"a\": 1,}", "[]", `{"context_servers": []}`, `{"context_servers": {}, "context_servers": {}}`, "{} {}", "{"},
		"codex": {"mcp_servers = {}\n", "mcp_servers = 1\n", "x = [", "[mcp_servers]\nother = {command = \"x\"}\n[[mcp_servers.list]]\n[x]\na=1\n[x]\n"},
	} {
		c, _ := Find(name)
		for _, text := range texts {
			if after, err := c.Add([]byte(text), server); !errors.Is(err, ErrFormat) {
				t.Errorf("%s: %q becomes %q, %v", name, text, after, err)
			}
		}
	}
}

func TestFiles(t *testing.T) {
	p := Places{Home: "/h", ConfigHome: "/h/.config", CodexHome: "/h/.codex", Project: "/p"}
	want := map[string]string{
		"claude-code": "/p/.mcp.json", "claude-desktop": "/h/.config/Claude/claude_desktop_config.json", "codex": "/h/.codex/config.toml",
		"cursor": "/h/.cursor/mcp.json", "gemini-cli": "/h/.gemini/settings.json", "opencode": "/h/.config/opencode/opencode.json",
		"vscode": "/p/.vscode/mcp.json", "windsurf": "/h/.codeium/windsurf/mcp_config.json", "zed": "/h/.config/zed/settings.json",
	}
	for _, c := range All() {
		if got := filepath.ToSlash(c.File(p)); got != want[c.Name] {
			t.Errorf("%s: %s, want %s", c.Name, got, want[c.Name])
		}
		text, err := c.Snippet(server)
		if err != nil || !strings.Contains(text, "/usr/bin/caisson") {
			t.Errorf("%s: %v\n%s", c.Name, err, text)
		}
		delete(want, c.Name)
	}
	if len(want) > 0 {
		t.Errorf("not there: %v", want)
	}
}

// FuzzAdd: no input makes Add lose or break a configuration.
func FuzzAdd(f *testing.F) {
	for _, seed := range []string{"", "{}", `{"mcpServers":{"a":{}}}`, "[", "# x\n[mcp_servers.a]\n", `{"mcpServers":null}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, name := range []string{"cursor", "codex", "opencode"} {
			c, _ := Find(name)
			after, err := c.Add(text, server)
			if err != nil {
				continue
			}
			if _, err := c.Add(after, server); !errors.Is(err, ErrPresent) {
				t.Errorf("%s: %q becomes %q: %v", name, text, after, err)
			}
		}
	})
}
