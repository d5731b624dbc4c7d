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

// searchTime bounds a search, which then returns what it found. It is well below
// the dispatcher's 60 s for a read tool.
const searchTime = 20 * time.Second

const maxSearched = 1_000_000

var errSearchTime = errors.New("search took too long")

// search finds the files for a glob or grep.
type search struct {
	reader workspace.View
	// start is a cleaned path relative to the workspace.
	start   string
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

// searchSummary returns the pattern and, unless it is the workspace, the path.
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

type outcome struct {
	workspace.SearchSummary
	late bool
}

// run searches with o and the options that all searches share.
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

// relativeTo returns an entry's path relative to start, or its name if it is start.
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

// addNotes adds notes about what was not searched.
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
