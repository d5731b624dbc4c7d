package file

import (
	"context"
	"encoding/json"
	"strings"

	"go.uber.org/zap"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/workspace"
)

const maxGlobbed = 1000

func globDefinition() tools.Definition {
	return tools.Definition{
		Name: "glob",
		Description: "Finds files of the workspace by name: `*` and `?` within a name, `**` for any directories, `[a-z]`, `{go,mod}`. " +
			"A pattern without a slash is looked for in every directory, one with a slash from `path` on. Returns paths relative to " +
			"the workspace in alphabetical order, at most 1000. What .gitignore leaves out is left out, unless no_ignore is set.",
		InputSchema: json.RawMessage(`{
  "type": "object",
  "properties": {
    "pattern": {"type": "string", "minLength": 1, "description": "Such as *.go, src/**/*.{ts,tsx} or **/testdata/*.json."},
    "path": {"type": "string", "description": "The directory to search in; the workspace when left out."},
    "no_ignore": {"type": "boolean", "description": "Search what .gitignore leaves out, and .git, too."}
  },
  "required": ["pattern"],
  "additionalProperties": false
}`),
		Aliases: map[string]string{"glob": "pattern", "glob_pattern": "pattern", "dir_path": "path", "directory": "path", "dir": "path"},
		Paths:   onePath("."),
		Summary: searchSummary,
	}
}

type globInput struct {
	Pattern  string `json:"pattern"`
	Path     string `json:"path"`
	NoIgnore bool   `json:"no_ignore"`
}

func (r *readers) glob(ctx context.Context, in globInput) (tools.Output, error) {
	s, err := newSearch(r.view, in.Path, in.NoIgnore)
	if err != nil {
		return tools.Output{}, err
	}
	pattern, err := newPattern(r.view, in.Pattern)
	if err != nil {
		return tools.Output{}, err
	}
	var b strings.Builder
	found, odd, more := 0, 0, false
	end, err := s.run(ctx, workspace.SearchOptions{
		Match: func(dir, name string) bool { return pattern.match(s, dir, name) },
		Visit: func(name string, _ workspace.SearchResult) error {
			if found == maxGlobbed || b.Len() > windowBytes {
				more = true
				return workspace.SkipAll
			}
			found++
			if unnameable(name) {
				odd++
			}
			b.WriteString(shown(name) + "\n")
			return nil
		},
	})
	if err != nil {
		return tools.Output{}, err
	}
	r.log.Debug("glob", zap.Int("entries", end.Entries), zap.Int("found", found), zap.Bool("late", end.late))
	out := textOutput(b.String())
	if found == 0 {
		addNote(&out, "no files match")
	}
	if more {
		out.Truncated = true
		addNote(&out, limits.FormatCount(found, "file")+" shown, there are more: narrow the pattern or the path")
	}
	end.addNotes(&out)
	noteNames(&out, odd)
	out.Metadata = map[string]any{"files": found}
	return out, nil
}
