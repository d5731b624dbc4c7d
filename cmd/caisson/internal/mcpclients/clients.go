// Package mcpclients knows the configuration files of MCP clients, and adds servers to
// them.
package mcpclients

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// Client is an MCP client.
type Client struct {
	Name, Title string
	// Note is a remark for the user, or "".
	Note string
	// InProject reports that the file belongs to a project. The client starts servers
	// in the project's directory.
	InProject bool
	// File returns the path of the configuration.
	File func(p Places) string
	// keys lead to the object with the servers by name.
	keys []string
	toml bool
	// entry returns the value of a server.
	entry func(command string, args []string) map[string]any
	// workspace is the client's variable for the project's directory, or "".
	workspace string
}

// Places are the directories of clients' files.
type Places struct {
	// Home and Project are absolute. ConfigHome and CodexHome are the variables
	// XDG_CONFIG_HOME and CODEX_HOME or their defaults.
	Home, ConfigHome, CodexHome, Project string
}

func plainEntry(command string, args []string) map[string]any {
	return map[string]any{"command": command, "args": args}
}

// All returns the clients, sorted by name.
func All() []Client {
	below := func(parts ...string) func(Places) string {
		return func(p Places) string { return filepath.Join(append([]string{p.Home}, parts...)...) }
	}
	return []Client{
		{
			Name: "claude-code", Title: "Claude Code", InProject: true, keys: []string{"mcpServers"}, entry: plainEntry,
			Note: "The file is shared with the project. For yourself alone: claude mcp add NAME -- COMMAND.",
			File: func(p Places) string { return filepath.Join(p.Project, ".mcp.json") },
		},
		{
			Name: "claude-desktop", Title: "Claude Desktop", keys: []string{"mcpServers"}, entry: plainEntry, Note: "Quit and start it again afterwards.",
			File: func(p Places) string { return filepath.Join(p.ConfigHome, "Claude", "claude_desktop_config.json") },
		},
		{
			Name: "codex", Title: "Codex", keys: []string{"mcp_servers"}, toml: true, entry: plainEntry,
			File: func(p Places) string { return filepath.Join(p.CodexHome, "config.toml") },
		},
		{Name: "cursor", Title: "Cursor", keys: []string{"mcpServers"}, entry: plainEntry, File: below(".cursor", "mcp.json")},
		{Name: "gemini-cli", Title: "Gemini CLI", keys: []string{"mcpServers"}, entry: plainEntry, File: below(".gemini", "settings.json")},
		{
			Name: "opencode", Title: "opencode", keys: []string{"mcp", "servers"}, Note: "opencode 1 has servers directly below mcp.",
			File: func(p Places) string { return filepath.Join(p.ConfigHome, "opencode", "opencode.json") },
			entry: func(command string, args []string) map[string]any {
				return map[string]any{"type": "local", "command": append([]string{command}, args...)}
			},
		},
		{
			Name: "vscode", Title: "Visual Studio Code", InProject: true, keys: []string{"servers"}, workspace: "${workspaceFolder}",
			File: func(p Places) string { return filepath.Join(p.Project, ".vscode", "mcp.json") },
			entry: func(command string, args []string) map[string]any {
				return map[string]any{"type": "stdio", "command": command, "args": args}
			},
		},
		{Name: "windsurf", Title: "Windsurf", keys: []string{"mcpServers"}, entry: plainEntry, File: below(".codeium", "windsurf", "mcp_config.json")},
		{
			Name: "zed", Title: "Zed", keys: []string{"context_servers"}, entry: plainEntry,
			File: func(p Places) string { return filepath.Join(p.ConfigHome, "zed", "settings.json") },
		},
	}
}

// Find returns the client with a name.
func Find(name string) (Client, bool) {
	all := All()
	i := slices.IndexFunc(all, func(c Client) bool { return c.Name == name })
	if i < 0 {
		return Client{}, false
	}
	return all[i], true
}

// Workspace returns the name of the directory project in the client's configuration:
// the client's variable, "" if the client starts servers there, or the path.
func (c Client) Workspace(project string) string {
	switch {
	case c.workspace != "":
		return c.workspace
	case c.InProject:
		return ""
	}
	return project
}

// Server is a server that a client starts.
type Server struct {
	Name, Command string
	Args          []string
}

// Snippet returns a complete configuration with only this server.
func (c Client) Snippet(s Server) (string, error) {
	text, err := c.Add(nil, s)
	return string(text), err
}

var (
	// ErrPresent means that the same server is already there.
	ErrPresent = errors.New("the server is there already")
	// ErrOther means that another server has the name.
	ErrOther = errors.New("another server has the name")
	// ErrFormat means that the configuration can't be extended without losing parts,
	// such as comments or values of other kinds.
	ErrFormat = errors.New("the file can't be extended")
)

// Add adds a server to the text of a configuration. It keeps everything else byte by
// byte.
func (c Client) Add(text []byte, s Server) ([]byte, error) {
	if c.toml {
		return c.addTOML(text, s)
	}
	return c.addJSON(text, s)
}

// inlineTable matches the servers as a table on one line.
var inlineTable = regexp.MustCompile(`(?m)^\s*"?mcp_servers"?\s*=`)

