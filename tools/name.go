package tools

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/agext/levenshtein"
)

// Name is a canonical tool name: snake_case, or server/tool. Records, approvals,
// logs and the command line use it.
type Name string

// LLMName is a tool's name as providers see it: every "/" of the canonical name
// becomes "__", and every "." becomes "_".
type LLMName string

// MaxNameBytes bounds an [LLMName]. [Name.LLMWithin] serves providers that take
// less.
const MaxNameBytes = 128

// nameHashBytes is the length of the hash that ends a shortened name.
const nameHashBytes = 12

var (
	ownName = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[a-z][a-z0-9]*(_[a-z0-9]+)*$`)
	})
	serverTag = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9_-]*[a-zA-Z0-9])?$`)
	})
	wireName = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[a-zA-Z0-9_-]{1,128}$`)
	})
)

// ParseName checks a canonical name. Neither server names nor our own tools' names
// may contain "__", so that the wire form stays readable. A tool name after
// "server/" may have the characters that the Model Context Protocol allows.
func ParseName(s string) (Name, error) {
	server, tool, mcp := strings.Cut(s, "/")
	switch {
	case !mcp && !ownName().MatchString(s):
		return "", fmt.Errorf("parse tool name %q: must be snake_case without a double underscore, or server/tool", s)
	case mcp && (!serverTag().MatchString(server) || strings.Contains(server, "__")):
		return "", fmt.Errorf("parse tool name %q: server %q must be letters, digits, - and single _", s, server)
	case mcp && tool == "":
		return "", fmt.Errorf("parse tool name %q: nothing after the server's name", s)
	}
	if _, err := Name(s).LLM(); err != nil {
		return "", err
	}
	return Name(s), nil
}

// LLM returns the name's wire form. It fails if the name has a character other than
// letters, digits, "_", "-", "." and "/", or if it exceeds [MaxNameBytes].
func (n Name) LLM() (LLMName, error) {
	alias := n.alias()
	if !wireName().MatchString(alias) {
		return "", fmt.Errorf("tool name %q: its wire form must be 1 to %d letters, digits, _ and -", string(n), MaxNameBytes)
	}
	return LLMName(alias), nil
}

// alias returns the wire form of n, which need not be valid.
func (n Name) alias() string {
	return strings.NewReplacer("/", "__", ".", "_").Replace(string(n))
}

// LLMWithin returns the name's wire form in at most limit bytes; zero means
// [MaxNameBytes]. A longer one is cut and ends with "_" and a hash of the canonical
// name, so that it is the same in every session.
func (n Name) LLMWithin(limit int) (LLMName, error) {
	alias, err := n.LLM()
	if err != nil || limit == 0 || len(alias) <= limit {
		return alias, err
	}
	if limit <= nameHashBytes {
		return "", fmt.Errorf("tool name %q: no wire form has at most %d bytes", string(n), limit)
	}
	sum := sha256.Sum256([]byte(n))
	return alias[:limit-1-nameHashBytes] + LLMName("_"+hex.EncodeToString(sum[:])[:nameHashBytes]), nil
}

// Server returns the part before the first "/", or "" for one of our own tools.
func (n Name) Server() string {
	server, _, ok := strings.Cut(string(n), "/")
	if !ok {
		return ""
	}
	return server
}

// OperatorName parses a name as people write it: canonical, or in the wire form
// that transcripts show. The first "__" separates server and tool; see [ParseName].
func OperatorName(s string) (Name, error) {
	if server, tool, ok := strings.Cut(s, "__"); ok && !strings.Contains(s, "/") {
		s = server + "/" + tool
	}
	return ParseName(s)
}

// Same reports whether two names, each in either form, mean one tool. A registry
// never holds two tools with the same wire form.
func (n Name) Same(o Name) bool {
	return n == o || n.alias() == o.alias()
}

// foreignTools maps other programs' tool names, as plainName writes them, to our
// tools that do the same.
var foreignTools = map[string][]Name{
	"bash": {NameShell}, "sh": {NameShell}, "exec": {NameShell}, "terminal": {NameShell}, "execute": {NameShell}, "executecommand": {NameShell}, "runcommand": {NameShell},
	"runshellcommand": {NameShell}, "runterminalcmd": {NameShell}, "runinterminal": {NameShell}, "localshell": {NameShell}, "python": {NameShell}, "powershell": {NameShell},
	"read": {NameReadFile}, "view": {NameReadFile}, "cat": {NameReadFile}, "open": {NameReadFile}, "openfile": {NameReadFile}, "viewfile": {NameReadFile}, "readtextfile": {NameReadFile},
	"write": {NameWriteFile}, "create": {NameWriteFile}, "createfile": {NameWriteFile}, "writetofile": {NameWriteFile}, "savefile": {NameWriteFile},
	"edit": {NamePatchFile}, "multiedit": {NamePatchFile}, "editfile": {NamePatchFile}, "strreplace": {NamePatchFile}, "replace": {NamePatchFile}, "replaceinfile": {NamePatchFile},
	"strreplaceeditor": {NamePatchFile, NameReadFile, NameWriteFile}, "strreplacebasededittool": {NamePatchFile, NameReadFile, NameWriteFile}, "texteditor": {NamePatchFile, NameReadFile, NameWriteFile},
	"delete": {NameDeleteFile}, "rm": {NameDeleteFile}, "remove": {NameDeleteFile}, "removefile": {NameDeleteFile}, "patch": {"apply_patch"},
	"ls": {"list_dir"}, "list": {"list_dir"}, "dir": {"list_dir"}, "listfiles": {"list_dir"}, "listdirectory": {"list_dir"}, "tree": {"list_dir"},
	"find": {"glob"}, "findfiles": {"glob"}, "filesearch": {"glob"}, "searchfiles": {"grep"}, "search": {"grep"}, "rg": {"grep"}, "ripgrep": {"grep"}, "grepsearch": {"grep"}, "codebasesearch": {"grep"},
	"webfetch": {"fetch"}, "fetchurl": {"fetch"}, "curl": {"fetch"}, "browse": {"fetch"}, "bashoutput": {"shell_output"}, "killshell": {"shell_kill"}, "killbash": {"shell_kill"}, "writestdin": {"shell_input"},
	"skill": {"load_skill"}, "activateskill": {"load_skill"},
}

// plainName returns name in lower case, without blanks, "_" and "-".
func plainName(name string) string {
	return strings.Map(func(r rune) rune {
		if r == '_' || r == '-' || r == ' ' {
			return -1
		}
		return r
	}, strings.ToLower(name))
}

// IsSpelling reports whether written probably means the tool: it differs only in
// spelling, or is another program's name for such a tool.
func IsSpelling(written string, of Name) bool {
	plain := plainName(written)
	return plain == plainName(string(of)) || slices.Contains(foreignTools[plain], of)
}

// NearestNames returns up to most of the names, those most similar to written
// first. It compares whole names and names without their servers. Similarity is by
// Levenshtein distance, from 0 to 1; names below least are left out.
func NearestNames(written string, names []Name, least float64, most int) []Name {
	const compared = 64 // bytes: the time grows with their square
	plain := func(s string) string {
		s = strings.ReplaceAll(strings.ToLower(s), "__", "/")
		return s[:min(len(s), compared)]
	}
	type near struct {
		name     Name
		likeness float64
	}
	want := plain(written)
	_, wantTool, _ := strings.Cut(want, "/")
	var all []near
	for _, name := range names {
		have := plain(string(name))
		likeness := levenshtein.Similarity(want, have, nil)
		if _, tool, ok := strings.Cut(have, "/"); ok {
			likeness = max(likeness, levenshtein.Similarity(cmp.Or(wantTool, want), tool, nil))
		}
		if likeness >= least {
			all = append(all, near{name, likeness})
		}
	}
	slices.SortStableFunc(all, func(a, b near) int { return cmp.Compare(b.likeness, a.likeness) })
	nearest := make([]Name, 0, min(len(all), most))
	for _, n := range all[:min(len(all), most)] {
		nearest = append(nearest, n.name)
	}
	return nearest
}
