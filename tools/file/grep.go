package file

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Bounds of one grep. RE2's time is proportional to the pattern times the text, and
// matching one line can't be interrupted: measured up to 9 s for 64 KiB and the
// worst pattern found, (?:a?){999}z, on a busy machine.
const (
	defaultMatches = 50
	maxMatches     = 200
	snippetBytes   = 300
	grepFileBytes  = 8 << 20
	grepLineBytes  = 32 << 10
	maxRegexBytes  = 1024
)

func grepDefinition() tools.Definition {
	return tools.Definition{
		Name: "grep",
		Description: "Searches the workspace's text files for a regular expression (RE2 syntax: no backreferences or look-around), line by " +
			"line. Gives path:line: text in the order of paths, 50 matches when max_results is left out, at most 200; long lines are " +
			"shortened around the match. Binary files, files over 8 MiB and what .gitignore leaves out are not searched.",
		InputSchema: json.RawMessage(`{
  "type": "object",
  "properties": {
    "pattern": {"type": "string", "minLength": 1, "description": "The regular expression, or the text where literal is set."},
    "path": {"type": "string", "description": "The directory or file to search; the workspace when left out."},
    "glob": {"type": "string", "description": "Only files whose name matches, such as *.go or src/**/*.ts."},
    "ignore_case": {"type": "boolean", "description": "Match upper and lower case alike."},
    "literal": {"type": "boolean", "description": "Take the pattern as plain text."},
    "no_ignore": {"type": "boolean", "description": "Search what .gitignore leaves out, and .git, too."},
    "max_results": {"type": "integer", "minimum": 1, "description": "How many matches to return, at most 200."}
  },
  "required": ["pattern"],
  "additionalProperties": false
}`),
		Aliases: map[string]string{
			"regex": "pattern", "query": "pattern", "search": "pattern", "include": "glob", "include_pattern": "glob", "dir_path": "path",
			"directory": "path", "case_insensitive": "ignore_case", "-i": "ignore_case", "fixed_strings": "literal", "limit": "max_results",
		},
		Paths:   onePath("."),
		Summary: searchSummary,
		ActsAs:  func(json.RawMessage) []tools.Name { return []tools.Name{tools.NameReadFile} },
	}
}

type grepInput struct {
	Pattern    string `json:"pattern"`
	Path       string `json:"path"`
	Glob       string `json:"glob"`
	IgnoreCase bool   `json:"ignore_case"`
	Literal    bool   `json:"literal"`
	NoIgnore   bool   `json:"no_ignore"`
	MaxResults count  `json:"max_results"`
}

func (r *readers) grep(ctx context.Context, in grepInput) (tools.Output, error) {
	s, err := newSearch(r.view, in.Path, in.NoIgnore)
	if err != nil {
		return tools.Output{}, err
	}
	m := matcher{most: in.MaxResults.orDefault(defaultMatches, maxMatches)}
	if m.re, err = in.compilePattern(); err != nil {
		return tools.Output{}, err
	}
	m.literals = requiredLiterals(m.re.String())
	o := workspace.SearchOptions{Examine: m.examine, MaxFile: grepFileBytes}
	if in.Glob != "" {
		glob, err := newPattern(r.view, in.Glob)
		if err != nil {
			return tools.Output{}, err
		}
		o.Match = func(dir, name string) bool { return glob.match(s, dir, name) }
	}
	var found grepped
	o.Visit = func(name string, f workspace.SearchResult) error {
		return found.addMatches(name, f.Value.(*fileMatches), m.most)
	}
	end, err := s.run(ctx, o)
	if err != nil {
		return tools.Output{}, err
	}
	r.log.Debug("grep", zap.Int("entries", end.Entries), zap.Int("matches", found.found), zap.Bool("late", end.late))
	return found.output(end), nil
}

func (in grepInput) compilePattern() (*regexp.Regexp, error) {
	if len(in.Pattern) > maxRegexBytes {
		return nil, refuse("invalid_pattern", "The pattern has %d bytes; at most %d are taken.", len(in.Pattern), maxRegexBytes)
	}
	expr := in.Pattern
	if in.Literal {
		expr = regexp.QuoteMeta(expr)
	}
	if in.IgnoreCase {
		expr = "(?i:" + expr + ")"
	}
	re, err := regexp.Compile(expr)
	if err != nil {
		return nil, refuse("invalid_pattern", "The pattern is not a valid RE2 regular expression (%v); to search for plain text set literal.", err)
	}
	return re, nil
}

type matcher struct {
	re       *regexp.Regexp
	literals []literal
	most     int
}

type fileMatches struct {
	lines []matchedLine
	more  bool
	// long counts the lines of which only the beginning was searched.
	long int
	// Any of large, binary and unread means that the file was not searched.
	large, binary, unread bool
}

