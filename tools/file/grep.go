package file

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/workspace"
)

// Bounds of one grep. RE2 takes time in proportion to the pattern times the
// text; the line's bound keeps short what can't be interrupted: measured up to
// 9 s for 64 KiB and the worst pattern found, (?:a?){999}z, on a busy machine.
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
    "path": {"type": "string", "description": "The folder or file to search; the workspace when left out."},
    "glob": {"type": "string", "description": "Only files whose name matches, such as *.go or src/**/*.ts."},
    "ignore_case": {"type": "boolean", "description": "Match upper and lower case alike."},
    "literal": {"type": "boolean", "description": "Take the pattern as plain text."},
    "no_ignore": {"type": "boolean", "description": "Search what .gitignore leaves out, and .git, too."},
    "max_results": {"type": "integer", "minimum": 1, "description": "How many matches to give, at most 200."}
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

type grepper struct {
	reader workspace.View
	log    *zap.Logger
}

func (g *grepper) run(ctx context.Context, in grepInput) (tools.Output, error) {
	s, err := newSearch(g.reader, in.Path, in.NoIgnore)
	if err != nil {
		return tools.Output{}, err
	}
	m := matcher{reader: g.reader, most: in.MaxResults.or(defaultMatches, maxMatches)}
	if m.re, err = in.compile(); err != nil {
		return tools.Output{}, err
	}
	m.prefix, _ = m.re.LiteralPrefix()
	if in.Glob != "" {
		glob, err := newPattern(g.reader, in.Glob)
		if err != nil {
			return tools.Output{}, err
		}
		m.glob = &glob
	}
	end, err := s.files(ctx, m.file)
	if err != nil {
		return tools.Output{}, err
	}
	g.log.Debug("grep", zap.Int("entries", end.Entries), zap.Int("matches", m.found), zap.Bool("late", end.late))
	return m.output(end), nil
}

func (in grepInput) compile() (*regexp.Regexp, error) {
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

// matcher is one grep under way.
type matcher struct {
	reader workspace.View
	re     *regexp.Regexp
	prefix string
	glob   *globPattern
	most   int

	buf   []byte
	out   strings.Builder
	found int
	files int
	more  bool
	// large and binary files were left out, and unread ones could not be read.
	large, binary, unread int
	// long lines were searched in their first part only.
	long int
}

// file searches one file. What can't be read is counted and does not end the search.
func (m *matcher) file(ctx context.Context, e workspace.Entry, name string) error {
	switch {
	case m.glob != nil && !m.glob.match(e, name):
		return nil
	case e.Type != workspace.TypeFile:
		if e.Depth == 0 {
			m.unread++
		}
		return nil
	case e.Size > grepFileBytes:
		m.large++
		return nil
	}
	if want := int(e.Size) + 1; cap(m.buf) < want {
		m.buf = make([]byte, min(2*want, grepFileBytes+1))
	}
	f, err := m.reader.ReadInto(ctx, e.Path, 0, m.buf[:cap(m.buf)])
	if err != nil {
		m.buf = nil // a call that was given up may still write to it
		if _, ok := errors.AsType[*workspace.Error](err); ok {
			m.unread++
			return nil
		}
		return err
	}
	if bytes.IndexByte(f.Data[:min(len(f.Data), sampleBytes)], 0) >= 0 {
		m.binary++
		return nil
	}
	return m.search(ctx, e.Path, f.Data)
}

func (m *matcher) search(ctx context.Context, path string, data []byte) error {
	if m.prefix != "" && !bytes.Contains(data, []byte(m.prefix)) {
		return nil
	}
	before := m.found
	unchecked := 0
	for number := 1; len(data) > 0; number++ {
		line, rest, _ := bytes.Cut(data, []byte{'\n'})
		data = rest
		if unchecked += len(line) + 1; unchecked > grepLineBytes {
			if unchecked = 0; ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
		line = bytes.TrimSuffix(line, []byte{'\r'})
		if len(line) > grepLineBytes {
			m.long++
		}
		at := m.re.FindIndex(line[:min(len(line), grepLineBytes)])
		if at == nil {
			continue
		}
		if m.found == m.most || m.out.Len() > windowBytes {
			m.more = true
			return workspace.SkipAll
		}
		if m.found == before {
			m.files++
		}
		m.found++
		fmt.Fprintf(&m.out, "%s:%d: %s\n", shown(path), number, snippet(line, at))
	}
	return nil
}

// snippet gives a line, or where that is long what is around the match.
func snippet(line []byte, at []int) string {
	if len(line) <= snippetBytes {
		return readable(line)
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
	s := readable(line[start:end])
	if start > 0 {
		s = "…" + s
	}
	if end < len(line) {
		s += "…"
	}
	return s
}

func (m *matcher) output(end outcome) tools.Output {
	out := text(m.out.String())
	if m.found == 0 {
		note(&out, "no matches")
	}
	if m.more {
		out.Truncated = true
		note(&out, fmt.Sprintf("%s shown, there are more: narrow the pattern, the path or the glob", plural(m.found, "match")))
	}
	if m.large > 0 {
		note(&out, plural(m.large, "file")+" over 8 MiB not searched; use the shell")
	}
	if m.long > 0 {
		note(&out, plural(m.long, "line")+" searched in the first 32 KiB only")
	}
	if m.unread > 0 {
		note(&out, plural(m.unread, "file")+" could not be read")
	}
	end.explain(&out)
	out.Metadata = map[string]any{"matches": m.found, "files": m.files, "binary_files": m.binary}
	return out
}
