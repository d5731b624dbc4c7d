package file

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/caisson-run/caisson/tools"
	"github.com/caisson-run/caisson/tools/workspace"
)

// searchTime bounds a search; what was found until then is the result. It is
// well below the dispatcher's 60 s for a tool that reads.
const searchTime = 20 * time.Second

// maxSearched bounds the entries that one search visits.
const maxSearched = 1_000_000

// errSearchTime is the cause of a search's end by searchTime.
var errSearchTime = errors.New("search took too long")

// search walks over the files that a glob or a grep examines.
type search struct {
	reader workspace.View
	// start is the directory or file, relative to the workspace, cleaned.
	start string
	// ignored includes what .gitignore leaves out, and .git.
	ignored bool
}

func newSearch(r workspace.View, start string, ignored bool) (*search, error) {
	if start == "" {
		start = "."
	}
	rel, err := r.Relative(start)
	if err != nil {
		return nil, err
	}
	return &search{reader: r, start: rel, ignored: ignored}, nil
}

// searchSummary is the line that people see of a search: what is looked for
// before where.
func searchSummary(raw json.RawMessage) string {
	var in struct {
		Pattern string `json:"pattern"`
		Path    string `json:"path"`
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		return ""
	}
	if in.Path == "" || in.Path == "." {
		return in.Pattern
	}
	return in.Pattern + " in " + in.Path
}

// outcome describes how a search ended.
type outcome struct {
	workspace.WalkResult
	// late reports whether it was stopped by its deadline.
	late bool
}

// run searches with o, to which it adds what all searches share.
func (s *search) run(ctx context.Context, o workspace.SearchOptions) (outcome, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, searchTime, errSearchTime)
	defer cancel()
	o.MaxEntries = maxSearched
	if !s.ignored {
		o.Rules = newIgnores(ctx, s.reader, s.start)
		o.RulesFile, o.MaxRules = ignoreFile, ignoreFileBytes
	}
	walked, err := s.reader.Search(ctx, s.start, o)
	if errors.Is(err, errSearchTime) {
		return outcome{walked, true}, nil
	}
	return outcome{walked, false}, err
}

// relativeTo returns the path of an entry relative to the start, or its last
// name if it is the start itself.
func (s *search) relativeTo(dir, name string) string {
	switch {
	case dir == s.start || dir == ".":
		return name
	case s.start == ".":
		return dir + "/" + name
	}
	rest, ok := strings.CutPrefix(dir, s.start+"/")
	if !ok {
		return name
	}
	return rest + "/" + name
}

// addNotes notes what a search did not see.
func (o outcome) addNotes(out *tools.Output) {
	if o.late {
		out.Truncated = true
		addNote(out, fmt.Sprintf("stopped after %v: name a directory below, or a narrower pattern", searchTime))
	}
	if o.Truncated {
		out.Truncated = true
		addNote(out, "the directory holds more entries than one search visits: name a directory below")
	}
	if len(o.Incomplete) > 0 {
		out.Truncated = true
		addNote(out, "not searched: "+strings.Join(shownAll(o.Incomplete), ", "))
	}
}