type matchedLine struct {
	number int
	text   string
	// long counts the long lines up to this one.
	long int
}

// fileMatchesBytes is roughly a fileMatches' memory, without lines.
const fileMatchesBytes = 128

func (m *matcher) examine(ctx context.Context, _ string, f workspace.File, err error) workspace.SearchResult {
	var r fileMatches
	switch {
	case err != nil:
		r.unread = true
	case f.Size > grepFileBytes:
		r.large = true
	case bytes.IndexByte(f.Data[:min(len(f.Data), sampleBytes)], 0) >= 0:
		r.binary = true
	default:
		m.searchData(ctx, bytes.TrimPrefix(f.Data, byteOrderMark), &r)
		if len(r.lines) == 0 && r.long == 0 {
			return workspace.SearchResult{}
		}
	}
	found := workspace.SearchResult{Value: &r, Bytes: fileMatchesBytes}
	for _, l := range r.lines {
		found.Bytes += fileMatchesBytes + len(l.text)
	}
	return found
}

// searchData finds matching lines. If the pattern has literals, it matches only
// lines that contain one.
func (m *matcher) searchData(ctx context.Context, data []byte, r *fileMatches) {
	f := finder{literals: m.literals}
	number, counted, unchecked := 1, 0, 0 // number is the line that begins at counted
	for at := 0; at < len(data); {
		if len(f.literals) > 0 {
			hit := f.nextCandidate(data, at)
			if hit < 0 {
				return
			}
			at += bytes.LastIndexByte(data[at:hit], '\n') + 1
		}
		line, _, _ := bytes.Cut(data[at:], []byte{'\n'})
		begin := at
		at += len(line) + 1
		if unchecked += len(line) + 1; unchecked > grepLineBytes {
			if unchecked = 0; ctx.Err() != nil {
				return
			}
		}
		line = bytes.TrimSuffix(line, []byte{'\r'})
		if len(line) > grepLineBytes {
			r.long++
		}
		match := m.re.FindIndex(line[:min(len(line), grepLineBytes)])
		if match == nil {
			continue
		}
		if len(r.lines) == m.most {
			r.more = true
			return
		}
		number += bytes.Count(data[counted:begin], []byte{'\n'})
		counted = begin
		r.lines = append(r.lines, matchedLine{number, snippet(line, match), r.long})
	}
}

type grepped struct {
	out   strings.Builder
	found int
	files int
	more  bool
	// large and binary files were left out; unread ones could not be read.
	large, binary, unread int
	long                  int
}

// addMatches adds a file's matches, up to most in all.
func (g *grepped) addMatches(name string, r *fileMatches, most int) error {
	switch {
	case r.large:
		g.large++
	case r.binary:
		g.binary++
	case r.unread:
		g.unread++
	}
	for i, l := range r.lines {
		if g.found == most || g.out.Len() > windowBytes {
			g.more = true
			g.long += l.long
			return workspace.SkipAll
		}
		if i == 0 {
			g.files++
		}
		g.found++
		fmt.Fprintf(&g.out, "%s:%d: %s\n", shown(name), l.number, l.text)
	}
	g.long += r.long
	if r.more {
		g.more = true
		return workspace.SkipAll
	}
	return nil
}

// snippet returns a line, or the part around the match if it is long.
func snippet(line []byte, at []int) string {
	if len(line) <= snippetBytes {
		return markInvalid(line)
	}
	start := max(0, at[0]-snippetBytes/3)
	end := min(len(line), start+snippetBytes)
	start = max(0, end-snippetBytes)
	for start < end && start > 0 && !utf8.RuneStart(line[start]) {
		start++
	}
	for end > start && end < len(line) && !utf8.RuneStart(line[end]) {
		end--
	}
	s := markInvalid(line[start:end])
	if start > 0 {
		s = "…" + s
	}
	if end < len(line) {
		s += "…"
	}
	return s
}

func (g *grepped) output(end outcome) tools.Output {
	out := textOutput(g.out.String())
	if g.found == 0 {
		addNote(&out, "no matches")
	}
	if g.more {
		out.Truncated = true
		addNote(&out, fmt.Sprintf("%s shown, there are more: narrow the pattern, the path or the glob", limits.FormatCount(g.found, "match")))
	}
	if g.large > 0 {
		addNote(&out, limits.FormatCount(g.large, "file")+" over 8 MiB not searched; use the shell")
	}
	if g.long > 0 {
		addNote(&out, limits.FormatCount(g.long, "line")+" searched in the first 32 KiB only")
	}
	if g.unread > 0 {
		addNote(&out, limits.FormatCount(g.unread, "file")+" could not be read")
	}
	end.addNotes(&out)
	out.Metadata = map[string]any{"matches": g.found, "files": g.files, "binary_files": g.binary}
	return out
}