func (c Client) addTOML(text []byte, s Server) ([]byte, error) {
	decode := func(text []byte) (map[string]any, error) {
		var all map[string]any
		err := toml.Unmarshal(text, &all)
		return all, err
	}
	before, err := decode(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	var addition bytes.Buffer
	if err := toml.NewEncoder(&addition).Encode(map[string]any{c.keys[0]: map[string]any{s.Name: c.entry(s.Command, s.Args)}}); err != nil {
		return nil, fmt.Errorf("encode server: %w", err)
	}
	block := addition.String()
	block = strings.TrimPrefix(block, "["+c.keys[0]+"]\n") // the server's own table suffices
	lines := strings.Split(strings.TrimRight(block, "\n"), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	block = strings.Join(lines, "\n") + "\n"
	added, err := decode([]byte(block))
	if err != nil {
		return nil, fmt.Errorf("encode server: %w", err)
	}
	want := added[c.keys[0]].(map[string]any)[s.Name]
	if servers, ok := before[c.keys[0]].(map[string]any); ok && servers[s.Name] != nil {
		return nil, compareEntries(servers[s.Name], want)
	}
	if inlineTable.Match(text) { // it is closed, though some readers extend it
		return nil, fmt.Errorf("%w: %s is a table in one line", ErrFormat, c.keys[0])
	}
	out := bytes.Clone(text)
	if len(out) > 0 {
		out = append(bytes.TrimRight(out, "\n"), "\n\n"...)
	}
	out = append(out, block...)
	after, err := decode(out)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	delete(after[c.keys[0]].(map[string]any), s.Name)
	if before[c.keys[0]] == nil {
		delete(after, c.keys[0])
	}
	if len(before)+len(after) > 0 && !reflect.DeepEqual(before, after) {
		return nil, fmt.Errorf("%w: other settings would change", ErrFormat)
	}
	return out, nil
}

// compareEntries returns the error for a server whose name is taken.
func compareEntries(got, want any) error {
	a, errA := json.Marshal(got)
	b, errB := json.Marshal(want)
	if errA == nil && errB == nil && bytes.Equal(a, b) {
		return ErrPresent
	}
	return ErrOther
}

func (c Client) addJSON(text []byte, s Server) ([]byte, error) {
	entry, err := json.MarshalIndent(c.entry(s.Command, s.Args), "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode server: %w", err)
	}
	if len(bytes.TrimSpace(text)) == 0 {
		text = []byte("{}\n")
	}
	if !json.Valid(text) {
		return nil, fmt.Errorf("%w: it is no JSON, or has comments", ErrFormat)
	}
	at, missing, found, err := findMember(text, append(slices.Clone(c.keys), s.Name))
	switch {
	case err != nil:
		return nil, err
	case len(missing) == 0:
		var got, want any
		if err := errors.Join(json.Unmarshal(found, &got), json.Unmarshal(entry, &want)); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrFormat, err)
		}
		return nil, compareEntries(got, want)
	}
	depth := len(c.keys) + 1 - len(missing)
	value := string(entry)
	for i := len(missing) - 1; i > 0; i-- {
		value = fmt.Sprintf("{\n  %s: %s\n}", quoteString(missing[i]), strings.ReplaceAll(value, "\n", "\n  "))
	}
	indent := strings.Repeat("  ", depth+1)
	member := "\n" + indent + quoteString(missing[0]) + ": " + strings.ReplaceAll(value, "\n", "\n"+indent)
	rest := bytes.TrimLeft(text[at:], " \t\r\n")
	if rest[0] == '}' {
		member += "\n" + strings.Repeat("  ", depth)
		return slices.Concat(text[:at], []byte(member), rest), nil
	}
	return slices.Concat(text[:at], []byte(member+","), text[at:]), nil
}

func quoteString(s string) string {
	text, _ := json.Marshal(s) // a string is always valid
	return string(text)
}

// findMember follows keys through the objects of valid JSON. missing are the keys that
// don't exist: the first belongs in the object that begins before the offset at. found
// is the value if none is missing. A duplicate key is an error.
func findMember(text []byte, keys []string) (at int, missing []string, found []byte, err error) {
	rest, base := text, 0
	for i, key := range keys {
		dec := json.NewDecoder(bytes.NewReader(rest))
		token, err := dec.Token()
		if err != nil || token != json.Delim('{') {
			return 0, nil, nil, fmt.Errorf("%w: %q is no object", ErrFormat, strings.Join(keys[:i], "."))
		}
		at = base + int(dec.InputOffset())
		var value []byte
		begins := 0
		for dec.More() {
			name, err := dec.Token()
			if err != nil {
				return 0, nil, nil, fmt.Errorf("%w: %w", ErrFormat, err)
			}
			var v json.RawMessage
			if err := dec.Decode(&v); err != nil && !errors.Is(err, io.EOF) {
				return 0, nil, nil, fmt.Errorf("%w: %w", ErrFormat, err)
			}
			if name != key {
				continue
			}
			if value != nil {
				return 0, nil, nil, fmt.Errorf("%w: %q is there twice", ErrFormat, key)
			}
			value, begins = v, int(dec.InputOffset())-len(v)
		}
		if value == nil {
			return at, keys[i:], nil, nil
		}
		rest, base = rest[begins:], base+begins
		found = value
	}
	return 0, nil, found, nil
}
